//! The command as a process with a daemon of its own: exit codes, streams, signals.

mod common;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use common::{bash, code, output, own, signal, text, toolcell, with_input};

#[test]
fn output_is_passed_on_byte_by_byte_and_the_exit_code_too() {
    let script = "printf 'a\\0\\377\\n'; printf err >&2; exit 42";
    let output = own(&["run", "bash", &bash(script)]);
    assert_eq!(code(&output), 42);
    assert_eq!(output.stdout, b"a\0\xff\n");
    assert_eq!(output.stderr, b"err");
}

#[test]
fn each_way_to_end_has_its_exit_code() {
    for (expected, arguments) in [
        (0, vec!["run", "bash", &bash("true")]),
        (139, vec!["run", "bash", &bash("kill -SEGV $$")]),
        (137, vec!["run", "bash", &bash("kill -KILL $$")]),
        (124, vec!["run", "bash", &bash("sleep 60"), "--timeout-ms", "100"]),
        (127, vec!["run", "no_such_tool"]),
        (2, vec!["run", "bash", r#"{"cmd": "ls"}"#]),
        (2, vec!["run", "bash", "{"]),
        (2, vec!["run", "no such tool"]),
        (2, vec!["run"]),
        (1, vec!["run", "read_file", r#"{"path": "/no/such/file"}"#]),
    ] {
        let output = own(&arguments);
        assert_eq!(code(&output), expected, "{arguments:?}: {output:?}");
        let said = [output.stdout, output.stderr].concat();
        assert_eq!(said.is_empty(), expected == 0, "{arguments:?} said {}", text(&said));
    }
}

#[test]
fn wrong_arguments_name_the_field() {
    let output = own(&["run", "bash", r#"{"command": 3}"#]);
    assert_eq!(code(&output), 2);
    assert!(text(&output.stderr).contains("/command"), "{output:?}");
}

#[test]
fn a_program_that_cannot_be_started_is_126() {
    let directory = tempfile::tempdir().expect("a directory");
    let manifest = "name = \"gone\"\ndescription = \"Is not there.\"\ncommand = [\"/no/such/program\"]\n\
                    input_schema = { type = \"object\" }\n";
    std::fs::write(directory.path().join("gone.toml"), manifest).expect("written");
    let tools = directory.path().to_str().expect("UTF-8");
    let run = output(&["--tools", tools, "run", "gone"]);
    assert_eq!(code(&run), 126, "{run:?}");
    let listed = output(&["--tools", tools, "tools", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let gone = listed.as_array().expect("a list").iter().find(|tool| tool["name"] == "gone").expect("listed");
    assert_eq!(gone["input_schema"]["type"], "object");
}

#[test]
fn a_broken_manifest_is_told_and_does_not_stop_the_others() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("broken.toml"), "name = \n").expect("written");
    let tools = directory.path().to_str().expect("UTF-8");
    let run = output(&["--tools", tools, "run", "bash", &bash("echo fine")]);
    assert_eq!((code(&run), text(&run.stdout).as_str()), (0, "fine\n"));
    assert!(text(&run.stderr).contains("broken.toml:1"), "{run:?}");
    let quiet = output(&["--tools", tools, "run", "bash", &bash("true"), "--quiet"]);
    assert!(quiet.stderr.is_empty(), "{quiet:?}");
}

#[test]
fn arguments_may_come_from_standard_input_and_from_a_file() {
    let output = with_input(toolcell(&["--no-daemon", "run", "bash", "-"]), &bash("echo from stdin"));
    assert_eq!(text(&output.stdout), "from stdin\n");

    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("args.json");
    std::fs::write(&file, bash("pwd; echo $GREETING")).expect("written");
    let cwd = directory.path().canonicalize().expect("there");
    let cwd = cwd.to_str().expect("UTF-8");
    let file = format!("@{}", file.display());
    let output = own(&["run", "bash", &file, "--cwd", cwd, "--env", "GREETING=hello"]);
    assert_eq!(text(&output.stdout), format!("{cwd}\nhello\n"));
}

#[test]
fn json_prints_the_result_and_nothing_else() {
    let output = own(&["run", "bash", &bash("echo out; echo err >&2; exit 3"), "--json"]);
    assert_eq!(code(&output), 3);
    let result: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
    assert_eq!(result["status"], "error");
    assert_eq!(result["details"]["exit_code"], 3);
    assert!(result["for_model"].as_str().expect("text").contains("out"));
}

#[test]
fn a_batch_gives_one_result_a_call_in_call_order() {
    let calls = json!([
        { "call_id": "slow", "tool": "bash", "args": { "command": "sleep 0.2; echo slow" } },
        { "call_id": "fails", "tool": "bash", "args": { "command": "exit 9" } },
        { "call_id": "wrong", "tool": "no_such_tool" },
        { "call_id": "late", "tool": "bash", "args": { "command": "sleep 60" }, "timeout_ms": 100 },
    ]);
    let output = with_input(toolcell(&["--no-daemon", "batch", "-", "--json"]), &calls.to_string());
    assert_eq!(code(&output), 0, "{output:?}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
    let result = result.as_object().expect("an object");
    for key in ["batch_id", "session_id", "verdict", "messages", "reason", "steering", "results"] {
        assert!(result.contains_key(key), "{key} is missing in {result:?}");
    }
    assert_eq!(result["verdict"], "next_turn");
    let told: Vec<_> = result["results"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| (one["call_id"].as_str().unwrap_or("?"), one["status"].as_str().unwrap_or("?")))
        .collect();
    let expected = [("slow", "ok"), ("fails", "error"), ("wrong", "unknown_tool"), ("late", "timed_out")];
    assert_eq!(told, expected);
    let progress = text(&output.stderr);
    assert!(progress.contains("slow (bash) ok") && progress.contains("[4/4]"), "{progress}");
}

#[test]
fn a_bad_batch_file_is_refused_before_anything_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    let marker = directory.path().join("ran");
    let file = directory.path().join("calls.jsonl");
    let touch = format!("touch {}", marker.display());
    let good = json!({ "call_id": "1", "tool": "bash", "args": { "command": touch } });
    std::fs::write(&file, format!("{good}\n{{\"call_id\": \"2\", \"toll\": \"bash\"}}\n")).expect("written");
    let output = own(&["batch", file.to_str().expect("UTF-8")]);
    assert_eq!(code(&output), 2);
    assert!(text(&output.stderr).contains("line 2, call 1, field \"toll\""), "{output:?}");
    assert!(!marker.exists());
    assert_eq!(code(&own(&["batch", "/no/such/file"])), 2);
}

#[test]
fn no_colour_and_no_control_characters_reach_a_pipe() {
    let calls =
        json!([{ "call_id": "\u{1b}[31m", "tool": "bash", "args": { "command": "printf '\\033[2J'" } }]);
    let output = with_input(toolcell(&["--no-daemon", "batch", "-"]), &calls.to_string());
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{output:?}");
    assert!(text(&output.stdout).ends_with("verdict: next_turn\n"));
}

#[test]
fn a_reader_that_goes_away_ends_the_tool_quietly() {
    let mut child = toolcell(&["--no-daemon", "run", "bash", &bash("echo $$; exec yes")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(code(&output), 141);
    assert_eq!(text(&output.stderr), "");
    assert!(!Path::new("/proc").join(line.trim()).exists(), "the tool still runs");
}

#[test]
fn an_interrupt_kills_the_tool_and_gives_the_signals_exit_code() {
    for (name, expected) in [("INT", 130), ("TERM", 143)] {
        let mut child = toolcell(&["--no-daemon", "run", "bash", &bash("echo $$; sleep 60")])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut line).expect("a line");
        signal(&child, name);
        let status = child.wait().expect("it ends");
        assert_eq!(status.code(), Some(expected));
        assert!(!Path::new("/proc").join(line.trim()).exists(), "the tool still runs");
    }
}

#[test]
fn an_interrupt_is_answered_even_when_nobody_reads() {
    let mut child = toolcell(&["--no-daemon", "run", "bash", &bash("echo $$; exec yes")])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdout = child.stdout.take().expect("piped");
    let mut first = [0; 4096];
    let count = stdout.read(&mut first).expect("the first bytes");
    let pid = text(&first[..count]).lines().next().expect("a line").to_owned();
    // From here on nothing is read, and the pipe fills.
    signal(&child, "INT");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert!(!Path::new("/proc").join(pid).exists(), "the tool still runs");
    drop(stdout);
}

#[test]
fn an_interrupted_batch_still_prints_its_results() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("calls.json");
    let calls = json!([
        { "call_id": "1", "tool": "bash", "args": { "command": "echo fine" } },
        { "call_id": "2", "tool": "bash", "args": { "command": "sleep 60" } },
    ]);
    std::fs::write(&file, calls.to_string()).expect("written");
    let mut child = toolcell(&["--no-daemon", "batch", file.to_str().expect("UTF-8"), "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut progress = BufReader::new(child.stderr.take().expect("piped"));
    let (mut first_ended, mut second_started) = (false, false);
    while !(first_ended && second_started) {
        let mut line = String::new();
        assert_ne!(progress.read_line(&mut line).expect("text"), 0, "the command ended early");
        first_ended |= line.contains("1 (bash) ok");
        second_started |= line.contains("2 (bash) started");
    }
    signal(&child, "INT");
    let mut rest = Vec::new();
    child.stdout.take().expect("piped").read_to_end(&mut rest).expect("read");
    progress.read_to_end(&mut Vec::new()).expect("read");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    let result: Value = serde_json::from_slice(&rest).expect("one JSON value");
    assert_eq!(result["results"][0]["status"], "ok");
    assert_eq!(result["results"][1]["status"], "killed");
}

#[test]
fn an_interrupted_batch_of_a_thousand_calls_has_a_result_for_each() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("calls.json");
    let calls: Vec<_> = (0..1_000)
        .map(|n| json!({ "call_id": n.to_string(), "tool": "bash", "args": { "command": "sleep 60" } }))
        .collect();
    std::fs::write(&file, json!(calls).to_string()).expect("written");
    let mut child = toolcell(&["--no-daemon", "batch", file.to_str().expect("UTF-8"), "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut progress = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("started") {
        line.clear();
        assert_ne!(progress.read_line(&mut line).expect("text"), 0, "the command ended early");
    }
    signal(&child, "INT");
    let reading = std::thread::spawn(move || {
        let mut rest = String::new();
        progress.read_to_string(&mut rest).expect("text");
        rest
    });
    let output = child.wait_with_output().expect("it ends");
    let rest = reading.join().expect("read");
    assert_eq!(code(&output), 130, "{rest}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
    let results = result["results"].as_array().expect("a list");
    assert_eq!(results.len(), 1_000);
    for one in results {
        assert!(one["status"] == "killed" || one["status"] == "cancelled", "{one}");
    }
}

#[test]
fn a_command_that_is_over_at_once_leaves_nothing_behind() {
    let directory = tempfile::tempdir().expect("a directory");
    for _ in 0..20 {
        let since = Instant::now();
        let output = toolcell(&["--no-daemon", "run", "no_such_tool"])
            .env("TMPDIR", directory.path())
            .output()
            .expect("the command starts");
        assert_eq!(code(&output), 127);
        // One line, about the tool: the spawner has no complaint of its own.
        assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
        let left: Vec<_> = std::fs::read_dir(directory.path()).expect("there").flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        // The spawner kills workers that do not see that the daemon is gone after 5 s.
        assert!(since.elapsed() < Duration::from_secs(4), "took {:?}", since.elapsed());
    }
}

#[test]
fn commands_about_running_calls_need_a_running_daemon() {
    for arguments in [&["ps"][..], &["output", "019ade3c"], &["wait", "019ade3c"], &["kill", "019ade3c"]] {
        let output = own(arguments);
        assert_eq!(code(&output), 2, "{arguments:?}");
        assert!(text(&output.stderr).contains("running daemon"), "{output:?}");
    }
}

#[test]
fn a_wrong_configuration_is_78() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("t.toml");
    std::fs::write(&file, "nonsense = true\n").expect("written");
    let output = output(&["--config", file.to_str().expect("UTF-8"), "tools"]);
    assert_eq!(code(&output), 78);
    assert!(text(&output.stderr).contains("nonsense"), "{output:?}");
}

#[test]
fn doctor_runs_a_call_and_says_what_is_missing() {
    let json = output(&["doctor", "--json"]);
    assert_eq!(code(&json), 0, "{json:?}");
    let report: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(report["trial"]["ok"], true);
    for check in report["checks"].as_array().expect("a list") {
        if check["state"] == "missing" {
            assert!(check["why"].is_string() && check["how"].is_string(), "{check}");
        }
    }
    let page = text(&output(&["doctor"]).stdout);
    assert!(page.contains("trial call"), "{page}");
}
