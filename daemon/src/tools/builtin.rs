//! Definitions of the built-in tools.
//!
//! `bash` is a command like any manifest's. The others run inside the worker (`worker/src/tool/`), whose argument
//! structs must have the fields that the schemas here declare.

use serde_json::{Value, json};

use super::schema::Schema;
use super::template::{CommandTemplate, StdinSource};
use super::{DEFAULT_TIMEOUT_MS, Hints, Limits, OutputKind, Runner, Source, ToolDef, ToolEnv, ToolKind};

/// The longest timeout that a model may choose for `bash`.
pub const MAX_BASH_TIMEOUT_MS: u64 = 600_000;

const READS: Hints = Hints { read_only: true, destructive: false, idempotent: true, open_world: false };

/// All of them.
#[must_use]
pub fn tools() -> Vec<ToolDef> {
    vec![bash(), edit_file(), list_dir(), read_file(), write_file()]
}

fn tool(name: &str, description: &str, schema: Value, kind: ToolKind, hints: Hints) -> ToolDef {
    let schema = Schema::compile(schema).unwrap_or_else(|error| {
        // A literal of this file; the tests compile every one.
        unreachable!("schema of the built-in tool {name}: {error}")
    });
    ToolDef {
        name: name.to_owned(),
        description: description.to_owned(),
        schema,
        runner: Runner::InWorker,
        output: OutputKind::Text,
        kind,
        hints,
        immune: false,
        exclusive: false,
        poll: false,
        edits: Vec::new(),
        timeout_ms: DEFAULT_TIMEOUT_MS,
        timeout_arg: None,
        idle_timeout_ms: None,
        kill_grace_ms: None,
        limits: Limits::default(),
        env: ToolEnv::default(),
        cwd: None,
        umask: None,
        for_model_bytes: None,
        spool_bytes: None,
        run_as: None,
        source: Source::Builtin,
    }
}

fn bash() -> ToolDef {
    let schema = json!({
        "type": "object",
        "properties": {
            "command": {"type": "string", "minLength": 1, "description": "The command, as bash reads it."},
            "timeout_ms": {
                "type": "integer", "minimum": 1, "maximum": MAX_BASH_TIMEOUT_MS,
                "description": "Milliseconds after which the command and all that it started are ended.",
            },
            "description": {"type": "string", "description": "In a few words what the command is for."},
        },
        "required": ["command"],
        "additionalProperties": false,
    });
    let command = ["bash", "-c", "{command}"].map(str::to_owned).to_vec();
    let hints = Hints { read_only: false, destructive: true, idempotent: false, open_world: true };
    let description = "Runs a command in bash, in the session's working directory. Every call is a new shell: cd \
                       and variables do not carry over. Standard input is empty and there is no terminal. What the \
                       command leaves running in the background is ended with it.";
    ToolDef {
        runner: Runner::Command(CommandTemplate::new(command, StdinSource::None, serde_json::Map::new())),
        timeout_arg: Some("timeout_ms".to_owned()),
        ..tool("bash", description, schema, ToolKind::Execute, hints)
    }
}

fn path(what: &str) -> Value {
    json!({
        "type": "string", "minLength": 1,
        "description": format!("{what}: absolute, or relative to the working directory."),
    })
}

fn read_file() -> ToolDef {
    let schema = json!({
        "type": "object",
        "properties": {
            "path": path("The file"),
            "offset": {"type": "integer", "minimum": 1, "description": "First line to read, counted from 1."},
            "limit": {"type": "integer", "minimum": 1, "description": "Number of lines to read; 2000 if absent."},
        },
        "required": ["path"],
        "additionalProperties": false,
    });
    let description = "Reads a text file. Every line comes with its number and a tab in front, which are not part \
                       of the file. Long files come in pages: the last line says how to read on.";
    tool("read_file", description, schema, ToolKind::Read, READS)
}

fn write_file() -> ToolDef {
    let schema = json!({
        "type": "object",
        "properties": {
            "path": path("The file"),
            "content": {"type": "string", "description": "All that the file shall contain."},
        },
        "required": ["path", "content"],
        "additionalProperties": false,
    });
    let hints = Hints { read_only: false, destructive: true, idempotent: true, open_world: false };
    let description = "Writes a file: creates it, with the directories that lead to it, or replaces all that is in \
                       it. To change a part of a file use edit_file.";
    ToolDef {
        edits: vec!["path".to_owned()],
        ..tool("write_file", description, schema, ToolKind::Edit, hints)
    }
}

