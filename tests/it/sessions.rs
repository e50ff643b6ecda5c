//! Sessions, limits on how much runs at once, and the requests about calls.

use std::time::{Duration, Instant};

use toolcell_protocol::call::{Containment, Status};
use toolcell_protocol::client_api::{
    BatchExecute, CallPhase, KillAnswer, OnDisconnect, RefusalCode, Reply, Request,
};
use toolcell_protocol::id::{CallId, CallUid, SessionName};
use toolcell_tests::daemon::TestDaemon;
use toolcell_tests::peer::{Peer, habit};
use toolcell_tests::setting::{self, Setting};
use toolcell_tests::waiting::wait_until;

const WEAK: Setting = Setting::own(Containment::Weak);

fn kill(client: &mut Peer, call_uid: CallUid) -> KillAnswer {
    match client.granted(Request::CallKill { call_uid, reason: "the test says so".into() }) {
        Reply::CallKilled(answer) => answer,
        other => panic!("no answer to a kill but {other:?}"),
    }
}

#[test]
fn a_session_has_one_batch_at_a_time() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client();
    let batch = client.execute(vec![habit("sleep 60")]);
    let request = client.batch_request(vec![habit("ok")]);
    assert_eq!(client.refused(request).code, RefusalCode::BatchInProgress);
    assert_eq!(kill(&mut client, batch.call_uids[0]), KillAnswer::Killed);
    client.finish(&batch);
    assert_eq!(client.run_one(habit("ok")).status, Status::Ok);
}

#[test]
fn a_key_is_refused_as_long_as_it_would_not_be_kept() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client();
    let Request::BatchExecute(batch) = client.batch_request(vec![habit("ok")]) else { panic!("a batch") };
    let keyed = Request::BatchExecute(BatchExecute { key: Some("turn-1".into()), ..batch });
    let refusal = client.refused(keyed);
    assert_eq!(refusal.code, RefusalCode::BadRequest);
    assert!(refusal.message.contains("key"), "{refusal:?}");
}

#[test]
fn a_killed_call_is_gone_when_the_answer_comes() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        let batch = client.execute(vec![habit("hidden-family stay 20"), habit("sleep 0.5")]);
        client.started(batch.call_uids[0]);
        wait_until("the family is up", Duration::from_secs(20), || {
            let seen = daemon.tool_processes().len();
            if seen >= 3 { Ok(()) } else { Err(seen) }
        });
        assert_eq!(kill(&mut client, batch.call_uids[0]), KillAnswer::Killed);
        let result = client.finish(&batch);
        assert_eq!(result.results[0].status, Status::Killed);
        assert_eq!(result.results[0].status_detail.reason.as_deref(), Some("kill_requested"));
        assert!(result.results[0].for_model.contains("the test says so"), "{result:#?}");
        let kill_info = result.results[0].details.kill.as_ref().expect("it was killed");
        assert!(kill_info.proven_gone, "{result:#?}");
        assert_eq!(result.results[1].status, Status::Ok);
        assert_eq!(kill(&mut client, batch.call_uids[0]), KillAnswer::AlreadyEnded);
    });
}

#[test]
fn killed_is_said_only_when_no_process_is_left() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        for habit_line in ["tree 5 60", "fork-run stay 20", "ignore-term 60"] {
            let batch = client.execute(vec![habit(habit_line)]);
            client.started(batch.call_uids[0]);
            assert_eq!(kill(&mut client, batch.call_uids[0]), KillAnswer::Killed, "{habit_line}");
            let left = daemon.tool_processes();
            assert!(left.is_empty(), "{setting}: {habit_line}: still there when `killed` was said: {left:?}");
            client.finish(&batch);
        }
    });
}

#[test]
fn a_call_that_waits_for_its_place_is_cancelled_and_never_starts() {
    let daemon = TestDaemon::configure(WEAK).set("limits.max_running_per_session", 1).start();
    let mut client = daemon.client();
    let marker = daemon.work().join("started");
    let touch = format!("touch {}", marker.display());
    let batch = client.execute(vec![habit("sleep 60"), habit(&touch)]);
    client.started(batch.call_uids[0]);
    assert_eq!(kill(&mut client, batch.call_uids[1]), KillAnswer::Cancelled);
    assert_eq!(kill(&mut client, batch.call_uids[0]), KillAnswer::Killed);
    let result = client.finish(&batch);
    assert_eq!(result.results[1].status, Status::Cancelled);
    assert_eq!(result.results[1].details.attempts, 0);
    assert!(!marker.exists(), "the cancelled call ran");
}

