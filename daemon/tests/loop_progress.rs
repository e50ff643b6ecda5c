//! The progress rules and the ladder, one behaviour a test.

use std::sync::Arc;

use serde_json::{Value, json};
use toolcell_daemon::core::loop_detection::{
    CallFacts, Decision, Decisions, Detector, Ended, Fingerprint, Level, LoopBlock, LoopConfig,
    LoopDetection, OutcomeBuilder, Output, Reading, Recorded, ToolKind, ToolTraits, path_fingerprint,
};

struct Session {
    detection: LoopDetection,
    calls: u32,
    traits: ToolTraits,
}

impl Session {
    fn new(config: Value) -> Self {
        let block = LoopBlock::parse(&config, Reading::Strict).expect("the configuration is right");
        Self {
            detection: LoopDetection::new(Arc::new(LoopConfig::resolve(&block))),
            calls: 0,
            traits: ToolTraits::default(),
        }
    }

    fn facts(&mut self, tool: &str, args: &Value) -> CallFacts {
        self.calls += 1;
        CallFacts::new(&format!("call-{}", self.calls), tool, args, &self.traits, &[], Some("/w"))
    }

    /// One call: what was said before it, and after it if it ran.
    fn call(&mut self, tool: &str, args: Value, output: &str, ended: Ended) -> (Decisions, Decisions) {
        let facts = self.facts(tool, &args);
        let before = self.detection.before_call(&facts);
        if before.refusal().is_some() {
            return (before, Decisions::none());
        }
        let mut builder = OutcomeBuilder::new();
        builder.push(Output::Stdout, output.as_bytes());
        let exit = if ended == Ended::Ok { 0 } else { 1 };
        let after = self.detection.after_call(&facts, &builder.finish(&facts, ended, Some(exit)));
        (before, after)
    }

    fn ok(&mut self, tool: &str, args: Value, output: &str) -> (Decisions, Decisions) {
        self.call(tool, args, output, Ended::Ok)
    }

    fn fails(&mut self, tool: &str, args: Value, output: &str) -> (Decisions, Decisions) {
        self.call(tool, args, output, Ended::Failed)
    }
}

fn progress() -> Session {
    Session::new(json!({}))
}

fn shown(said: &(Decisions, Decisions)) -> Vec<(&'static str, Level, u32)> {
    let all = said.0.0.iter().chain(&said.1.0);
    all.filter(|d| d.emitted).map(|d| (d.detector.name(), d.level, d.count)).collect()
}

fn first(said: &(Decisions, Decisions), detector: Detector) -> &Decision {
    let mut all = said.0.0.iter().chain(&said.1.0);
    all.find(|d| d.detector == detector).unwrap_or_else(|| panic!("{} in {said:?}", detector.name()))
}

fn fetch() -> Value {
    json!({"url": "http://x"})
}

#[test]
fn the_ladder_goes_from_warning_to_block_to_abort() {
    let mut session = progress();
    let said: Vec<_> = (0..8).map(|_| shown(&session.fails("fetch", fetch(), "HTTP 500"))).collect();
    assert_eq!(said[0], []);
    assert_eq!(said[1], []);
    assert_eq!(said[2], [("same_error", Level::Warning, 3)]);
    assert!(said[3].iter().all(|(_, level, _)| *level == Level::Warning));
    assert_eq!(said[5], [("same_error", Level::Block, 5)], "five ran, the sixth does not");
    assert_eq!(said[6], [("same_error", Level::Block, 5)], "blocked calls do not count on");
    assert_eq!(said[7], [("same_error", Level::Block, 5), ("blocks_without_progress", Level::Abort, 3)]);
}

