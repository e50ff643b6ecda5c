//! A call from its request to its result: what is said, in which order, and how it is refused.

use std::fs;
use std::time::Duration;

use serde_json::json;
use toolcell_protocol::call::{Containment, LayerState, Status, Verdict};
use toolcell_protocol::client_api::{DaemonMessage, EventBody, ExecuteAnswer, RefusalCode, Reply};
use toolcell_protocol::id::CallId;
use toolcell_tests::daemon::TestDaemon;
use toolcell_tests::manifests::Manifest;
use toolcell_tests::peer::{PATIENCE, bash, call, habit, within};
use toolcell_tests::setting::{self, Setting};

const WEAK: Setting = Setting::own(Containment::Weak);

#[test]
fn a_result_tells_everything_about_its_call() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let result = daemon.client().run_one(habit("say some-words some-errors 0"));
        assert_eq!(result.status, Status::Ok, "{result:#?}");
        assert_eq!(result.tool, "misbehave");
        assert!(
            result.for_model.contains("some-words") && result.for_model.contains("some-errors"),
            "{result:#?}"
        );
        let details = &result.details;
        assert_eq!((details.exit_code, details.signal, details.attempts), (Some(0), None, 1), "{result:#?}");
        assert_eq!((details.stdout_bytes, details.stderr_bytes), (11, 12), "{result:#?}");
        assert!(!details.truncated && details.omitted_bytes == 0, "{result:#?}");
        assert!(details.started_at_ms > Some(1_600_000_000_000), "{result:#?}");
        assert!(details.duration_us.is_some_and(|us| us > 0 && us < 20_000_000), "{result:#?}");
        assert!(details.queued_us.is_some() && details.user_cpu_us.is_some(), "{result:#?}");
        assert!(details.peak_memory_bytes > Some(100_000), "{result:#?}");
        assert!(details.leftovers.is_empty() && details.limits_hit.is_empty(), "{result:#?}");
        assert!(details.kill.is_none() && !details.stdout_open_after_exit, "{result:#?}");
        let layers = details.layers.as_ref().expect("it started, so layers are told");
        assert_eq!(layers.containment, setting.containment, "{result:#?}");
        let enforced = |name: &str| {
            layers.layers.iter().any(|layer| layer.name == name && layer.state == LayerState::Enforced)
        };
        assert!(enforced("no_new_privileges"), "{result:#?}");
    });
}

#[test]
fn results_come_in_call_order_whatever_ends_first() {
    let daemon = TestDaemon::in_setting(WEAK);
    let lines = ["sleep 0.3", "exit 1", "sleep 0.1", "ok", "sleep 0.2", "exit 2"];
    let result = daemon.client().run(lines.iter().map(|line| habit(line)).collect());
    assert_eq!(result.verdict, Verdict::NextTurn);
    let ids: Vec<&str> = result.results.iter().map(|result| result.call_id.0.as_str()).collect();
    assert_eq!(ids, ["0", "1", "2", "3", "4", "5"]);
    let codes: Vec<Option<i32>> = result.results.iter().map(|result| result.details.exit_code).collect();
    assert_eq!(codes, [0, 1, 0, 0, 0, 2].map(Some));
}

