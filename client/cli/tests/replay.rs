//! `toolcell replay` from files to figures.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use toolcell_cli::replay::{ReplayArgs, ReplayError, Run, Unknown, read_runs, replay};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn args(files: &[PathBuf]) -> ReplayArgs {
    ReplayArgs {
        files: files.to_vec(),
        json: true,
        config: None,
        agent: None,
        labels: None,
        planted: false,
        compare: None,
    }
}

fn lines(args: &ReplayArgs) -> Vec<Value> {
    let mut out = Vec::new();
    replay(args, &mut out).expect("the files are fine");
    String::from_utf8(out)
        .expect("text")
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn read(path: &Path) -> (Vec<Run>, Unknown) {
    let (mut runs, mut unknown) = (Vec::new(), Unknown::default());
    read_runs(path, &Cell::new(0), &mut unknown, &mut |run| runs.push(run)).expect("the file can be read");
    (runs, unknown)
}

fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(name);
    fs::write(&path, text).expect("a file");
    (dir, path)
}

fn run_line(run_id: &str, config: &Value, times: usize) -> String {
    let call = json!({"tool": "fetch", "args": {"u": "x"}, "error": "HTTP 500"});
    json!({"run_id": run_id, "config": config, "calls": vec![call; times]}).to_string()
}

#[test]
fn the_excerpt_meets_the_bars() {
    let mut args = args(&[data("traces_excerpt.jsonl.gz")]);
    args.labels = Some(data("labels_excerpt.jsonl"));
    args.planted = true;
    let measured = lines(&args).remove(0);
    let all = measured.pointer("/labels/rows/0").expect("a row for all").clone();
    assert_eq!(all["set"], "all");
    let share = |level: &str, figure: &str| {
        let share = &all[level][figure];
        let (hits, of) = (share["hits"].as_f64().expect("a number"), share["of"].as_f64().expect("a number"));
        assert!(of > 0.0, "{level} {figure} is about something");
        hits / of
    };
    assert!(share("warning", "recall") >= 0.93 && share("warning", "in_time") >= 0.80);
    assert!(share("block", "recall") >= 0.67 && share("block", "in_time") >= 0.55);
    for level in ["warning", "block"] {
        assert!(share(level, "look_alikes") == 0.0 && share(level, "resolved") == 0.0, "{level}");
    }
    let planted = measured["planted"].as_array().expect("rows");
    assert_eq!(planted.len(), 18);
    for row in planted {
        let wanted = if row["is_loop"] == true { row["warning"]["of"].clone() } else { 0.into() };
        assert_eq!(row["warning"]["hits"], wanted, "{row}");
    }
}

#[test]
fn a_line_a_run_with_every_decision() {
    let (_dir, path) = file("runs.jsonl", &run_line("r1", &json!({}), 6));
    let lines = lines(&args(&[path]));
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["run_id"], "r1");
    let decisions = lines[0]["decisions"].as_array().expect("a list");
    let first = &decisions[0];
    let mut keys: Vec<&str> = first.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["at", "count", "detector", "emitted", "level", "message", "phase"]);
    assert_eq!(
        (&first["at"], &first["phase"], &first["detector"]),
        (&json!(2), &json!("after"), &json!("same_error"))
    );
    assert_eq!(
        (&first["level"], &first["count"], &first["emitted"]),
        (&json!("warning"), &json!(3), &json!(true))
    );
    let block = decisions.iter().find(|d| d["level"] == "block").expect("a block");
    assert_eq!((&block["at"], &block["phase"], &block["count"]), (&json!(5), &json!("before"), &json!(5)));
}

#[test]
fn the_block_of_a_run_is_read_as_it_was_in_force() {
    let config = json!({"global": {"enabled": true, "strategy": "classic", "warningThreshold": 0}, "agent": {"warningThreshold": 5}});
    let (_dir, path) = file("runs.jsonl", &run_line("r", &config, 8));
    let lines = lines(&args(&[path]));
    let at: Vec<&Value> = lines[0]["decisions"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|d| d["detector"] == "generic_repeat")
        .collect();
    assert_eq!((&at[0]["at"], &at[0]["phase"], &at[0]["count"]), (&json!(5), &json!("before"), &json!(5)));
}

