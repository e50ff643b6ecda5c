//! The blocking face against a fake daemon.

mod fake;

use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use toolcell_client::blocking::Client;
use toolcell_client::protocol::call::Status;
use toolcell_client::protocol::client_api::{EventBody, KillAnswer, Refusal, RefusalCode, Reply, Request};
use toolcell_client::{BatchEvent, ClientError, Options, call, session};

use fake::play;

fn impatient() -> Options {
    Options {
        connect_timeout: Duration::from_millis(100),
        request_timeout: Duration::from_millis(100),
        ..Options::default()
    }
}

#[test]
fn a_batch_yields_its_events_and_output_and_then_its_result() {
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let batch = daemon.accept_batch();
        daemon.event(EventBody::BatchStarted { batch_id: batch.batch_id, count: 1 });
        daemon.event(batch.started(0));
        daemon.output(batch.calls[0].0, 0, b"one");
        daemon.event(batch.tool_finished(0, Status::Ok));
        daemon.event(batch.finished(Status::Ok));
        daemon.until_the_client_goes();
    });
    let client = Client::from_std_stream(stream).expect("accepted");
    let session = client.session_open(session("s", "/")).expect("opened");
    let mut batch = session.execute(vec![call("a", "t", "{}")]).expect("accepted");
    let mut seen = Vec::new();
    while let Some(event) = batch.next_event().expect("connected") {
        seen.push(event);
    }
    assert_eq!(seen.len(), 5);
    assert!(matches!(&seen[2], BatchEvent::Output(output) if output.bytes == b"one"));
    assert_eq!(batch.finish().expect("it has ended").results.len(), 1);
    drop((session, client));
    daemon.end();
}

#[test]
fn a_connection_cut_in_a_call_is_an_error_and_no_result() {
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let batch = daemon.accept_batch();
        daemon.event(batch.started(0));
    });
    let client = Client::from_std_stream(stream).expect("accepted");
    let session = client.session_open(session("s", "/")).expect("opened");
    let mut batch = session.execute(vec![call("a", "t", "{}")]).expect("accepted");
    assert!(matches!(batch.next_event(), Ok(Some(BatchEvent::Event(_)))));
    assert!(matches!(batch.next_event(), Err(ClientError::ConnectionLost { .. })));
    assert!(matches!(batch.finish(), Err(ClientError::ConnectionLost { .. })));
    daemon.end();
}

#[test]
fn a_silent_daemon_is_a_failed_handshake_after_the_time_for_it() {
    let (stream, _silent) = UnixStream::pair().expect("a socketpair");
    let error = Client::from_std_stream_with(stream, impatient()).expect_err("nobody answers");
    assert!(matches!(error, ClientError::Handshake { .. }), "{error}");
}

#[test]
fn a_slow_answer_is_a_timeout_and_its_late_coming_harms_nothing() {
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let (slow, _) = daemon.request();
        let (next, _) = daemon.request();
        daemon.reply(slow, Ok(Reply::Tools(Vec::new())));
        daemon.reply(next, Ok(Reply::Sessions(Vec::new())));
        daemon.until_the_client_goes();
    });
    let client = Client::from_std_stream_with(stream, impatient()).expect("accepted");
    let error = client.tools().expect_err("no answer yet");
    assert_eq!(error, ClientError::Timeout { what: "tools.list", after_ms: 100 });
    assert_eq!(client.session_list().expect("answered"), []);
    drop(client);
    daemon.end();
}

#[test]
fn nothing_within_a_short_time_is_neither_an_event_nor_an_end() {
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let batch = daemon.accept_batch();
        let (id, request) = daemon.request();
        assert!(matches!(request, Request::CallKill { .. }));
        daemon.reply(id, Ok(Reply::CallKilled(KillAnswer::Killed)));
        daemon.event(batch.finished(Status::Killed));
        daemon.until_the_client_goes();
    });
    let client = Client::from_std_stream(stream).expect("accepted");
    let session = client.session_open(session("s", "/")).expect("opened");
    let mut batch = session.execute(vec![call("a", "t", "{}")]).expect("accepted");
    assert_eq!(batch.next_event_within(Duration::from_millis(10)).expect("connected"), None);
    let result = batch.cancel("enough").expect("killed");
    assert_eq!(result.results[0].status, Status::Killed);
    drop((session, client));
    daemon.end();
}

#[test]
fn a_batch_of_a_thousand_calls_is_killed_from_its_end_with_few_unanswered_kills() {
    const COUNT: usize = 1_000;
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let batch = daemon.accept_batch();
        let (killed, most) = daemon.answer_kills(COUNT);
        assert!((2..=64).contains(&most), "{most} kills were unanswered");
        assert!(killed.iter().eq(batch.calls.iter().rev().map(|(uid, _)| uid)), "each once, the last first");
        daemon.event(batch.finished(Status::Killed));
        daemon.until_the_client_goes();
    });
    let client = Client::from_std_stream(stream).expect("accepted");
    let session = client.session_open(session("s", "/")).expect("opened");
    let calls = (0..COUNT).map(|n| call(&n.to_string(), "t", "{}")).collect();
    let batch = session.execute(calls).expect("accepted");
    let result = batch.cancel("enough").expect("killed");
    assert_eq!(result.results.len(), COUNT);
    drop((session, client));
    daemon.end();
}