#[test]
fn events_tell_a_batch_from_its_start_to_its_end_with_rising_numbers() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client();
    let batch = client.execute(vec![habit("ok"), habit("exit 3"), call("no_such_tool", &json!({}))]);
    let mut events = Vec::new();
    loop {
        match client.receive(PATIENCE).expect("an event") {
            Some(DaemonMessage::Event(event)) => events.push(event),
            other => panic!("no event but {other:?}"),
        }
        if matches!(events[events.len() - 1].body, EventBody::BatchFinished(_)) {
            break;
        }
    }
    assert!(events.windows(2).all(|pair| pair[0].seq + 1 == pair[1].seq), "{events:#?}");
    let EventBody::BatchStarted { batch_id, count } = &events[0].body else { panic!("{events:#?}") };
    assert_eq!((*batch_id, *count), (batch.batch_id, 3));
    let started: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::ToolStarted { call_id, pid, args, name, .. } => {
                assert!(*pid > 1 && name == "misbehave", "{events:#?}");
                Some((call_id.0.as_str(), args.as_str()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(started.len(), 2, "{events:#?}");
    assert!(started.contains(&("0", r#"{"line":"ok"}"#)), "{events:#?}");
    let mut finished: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::ToolFinished { call_id, status, .. } => Some((call_id.0.as_str(), *status)),
            _ => None,
        })
        .collect();
    finished.sort_unstable();
    assert_eq!(
        finished,
        [("0", Status::Ok), ("1", Status::Error), ("2", Status::UnknownTool)],
        "{events:#?}"
    );
}

#[test]
fn an_unknown_tool_is_a_result_with_the_nearest_names() {
    let daemon = TestDaemon::in_setting(WEAK);
    let result = daemon.client().run_one(call("misbehaves", &json!({"line": "ok"})));
    assert_eq!(result.status, Status::UnknownTool);
    assert_eq!(result.status_detail.nearest.first().map(String::as_str), Some("misbehave"), "{result:#?}");
    assert!(result.for_model.contains("misbehave"), "{result:#?}");
    assert_eq!(result.details.attempts, 0);
    assert!(result.details.layers.is_none());
}

#[test]
fn arguments_that_do_not_fit_are_a_result_that_names_the_field() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client();
    let mut cut_off = habit("ok");
    cut_off.args = r#"{"line": "o"#.to_owned();
    let result =
        client.run(vec![call("misbehave", &json!({"line": 7})), call("misbehave", &json!({})), cut_off]);
    for result in &result.results {
        assert_eq!(result.status, Status::InvalidArgs, "{result:#?}");
        assert!(!result.for_model.is_empty() && result.details.attempts == 0, "{result:#?}");
    }
    assert_eq!(result.results[0].status_detail.field.as_deref(), Some("/line"), "{result:#?}");
    assert!(result.results[0].for_model.contains("line"), "{result:#?}");
}

#[test]
fn a_batch_in_which_nothing_can_run_answers_next_turn_and_still_has_its_results() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client();
    let request = client.batch_request(vec![call("nothing", &json!({})), call("misbehave", &json!({}))]);
    let Reply::BatchAccepted { batch_id, answer, call_uids } = client.granted(request) else {
        panic!("no batch")
    };
    assert_eq!(answer, ExecuteAnswer::NextTurn);
    let result = client.finish(&toolcell_tests::peer::Accepted { batch_id, call_uids });
    assert_eq!(result.results[0].status, Status::UnknownTool);
    assert_eq!(result.results[1].status, Status::InvalidArgs);
    assert_eq!(result.verdict, Verdict::NextTurn);
}

#[test]
fn two_calls_of_one_id_are_refused_and_the_id_is_named() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client();
    let mut calls = vec![habit("ok"), habit("ok"), habit("ok")];
    calls[0].call_id = CallId::from("toolu_twice");
    calls[2].call_id = CallId::from("toolu_twice");
    let request = client.batch_request(calls);
    let refusal = client.refused(request);
    assert_eq!(refusal.code, RefusalCode::DuplicateCallId);
    assert!(refusal.message.contains("toolu_twice"), "{refusal:?}");
    assert_eq!(client.run_one(habit("ok")).status, Status::Ok);
}

#[test]
fn requests_beyond_their_bounds_are_refused_and_name_the_field() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client();
    let too_many = (0..1025).map(|_| habit("ok")).collect();
    let request = client.batch_request(too_many);
    assert_eq!(client.refused(request).code, RefusalCode::BadRequest);
    let mut long_id = habit("ok");
    long_id.call_id = CallId("x".repeat(257));
    let request = client.batch_request(vec![long_id]);
    let refusal = client.refused(request);
    assert_eq!(refusal.code, RefusalCode::BadRequest);
    assert!(refusal.message.contains("call_id"), "{refusal:?}");
    assert_eq!(client.run_one(habit("ok")).status, Status::Ok);
}

#[test]
fn sixty_four_calls_run_at_once() {
    setting::in_main_settings(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        // Each waits until all 64 are there: they can only end if they all run at the same time.
        let script = "touch here.$$; while [ $(ls here.* | wc -l) -lt 64 ]; do sleep 0.1; done";
        let calls = (0..64).map(|_| within(50_000, bash(script))).collect();
        let result = client.run(calls);
        for result in &result.results {
            assert_eq!(result.status, Status::Ok, "{result:#?}");
        }
        assert_eq!(fs::read_dir(daemon.work()).expect("read the directory").count(), 64);
    });
}

