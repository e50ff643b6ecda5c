use std::ffi::OsStr;

use serde_json::json;
use toolcell_protocol::call::Status;
use toolcell_protocol::worker_api::Action;

use super::*;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

fn examples() -> load::Loaded {
    load::load(&[PathBuf::from(EXAMPLES).join("tools.d")], OsStr::new("/usr/local/bin:/usr/bin:/bin"))
}

fn tool(more: &str) -> ToolDef {
    let text = format!("name = \"t\"\ndescription = \"d\"\ncommand = [\"true\"]\n{more}");
    manifest::parse(&text, PathBuf::from("/etc/t.toml")).expect("valid").tool
}

#[test]
fn every_example_loads_without_an_error_or_a_warning() {
    let loaded = examples();
    let broken: Vec<String> = loaded.broken.iter().map(|broken| broken.error.to_string()).collect();
    assert_eq!(broken, Vec::<String>::new());
    assert_eq!(loaded.warnings, Vec::new());
    assert_eq!(loaded.missing, Vec::<PathBuf>::new());
    assert_eq!(loaded.overrides, Vec::new());
    assert!(loaded.tools.len() >= 15, "{} tools", loaded.tools.len());
}

#[test]
fn every_example_is_documented_by_comments_and_named_like_its_file() {
    for tool in examples().tools.iter() {
        let Source::Manifest(path) = &tool.source else { continue };
        let text = std::fs::read_to_string(path).expect("readable");
        assert!(text.starts_with("# "), "{} begins without a comment", path.display());
        assert_eq!(path.file_stem().and_then(OsStr::to_str), Some(tool.name.as_str()));
    }
}

/// What admission makes of the calls of the example batch; the comments of the manifests say how they end.
#[test]
fn the_example_batch_is_admitted_as_its_names_say() {
    let tools = examples().tools;
    let text = std::fs::read_to_string(PathBuf::from(EXAMPLES).join("batch.json")).expect("readable");
    let calls: Vec<Value> = serde_json::from_str(&text).expect("a JSON array");
    assert!(calls.len() >= 12, "{} calls", calls.len());
    let mut ids: Vec<&str> = calls.iter().map(|call| call["call_id"].as_str().expect("an id")).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), calls.len(), "call_ids are unique");
    for call in &calls {
        assert_eq!(call.as_object().expect("an object").len(), 3, "{call}");
        let id = call["call_id"].as_str().expect("an id");
        let name = call["tool"].as_str().expect("a name");
        let expected_failure = match tools.get(name) {
            None => Some(Status::UnknownTool),
            Some(tool) => match tool.validate(&call["args"].to_string()) {
                Err(_) => Some(Status::InvalidArgs),
                Ok(args) => {
                    tool.action(&args).expect("fills");
                    None
                }
            },
        };
        let meant = match id {
            "unknown-tool" => Some(Status::UnknownTool),
            "invalid-args" => Some(Status::InvalidArgs),
            _ => None,
        };
        assert_eq!(expected_failure, meant, "{id}");
    }
    assert!(ids.contains(&"unknown-tool") && ids.contains(&"invalid-args"));
}

#[test]
fn a_tool_is_shown_to_clients_as_its_manifest_has_it() {
    let tool = tool("kind = \"fetch\"\nimmune = true\ntimeout_ms = 7\n");
    let info = tool.to_info();
    assert_eq!((info.name.as_str(), info.kind.as_str(), info.source.as_str()), ("t", "fetch", "/etc/t.toml"));
    assert_eq!(info.command, ["true"]);
    assert!(info.immune && info.destructive && info.open_world && !info.read_only && !info.exclusive);
    assert_eq!(info.timeout_ms, 7);
    let schema: Value = serde_json::from_str(&info.input_schema).expect("JSON");
    assert_eq!(schema["type"], "object");
    let builtins = ToolSet::builtin().to_info();
    assert!(builtins.iter().all(|info| info.source == "builtin"));
    assert_eq!(builtins.iter().filter(|info| info.command.is_empty()).count(), 4);
}

