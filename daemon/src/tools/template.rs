//! Command templates: from valid arguments to argv and standard input.
//!
//! The rule that keeps injection out: a placeholder is one *whole* element of the list, and its value becomes
//! exactly one element of argv (or none, when it is absent). No text is ever put together.
//!
//! * `{name}` alone in an element is a placeholder.
//! * `{{name}}` is the literal `{name}`; each further pair of braces loses one as well.
//! * Everything else, also `--file={name}`, is literal.

use serde_json::{Map, Value};
use toolcell_protocol::worker_api::Action;

use super::ArgsProblem;
use super::schema::pointer_to;

/// The longest single argument that Linux takes in an exec (`MAX_ARG_STRLEN` less the NUL byte).
pub const MAX_ARGUMENT_BYTES: usize = 128 * 1024 - 1;

/// One element of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    /// As it is.
    Literal(String),
    /// The value of the argument of this name.
    Placeholder(String),
}

impl Element {
    /// Reads one element of a manifest's `command`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if let Some(name) = placeholder(text) {
            return Self::Placeholder(name.to_owned());
        }
        let inner = text.trim_start_matches('{').trim_end_matches('}');
        let opening = text.len() - text.trim_start_matches('{').len();
        let closing = text.len() - text.trim_end_matches('}').len();
        if opening >= 2 && opening == closing && is_identifier(inner) {
            return Self::Literal(text[1..text.len() - 1].to_owned());
        }
        Self::Literal(text.to_owned())
    }
}

/// The name in a text that is exactly `{name}`.
#[must_use]
pub fn placeholder(text: &str) -> Option<&str> {
    let name = text.strip_prefix('{')?.strip_suffix('}')?;
    is_identifier(name).then_some(name)
}

/// Letters, digits, `_` and `-`, not beginning with a digit or `-`: what the name of a placeholder may be.
#[must_use]
pub fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

/// What a program reads from standard input.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StdinSource {
    /// `/dev/null`.
    #[default]
    None,
    /// All arguments: one line of JSON.
    Json,
    /// The value of one argument, byte for byte; `/dev/null` when it is absent.
    Argument(String),
}

/// A tool's command, ready to be filled.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandTemplate {
    source: Vec<String>,
    elements: Vec<Element>,
    stdin: StdinSource,
    defaults: Map<String, Value>,
}

impl CommandTemplate {
    /// Reads a command. `defaults` are values for placeholders whose argument is absent (the schema's
    /// `default`s).
    #[must_use]
    pub fn new(command: Vec<String>, stdin: StdinSource, defaults: Map<String, Value>) -> Self {
        let elements = command.iter().map(|text| Element::parse(text)).collect();
        Self { source: command, elements, stdin, defaults }
    }

    /// The command as the manifest has it.
    #[must_use]
    pub fn source(&self) -> &[String] {
        &self.source
    }

    /// The command, read.
    #[must_use]
    pub fn elements(&self) -> &[Element] {
        &self.elements
    }

    /// What the program reads from standard input.
    #[must_use]
    pub const fn stdin(&self) -> &StdinSource {
        &self.stdin
    }

    /// Names of the arguments that the command or standard input uses one by one, in order, with repeats.
    pub fn placeholders(&self) -> impl Iterator<Item = &str> {
        let stdin = match &self.stdin {
            StdinSource::Argument(name) => Some(name.as_str()),
            StdinSource::None | StdinSource::Json => None,
        };
        self.elements
            .iter()
            .filter_map(|element| match element {
                Element::Placeholder(name) => Some(name.as_str()),
                Element::Literal(_) => None,
            })
            .chain(stdin)
    }

