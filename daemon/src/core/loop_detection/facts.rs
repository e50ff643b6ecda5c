//! What the detectors know of a call before it runs: fingerprints and a few yes-or-no facts, never the arguments.

use std::borrow::Cow;

use serde_json::Value;

use super::args;
use super::classic::calls;
use super::digest::Fingerprint;
use super::edits::{self, Edit, EditBody};
use super::shell;
pub use crate::tools::ToolKind;

/// What is declared about a tool. What is not declared is guessed from the tool's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolTraits {
    /// What it is for.
    pub kind: Option<ToolKind>,
    /// Whether repeating a call unchanged is its normal use.
    pub poll: Option<bool>,
    /// Which arguments name files that it edits.
    pub edits: Vec<String>,
    /// Argument keys that ask for nothing.
    pub volatile: Vec<String>,
}

/// What is wrong with the arguments themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// `{}`, null or an empty text. Wrong only if the call then fails.
    Empty,
    /// Not a JSON object. Wrong only if the call then fails.
    Unreadable,
    /// No call at all could be read from the model's message.
    NoCall,
}

/// Facts about one call.
#[derive(Debug, Clone)]
pub struct CallFacts {
    /// The caller's id.
    pub call_id: Box<str>,
    /// The tool as the caller wrote it.
    pub tool: Box<str>,
    /// Run inside the session, if the caller tells runs apart.
    pub run: Option<Fingerprint>,
    /// Classic: normalised tool name.
    pub classic_tool: Fingerprint,
    /// Classic: tool and arguments.
    pub signature: Fingerprint,
    /// Classic: a known poll call.
    pub classic_poll: bool,
    /// Progress: the tool.
    pub tool_key: Fingerprint,
    /// Progress: tool and normalised arguments.
    pub key: Fingerprint,
    /// Runs shell commands: errors are looked for in its output.
    pub shell: bool,
    /// Declared poller.
    pub poll: bool,
    /// A search, listing or test run: its failure is an answer.
    pub check: bool,
    /// If it succeeds, something is different from before.
    pub changes: bool,
    /// Does nothing but write a file anew.
    pub rewrites: bool,
    /// Puts files back to a stored state (`git checkout`): what was put in before is no measure any more.
    pub restores: bool,
    /// What is wrong with the arguments.
    pub malformed: Option<Malformed>,
    /// The caller says that a failure is what it expects.
    pub failure_expected: bool,
    /// Files it edits if it succeeds.
    pub edits: Vec<Edit>,
    /// Time since the session began, if the caller counts it.
    pub elapsed_ms: Option<u64>,
    /// The call as a message shows it: tool and the beginning of its arguments.
    pub shown: Box<str>,
}

/// Characters of arguments in a message.
const SHOWN: usize = 100;

/// What the model's message could not be parsed into stands under names of this form in recorded runs.
fn is_pseudo_tool(tool: &str) -> bool {
    tool.is_empty() || (tool.starts_with('<') && tool.ends_with('>'))
}

impl CallFacts {
    /// Reads the facts of a call. `volatile` are the configured volatile keys, `cwd` makes relative paths absolute.
    #[must_use]
    pub fn new(
        call_id: &str,
        tool: &str,
        args: &Value,
        traits: &ToolTraits,
        volatile: &[String],
        cwd: Option<&str>,
    ) -> Self {
        let name = calls::normal_name(tool);
        let mut facts = Self {
            call_id: call_id.into(),
            tool: tool.into(),
            run: None,
            classic_tool: Fingerprint::of(&name),
            signature: args::signature(&name, args),
            classic_poll: calls::is_known_poll(&name, args),
            tool_key: Fingerprint::of(tool.trim()),
            key: if traits.volatile.is_empty() {
                args::key(tool.trim(), args, volatile)
            } else {
                args::key(tool.trim(), args, &[volatile, &traits.volatile].concat())
            },
            shell: false,
            poll: traits.poll.unwrap_or_else(|| calls::is_known_poll(&name, args)),
            check: false,
            changes: false,
            rewrites: false,
            restores: false,
            malformed: malformed(tool, args),
            failure_expected: false,
            edits: Vec::new(),
            elapsed_ms: None,
            shown: shown(tool, args),
        };
        facts.read_kind(tool, args, traits, cwd);
        facts
    }

    /// The call belongs to this run of the session: it is compared with calls of the same run only.
    #[must_use]
    pub fn in_run(mut self, run: Option<Fingerprint>) -> Self {
        if let Some(run) = run {
            self.key = self.key.with(run);
            self.tool_key = self.tool_key.with(run);
        }
        self.run = run;
        self
    }