#[test]
fn a_decision_says_what_how_often_what_came_back_and_two_ways_on() {
    let mut session = progress();
    session.fails("fetch", fetch(), "HTTP 500 upstream");
    session.fails("fetch", fetch(), "HTTP 500 upstream");
    let said = session.fails("fetch", fetch(), "HTTP 500 upstream");
    let decision = first(&said, Detector::SameError);
    for part in
        ["fetch(http://x)", "3 times", "HTTP 500 upstream", "(1)", "(2)", "At 5 it is not run any more"]
    {
        assert!(decision.message.contains(part), "{part:?} in {:?}", decision.message);
    }
    assert_eq!(decision.call_ids, ["call-1", "call-2", "call-3"]);
    assert_eq!(decision.config_version, session.detection.config().version);
    assert_ne!(decision.key, Fingerprint::default());
}

#[test]
fn three_new_results_between_blocks_are_progress() {
    let mut session = progress();
    let mut aborted = false;
    for round in 0..12 {
        let said = session.fails("fetch", fetch(), "HTTP 500");
        aborted |= said.0.abort().is_some();
        for i in 0..3 {
            session.ok("read", json!({"path": format!("{round}-{i}")}), &format!("new {round} {i}"));
        }
    }
    assert!(!aborted);
}

#[test]
fn a_blocked_key_gets_another_try_after_its_cool_down() {
    let mut session = Session::new(json!({"cooldown_calls": 4, "rules": {"blocks_without_progress": false}}));
    let blocked: Vec<bool> =
        (0..14).map(|_| session.fails("fetch", fetch(), "HTTP 500").0.refusal().is_some()).collect();
    assert_eq!(blocked.iter().position(|b| *b), Some(5));
    assert_eq!(blocked[5..9], [true; 4]);
    assert!(!blocked[9], "the fifth one is a try");
    assert!(blocked[10], "it failed as before");
}

#[test]
fn a_result_counts_only_while_nothing_was_changed() {
    let mut session = progress();
    let list = || json!({"path": "src"});
    for i in 0..12 {
        session.ok("write_file", json!({"path": format!("src/{i}"), "content": "x"}), &format!("wrote {i}"));
        assert_eq!(shown(&session.ok("list_dir", list(), "a b c")), []);
    }
    let said: Vec<_> = (0..3).map(|_| shown(&session.ok("list_dir", list(), "a b c"))).collect();
    assert_eq!(said[2], [("same_result", Level::Warning, 4)]);
}

#[test]
fn what_only_differs_in_time_is_the_same_result() {
    let mut session = progress();
    let said: Vec<_> = (0..4)
        .map(|i| {
            shown(&session.ok("status", json!({"job": 7}), &format!("12:00:0{i} idle, pid {i}, took 0.{i}s")))
        })
        .collect();
    assert_eq!(said[3], [("same_result", Level::Warning, 4)]);
}

#[test]
fn the_same_error_with_ever_new_arguments_is_one_family() {
    let mut session = progress();
    let edit = |i: u32| json!({"path": "a.rs", "old_str": format!("x{i}"), "new_str": "y"});
    let said: Vec<_> = (0..6)
        .map(|i| session.fails("edit_file", edit(i), &format!("Text to replace was not found: `x{i}`")))
        .collect();
    assert_eq!(shown(&said[3]), [("error_family", Level::Warning, 4)]);
    assert_eq!(shown(&said[5]), [("error_family", Level::Block, 5)]);
    let said = session.fails("edit_file", edit(7), "Text to replace was not found: `x7`");
    assert!(said.0.is_empty(), "after a block one call is let through to see");
}

#[test]
fn looking_between_failing_edits_is_fine() {
    let mut session = progress();
    for i in 0..20 {
        let edit =
            json!({"command": "str_replace", "path": "a.rs", "old_str": format!("x{i}"), "new_str": "y"});
        assert_eq!(
            shown(&session.fails("edit", edit, &format!("No replacement: old_str `x{i}` not found"))),
            []
        );
        let view = json!({"command": "view", "path": "a.rs", "view_range": [i, i + 10]});
        assert_eq!(shown(&session.ok("edit", view, &format!("lines {i}"))), []);
    }
}