fn edit_file() -> ToolDef {
    let schema = json!({
        "type": "object",
        "properties": {
            "path": path("The file"),
            "old_string": {
                "type": "string", "minLength": 1,
                "description": "The text to replace, exactly as it is in the file (without line numbers), and long \
                                enough to be there only once.",
            },
            "new_string": {"type": "string", "description": "The text to put in its place."},
            "replace_all": {
                "type": "boolean",
                "description": "Replace every occurrence; otherwise there must be exactly one.",
            },
        },
        "required": ["path", "old_string", "new_string"],
        "additionalProperties": false,
    });
    let hints = Hints { read_only: false, destructive: true, idempotent: false, open_world: false };
    let description =
        "Replaces a text in a file by another. Read the file first: the text must match exactly.";
    ToolDef {
        edits: vec!["path".to_owned()],
        ..tool("edit_file", description, schema, ToolKind::Edit, hints)
    }
}

fn list_dir() -> ToolDef {
    let schema = json!({
        "type": "object",
        "properties": {
            "path": path("The directory; the working directory if absent"),
            "limit": {
                "type": "integer", "minimum": 1, "maximum": 10_000,
                "description": "Most entries to list; 1000 if absent.",
            },
        },
        "additionalProperties": false,
    });
    let description = "Lists a directory, hidden entries included, sorted by name: type (d directory, f file, l \
                       link, other letters for the rest), size in bytes, name.";
    tool("list_dir", description, schema, ToolKind::Read, READS)
}

#[cfg(test)]
mod tests {
    use toolcell_protocol::id::check_tool_name;
    use toolcell_protocol::worker_api::{Action, WorkerKind};

    use super::*;
    use crate::tools::ToolSet;

    #[test]
    fn every_builtin_has_a_valid_name_a_description_and_nothing_that_providers_refuse() {
        let tools = tools();
        assert_eq!(tools.len(), 5);
        for tool in tools {
            check_tool_name(&tool.name).expect("valid");
            assert!(!tool.description.is_empty() && tool.description.len() <= 1024, "{}", tool.name);
            assert_eq!(tool.schema.provider_warnings(), Vec::<String>::new(), "{}", tool.name);
            assert!(tool.edits.iter().all(|name| tool.schema.property(name).is_some()), "{}", tool.name);
        }
    }

    #[test]
    fn bash_is_an_exec_of_bash_and_the_others_run_in_the_worker() {
        let set = ToolSet::builtin();
        let bash = set.get("bash").expect("there");
        let args = bash.validate(r#"{"command": "echo \"$HOME\"; ls"}"#).expect("valid");
        let Action::Exec { argv, stdin } = bash.action(&args).expect("fills") else { panic!("an exec") };
        let argv: Vec<String> = argv.into_iter().map(|b| String::from_utf8(b.0).expect("text")).collect();
        assert_eq!(argv, ["bash", "-c", "echo \"$HOME\"; ls"]);
        assert_eq!(stdin, None);
        assert_eq!(bash.worker_kind(), WorkerKind::Exec);

        let read = set.get("read_file").expect("there");
        let args = read.validate(r#"{"path": "a", "limit": 3}"#).expect("valid");
        let expected =
            Action::Builtin { name: "read_file".to_owned(), args: r#"{"limit":3,"path":"a"}"#.to_owned() };
        assert_eq!(read.action(&args), Ok(expected));
        assert_eq!(read.worker_kind(), WorkerKind::Builtin);
    }

    #[test]
    fn the_model_may_choose_the_timeout_of_bash_and_of_nothing_else() {
        let set = ToolSet::builtin();
        let bash = set.get("bash").expect("there");
        assert_eq!(bash.timeout_ms_for(&json!({"command": "x"})), DEFAULT_TIMEOUT_MS);
        assert_eq!(bash.timeout_ms_for(&json!({"command": "x", "timeout_ms": 500})), 500);
        assert_eq!(bash.timeout_ms_for(&json!({"command": "x", "timeout_ms": 500.0})), 500);
        let problem = bash.validate(r#"{"command": "x", "timeout_ms": 600001}"#).expect_err("too long");
        assert_eq!(problem.field.as_deref(), Some("/timeout_ms"));
        let read = set.get("read_file").expect("there");
        assert_eq!(read.timeout_ms_for(&json!({"timeout_ms": 1})), DEFAULT_TIMEOUT_MS);
    }
}
