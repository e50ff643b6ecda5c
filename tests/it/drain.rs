//! SIGTERM: running calls may end, then they are ended; nothing is left and nobody is left waiting.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use toolcell_protocol::call::{Containment, Status};
use toolcell_protocol::client_api::{DaemonMessage, RefusalCode};
use toolcell_tests::daemon::TestDaemon;
use toolcell_tests::peer::{PATIENCE, habit};
use toolcell_tests::setting::{self, Setting};

const WEAK: Setting = Setting::own(Containment::Weak);

#[test]
fn calls_that_end_in_time_keep_their_own_ends() {
    setting::in_main_settings(|setting| {
        let mut daemon = TestDaemon::configure(setting).set("limits.drain_ms", 10_000).start();
        let mut client = daemon.client();
        let batch = client.execute(vec![habit("sleep 0.6"), habit("drip 5 100")]);
        client.started(batch.call_uids[0]);
        client.started(batch.call_uids[1]);
        daemon.remember_processes();
        daemon.signal(Signal::SIGTERM);
        let result = client.finish(&batch);
        for result in &result.results {
            assert_eq!(result.status, Status::Ok, "{setting}: {result:#?}");
        }
        // It does not wait for its deadline when nothing runs any more.
        assert!(daemon.wait(Duration::from_secs(5)).success(), "{}", daemon.log());
    });
}

#[test]
fn k18_fifty_running_calls_are_killed_at_the_deadline_and_nothing_is_left() {
    setting::everywhere(|setting| {
        let mut daemon = TestDaemon::configure(setting).set("limits.drain_ms", 300).start();
        let mut client = daemon.client();
        let lines = ["sleep 60", "ignore-term 60", "tree 3 60", "hidden-family stay 20", "stop-self"];
        let batch = client.execute((0..50).map(|at| habit(lines[at % lines.len()])).collect());
        for call_uid in &batch.call_uids {
            client.started(*call_uid);
        }
        daemon.remember_processes();
        let started = Instant::now();
        daemon.signal(Signal::SIGTERM);
        let result = client.finish(&batch);
        for result in &result.results {
            assert_eq!(result.status, Status::Killed, "{setting}: {result:#?}");
            assert_eq!(result.status_detail.reason.as_deref(), Some("shutdown"), "{setting}: {result:#?}");
        }
        assert!(daemon.wait(Duration::from_secs(10)).success(), "{}", daemon.log());
        let left = daemon.tool_processes();
        assert!(left.is_empty(), "{setting}: left when the daemon had ended: {left:?}");
        assert!(started.elapsed() < Duration::from_secs(10), "took {:?}", started.elapsed());
        daemon.check_that_nothing_is_left();
    });
}

#[test]
fn calls_that_wait_are_cancelled_and_new_ones_are_refused_while_it_drains() {
    let mut daemon = TestDaemon::configure(WEAK)
        .set("limits.drain_ms", 10_000)
        .set("limits.max_running_per_session", 1)
        .start();
    let mut client = daemon.client();
    let mut late = daemon.client();
    let batch = client.execute(vec![habit("sleep 1"), habit("ok"), habit("ok")]);
    client.started(batch.call_uids[0]);
    daemon.remember_processes();
    daemon.signal(Signal::SIGTERM);
    let started = Instant::now();
    // The signal and the request race; the daemon must say no as soon as it has seen the signal.
    let refused = loop {
        let request = late.batch_request(vec![habit("ok")]);
        match late.ask(request) {
            Ok(Err(refusal)) if refusal.code != RefusalCode::BatchInProgress => break Some(refusal.code),
            Err(_) => break None,
            Ok(_) => assert!(started.elapsed() < Duration::from_secs(5), "it takes calls while it drains"),
        }
    };
    assert!(matches!(refused, None | Some(RefusalCode::ShuttingDown)), "{refused:?}");
    let result = client.finish(&batch);
    assert_eq!(result.results[0].status, Status::Ok, "{result:#?}");
    for result in &result.results[1..] {
        assert!(matches!(result.status, Status::Cancelled | Status::Ok), "{result:#?}");
    }
    assert!(daemon.wait(Duration::from_secs(12)).success(), "{}", daemon.log());
    daemon.check_that_nothing_is_left();
}

#[test]
fn every_connection_is_told_that_the_daemon_ends() {
    let mut daemon = TestDaemon::in_setting(WEAK);
    let mut peer = daemon.peer();
    daemon.remember_processes();
    daemon.signal(Signal::SIGTERM);
    let reason = peer.wait_for(PATIENCE, |message| match message {
        DaemonMessage::Closing { reason } => Some(reason.clone()),
        _ => None,
    });
    assert!(!reason.expect("a last message").is_empty());
    assert!(matches!(peer.receive(PATIENCE), Ok(None)), "the connection goes on");
    assert!(daemon.wait(Duration::from_secs(10)).success());
    assert!(!daemon.socket().exists(), "the socket is left");
    daemon.check_that_nothing_is_left();
}

#[test]
fn a_second_signal_does_not_wait_for_the_deadline() {
    let mut daemon = TestDaemon::configure(WEAK).set("limits.drain_ms", 60_000).start();
    let mut client = daemon.client();
    let batch = client.execute(vec![habit("sleep 60")]);
    client.started(batch.call_uids[0]);
    daemon.remember_processes();
    daemon.signal(Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(200));
    daemon.signal(Signal::SIGTERM);
    let result = client.finish(&batch).results.remove(0);
    assert_eq!(result.status, Status::Killed, "{result:#?}");
    assert!(daemon.wait(Duration::from_secs(10)).success());
    daemon.check_that_nothing_is_left();
}