#[test]
fn the_same_error_of_several_tools_is_named_infrastructure() {
    let mut session = progress();
    let mut said = Vec::new();
    for i in 0..4 {
        let tool = ["read_mail", "send_mail"][i % 2];
        said = shown(&session.fails(tool, json!({"n": i}), "Error: 401 Unauthorized: token expired"));
    }
    assert_eq!(said, [("infrastructure", Level::Warning, 4)]);
}

#[test]
fn a_cycle_is_found_although_each_lap_changes_something() {
    let mut session = Session::new(json!({"rules": {"same_result": false, "no_news": false}}));
    let mut seen = Vec::new();
    for i in 0..15 {
        let (tool, args) =
            [("toggle", json!({"on": true})), ("toggle", json!({"on": false})), ("status", json!({}))][i % 3]
                .clone();
        seen.extend(shown(&session.ok(tool, args, "done")));
    }
    assert_eq!(seen.first(), Some(&("cycle", Level::Warning, 3)));
    assert!(seen.contains(&("cycle", Level::Block, 4)));
}

#[test]
fn a_row_of_calls_without_news_is_found_whatever_their_order() {
    let mut session = Session::new(json!({"rules": {"same_result": false, "cycle": false}}));
    for name in ["a", "b", "c", "d"] {
        session.ok("read", json!({"path": name}), name);
    }
    let said: Vec<_> = ["b", "a", "d", "c", "a"]
        .iter()
        .map(|name| shown(&session.ok("read", json!({"path": name}), name)))
        .collect();
    assert_eq!(said[4], [("no_news", Level::Warning, 5)]);
}

#[test]
fn an_edit_put_back_and_forth_oscillates() {
    let mut session = progress();
    let flip = |i: usize| {
        let (old, new) = [("retries = 3", "retries = 5"), ("retries = 5", "retries = 3")][i % 2];
        json!({"path": "app.py", "old_string": old, "new_string": new})
    };
    let said: Vec<_> =
        (0..7).map(|i| shown(&session.ok("edit_file", flip(i), &format!("edited {i}")))).collect();
    assert_eq!(said[2], [], "put in again once");
    assert_eq!(said[3], [("oscillation", Level::Warning, 2)]);
    assert_eq!(said[6], [("oscillation", Level::Block, 4)]);
}

#[test]
fn oscillation_is_seen_by_content_whoever_edits() {
    let mut session = progress();
    let mut seen = Vec::new();
    for i in 0..6 {
        // The command does not say what it writes; the content afterwards does.
        let facts = session.facts("bash", &json!({"command": format!("./tool --round {i} > app.py")}));
        assert!(session.detection.before_call(&facts).is_empty());
        let mut builder = OutcomeBuilder::new();
        builder.push(Output::Stdout, format!("round {i}").as_bytes());
        builder.content(path_fingerprint("app.py", Some("/w")), Fingerprint::of(["one", "two"][i % 2]));
        seen.extend(session.detection.after_call(&facts, &builder.finish(&facts, Ended::Ok, Some(0))).0);
    }
    assert!(
        seen.iter().any(|d| d.detector == Detector::Oscillation && d.level == Level::Warning),
        "{seen:?}"
    );
}

#[test]
fn edit_and_the_same_failing_check_is_found_by_laps() {
    let mut session = progress();
    let mut said = Vec::new();
    for i in 0..9 {
        session.ok(
            "edit_file",
            json!({"path": "a.py", "old_str": format!("{i}"), "new_str": format!("{}", i + 1)}),
            &format!("edited {i}"),
        );
        said.push(shown(&session.fails(
            "bash",
            json!({"command": "pytest -q"}),
            &format!("1 failed in 0.1{i}s"),
        )));
    }
    assert_eq!(said[5], [("failing_check", Level::Warning, 6)]);
    session.ok("edit_file", json!({"path": "a.py", "old_str": "9", "new_str": "10"}), "edited 9");
    let last = session.fails("bash", json!({"command": "pytest -q"}), "1 failed in 0.2s");
    assert_eq!(shown(&last), [("failing_check", Level::Block, 9)]);
}