#[test]
fn the_working_directory_is_the_calls_else_the_manifests_else_the_sessions() {
    let session = Path::new("/home/u");
    assert_eq!(tool("").working_dir(session, None), Path::new("/home/u"));
    assert_eq!(tool("cwd = \"web\"").working_dir(session, None), Path::new("/home/u/web"));
    assert_eq!(tool("cwd = \"/srv\"").working_dir(session, None), Path::new("/srv"));
    assert_eq!(tool("cwd = \"/srv\"").working_dir(session, Some("x")), Path::new("/home/u/x"));
}

#[test]
fn the_cpu_limit_of_a_process_never_acts_before_the_one_of_the_tree() {
    for (cpu_ms, seconds) in [(1, 2), (999, 2), (1000, 2), (1001, 3), (u64::MAX, u64::MAX / 1000 + 2)] {
        let limits = Limits { cpu_ms: Some(cpu_ms), ..Limits::default() };
        assert_eq!(ToolDef { limits, ..tool("") }.rlimits().cpu_seconds, Some(seconds));
    }
}

#[test]
fn edited_files_are_read_from_the_named_arguments() {
    let schema =
        "input_schema = { type = \"object\", properties = { a = {}, b = {} } }\nedits = [\"a\", \"b\"]\n";
    let files = tool(schema).edited_files(&json!({"a": "x", "b": ["y", 1, "z"], "c": "no"}));
    assert_eq!(files, ["x", "y", "z"]);
}

#[test]
fn an_unknown_name_leads_to_the_nearest_tools_of_the_set() {
    let mut set = ToolSet::builtin();
    assert_eq!(set.nearest("Read").first().map(String::as_str), Some("read_file"));
    assert!(set.remove("bash") && !set.remove("bash"));
    assert!(!set.nearest("shell").contains(&"bash".to_owned()));
}

#[test]
fn a_builtin_gets_its_arguments_as_json_text_that_reads_back() {
    let set = ToolSet::builtin();
    let write = set.get("write_file").expect("there");
    let args = write.validate(r#"{"path": "a", "content": "\u0000\n€\ud83d\ude00"}"#).expect("valid");
    let Ok(Action::Builtin { name, args: text }) = write.action(&args) else { panic!("a built-in") };
    assert_eq!(name, "write_file");
    assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), args);
}

#[test]
fn a_text_is_cut_at_a_character_and_within_its_bound() {
    assert_eq!(cut("abc", 3), "abc");
    assert_eq!(cut("€€€", 8), "€…");
    assert_eq!(cut("abcdef", 5), "ab…");
}

#[test]
fn every_manifest_in_the_documentation_is_valid_and_every_key_is_documented() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/TOOLS.md"));
    let text = std::fs::read_to_string(path).expect("readable");
    let blocks: Vec<&str> =
        text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    assert!(blocks.len() >= 3);
    for block in blocks {
        let parsed =
            manifest::parse(block, PathBuf::new()).unwrap_or_else(|error| panic!("{error}\n{block}"));
        assert_eq!(parsed.warnings, Vec::<String>::new(), "{block}");
    }
    // The reader itself tells its keys when it meets one that it does not know.
    for (table, prefix) in [("", ""), ("[limits]\n", "limits."), ("[env]\n", "env.")] {
        let manifest =
            format!("name = \"t\"\ndescription = \"d\"\ncommand = [\"t\"]\n{table}no_such_key = 1\n");
        let message = manifest::parse(&manifest, PathBuf::new()).expect_err("unknown").message;
        let keys: Vec<&str> = message.split('`').skip(3).step_by(2).collect();
        assert!(keys.len() > 1, "{message}");
        for key in keys.iter().filter(|key| !["limits", "env"].contains(key)) {
            assert!(text.contains(&format!("| `{prefix}{key}` |")), "{prefix}{key} is not in docs/TOOLS.md");
        }
    }
    for tool in ToolSet::builtin().iter() {
        let section = text.split(&format!("### `{}`\n", tool.name)).nth(1).expect("a section");
        let section = section.split("### ").next().unwrap_or_default();
        for name in tool.schema.property_names() {
            assert!(section.contains(&format!("| `{name}` |")), "{name} of {} is not documented", tool.name);
        }
    }
}