    /// Fills in the arguments.
    ///
    /// # Errors
    /// [`ArgsProblem`] that names the argument with a NUL byte or one that is too long for an exec.
    pub fn fill(&self, args: &Value) -> Result<Action, ArgsProblem> {
        let mut argv = Vec::with_capacity(self.elements.len());
        for element in &self.elements {
            match element {
                Element::Literal(text) => argv.push(text.clone().into_bytes().into()),
                Element::Placeholder(name) => {
                    if let Some(value) = self.value(args, name) {
                        argv.push(argument(name, value)?.into_bytes().into());
                    }
                }
            }
        }
        let stdin = match &self.stdin {
            StdinSource::None => None,
            StdinSource::Json => {
                // A line, so that `read` in a shell and line readers everywhere see its end.
                let mut text = args.to_string();
                text.push('\n');
                Some(text.into_bytes().into())
            }
            StdinSource::Argument(name) => {
                self.value(args, name).map(|value| text_of(value).into_bytes().into())
            }
        };
        Ok(Action::Exec { argv, stdin })
    }

    /// The value of an argument, or its default. Null is as good as absent: models send it for "not given".
    fn value<'a>(&'a self, args: &'a Value, name: &str) -> Option<&'a Value> {
        args.get(name)
            .filter(|value| !value.is_null())
            .or_else(|| self.defaults.get(name))
            .filter(|value| !value.is_null())
    }
}

fn argument(name: &str, value: &Value) -> Result<String, ArgsProblem> {
    let text = text_of(value);
    let problem = |what: String| ArgsProblem {
        field: Some(pointer_to(name)),
        message: format!("{} {what}", pointer_to(name)),
    };
    if let Some(at) = text.bytes().position(|byte| byte == 0) {
        return Err(problem(format!(
            "has a NUL byte at offset {at}; an argument of a program cannot hold one. Send it without."
        )));
    }
    if text.len() > MAX_ARGUMENT_BYTES {
        return Err(problem(format!(
            "has {} bytes; one argument of a program can hold {MAX_ARGUMENT_BYTES}. Put the data into a file \
             and name the file, or send less.",
            text.len()
        )));
    }
    Ok(text)
}