#[test]
fn a_check_whose_answer_moves_is_left_alone() {
    let mut session = progress();
    for i in 0..30 {
        session.ok(
            "edit_file",
            json!({"path": "a.py", "old_str": format!("{i}"), "new_str": "y"}),
            &format!("edited {i}"),
        );
        assert_eq!(
            shown(&session.fails("bash", json!({"command": "cargo test"}), &format!("{} failed", 40 - i))),
            []
        );
    }
}

#[test]
fn searches_without_a_hit_are_answers() {
    let mut session = progress();
    for i in 0..30 {
        let said = session.fails("bash", json!({"command": format!("grep -rn symbol_{i} src")}), "");
        assert_eq!(shown(&said), []);
    }
}

#[test]
fn unknown_tools_are_counted_over_their_names() {
    let mut session = progress();
    let said: Vec<_> = (0..6)
        .map(|i| {
            shown(&session.call(
                ["reed_file", "raed_file"][i % 2],
                json!({"n": i}),
                "no such tool",
                Ended::UnknownTool,
            ))
        })
        .collect();
    assert!(said[2].contains(&("unknown_tool", Level::Warning, 3)));
    assert_eq!(said[5], [("unknown_tool", Level::Block, 5)]);
}

#[test]
fn empty_arguments_are_told_as_such() {
    let mut session = progress();
    let mut said = (Decisions::none(), Decisions::none());
    for _ in 0..3 {
        said = session.fails("edit_file", json!({}), "missing parameter path");
    }
    assert_eq!(shown(&said), [("malformed_call", Level::Warning, 3)]);
    assert!(first(&said, Detector::MalformedCall).message.contains("arrived empty, cut off"));
    session.fails("edit_file", json!({}), "missing parameter path");
    session.fails("edit_file", json!({}), "missing parameter path");
    assert_eq!(shown(&session.fails("edit_file", json!({}), ""))[0], ("malformed_call", Level::Block, 5));
    let whole = session.ok("edit_file", json!({"path": "a", "old_str": "b", "new_str": "c"}), "edited");
    assert!(whole.0.is_empty(), "a repaired call gets through");
}

#[test]
fn a_declared_poller_has_patience_and_is_told_to_wait() {
    let mut session = progress();
    session.traits = ToolTraits { poll: Some(true), kind: Some(ToolKind::Read), ..ToolTraits::default() };
    let mut said = Vec::new();
    for _ in 0..21 {
        said.push(session.ok("deploy_status", json!({"id": 1}), "pending"));
    }
    let first_shown = said.iter().position(|s| !shown(s).is_empty());
    assert_eq!(first_shown, Some(9));
    assert!(first(&said[9], Detector::PollNoChange).message.contains("pause"));
    assert_eq!(shown(&said[20]), [("poll_no_change", Level::Block, 20)]);
    let mut session = progress();
    session.traits.poll = Some(true);
    for i in 0..100 {
        assert_eq!(shown(&session.ok("deploy_status", json!({"id": 1}), &format!("{i} %"))), [], "progress");
    }
}

#[test]
fn a_file_rewritten_blindly_is_warned_about_and_reading_it_is_enough() {
    let write = |i: u32| json!({"path": "doc.md", "content": format!("draft {i}")});
    let mut session = progress();
    let said: Vec<_> = (0..10).map(|i| shown(&session.ok("write_file", write(i), "wrote"))).collect();
    assert_eq!(said[9], [("rewrite", Level::Warning, 10)]);
    let mut session = progress();
    for i in 0..30 {
        assert_eq!(shown(&session.ok("write_file", write(i), "wrote")), []);
        session.ok("read_file", json!({"path": "doc.md"}), &format!("draft {i}"));
    }
}

