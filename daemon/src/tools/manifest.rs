//! One manifest: TOML text in, a checked [`ToolDef`] out, or an error that says where, what and what to do.
//!
//! ```text
//! text ─▶ toml ─▶ Document (every key with its place) ─▶ checks across keys ─▶ ToolDef + warnings
//!           └───────────────┴── error ──▶ ManifestError {line, column, key, message}
//! ```
//!
//! The keys are described in `docs/TOOLS.md`.

mod place;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;
use toml::Spanned;
use toolcell_protocol::id::check_tool_name;

use super::schema::Schema;
use super::template::{CommandTemplate, Element, StdinSource, is_identifier, placeholder};
use super::{
    DEFAULT_TIMEOUT_MS, Hints, Limits, OutputKind, RunAs, Runner, Source, ToolDef, ToolEnv, ToolKind, nearest,
};
use place::Place;

/// Largest manifest.
pub const MAX_MANIFEST_BYTES: usize = 256 * 1024;

/// Longest description; it travels with every request to a model.
pub const MAX_DESCRIPTION_BYTES: usize = 16 * 1024;

/// What is wrong with a manifest, and where.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{line}:{column}: {}{message}", key.as_ref().map(|key| format!("{key}: ")).unwrap_or_default())]
pub struct ManifestError {
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    /// The key, with dots, like `limits.cpu_ms`; `None` when the text is not TOML at that place.
    pub key: Option<String>,
    /// What is wrong, what was expected, what to do.
    pub message: String,
}

/// A manifest that was read.
#[derive(Debug)]
pub struct Parsed {
    /// The tool.
    pub tool: ToolDef,
    /// What works, and is most likely not what was meant.
    pub warnings: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    name: Spanned<String>,
    description: Spanned<String>,
    input_schema: Option<Spanned<toml::Value>>,
    command: Spanned<Vec<Spanned<String>>>,
    stdin: Option<Spanned<String>>,
    #[serde(default)]
    output: OutputKind,
    #[serde(default)]
    kind: ToolKind,
    #[serde(default)]
    read_only: bool,
    destructive: Option<Spanned<bool>>,
    #[serde(default)]
    idempotent: bool,
    open_world: Option<bool>,
    #[serde(default)]
    immune: bool,
    #[serde(default)]
    exclusive: bool,
    #[serde(default)]
    poll: bool,
    #[serde(default)]
    edits: Vec<Spanned<String>>,
    timeout_ms: Option<Spanned<u64>>,
    idle_timeout_ms: Option<Spanned<u64>>,
    kill_grace_ms: Option<u64>,
    #[serde(default)]
    limits: LimitsTable,
    #[serde(default)]
    env: EnvTable,
    cwd: Option<Spanned<String>>,
    umask: Option<Spanned<String>>,
    for_model_bytes: Option<Spanned<u64>>,
    spool_bytes: Option<u64>,
    run_as: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsTable {
    cpu_ms: Option<Spanned<u64>>,
    fsize_bytes: Option<u64>,
    nofile: Option<Spanned<u64>>,
    core_bytes: Option<u64>,
    stack_bytes: Option<Spanned<u64>>,
    memlock_bytes: Option<u64>,
    as_bytes: Option<Spanned<u64>>,
    nproc: Option<Spanned<u64>>,
    output_bytes: Option<Spanned<u64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvTable {
    #[serde(default)]
    set: BTreeMap<Spanned<String>, Spanned<String>>,
    #[serde(default)]
    inherit: Vec<Spanned<String>>,
}

/// Reads a manifest. `path` becomes the tool's [`Source`].
///
/// # Errors
/// [`ManifestError`] for the first thing that is wrong.
pub fn parse(text: &str, path: PathBuf) -> Result<Parsed, ManifestError> {
    let place = Place::new(text);
    let document: Document = toml::from_str(text).map_err(|error| place.of_toml_error(&error))?;
    Check { place, warnings: Vec::new() }.tool(document, path)
}

/// The name that a manifest gives its tool, also when something else in it is wrong; `None` if it is not TOML.
#[must_use]
pub fn name_in(text: &str) -> Option<String> {
    let table = toml::de::DeTable::parse(text).ok()?;
    table.get_ref().get("name")?.get_ref().as_str().map(str::to_owned)
}

/// The checks across keys.
struct Check<'a> {
    place: Place<'a>,
    warnings: Vec<String>,
}

impl Check<'_> {
    fn tool(mut self, document: Document, path: PathBuf) -> Result<Parsed, ManifestError> {
        self.name_and_description(&document)?;
        let schema = self.schema(document.input_schema.as_ref())?;
        let runner = Runner::Command(self.command(&document.command, document.stdin.as_ref(), &schema)?);
        let hints = self.hints(&document)?;
        for name in &document.edits {
            self.must_be_declared(name, name.get_ref(), &schema)?;
        }
        let limits = self.limits(&document.limits)?;
        for (value, key) in
            [(&document.timeout_ms, "timeout_ms"), (&document.idle_timeout_ms, "idle_timeout_ms")]
        {
            self.at_least(value.as_ref(), 1, &format!("a {key} of 0 would end every call before it starts"))?;
        }
        self.at_least(document.for_model_bytes.as_ref(), 256, "the model must be shown at least 256 bytes")?;
        let env = self.env(document.env)?;
        let umask = document.umask.map(|umask| self.umask(&umask)).transpose()?;
        let run_as = document.run_as.map(|run_as| self.run_as(&run_as)).transpose()?;
        if let Some(cwd) = &document.cwd
            && (cwd.get_ref().is_empty() || cwd.get_ref().contains('\0'))
        {
            return Err(self
                .place
                .error(cwd, "expected a directory; leave the key out for the session's own"));
        }
        self.warnings.extend(schema.provider_warnings());
        let tool = ToolDef {
            name: document.name.into_inner(),
            description: document.description.into_inner(),
            schema,
            runner,
            output: document.output,
            kind: document.kind,
            hints,
            immune: document.immune,
            exclusive: document.exclusive,
            poll: document.poll,
            edits: document.edits.into_iter().map(Spanned::into_inner).collect(),
            timeout_ms: document.timeout_ms.map_or(DEFAULT_TIMEOUT_MS, Spanned::into_inner),
            timeout_arg: None,
            idle_timeout_ms: document.idle_timeout_ms.map(Spanned::into_inner),
            kill_grace_ms: document.kill_grace_ms,
            limits,
            env,
            cwd: document.cwd.map(Spanned::into_inner),
            umask,
            for_model_bytes: document.for_model_bytes.map(Spanned::into_inner),
            spool_bytes: document.spool_bytes,
            run_as,
            source: Source::Manifest(path),
        };
        Ok(Parsed { tool, warnings: self.warnings })
    }