#[test]
fn a_refused_kill_is_told_after_all_others_were_sent() {
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        daemon.accept_batch();
        for (at, code) in
            [RefusalCode::UnknownCall, RefusalCode::Internal].into_iter().cycle().take(100).enumerate()
        {
            let (id, _) = daemon.request();
            daemon.reply(id, Err(Refusal { code, message: at.to_string() }));
        }
        daemon.until_the_client_goes();
    });
    let client = Client::from_std_stream(stream).expect("accepted");
    let session = client.session_open(session("s", "/")).expect("opened");
    let calls = (0..100).map(|n| call(&n.to_string(), "t", "{}")).collect();
    let batch = session.execute(calls).expect("accepted");
    let error = batch.kill_all("enough").expect_err("half of them were refused");
    let ClientError::Refused(refusal) = error else { panic!("a refusal was sent: {error}") };
    assert_eq!((refusal.code, refusal.message.as_str()), (RefusalCode::Internal, "1"));
    drop((batch, session, client));
    daemon.end();
}

#[test]
fn threads_share_a_connection_and_each_gets_its_own_answer() {
    const COUNT: u64 = 40;
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let requests: Vec<_> = (0..COUNT).map(|_| daemon.request()).collect();
        for (id, request) in requests.into_iter().rev() {
            let Request::CallWait { timeout_ms, .. } = request else { panic!("waits were awaited") };
            let refusal = Refusal { code: RefusalCode::UnknownCall, message: timeout_ms.to_string() };
            daemon.reply(id, Err(refusal));
        }
        daemon.until_the_client_goes();
    });
    let client = Client::from_std_stream(stream).expect("accepted");
    let uid = toolcell_client::protocol::id::CallUid(uuid::Uuid::nil());
    std::thread::scope(|scope| {
        for at in 0..COUNT {
            let client = client.clone();
            scope.spawn(move || {
                let answer = client.call_wait(uid, Duration::from_millis(at));
                let Err(ClientError::Refused(refusal)) = answer else {
                    panic!("refusals were sent: {answer:?}")
                };
                assert_eq!(refusal.message, at.to_string());
            });
        }
    });
    drop(client);
    daemon.end();
}

#[test]
fn a_request_larger_than_the_sockets_buffer_passes_a_daemon_that_talks_itself() {
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let batch = daemon.accept_batch();
        // The daemon reads nothing until all of this is taken.
        for seq in 0..32 {
            daemon.output(batch.calls[0].0, seq, &[b'x'; 128 * 1024]);
        }
        let (id, request) = daemon.request();
        let Request::CallKill { reason, .. } = request else { panic!("a kill was awaited") };
        assert_eq!(reason.len(), 4 * 1024 * 1024);
        daemon.reply(id, Ok(Reply::CallKilled(KillAnswer::AlreadyEnded)));
        daemon.until_the_client_goes();
    });
    let client = Client::from_std_stream(stream).expect("accepted");
    let session = client.session_open(session("s", "/")).expect("opened");
    let batch = session.execute(vec![call("a", "t", "{}")]).expect("accepted");
    let reason = "y".repeat(4 * 1024 * 1024);
    let answer = batch.kill(batch.call_uids()[0], &reason).expect("no dead end");
    assert_eq!(answer, KillAnswer::AlreadyEnded);
    drop((batch, session, client));
    daemon.end();
}

#[test]
fn a_daemon_that_takes_no_requests_is_a_lost_connection_in_the_end() {
    let (given_up, wait) = mpsc::channel();
    let (stream, daemon) = play(move |daemon| {
        daemon.shake_hands();
        daemon.accept_batch();
        wait.recv().expect("the test says when");
    });
    let client = Client::from_std_stream_with(stream, impatient()).expect("accepted");
    let session = client.session_open(session("s", "/")).expect("opened");
    let batch = session.execute(vec![call("a", "t", "{}")]).expect("accepted");
    let reason = "y".repeat(4 * 1024 * 1024);
    let error = batch.kill(batch.call_uids()[0], &reason).expect_err("nobody reads");
    assert!(matches!(error, ClientError::ConnectionLost { .. }), "{error}");
    given_up.send(()).expect("the daemon waits");
    drop((batch, session, client));
    daemon.end();
}

#[test]
fn a_missing_socket_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let missing = directory.path().join("missing.sock");
    let error = Client::connect(&missing).expect_err("nobody is there");
    assert!(error.to_string().contains("missing.sock"), "{error}");
}