#[test]
fn notes_never_change_a_verdict() {
    let mut session = progress();
    let mut notes = Vec::new();
    for i in 0..6 {
        let (_, after) = session.fails(
            &format!("tool{i}"),
            json!({"n": i}),
            &format!("error {}", ["a", "b", "c", "d", "e", "f"][i]),
        );
        assert_eq!(after.warnings().count(), 0);
        notes.extend(after.0);
    }
    assert!(
        notes
            .iter()
            .any(|d| d.detector == Detector::ConsecutiveFailures && d.level == Level::Note && d.count == 6)
    );
}

#[test]
fn a_user_turn_starts_anew_and_a_compaction_does_not() {
    let mut session = progress();
    session.fails("fetch", fetch(), "HTTP 500");
    session.fails("fetch", fetch(), "HTTP 500");
    session.detection.note_user_turn();
    assert_eq!(shown(&session.fails("fetch", fetch(), "HTTP 500")), []);
    session.fails("fetch", fetch(), "HTTP 500");
    session.detection.note_compaction();
    assert_eq!(shown(&session.fails("fetch", fetch(), "HTTP 500"))[0], ("same_error", Level::Warning, 3));
}

#[test]
fn three_equal_calls_after_a_compaction_end_the_run() {
    let mut session = progress();
    session.detection.note_compaction();
    session.ok("read", json!({"path": "a"}), "x");
    session.ok("read", json!({"path": "a"}), "x");
    let said = session.ok("read", json!({"path": "a"}), "x");
    let decision = said.1.abort().expect("the guard ends the run");
    assert_eq!((decision.detector.name(), decision.count), ("compaction_loop_persisted", 3));
    assert!(
        decision.message.contains("compaction_loop_persisted")
            && decision.message.contains("read")
            && decision.message.contains('3')
    );
}

#[test]
fn a_written_runner_path_is_enforced_literally() {
    let edit = |i: u32| json!({"path": "a.rs", "old_str": format!("{i}"), "new_str": format!("n{i}")});
    let mut session = Session::new(json!({"max_edits_per_file": 2}));
    let said: Vec<_> =
        (0..4).map(|i| shown(&session.ok("edit_file", edit(i), &format!("edited {i}")))).collect();
    assert_eq!(said[1], []);
    assert_eq!(said[2], [("edit_frequency", Level::Warning, 3)]);
    assert_eq!(said[3], [("edit_frequency", Level::Abort, 4)]);
    let mut session = progress();
    for i in 0..30 {
        assert_eq!(
            shown(&session.ok("edit_file", edit(i), &format!("edited {i}"))),
            [],
            "not written, not counted"
        );
    }
}

#[test]
fn nothing_runs_when_switched_off() {
    let mut session =
        Session::new(json!({"enabled": false, "max_edits_per_file": 1, "min_repeat_pattern": 1}));
    session.detection.note_compaction();
    for _ in 0..40 {
        assert_eq!(shown(&session.fails("edit_file", json!({"path": "a"}), "no")), []);
    }
}

#[test]
fn a_budget_is_no_loop_and_says_so() {
    let mut session = Session::new(json!({"budget": {"max_calls": 10}}));
    let mut all = Vec::new();
    for i in 0..11 {
        all.push(session.ok("read", json!({"path": i}), &format!("{i}")));
    }
    assert_eq!(shown(&all[9]), [("budget_calls", Level::Note, 10)]);
    let decision = all[10].0.abort().expect("the budget is used up");
    assert!(decision.detector == Detector::BudgetCalls && decision.message.contains("no loop"));
}

#[test]
fn runs_of_one_session_are_counted_apart() {
    let mut session = progress();
    for i in 0..12_u64 {
        let facts = session.facts("fetch", &fetch()).in_run(Some(Fingerprint(1 + i % 6)));
        assert!(session.detection.before_call(&facts).is_empty());
        let recorded = Recorded { message: Some("HTTP 500"), ..Recorded::default() };
        let outcome = recorded.outcome(&facts, &fetch()).expect("an outcome");
        let after = session.detection.after_call(&facts, &outcome);
        assert_eq!(after.warnings().count(), 0, "twice in each of six runs");
    }
}