#[test]
fn no_more_calls_run_at_once_than_the_limits_say() {
    let daemon = TestDaemon::configure(WEAK)
        .set("limits.max_running_per_session", 3)
        .set("limits.max_running", 4)
        .start();
    let (mut one, mut other) = (daemon.client(), daemon.client());
    let calls = || (0..12).map(|_| habit("sleep 0.1")).collect::<Vec<_>>();
    let (first, second) = (one.execute(calls()), other.execute(calls()));
    let mut watcher = daemon.peer();
    let mut most = 0;
    loop {
        let status = watcher.status();
        most = most.max(status.running);
        assert!(status.running <= 4, "{status:#?}");
        if status.running + status.queued == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(most >= 3, "at most {most} ran at once");
    for (client, batch) in [(&mut one, &first), (&mut other, &second)] {
        assert!(client.finish(batch).results.iter().all(|result| result.status == Status::Ok));
    }
}

#[test]
fn a_short_batch_does_not_wait_behind_a_long_one_of_another_session() {
    let daemon = TestDaemon::configure(WEAK).set("limits.max_running", 4).start();
    let (mut long, mut short) = (daemon.client(), daemon.client());
    let batch = long.execute((0..60).map(|_| habit("sleep 0.2")).collect());
    let started = Instant::now();
    assert_eq!(short.run_one(habit("ok")).status, Status::Ok);
    let waited = started.elapsed();
    // All sixty take 3 s; a fair queue serves the other session at the next free place.
    assert!(waited < Duration::from_millis(1500), "waited {waited:?}");
    long.finish(&batch);
}

#[test]
fn calls_can_be_listed_looked_at_and_waited_for() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client();
    let batch = client.execute(vec![habit("sleep 0.5"), habit("exit 4")]);
    let sleeper = batch.call_uids[0];
    let pid = client.started(sleeper);
    let mut watcher = daemon.peer();
    let Reply::Calls(calls) = watcher.granted(Request::CallList { session: None, finished: false }) else {
        panic!("no list")
    };
    let line = calls.iter().find(|call| call.call_uid == sleeper).expect("the running call is listed");
    assert_eq!((line.phase, line.pid, line.status), (CallPhase::Running, Some(pid), None), "{line:#?}");
    assert_eq!(line.call_id, CallId::from("0"));
    let none_yet = watcher.granted(Request::CallWait { call_uid: sleeper, timeout_ms: 1 });
    assert_eq!(none_yet, Reply::CallEnd(None));
    let ended = watcher.granted(Request::CallWait { call_uid: sleeper, timeout_ms: 20_000 });
    let Reply::CallEnd(Some(ended)) = ended else { panic!("no end but {ended:?}") };
    let result = client.finish(&batch);
    assert_eq!(*ended, result.results[0]);
    let Reply::Call(record) = watcher.granted(Request::CallGet { call_uid: batch.call_uids[1] }) else {
        panic!("no record")
    };
    assert_eq!(record.info.phase, CallPhase::Finished);
    assert_eq!(record.args, r#"{"line":"exit 4"}"#);
    assert_eq!(record.result.as_deref(), Some(&result.results[1]));
    let Reply::Calls(calls) = watcher.granted(Request::CallList { session: None, finished: true }) else {
        panic!("no list")
    };
    assert_eq!(calls.len(), 2, "{calls:#?}");
}

#[test]
fn what_does_not_exist_is_refused_by_name() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client();
    let nobody = CallUid(client.run_one(habit("ok")).call_uid.0);
    client.session.name = SessionName::from("never-opened");
    let request = client.batch_request(vec![habit("ok")]);
    let refusal = client.refused(request);
    assert_eq!(refusal.code, RefusalCode::UnknownSession);
    assert!(refusal.message.contains("never-opened"), "{refusal:?}");
    let mut number = nobody.0.as_u128();
    number ^= 1;
    let unknown: CallUid = format!("{:032x}", number).parse().expect("a uid");
    assert_eq!(client.refused(Request::CallGet { call_uid: unknown }).code, RefusalCode::UnknownCall);
}