    fn name_and_description(&mut self, document: &Document) -> Result<(), ManifestError> {
        check_tool_name(document.name.get_ref())
            .map_err(|error| self.place.error(&document.name, &format!("{error}; choose another name")))?;
        let description = document.description.get_ref();
        if description.trim().is_empty() {
            let message = "is empty; say in a sentence what the tool does, since the model chooses by it";
            return Err(self.place.error(&document.description, message));
        }
        if description.len() > MAX_DESCRIPTION_BYTES {
            let message =
                format!("has {} bytes; at most {MAX_DESCRIPTION_BYTES} are allowed", description.len());
            return Err(self.place.error(&document.description, &message));
        }
        if description.chars().count() > 1024 {
            self.warnings
                .push("description has more than 1024 characters, which some providers refuse".to_owned());
        }
        Ok(())
    }

    fn schema(&self, given: Option<&Spanned<toml::Value>>) -> Result<Schema, ManifestError> {
        let Some(given) = given else {
            let none = serde_json::json!({"type": "object", "properties": {}, "additionalProperties": false});
            return Schema::compile(none).map_err(|error| self.place.error_at_start("input_schema", &error));
        };
        let value = match given.get_ref() {
            toml::Value::String(text) => serde_json::from_str(text).map_err(|error| {
                self.place
                    .error(given, &format!("the string is not JSON: {error}; correct it, or write a table"))
            })?,
            toml::Value::Table(table) => {
                json_of_table(table).map_err(|message| self.place.error(given, &message))?
            }
            other => {
                let message =
                    format!("expected a table or a string of JSON text, found a TOML {}", other.type_str());
                return Err(self.place.error(given, &message));
            }
        };
        Schema::compile(value).map_err(|error| self.place.error(given, &error.to_string()))
    }