#[test]
fn events_and_declared_tools_are_used() {
    let call = json!({"tool": "look", "args": {}, "result": "same"});
    let mut items = vec![json!({"event": "compaction"})];
    items.extend(vec![call.clone(); 3]);
    let guarded = json!({"run_id": "guard", "calls": items});
    let mut calls = vec![call.clone(); 2];
    calls.push(json!({"event": "user_turn"}));
    calls.extend(vec![call.clone(); 3]);
    let reset = json!({"run_id": "reset", "calls": calls});
    let polled =
        json!({"run_id": "poll", "tools": {"look": {"poll": true, "kind": "read"}}, "calls": vec![call; 9]});
    let (_dir, path) = file("runs.jsonl", &format!("{guarded}\n{reset}\n{polled}\n"));
    let lines = lines(&args(&[path]));
    let detectors = |at: usize| {
        lines[at]["decisions"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|d| d["detector"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(detectors(0), ["compaction_loop_persisted"]);
    assert_eq!(detectors(1), Vec::<Value>::new());
    assert_eq!(detectors(2), Vec::<Value>::new());
}

#[test]
fn lines_that_are_not_understood_are_counted_and_named() {
    let text = format!(
        "{}\nnonsense\n[1, 2]\n{{\"a\": 1}}\n\n{}\n",
        run_line("r1", &json!({}), 1),
        run_line("r2", &json!({}), 1)
    );
    let (_dir, path) = file("runs.jsonl", &text);
    let (runs, unknown) = read(&path);
    assert_eq!(runs.iter().map(|run| run.run_id.as_str()).collect::<Vec<_>>(), ["r1", "r2"]);
    assert_eq!(unknown.lines, 4, "nonsense, two numbers, an object: {unknown:?}");
    assert!(unknown.kinds.values().any(|(place, _)| place.ends_with("runs.jsonl:2")), "{unknown:?}");
}

#[test]
fn claude_code_transcripts_are_read() {
    let (runs, unknown) = read(&data("claude.jsonl"));
    assert_eq!(runs.iter().map(|run| run.run_id.as_str()).collect::<Vec<_>>(), ["s1", "s1/agent-a7"]);
    let calls: Vec<&str> =
        runs[0].calls.iter().map(|item| item.event.as_deref().unwrap_or(&item.tool)).collect();
    assert_eq!(calls, ["user_turn", "Edit", "Edit", "Edit", "Edit", "compaction"]);
    assert_eq!(unknown.kinds.keys().collect::<Vec<_>>(), ["a Claude Code entry of type hologram"]);
    let lines = lines(&args(&[data("claude.jsonl")]));
    assert_eq!(lines[0]["decisions"][0]["detector"], "same_error");
}

#[test]
fn codex_rollouts_are_read() {
    let (runs, unknown) = read(&data("codex.jsonl"));
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].run_id, "codex-1");
    assert_eq!(
        runs[0].calls.iter().filter(|item| item.tool == "shell" && item.exit == Some(json!(1))).count(),
        3
    );
    assert_eq!(unknown.kinds.keys().collect::<Vec<_>>(), ["a Codex item of type telepathy"]);
    let lines = lines(&args(&[data("codex.jsonl")]));
    assert_eq!(lines[0]["decisions"][0]["detector"], "same_error", "both spellings of the output are one");
}

#[test]
fn openhands_and_mini_swe_agent_trajectories_are_read() {
    let (runs, unknown) = read(&data("openhands.json"));
    assert_eq!((runs.len(), unknown.lines), (1, 0), "{unknown:?}");
    let lines = lines(&args(&[data("openhands.json")]));
    assert_eq!(
        (&lines[0]["run_id"], &lines[0]["decisions"][0]["detector"]),
        (&json!("openhands"), &json!("same_error"))
    );

    let (runs, unknown) = read(&data("mini_swe.json"));
    assert_eq!((runs.len(), unknown.lines), (1, 0), "{unknown:?}");
    let tools: Vec<&str> = runs[0].calls.iter().map(|item| item.tool.as_str()).collect();
    assert_eq!(tools, ["bash", "bash", "<format_error>"]);
    assert_eq!(runs[0].calls[0].result, Some(json!("<output>\na.py\n</output>")));
}

#[test]
fn two_configurations_are_compared_run_by_run() {
    let text = format!("{}\n{}\n", run_line("short", &Value::Null, 2), run_line("long", &Value::Null, 4));
    let (_runs, path) = file("runs.jsonl", &text);
    let (_config, other) = file(
        "other.toml",
        "[loop_detection.rules.same_error]\nwarn = 4\nblock = 9\n[loop_detection.rules]\nno_news = false\nerror_family = false\n",
    );
    let mut args = args(&[path]);
    args.compare = Some(other);
    let compared = lines(&args).remove(0);
    assert_eq!(
        (&compared["runs"], &compared["fired_before"], &compared["fired_after"]),
        (&json!(2), &json!(1), &json!(1))
    );
    let changed = compared["changed"].as_array().expect("a list");
    assert_eq!(changed.len(), 1);
    assert_eq!(
        (&changed[0]["run_id"], &changed[0]["before"]["warning"], &changed[0]["after"]["warning"]),
        (&json!("long"), &json!(2), &json!(3))
    );
}

#[test]
fn a_bad_configuration_is_refused_naming_the_key() {
    let (_runs, path) = file("runs.jsonl", &run_line("r", &Value::Null, 1));
    let (_config, config) = file("bad.toml", "[loop_detection]\nwarning_threshold = 0\n");
    let mut args = args(&[path]);
    args.config = Some(config);
    let error = replay(&args, &mut Vec::new()).expect_err("0 is no threshold");
    assert!(
        matches!(error, ReplayError::Config { .. }) && error.to_string().contains("warning_threshold"),
        "{error}"
    );
    assert_eq!(error.exit_code(), 78);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error =
        replay(&args(&[PathBuf::from("/nowhere/runs.jsonl")]), &mut Vec::new()).expect_err("it is not there");
    assert!(error.to_string().contains("/nowhere/runs.jsonl"), "{error}");
}