/// A string as it is, everything else as JSON text.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn template(command: &[&str], stdin: StdinSource) -> CommandTemplate {
        CommandTemplate::new(command.iter().map(|s| (*s).to_owned()).collect(), stdin, Map::new())
    }

    fn filled(template: &CommandTemplate, args: &Value) -> (Vec<String>, Option<String>) {
        match template.fill(args).expect("fills") {
            Action::Exec { argv, stdin } => (
                argv.into_iter().map(|blob| String::from_utf8(blob.0).expect("text")).collect(),
                stdin.map(|blob| String::from_utf8(blob.0).expect("text")),
            ),
            Action::Builtin { .. } => panic!("a command is never a built-in"),
        }
    }

    #[test]
    fn a_value_becomes_exactly_one_argument_whatever_it_holds() {
        let grep = template(&["grep", "--", "{pattern}", "{path}"], StdinSource::None);
        let args = json!({"pattern": "a b'\"; rm -rf / $(x) `y` {path}", "path": "-e"});
        let (argv, stdin) = filled(&grep, &args);
        assert_eq!(argv, ["grep", "--", "a b'\"; rm -rf / $(x) `y` {path}", "-e"]);
        assert_eq!(stdin, None);
    }

    #[test]
    fn numbers_booleans_and_lists_are_given_as_json_text() {
        let tool = template(&["t", "{n}", "{f}", "{b}", "{list}", "{object}"], StdinSource::None);
        let args = json!({"n": 5, "f": 1.5, "b": true, "list": ["a b", 1], "object": {"k": null}});
        assert_eq!(filled(&tool, &args).0, ["t", "5", "1.5", "true", r#"["a b",1]"#, r#"{"k":null}"#]);
    }

    #[test]
    fn an_absent_or_null_argument_is_left_out_and_a_default_stands_in_for_it() {
        let tool = template(&["t", "{a}", "{b}", "end"], StdinSource::Argument("c".into()));
        assert_eq!(filled(&tool, &json!({"b": null})), (vec!["t".into(), "end".into()], None));
        let defaults = json!({"a": 20, "c": "text"}).as_object().cloned().expect("object");
        let tool = CommandTemplate { defaults, ..tool };
        assert_eq!(
            filled(&tool, &json!({"b": ""})),
            (vec!["t".into(), "20".into(), String::new(), "end".into()], Some("text".into()))
        );
    }

    #[test]
    fn only_a_whole_element_in_single_braces_is_a_placeholder() {
        for text in
            ["{}", "{1}", "{a b}", "--x={a}", "{a}{b}", "${a}", " {a}", "{a", "a}", "{{}}", "{-a}", ""]
        {
            assert_eq!(Element::parse(text), Element::Literal(text.to_owned()));
        }
        assert_eq!(Element::parse("{max-count_2}"), Element::Placeholder("max-count_2".to_owned()));
    }

    #[test]
    fn double_braces_write_a_literal_in_braces() {
        assert_eq!(Element::parse("{{print}}"), Element::Literal("{print}".to_owned()));
        assert_eq!(Element::parse("{{{print}}}"), Element::Literal("{{print}}".to_owned()));
        assert_eq!(Element::parse("{{print}"), Element::Literal("{{print}".to_owned()));
    }

    #[test]
    fn standard_input_is_one_line_of_json_or_one_argument_byte_for_byte() {
        let args = json!({"b": 1, "a": "x\ny"});
        let all = template(&["cat"], StdinSource::Json);
        assert_eq!(filled(&all, &args).1.as_deref(), Some("{\"a\":\"x\\ny\",\"b\":1}\n"));
        let one = template(&["cat"], StdinSource::Argument("a".to_owned()));
        assert_eq!(filled(&one, &args).1.as_deref(), Some("x\ny"));
    }

    #[test]
    fn a_nul_byte_is_refused_in_an_argument_and_fine_on_standard_input() {
        let tool = template(&["t", "{a/b}", "{text}"], StdinSource::Argument("text".to_owned()));
        let problem = tool.fill(&json!({"text": "ab\0"})).expect_err("no program can get this");
        assert_eq!(problem.field.as_deref(), Some("/text"));
        assert!(problem.message.contains("NUL byte at offset 2"), "{}", problem.message);
        let tool = template(&["t"], StdinSource::Argument("text".to_owned()));
        assert_eq!(filled(&tool, &json!({"text": "ab\0"})).1.as_deref(), Some("ab\0"));
    }

    #[test]
    fn an_argument_that_no_exec_takes_is_refused_with_its_name() {
        let tool = template(&["t", "{text}"], StdinSource::None);
        assert!(tool.fill(&json!({"text": "x".repeat(MAX_ARGUMENT_BYTES)})).is_ok());
        let problem = tool.fill(&json!({"text": "x".repeat(MAX_ARGUMENT_BYTES + 1)})).expect_err("too long");
        assert_eq!(problem.field.as_deref(), Some("/text"));
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "\\PC{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-e]", inner, 0..3)
                    .prop_map(|map| Value::from(map.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    proptest! {
        #[test]
        fn literals_stay_in_place_and_no_value_makes_more_than_one_element(
            command in prop::collection::vec(prop_oneof!["\\{[a-e]\\}", "\\PC{0,12}"], 1..8),
            args in prop::collection::btree_map("[a-e]", json_value(), 0..6),
        ) {
            let args = Value::from(args.into_iter().collect::<Map<_, _>>());
            let template = CommandTemplate::new(command.clone(), StdinSource::None, Map::new());
            let Action::Exec { argv, .. } = template.fill(&args).expect("no NUL, nothing long") else {
                panic!("a command is never a built-in");
            };
            let expected: Vec<Vec<u8>> = template.elements().iter().filter_map(|element| match element {
                Element::Literal(text) => Some(text.clone().into_bytes()),
                Element::Placeholder(name) => args.get(name).filter(|v| !v.is_null()).map(|v| match v {
                    Value::String(text) => text.clone().into_bytes(),
                    other => other.to_string().into_bytes(),
                }),
            }).collect();
            prop_assert!(argv.len() <= command.len());
            prop_assert_eq!(argv.into_iter().map(|blob| blob.0).collect::<Vec<_>>(), expected);
        }
    }
}