#[test]
fn an_expected_failure_is_no_failure() {
    let mut session = progress();
    for i in 0..8 {
        let mut facts = session.facts("bash", &json!({"command": format!("./must-fail {i}")}));
        facts.failure_expected = true;
        assert!(session.detection.before_call(&facts).is_empty());
        let mut builder = OutcomeBuilder::new();
        builder.push(Output::Stderr, format!("error: refused as it should {i}").as_bytes());
        let after = session.detection.after_call(&facts, &builder.finish(&facts, Ended::Failed, Some(1)));
        assert!(after.is_empty(), "{after:?}");
    }
}

#[test]
fn calls_without_an_outcome_are_counted_when_they_are_made() {
    let mut session = progress();
    let said: Vec<Decisions> = (0..22)
        .map(|_| {
            let facts = session.facts("update_plan", &json!({"plan": ["a"]}));
            session.detection.before_call(&facts)
        })
        .collect();
    assert!(said[..10].iter().all(Decisions::is_empty));
    assert_eq!(
        (said[10].0[0].detector, said[10].0[0].level, said[10].0[0].count),
        (Detector::NoAnswer, Level::Warning, 10)
    );
    assert_eq!(said[20].refusal().map(|d| (d.detector, d.count)), Some((Detector::NoAnswer, 20)));
}

#[test]
fn asking_now_and_then_how_things_stand_is_never_refused() {
    let mut session = progress();
    for i in 0..60 {
        for part in 0..3 {
            session.ok("read_file", json!({"path": format!("{i}-{part}")}), &format!("text {i} {part}"));
        }
        let said = session.ok("bash", json!({"command": "git status"}), "clean");
        assert!(said.0.refusal().is_none());
    }
}

#[test]
fn empty_arguments_are_counted_over_several_tools() {
    let mut session = progress();
    let tools = ["read_file", "edit_file", "write_file"];
    let said: Vec<_> = (0..6)
        .map(|i| shown(&session.fails(tools[i % 3], json!({}), &format!("{} needs arguments", tools[i % 3]))))
        .collect();
    assert_eq!(said[2], [("malformed_call", Level::Warning, 3)]);
    assert_eq!(said[5], [("malformed_call", Level::Block, 5)]);
}

#[test]
fn what_only_a_delivery_adds_is_no_progress() {
    let mut session = progress();
    let args = json!({"action": "send", "to": "c", "content": "hi"});
    let mut blocked = None;
    for i in 0..10 {
        let facts = session.facts("message", &args);
        if session.detection.before_call(&facts).refusal().is_some() {
            blocked = Some(i);
            break;
        }
        let result =
            json!({"text": format!("sent {i}"), "details": {"ok": true, "messageId": format!("m{i}")}});
        let outcome = Recorded { result: Some(&result), ..Recorded::default() }
            .outcome(&facts, &args)
            .expect("an outcome");
        session.detection.after_call(&facts, &outcome);
    }
    assert_eq!(blocked, Some(6));
}

#[test]
fn a_command_started_again_while_it_runs_is_the_same_result() {
    let mut session = progress();
    let args = json!({"command": "make watch"});
    let mut warned = false;
    for i in 0..4 {
        let facts = session.facts("exec", &args);
        assert!(session.detection.before_call(&facts).is_empty());
        let result = json!({"text": format!("pid {i}"), "details": {"status": "running", "pid": i, "tail": format!("line {i}")}});
        let outcome = Recorded { result: Some(&result), ..Recorded::default() }
            .outcome(&facts, &args)
            .expect("an outcome");
        warned |= session.detection.after_call(&facts, &outcome).warnings().count() > 0;
    }
    assert!(warned);
}