#[test]
fn the_built_in_tools_work_on_real_files() {
    setting::in_main_settings(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        let path = "notes/today.txt";
        let written =
            client.run_one(call("write_file", &json!({"path": path, "content": "one\ntwo\nthree\n"})));
        assert_eq!(written.status, Status::Ok, "{written:#?}");
        let edited = client
            .run_one(call("edit_file", &json!({"path": path, "old_string": "two", "new_string": "zwei"})));
        assert_eq!(edited.status, Status::Ok, "{edited:#?}");
        let read = client.run_one(call("read_file", &json!({"path": path})));
        assert_eq!(read.status, Status::Ok, "{read:#?}");
        assert!(read.for_model.contains("zwei") && read.for_model.contains("three"), "{read:#?}");
        let listed = client.run_one(call("list_dir", &json!({"path": "notes"})));
        assert_eq!(listed.status, Status::Ok, "{listed:#?}");
        assert!(listed.for_model.contains("today.txt"), "{listed:#?}");
        let text = fs::read_to_string(daemon.work().join(path)).expect("the file is there");
        assert_eq!(text, "one\nzwei\nthree\n");
        let missing = client.run_one(call("read_file", &json!({"path": "nowhere.txt"})));
        assert_eq!(missing.status, Status::Error, "{missing:#?}");
        assert!(missing.for_model.contains("nowhere.txt"), "{missing:#?}");
    });
}

#[test]
fn bash_is_a_fresh_shell_in_the_sessions_directory_each_time() {
    setting::in_main_settings(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        let first =
            client.run_one(bash("pwd; cd /; X=1; echo \"it's $((6 * 7))\" | cat; false || echo done"));
        let expected = format!("{}\nit's 42\ndone\n", daemon.work().display());
        assert_eq!((first.status, first.for_model), (Status::Ok, expected));
        let second = client.run_one(bash("pwd; echo \"[$X]\""));
        assert_eq!(second.for_model, format!("{}\n[]\n", daemon.work().display()));
        let failed = client.run_one(bash("echo before; exit 7"));
        assert_eq!((failed.status, failed.details.exit_code), (Status::Error, Some(7)));
        assert!(failed.for_model.starts_with("before\n"), "{failed:#?}");
    });
}

#[test]
fn standard_input_reaches_the_tool_whole_and_a_tool_that_does_not_read_it_just_ends() {
    let daemon = TestDaemon::configure(WEAK).tool("reader", "stdin = \"json\"").start();
    let mut client = daemon.client();
    // Without `stdin` in the manifest it is empty.
    let empty = client.run_one(habit("stdin"));
    assert_eq!((empty.status, empty.for_model.as_str()), (Status::Ok, "0 bytes\n"), "{empty:#?}");
    // `reader` gets all arguments as JSON, the line is one of them.
    let given = client.run_one(call("reader", &json!({"line": "stdin"})));
    assert_eq!(given.status, Status::Ok, "{given:#?}");
    assert!(given.for_model.contains("{\"line\":\"stdin\"}"), "{given:#?}");
    // A hundred kilobytes for a tool that exits with 3 at once.
    let line = format!("no-stdin{}", " ".repeat(100_000));
    let unread = client.run_one(call("reader", &json!({ "line": line })));
    assert_eq!(unread.details.exit_code, Some(3), "{unread:#?}");
    assert!(unread.details.stdin_unread_bytes > 100_000, "{unread:#?}");
}

#[test]
fn a_program_that_is_being_installed_is_tried_again() {
    let daemon = TestDaemon::configure(WEAK).manifest(Manifest::new("fresh", &["./fresh"], &[])).start();
    let mut client = daemon.client();
    for _ in 0..5 {
        let program = daemon.work().join("fresh");
        fs::copy("/bin/true", &program).expect("copy a program");
        let open = fs::File::options().append(true).open(&program).expect("open it for writing");
        let batch = client.execute(vec![call("fresh", &json!({}))]);
        // An exec of it is refused with ETXTBSY as long as it is open for writing.
        let installer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(40));
            drop(open);
        });
        let result = client.finish(&batch);
        installer.join().expect("the installer ends");
        assert_eq!(result.results[0].status, Status::Ok, "{result:#?}");
    }
}
