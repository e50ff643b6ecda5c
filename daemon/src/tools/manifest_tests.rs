use proptest::prelude::*;
use serde_json::json;
use toolcell_protocol::worker_api::Action;

use super::*;

const SMALLEST: &str = "name = \"t\"\ndescription = \"d\"\ncommand = [\"true\"]\n";

fn good(text: &str) -> ToolDef {
    parsed(text).tool
}

fn parsed(text: &str) -> Parsed {
    parse(text, PathBuf::from("t.toml")).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The error of the smallest manifest with `more` behind it; its first line is line 4.
fn error_of(more: &str) -> ManifestError {
    let text = format!("{SMALLEST}{more}");
    parse(&text, PathBuf::from("t.toml")).err().unwrap_or_else(|| panic!("no error in\n{text}"))
}

fn assert_error(more: &str, line: usize, column: usize, key: &str, message: &str) {
    let error = error_of(more);
    let place = (error.line, error.column, error.key.as_deref());
    assert_eq!(place, (line, column, Some(key)), "{error}");
    assert!(error.message.contains(message), "{error}");
}

#[test]
fn the_smallest_manifest_has_the_documented_defaults() {
    let tool = good(SMALLEST);
    assert_eq!((tool.timeout_ms, tool.idle_timeout_ms, tool.kill_grace_ms), (120_000, None, None));
    assert_eq!((tool.kind, tool.output), (ToolKind::Other, OutputKind::Text));
    assert_eq!(
        tool.hints,
        Hints { read_only: false, destructive: true, idempotent: false, open_world: true }
    );
    assert!(!tool.immune && !tool.exclusive && !tool.poll && tool.edits.is_empty());
    assert_eq!(tool.limits, Limits::default());
    assert_eq!(tool.rlimits().core_bytes, Some(0));
    assert_eq!(tool.source, Source::Manifest(PathBuf::from("t.toml")));
    assert!(tool.validate("{}").is_ok());
    assert_eq!(tool.validate(r#"{"a": 1}"#).expect_err("takes none").field.as_deref(), Some("/a"));
}

#[test]
fn every_key_is_taken_over() {
    let tool = good(
        r#"
        name = "full"
        description = "All keys."
        command = ["prog", "--", "{path}"]
        stdin = "{text}"
        output = "json"
        kind = "edit"
        destructive = false
        idempotent = true
        open_world = false
        immune = true
        exclusive = true
        poll = true
        edits = ["path"]
        timeout_ms = 5000
        idle_timeout_ms = 1000
        kill_grace_ms = 0
        cwd = "/srv"
        umask = "027"
        for_model_bytes = 1000
        spool_bytes = 2000
        run_as = "www-data:adm"

        [input_schema]
        type = "object"
        required = ["path", "text"]
        [input_schema.properties]
        path = { type = "string" }
        text = { type = "string", default = "x" }

        [limits]
        cpu_ms = 1500
        fsize_bytes = 1
        nofile = 64
        core_bytes = 3
        stack_bytes = 1048576
        memlock_bytes = 5
        as_bytes = 1073741824
        nproc = 7
        output_bytes = 8

        [env]
        set = { LANG = "C" }
        inherit = ["GH_TOKEN"]
        "#,
    );
    assert_eq!((tool.timeout_ms, tool.idle_timeout_ms, tool.kill_grace_ms), (5000, Some(1000), Some(0)));
    assert_eq!((tool.kind, tool.output), (ToolKind::Edit, OutputKind::Json));
    assert_eq!(
        tool.hints,
        Hints { read_only: false, destructive: false, idempotent: true, open_world: false }
    );
    assert!(tool.immune && tool.exclusive && tool.poll);
    assert_eq!(tool.edited_files(&json!({"path": "a"})), ["a"]);
    let rlimits = tool.rlimits();
    assert_eq!((rlimits.cpu_seconds, tool.limits.cpu_ms), (Some(3), Some(1500)));
    assert_eq!(
        (rlimits.fsize_bytes, rlimits.nofile_soft, rlimits.nofile_hard),
        (Some(1), Some(64), Some(64))
    );
    assert_eq!(
        (rlimits.core_bytes, rlimits.stack_bytes, rlimits.memlock_bytes),
        (Some(3), Some(1 << 20), Some(5))
    );
    assert_eq!(
        (rlimits.as_bytes, rlimits.nproc, tool.limits.output_bytes),
        (Some(1 << 30), Some(7), Some(8))
    );
    assert_eq!(tool.env.set, [("LANG".to_owned(), "C".to_owned())]);
    assert_eq!(tool.env.inherit, ["GH_TOKEN"]);
    assert_eq!((tool.cwd.as_deref(), tool.umask), (Some("/srv"), Some(0o27)));
    assert_eq!((tool.for_model_bytes, tool.spool_bytes), (Some(1000), Some(2000)));
    assert_eq!(tool.run_as, Some(RunAs { user: "www-data".to_owned(), group: Some("adm".to_owned()) }));
    let Ok(Action::Exec { argv, stdin }) = tool.action(&json!({"path": "p"})) else { panic!("an exec") };
    assert_eq!(argv.into_iter().map(|blob| blob.0).collect::<Vec<_>>(), [&b"prog"[..], b"--", b"p"]);
    assert_eq!(stdin.map(|blob| blob.0), Some(b"x".to_vec()));
}

#[test]
fn the_schema_may_be_json_text() {
    let tool = good(&format!(
        "{SMALLEST}input_schema = '''\n{{\"type\": \"object\", \"properties\": {{\"a\": {{\"type\": \"null\"}}}}}}'''"
    ));
    assert!(tool.validate(r#"{"a": null}"#).is_ok());
    assert_error("input_schema = '{\"type\": '", 4, 16, "input_schema", "the string is not JSON");
    assert_error("input_schema = 5", 4, 16, "input_schema", "expected a table or a string of JSON text");
    assert_error("input_schema = { type = \"array\" }", 4, 16, "input_schema", "must have type = \"object\"");
    let dates = "input_schema = { type = \"object\", default = 2026-01-01 }";
    assert_error(dates, 4, 16, "input_schema", "write 2026-01-01 as a string");
    let numbers = "input_schema = { type = \"object\", default = inf }";
    assert_error(numbers, 4, 16, "input_schema", "no infinite numbers");
}

#[test]
fn a_key_that_does_not_exist_is_named_with_the_nearest() {
    assert_error("timeout = 5\n", 4, 1, "timeout", "did you mean `timeout_ms`?");
    assert_error("[limits]\nmemory_bytes = 5\n", 5, 1, "limits.memory_bytes", "unknown field `memory_bytes`");
    assert_error("retries = 3\n", 4, 1, "retries", "unknown field `retries`");
    assert_error("sandbox = {}\n", 4, 1, "sandbox", "unknown field `sandbox`");
    assert_error("[env]\nseT = {}\n", 5, 1, "env.seT", "did you mean `set`?");
}

#[test]
fn a_value_of_another_type_is_named_with_place_and_expectation() {
    assert_error("timeout_ms = \"5\"\n", 4, 14, "timeout_ms", "expected u64");
    assert_error("timeout_ms = -5\n", 4, 14, "timeout_ms", "expected u64");
    assert_error("immune = 1\n", 4, 10, "immune", "expected a boolean");
    assert_error("kind = \"reed\"\n", 4, 8, "kind", "unknown variant `reed`");
    assert_error("kind = \"reed\"\n", 4, 8, "kind", "`read`");
    assert_error("[limits]\ncpu_ms = []\n", 5, 10, "limits.cpu_ms", "expected u64");
    assert_error("env = { inherit = [\"A\", 1] }\n", 4, 25, "env.inherit", "expected a string");
}

#[test]
fn text_that_is_not_toml_has_line_and_column() {
    let error = error_of("kind = \n");
    assert_eq!((error.line, error.key), (4, None), "{}", error.message);
    let error = error_of("name = \"again\"\n");
    assert!(error.message.contains("duplicate key"), "{error}");
    assert_eq!(error.line, 4);
}

#[test]
fn a_missing_key_is_named() {
    let error = parse("name = \"t\"\ncommand = [\"x\"]", PathBuf::new()).expect_err("no description");
    assert_eq!(error.key.as_deref(), Some("description"));
    assert!(error.message.contains("is missing"), "{error}");
    assert_eq!(parse("", PathBuf::new()).expect_err("nothing").key.as_deref(), Some("name"));
}

#[test]
fn names_and_descriptions_are_checked() {
    let text = SMALLEST.replace("\"t\"", "\"a tool\"");
    let error = parse(&text, PathBuf::new()).expect_err("a blank");
    assert_eq!((error.line, error.column, error.key.as_deref()), (1, 8, Some("name")));
    assert!(error.message.contains("allowed are letters"), "{error}");
    let text = SMALLEST.replace("\"d\"", "\"  \"");
    let error = parse(&text, PathBuf::new()).expect_err("empty");
    assert_eq!((error.line, error.key.as_deref()), (2, Some("description")));
}

#[test]
fn the_program_is_never_chosen_by_an_argument() {
    for (command, column) in [("[\"{a}\"]", 12), ("[\"\"]", 12), ("[]", 11)] {
        let text = SMALLEST.replace("[\"true\"]", command);
        let error = parse(&text, PathBuf::new()).expect_err("no program");
        assert_eq!((error.line, error.column, error.key.as_deref()), (3, column, Some("command")), "{error}");
    }
}

#[test]
fn placeholders_edits_and_stdin_must_name_declared_arguments() {
    let schema = "input_schema = { type = \"object\", properties = { path = { type = \"string\" } } }\n";
    let text = format!("{}{schema}", SMALLEST.replace("[\"true\"]", "[\"cat\", \"{pat}\"]"));
    let error = parse(&text, PathBuf::new()).expect_err("undeclared");
    assert_eq!((error.line, error.column), (3, 19));
    assert!(error.message.contains("did you mean \"path\"?"), "{error}");
    let text = SMALLEST.replace("[\"true\"]", "[\"awk\", \"{print}\"]");
    let error = parse(&text, PathBuf::new()).expect_err("undeclared");
    assert!(error.message.contains("write {{print}}"), "{error}");
    assert_error("edits = [\"path\"]", 4, 10, "edits", "no property \"path\"");
    assert_error("stdin = \"{path}\"", 4, 9, "stdin", "no property \"path\"");
    assert_error("stdin = \"text\"", 4, 9, "stdin", "expected \"none\", \"json\" or \"{argument}\"");
}

#[test]
fn values_that_make_no_sense_are_refused() {
    assert_error("timeout_ms = 0", 4, 14, "timeout_ms", "expected 1 or more");
    assert_error("idle_timeout_ms = 0", 4, 19, "idle_timeout_ms", "expected 1 or more");
    assert_error("for_model_bytes = 1", 4, 19, "for_model_bytes", "256");
    assert_error("[limits]\nnofile = 2", 5, 10, "limits.nofile", "expected 8 or more");
    assert_error("read_only = true\ndestructive = true", 5, 15, "destructive", "remove one of the two");
    assert_error("cwd = \"\"", 4, 7, "cwd", "expected a directory");
    for umask in ["\"8\"", "\"1777\"", "\"\"", "\"+22\"", "\"00022\""] {
        assert_error(&format!("umask = {umask}"), 4, 9, "umask", "expected octal digits");
    }
    for user in ["\"\"", "\"a:\"", "\":b\"", "\"a b\"", "\"a:b:c\""] {
        assert_error(&format!("run_as = {user}"), 4, 10, "run_as", "expected \"user\"");
    }
    assert_error("[env]\nset = { \"A=B\" = \"x\" }", 5, 9, "env.set.A=B", "is not the name of a variable");
    assert_error("[env]\ninherit = [\"\"]", 5, 12, "env.inherit", "is not the name of a variable");
    assert_error("[env]\nset = { A = \"\\u0000\" }", 5, 13, "env.set.A", "NUL");
}

#[test]
fn a_read_only_tool_is_not_destructive_by_itself() {
    assert!(!good(&format!("{SMALLEST}read_only = true")).hints.destructive);
}

#[test]
fn what_is_most_likely_a_mistake_is_a_warning() {
    let properties = "properties = { n = { type = \"integer\" }, file = { type = \"string\" } }";
    let schema = format!("input_schema = {{ type = \"object\", {properties} }}\n");
    let with =
        |command: &str| parsed(&format!("{}{schema}", SMALLEST.replace("[\"true\"]", command))).warnings;
    let warnings = with(r#"["head", "-n", "{n}", "--file={file}"]"#);
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings[0].contains("\"-n\" stays without a value when \"n\" is absent"), "{warnings:?}");
    assert!(warnings[1].contains("{file} inside \"--file={file}\" is literal"), "{warnings:?}");
    assert!(warnings[2].contains("never gets its argument \"file\""), "{warnings:?}");
    assert_eq!(with(r#"["sh", "-c", "echo ${file}", "{{n}}", "--", "{n}", "{file}"]"#), Vec::<String>::new());
    let both = parsed(&format!("{SMALLEST}[env]\nset = {{ A = \"1\" }}\ninherit = [\"A\"]")).warnings;
    assert!(both[0].contains("A is both set and inherited"), "{both:?}");
}

#[test]
fn an_error_reads_as_one_line_with_its_place() {
    assert_eq!(
        error_of("timeout_ms = 0").to_string(),
        "4:14: timeout_ms: is 0, expected 1 or more: a timeout_ms of 0 would end every call before it starts"
    );
}

#[test]
fn the_name_is_found_in_a_manifest_that_is_otherwise_wrong() {
    assert_eq!(name_in("name = \"bash\"\nnonsense = 1").as_deref(), Some("bash"));
    assert_eq!(name_in("name = \"bash\"\n= 1"), None);
    assert_eq!(name_in("name = 5"), None);
}

proptest! {
    #[test]
    fn junk_is_an_error_with_a_place_and_never_a_panic(text in ".{0,200}") {
        let lines = text.split('\n').count();
        if let Err(error) = parse(&text, PathBuf::new()) {
            prop_assert!(error.line >= 1 && error.line <= lines && error.column >= 1);
        }
    }

    #[test]
    fn a_manifest_with_something_changed_in_it_is_read_or_refused(
        at in 0usize..400, length in 0usize..4, insert in "[\\PC\n\"\\[\\]{}=,.#]{0,3}"
    ) {
        let mut text = format!(
            "{SMALLEST}stdin = \"{{a}}\"\nedits = [\"a\"]\numask = \"022\"\n[input_schema]\ntype = \"object\"\n\
             properties = {{ a = {{ type = \"string\", default = 1.5 }} }}\n[limits]\ncpu_ms = 1\n\
             [env]\nset = {{ A = \"€\" }}\ninherit = [\"B\"]\n"
        );
        let from = text.floor_char_boundary(at.min(text.len()));
        let to = text.floor_char_boundary((from + length).min(text.len())).max(from);
        text.replace_range(from..to, &insert);
        if let Err(error) = parse(&text, PathBuf::new()) {
            prop_assert!(error.line >= 1 && error.line <= text.split('\n').count());
            prop_assert!(!error.message.is_empty());
        }
    }
}