    fn command(
        &mut self,
        command: &Spanned<Vec<Spanned<String>>>,
        stdin: Option<&Spanned<String>>,
        schema: &Schema,
    ) -> Result<CommandTemplate, ManifestError> {
        let Some(program) = command.get_ref().first() else {
            let message = "is an empty list; expected the program and its arguments, like [\"sort\", \"-r\"]";
            return Err(self.place.error(command, message));
        };
        if program.get_ref().is_empty()
            || matches!(Element::parse(program.get_ref()), Element::Placeholder(_))
        {
            let message = "the first element must be a program, by name or absolute path, and not a placeholder: \
                           arguments must never choose the program";
            return Err(self.place.error(program, message));
        }
        let mut previous: Option<&str> = None;
        for element in command.get_ref() {
            let text = element.get_ref();
            if text.contains('\0') {
                return Err(self.place.error(element, "has a NUL byte, which no program can get; remove it"));
            }
            if let Element::Placeholder(name) = Element::parse(text) {
                self.must_be_declared(element, &name, schema)?;
                let may_be_absent = !schema.is_required(&name)
                    && schema.property(&name).is_none_or(|property| property.get("default").is_none());
                if let Some(option) = previous.filter(|option| may_be_absent && is_option(option)) {
                    self.warnings.push(format!(
                        "command: {option:?} stays without a value when {name:?} is absent; make it required, or \
                         give it a default"
                    ));
                }
            } else if let Some(name) = inner_placeholder(text, schema) {
                self.warnings.push(format!(
                    "command: {{{name}}} inside {text:?} is literal; only a whole element is filled, so write it \
                     as an element of its own"
                ));
            }
            previous = Some(text);
        }
        let stdin = match stdin {
            None => StdinSource::None,
            Some(given) => match given.get_ref().as_str() {
                "none" => StdinSource::None,
                "json" => StdinSource::Json,
                other => match placeholder(other) {
                    Some(name) => {
                        self.must_be_declared(given, name, schema)?;
                        StdinSource::Argument(name.to_owned())
                    }
                    None => {
                        let message =
                            format!("expected \"none\", \"json\" or \"{{argument}}\", found {other:?}");
                        return Err(self.place.error(given, &message));
                    }
                },
            },
        };
        let words: Vec<String> = command.get_ref().iter().map(|element| element.get_ref().clone()).collect();
        let template = CommandTemplate::new(words, stdin, schema.defaults());
        if *template.stdin() != StdinSource::Json {
            let used: Vec<&str> = template.placeholders().collect();
            for name in schema.property_names().filter(|name| !used.contains(name)) {
                self.warnings.push(format!(
                    "the tool never gets its argument {name:?}: neither command nor stdin has {{{name}}}"
                ));
            }
        }
        Ok(template)
    }

    fn must_be_declared<T>(&self, at: &Spanned<T>, name: &str, schema: &Schema) -> Result<(), ManifestError> {
        if schema.property(name).is_some() {
            return Ok(());
        }
        let near = nearest::nearest(name, schema.property_names());
        let proposal = match near.first() {
            Some(near) => format!("did you mean {near:?}?"),
            None if is_identifier(name) => format!(
                "declare it in input_schema.properties, or write {{{{{name}}}}} if the braces are meant literally"
            ),
            None => "declare it in input_schema.properties".to_owned(),
        };
        Err(self.place.error(at, &format!("the schema has no property {name:?}; {proposal}")))
    }

    fn hints(&self, document: &Document) -> Result<Hints, ManifestError> {
        if let Some(destructive) = &document.destructive
            && *destructive.get_ref()
            && document.read_only
        {
            let message = "a tool that is read_only cannot be destructive; remove one of the two";
            return Err(self.place.error(destructive, message));
        }
        Ok(Hints {
            read_only: document.read_only,
            destructive: document.destructive.as_ref().map_or(!document.read_only, |value| *value.get_ref()),
            idempotent: document.idempotent,
            open_world: document.open_world.unwrap_or(true),
        })
    }

    fn at_least(&self, value: Option<&Spanned<u64>>, least: u64, why: &str) -> Result<(), ManifestError> {
        match value {
            Some(value) if *value.get_ref() < least => {
                let message = format!("is {}, expected {least} or more: {why}", value.get_ref());
                Err(self.place.error(value, &message))
            }
            _ => Ok(()),
        }
    }