#[test]
fn closing_a_session_kills_what_runs_and_cancels_what_waits() {
    setting::in_main_settings(|setting| {
        let daemon = TestDaemon::configure(setting).set("limits.max_running_per_session", 2).start();
        let mut client = daemon.client();
        let batch = client.execute((0..5).map(|_| habit("ignore-term 60")).collect());
        client.started(batch.call_uids[0]);
        client.started(batch.call_uids[1]);
        let session = client.session.clone();
        let Reply::SessionClosed { killed, cancelled } = client.granted(Request::SessionClose { session })
        else {
            panic!("not closed")
        };
        assert_eq!((killed, cancelled), (2, 3));
        assert!(daemon.tool_processes().is_empty(), "something is left when the session is closed");
        let Ok(result) = client.try_finish(&batch) else { panic!("the batch has no end") };
        let statuses: Vec<Status> = result.results.iter().map(|result| result.status).collect();
        assert_eq!(&statuses[..2], [Status::Killed; 2]);
        assert_eq!(&statuses[2..], [Status::Cancelled; 3]);
    });
}

#[test]
fn a_client_that_comes_back_in_time_finds_its_session_and_its_calls() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut client = daemon.client_that(OnDisconnect::Linger);
    let name = client.session.name.clone();
    let batch = client.execute(vec![habit("sleep 0.5")]);
    client.started(batch.call_uids[0]);
    drop(client);
    let mut back = daemon.peer();
    back.open(&name.0, &daemon.work(), &daemon.marker, OnDisconnect::Linger);
    let ended = back.granted(Request::CallWait { call_uid: batch.call_uids[0], timeout_ms: 20_000 });
    let Reply::CallEnd(Some(result)) = ended else { panic!("no end but {ended:?}") };
    assert_eq!(result.status, Status::Ok);
}

#[test]
fn a_client_that_does_not_come_back_loses_its_calls_after_the_linger_time() {
    setting::in_main_settings(|setting| {
        let daemon = TestDaemon::configure(setting).set("limits.session_linger_ms", 300).start();
        let mut client = daemon.client_that(OnDisconnect::Linger);
        let batch = client.execute(vec![habit("sleep 60")]);
        client.started(batch.call_uids[0]);
        drop(client);
        assert!(!daemon.tool_processes().is_empty(), "the call did not linger");
        daemon.wait_until_no_tool_is_left(Duration::from_secs(10));
    });
}

#[test]
fn a_client_with_abort_takes_its_calls_along() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client_that(OnDisconnect::Abort);
        let batch = client.execute(vec![habit("tree 4 60"), habit("ignore-term 60")]);
        client.started(batch.call_uids[0]);
        client.started(batch.call_uids[1]);
        drop(client);
        daemon.wait_until_no_tool_is_left(Duration::from_secs(5));
    });
}

#[test]
fn r12_a_thousand_and_a_half_calls_at_once_all_end() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut clients: Vec<Peer> = (0..3).map(|_| daemon.client()).collect();
    let batches: Vec<_> =
        clients.iter_mut().map(|client| client.execute((0..512).map(|_| habit("ok")).collect())).collect();
    for (client, batch) in clients.iter_mut().zip(&batches) {
        let result = client.finish(batch);
        assert!(result.results.iter().all(|result| result.status == Status::Ok), "{result:#?}");
    }
}

#[test]
fn d10_a_daemon_that_runs_out_of_descriptors_answers_every_call_and_recovers() {
    let daemon = TestDaemon::configure(WEAK).descriptors(60).start();
    let mut client = daemon.client();
    for _ in 0..3 {
        let result = client.run((0..100).map(|_| habit("sleep 0.1")).collect());
        for result in &result.results {
            let honest = matches!(result.status, Status::Ok | Status::SpawnFailed | Status::WorkerFailed);
            assert!(honest, "{result:#?}");
        }
    }
    wait_until("a call runs again", Duration::from_secs(10), || {
        let status = client.run_one(habit("ok")).status;
        if status == Status::Ok { Ok(()) } else { Err(status) }
    });
    assert!(daemon.tool_processes().is_empty(), "a tool is left");
}