    fn read_kind(&mut self, tool: &str, args: &Value, traits: &ToolTraits, cwd: Option<&str>) {
        match traits.kind.unwrap_or_else(|| guess_kind(tool, args, traits)) {
            ToolKind::Read | ToolKind::Think | ToolKind::Fetch => {}
            ToolKind::Search => self.check = true,
            ToolKind::Execute => self.read_command(args, cwd),
            ToolKind::Edit | ToolKind::Delete | ToolKind::Move => {
                if edits::does_edit(args) {
                    self.changes = true;
                    edits::of_arguments(args, &traits.edits, cwd, &mut self.edits);
                    self.rewrites = self.edits.len() == 1 && matches!(self.edits[0].body, EditBody::Whole(_));
                }
            }
            ToolKind::Other => {
                self.changes = true;
                if !traits.edits.is_empty() {
                    edits::of_arguments(args, &traits.edits, cwd, &mut self.edits);
                }
            }
        }
    }

    fn read_command(&mut self, args: &Value, cwd: Option<&str>) {
        self.shell = true;
        let Some(command) = command_text(args) else {
            // SQL and code: what is asked for stands at the front of the text.
            let query = ["query", "sql", "code"].iter().find_map(|key| args.get(key)?.as_str());
            self.changes =
                query.is_none_or(|text| text.split_whitespace().next().is_some_and(shell::is_sql_change));
            return;
        };
        let facts = shell::read(command);
        self.check = facts.check;
        self.changes = facts.changes;
        self.restores = facts.restores;
        let alone = facts.commands == 1;
        edits::of_shell(facts, cwd, &mut self.edits);
        self.rewrites = alone && self.edits.len() == 1 && matches!(self.edits[0].body, EditBody::Whole(_));
    }
}

/// The command line in the arguments: a text, or a list whose last item is the script (`["bash", "-lc", script]`).
fn command_text(args: &Value) -> Option<&str> {
    match args.get("command").or_else(|| args.get("cmd"))? {
        Value::String(text) => Some(text),
        Value::Array(items) => items.last()?.as_str(),
        _ => None,
    }
}

fn malformed(tool: &str, args: &Value) -> Option<Malformed> {
    match args {
        _ if is_pseudo_tool(tool) => Some(Malformed::NoCall),
        Value::Object(map) if map.is_empty() => Some(Malformed::Empty),
        Value::Null => Some(Malformed::Empty),
        Value::String(text) if text.trim().is_empty() => Some(Malformed::Empty),
        Value::Object(_) => None,
        _ => Some(Malformed::Unreadable),
    }
}

const SHELLS: &[&str] = &[
    "bash",
    "exec",
    "sh",
    "shell",
    "terminal",
    "run_command",
    "execute_bash",
    "run_shell_command",
    "exec_command",
    "execute_command",
    "run_terminal_cmd",
    "local_shell",
];
const READERS: &[&str] = &[
    "get",
    "list",
    "search",
    "read",
    "view",
    "find",
    "discover",
    "fetch",
    "query",
    "describe",
    "retrieve",
    "grep",
    "glob",
    "ls",
    "cat",
    "show",
    "lookup",
    "think",
    "open",
    "web",
    "websearch",
    "webfetch",
    "check",
    "calculate",
    "screenshot",
];

fn guess_kind(tool: &str, args: &Value, traits: &ToolTraits) -> ToolKind {
    let name = tool.trim().to_ascii_lowercase();
    let name = name.rsplit("__").next().unwrap_or(&name);
    if !traits.edits.is_empty() || edits::is_edit_name(name) {
        return ToolKind::Edit;
    }
    if SHELLS.contains(&name) || name.contains("sql") || name.contains("bash") {
        return ToolKind::Execute;
    }
    if name.contains("think") {
        return ToolKind::Think;
    }
    let first = name.split(['_', '-', '.', ' ']).next().unwrap_or(name);
    match first {
        "grep" | "glob" | "search" | "find" | "ls" | "list" => ToolKind::Search,
        first if READERS.contains(&first) => ToolKind::Read,
        _ if args.get("command").and_then(Value::as_str) == Some("view") => ToolKind::Read,
        _ => ToolKind::Other,
    }
}

/// The tool and the beginning of its arguments, on one line.
fn shown(tool: &str, args: &Value) -> Box<str> {
    let text: Cow<'_, str> = match args {
        Value::String(text) => text.into(),
        Value::Object(map) => {
            let text = |key: &str| map.get(key).and_then(Value::as_str);
            let only = map.values().next().filter(|_| map.len() == 1).and_then(Value::as_str);
            match (text("command"), text("path").or_else(|| text("file_path"))) {
                // The operation of a tool that has several: what it is done to says more than the rest.
                (Some(operation), Some(path)) if !operation.contains(char::is_whitespace) => {
                    format!("{operation} {path}").into()
                }
                (Some(command), _) => command.into(),
                (None, _) => only.map_or_else(|| args.to_string().into(), Into::into),
            }
        }
        other => other.to_string().into(),
    };
    let mut out = String::with_capacity(SHOWN + 40);
    out.extend(tool.chars().take(64));
    out.push('(');
    let mut chars = text.chars();
    out.extend(chars.by_ref().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }));
    out.push_str(if chars.next().is_some() { "…)" } else { ")" });
    out.into()
}