    fn limits(&self, table: &LimitsTable) -> Result<Limits, ManifestError> {
        self.at_least(table.cpu_ms.as_ref(), 1, "no program ends without any CPU time")?;
        self.at_least(table.nofile.as_ref(), 8, "a program needs its standard streams and its libraries")?;
        self.at_least(table.stack_bytes.as_ref(), 64 * 1024, "exec itself fails with less stack")?;
        self.at_least(table.as_bytes.as_ref(), 1024 * 1024, "no program can be loaded into less")?;
        self.at_least(table.nproc.as_ref(), 1, "the tool itself is a process")?;
        self.at_least(table.output_bytes.as_ref(), 1, "leave the key out if output is not to be limited")?;
        let plain = |value: &Option<Spanned<u64>>| value.as_ref().map(|value| *value.get_ref());
        Ok(Limits {
            cpu_ms: plain(&table.cpu_ms),
            fsize_bytes: table.fsize_bytes,
            nofile: plain(&table.nofile),
            core_bytes: table.core_bytes,
            stack_bytes: plain(&table.stack_bytes),
            memlock_bytes: table.memlock_bytes,
            as_bytes: plain(&table.as_bytes),
            nproc: plain(&table.nproc),
            output_bytes: plain(&table.output_bytes),
        })
    }

    fn env(&mut self, table: EnvTable) -> Result<ToolEnv, ManifestError> {
        for name in table.set.keys().chain(&table.inherit) {
            let text = name.get_ref();
            if text.is_empty() || text.contains(['=', '\0']) {
                let message =
                    format!("{text:?} is not the name of a variable: it must not be empty nor hold '='");
                return Err(self.place.error(name, &message));
            }
        }
        for name in
            table.inherit.iter().map(Spanned::get_ref).filter(|name| table.set.contains_key(name.as_str()))
        {
            self.warnings.push(format!("env: {name} is both set and inherited; the set value is used"));
        }
        if let Some(value) = table.set.values().find(|value| value.get_ref().contains('\0')) {
            return Err(self.place.error(value, "has a NUL byte, which no variable can hold; remove it"));
        }
        let set =
            table.set.into_iter().map(|(name, value)| (name.into_inner(), value.into_inner())).collect();
        Ok(ToolEnv { set, inherit: table.inherit.into_iter().map(Spanned::into_inner).collect() })
    }

    fn umask(&self, given: &Spanned<String>) -> Result<u32, ManifestError> {
        let text = given.get_ref();
        let digits = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        match u32::from_str_radix(text, 8) {
            Ok(mask) if digits && mask <= 0o777 => Ok(mask),
            _ => {
                let message = format!("expected octal digits in a string, like \"022\", found {text:?}");
                Err(self.place.error(given, &message))
            }
        }
    }

    fn run_as(&self, given: &Spanned<String>) -> Result<RunAs, ManifestError> {
        let text = given.get_ref();
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text.as_str(), None),
        };
        let is_name = |name: &str| {
            !name.is_empty()
                && name.len() <= 256
                && !name.contains(|c: char| c.is_whitespace() || ":/\0".contains(c))
        };
        if !is_name(user) || !group.is_none_or(is_name) {
            let message = format!("expected \"user\" or \"user:group\", names or numbers, found {text:?}");
            return Err(self.place.error(given, &message));
        }
        Ok(RunAs { user: user.to_owned(), group: group.map(str::to_owned) })
    }
}

/// Something like `-n` or `--count`, which takes the next element as its value.
fn is_option(text: &str) -> bool {
    text.len() > 1 && text.starts_with('-') && text != "--"
}

/// A declared property in braces that is only a part of an element; not `${name}`, which is a shell's variable.
fn inner_placeholder<'a>(text: &str, schema: &'a Schema) -> Option<&'a str> {
    if text.starts_with("{{") {
        return None;
    }
    schema.property_names().find(|name| {
        let pattern = format!("{{{name}}}");
        text.match_indices(&pattern).any(|(at, _)| !text[..at].ends_with('$'))
    })
}

fn json_of_table(table: &toml::Table) -> Result<Value, String> {
    let entries = table.iter().map(|(key, value)| Ok((key.clone(), json_of(value)?)));
    entries.collect::<Result<Map<_, _>, String>>().map(Value::Object)
}

fn json_of(value: &toml::Value) -> Result<Value, String> {
    Ok(match value {
        toml::Value::String(text) => Value::from(text.as_str()),
        toml::Value::Integer(number) => Value::from(*number),
        toml::Value::Float(number) => {
            let number = serde_json::Number::from_f64(*number);
            Value::Number(number.ok_or("JSON has no infinite numbers and no NaN; write another number")?)
        }
        toml::Value::Boolean(flag) => Value::from(*flag),
        toml::Value::Datetime(date) => {
            return Err(format!("JSON has no dates; write {date} as a string, in quotes"));
        }
        toml::Value::Array(items) => Value::Array(items.iter().map(json_of).collect::<Result<_, _>>()?),
        toml::Value::Table(table) => json_of_table(table)?,
    })
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
