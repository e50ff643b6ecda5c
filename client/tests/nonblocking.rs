//! The asynchronous face against a fake daemon.

mod fake;

use std::sync::mpsc;
use std::time::Duration;

use toolcell_client::address::Search;
use toolcell_client::protocol::call::Status;
use toolcell_client::protocol::client_api::{EventBody, KillAnswer, Refusal, RefusalCode, Reply, Request};
use toolcell_client::{BatchEvent, Client, ClientError, Options, call, session};

use fake::{Batch, FakeDaemon, play};

fn impatient() -> Options {
    Options {
        connect_timeout: Duration::from_millis(100),
        request_timeout: Duration::from_millis(100),
        ..Options::default()
    }
}

async fn connect(stream: std::os::unix::net::UnixStream) -> Client {
    Client::from_std_stream(stream).await.expect("the fake daemon accepts")
}

#[tokio::test]
async fn a_batch_yields_its_events_and_output_and_then_its_result() {
    let (stream, daemon) = play(|daemon: &mut FakeDaemon| {
        daemon.shake_hands();
        let batch = daemon.accept_batch();
        daemon.event(EventBody::BatchStarted { batch_id: batch.batch_id, count: 1 });
        daemon.event(batch.started(0));
        daemon.output(batch.calls[0].0, 0, b"one");
        daemon.output(batch.calls[0].0, 1, b"two");
        daemon.event(batch.tool_finished(0, Status::Ok));
        daemon.event(batch.finished(Status::Ok));
        daemon.until_the_client_goes();
    });
    let client = connect(stream).await;
    assert_eq!((client.server().daemon.as_str(), client.server().uid), ("fake/1", 1000));
    let session = client.session_open(session("s", "/")).await.expect("opened");
    assert!(session.created());
    let mut batch = session.execute(vec![call("a", "t", "{}")]).await.expect("accepted");
    assert_eq!(batch.call_uids().len(), 1);
    let mut output = Vec::new();
    let mut events = 0;
    while let Some(event) = batch.next_event().await.expect("connected") {
        match event {
            BatchEvent::Output(piece) => output.extend(piece.bytes),
            BatchEvent::Event(_) => events += 1,
        }
    }
    assert_eq!((output.as_slice(), events), (&b"onetwo"[..], 4));
    let result = batch.finish().await.expect("it has ended");
    assert_eq!(result.results[0].call_id.0, "a");
    drop((session, client));
    daemon.end();
}

#[tokio::test]
async fn events_that_come_before_the_acceptance_are_not_lost() {
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let (id, _) = daemon.request();
        daemon.reply(id, Ok(fake::opened()));
        let (id, request) = daemon.request();
        let Request::BatchExecute(execute) = request else { panic!("a batch was awaited") };
        let batch = Batch::new(execute.calls);
        daemon.event(batch.started(0));
        daemon.output(batch.calls[0].0, 0, b"early");
        daemon.event(batch.finished(Status::Ok));
        daemon.reply(id, Ok(batch.accepted()));
        daemon.until_the_client_goes();
    });
    let client = connect(stream).await;
    let session = client.session_open(session("s", "/")).await.expect("opened");
    let mut batch = session.execute(vec![call("a", "t", "{}")]).await.expect("accepted");
    let mut seen = Vec::new();
    while let Some(event) = batch.next_event().await.expect("connected") {
        seen.push(event);
    }
    assert_eq!(seen.len(), 3);
    assert!(matches!(&seen[1], BatchEvent::Output(output) if output.bytes == b"early"));
    drop((batch, session, client));
    daemon.end();
}

#[tokio::test]
async fn a_connection_cut_in_a_call_is_an_error_and_no_result() {
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let batch = daemon.accept_batch();
        daemon.event(batch.started(0));
    });
    let client = connect(stream).await;
    let session = client.session_open(session("s", "/")).await.expect("opened");
    let mut batch = session.execute(vec![call("a", "t", "{}")]).await.expect("accepted");
    assert!(matches!(batch.next_event().await, Ok(Some(BatchEvent::Event(_)))));
    assert!(matches!(batch.next_event().await, Err(ClientError::ConnectionLost { .. })));
    assert!(matches!(batch.finish().await, Err(ClientError::ConnectionLost { .. })));
    assert!(matches!(client.tools().await, Err(ClientError::ConnectionLost { .. })));
    daemon.end();
}

#[tokio::test]
async fn what_arrived_before_the_cut_is_still_given_out() {
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let batch = daemon.accept_batch();
        daemon.event(batch.started(0));
        daemon.event(batch.finished(Status::Error));
    });
    let client = connect(stream).await;
    let session = client.session_open(session("s", "/")).await.expect("opened");
    let batch = session.execute(vec![call("a", "t", "{}")]).await.expect("accepted");
    daemon.end();
    let result = batch.finish().await.expect("it arrived");
    assert_eq!(result.results[0].status, Status::Error);
}

#[tokio::test]
async fn a_silent_daemon_is_a_failed_handshake_after_the_time_for_it() {
    let (stream, _silent) = std::os::unix::net::UnixStream::pair().expect("a socketpair");
    let error = Client::from_std_stream_with(stream, impatient()).await.expect_err("nobody answers");
    assert!(matches!(error, ClientError::Handshake { .. }), "{error}");
}

#[tokio::test]
async fn a_closed_door_is_a_failed_handshake() {
    let (stream, other) = std::os::unix::net::UnixStream::pair().expect("a socketpair");
    drop(other);
    let error = Client::from_std_stream(stream).await.expect_err("nobody is there");
    assert!(matches!(error, ClientError::Handshake { .. }), "{error}");
}

#[tokio::test]
async fn a_slow_answer_is_a_timeout_and_its_late_coming_harms_nothing() {
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let (slow, _) = daemon.request();
        let (next, request) = daemon.request();
        assert_eq!(request, Request::SessionList);
        daemon.reply(slow, Ok(Reply::Tools(Vec::new())));
        daemon.reply(next, Ok(Reply::Sessions(Vec::new())));
        daemon.until_the_client_goes();
    });
    let client = Client::from_std_stream_with(stream, impatient()).await.expect("accepted");
    let error = client.tools().await.expect_err("no answer yet");
    assert_eq!(error, ClientError::Timeout { what: "tools.list", after_ms: 100 });
    assert_eq!(client.session_list().await.expect("answered"), []);
    drop(client);
    daemon.end();
}

#[tokio::test]
async fn a_refusal_is_passed_on_as_it_is() {
    let refusal = Refusal { code: RefusalCode::BatchInProgress, message: "wait for it".to_owned() };
    let expected = refusal.clone();
    let (stream, daemon) = play(move |daemon| {
        daemon.shake_hands();
        let (id, _) = daemon.request();
        daemon.reply(id, Ok(fake::opened()));
        let (id, _) = daemon.request();
        daemon.reply(id, Err(refusal));
        daemon.until_the_client_goes();
    });
    let client = connect(stream).await;
    let session = client.session_open(session("s", "/")).await.expect("opened");
    let error = session.execute(vec![call("a", "t", "{}")]).await.expect_err("refused");
    assert_eq!(error, ClientError::Refused(expected));
    assert!(error.to_string().contains("batch_in_progress") && error.to_string().contains("wait for it"));
    drop((session, client));
    daemon.end();
}

#[tokio::test]
async fn an_answer_of_the_wrong_kind_is_a_protocol_error() {
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let (id, _) = daemon.request();
        daemon.reply(id, Ok(Reply::Sessions(Vec::new())));
    });
    let client = connect(stream).await;
    assert!(matches!(client.tools().await, Err(ClientError::Protocol { .. })));
    daemon.end();
}

#[tokio::test]
async fn many_requests_are_in_flight_at_once_and_answered_backwards() {
    const COUNT: usize = 200;
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let ids: Vec<_> = (0..COUNT).map(|_| daemon.request()).collect();
        for (id, request) in ids.into_iter().rev() {
            let Request::CallWait { timeout_ms, .. } = request else { panic!("waits were awaited") };
            let refusal = Refusal { code: RefusalCode::UnknownCall, message: timeout_ms.to_string() };
            daemon.reply(id, Err(refusal));
        }
        daemon.until_the_client_goes();
    });
    let client = connect(stream).await;
    let uid = toolcell_client::protocol::id::CallUid(uuid::Uuid::nil());
    let mut waits = tokio::task::JoinSet::new();
    for at in 0..COUNT {
        let client = client.clone();
        let limit = Duration::from_millis(at as u64);
        waits.spawn(async move { (at, client.call_wait(uid, limit).await) });
    }
    while let Some(wait) = waits.join_next().await {
        let (at, answer) = wait.expect("no panic");
        let Err(ClientError::Refused(refusal)) = answer else { panic!("refusals were sent: {answer:?}") };
        assert_eq!(refusal.message, at.to_string());
    }
    drop(client);
    daemon.end();
}

#[tokio::test]
async fn a_dropped_reader_hands_the_reading_over() {
    let (go, wait) = mpsc::channel::<()>();
    let (stream, daemon) = play(move |daemon| {
        daemon.shake_hands();
        let (_dropped, _) = daemon.request();
        let (id, _) = daemon.request();
        wait.recv().expect("the test says when");
        daemon.reply(id, Ok(Reply::Sessions(Vec::new())));
        daemon.until_the_client_goes();
    });
    let client = connect(stream).await;
    let reader = tokio::spawn({
        let client = client.clone();
        async move { client.tools().await.map(|_| ()) }
    });
    tokio::task::yield_now().await;
    let other = tokio::spawn({
        let client = client.clone();
        async move { client.session_list().await }
    });
    tokio::task::yield_now().await;
    reader.abort();
    assert!(reader.await.expect_err("aborted").is_cancelled());
    go.send(()).expect("the daemon plays");
    assert_eq!(other.await.expect("no panic").expect("answered"), []);
    drop(client);
    daemon.end();
}

#[tokio::test]
async fn dropping_a_batch_cancels_nothing_and_cancelling_kills_every_call() {
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let dropped = daemon.accept_batch();
        // Nothing but the next request comes after the drop.
        let (id, request) = daemon.request();
        let Request::BatchExecute(execute) = request else { panic!("no kill was asked for: {request:?}") };
        let batch = Batch::new(execute.calls);
        daemon.event(dropped.started(0));
        daemon.event(dropped.finished(Status::Ok));
        daemon.reply(id, Ok(batch.accepted()));
        let kills: Vec<_> = (0..2).map(|_| daemon.request()).collect();
        for ((id, request), (uid, _)) in kills.into_iter().zip(batch.calls.iter().rev()) {
            assert_eq!(request, Request::CallKill { call_uid: *uid, reason: "enough".to_owned() });
            daemon.reply(id, Ok(Reply::CallKilled(KillAnswer::Killed)));
        }
        daemon.event(batch.finished(Status::Killed));
        daemon.until_the_client_goes();
    });
    let client = connect(stream).await;
    let session = client.session_open(session("s", "/")).await.expect("opened");
    drop(session.execute(vec![call("a", "t", "{}")]).await.expect("accepted"));
    let calls = vec![call("b", "t", "{}"), call("c", "t", "{}")];
    let batch = session.execute(calls).await.expect("accepted");
    let result = batch.cancel("enough").await.expect("killed");
    assert!(result.results.iter().all(|one| one.status == Status::Killed));
    drop((session, client));
    daemon.end();
}

#[tokio::test]
async fn a_batch_of_a_thousand_calls_is_killed_from_its_end_with_few_unanswered_kills() {
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
    let client = connect(stream).await;
    let session = client.session_open(session("s", "/")).await.expect("opened");
    let calls = (0..COUNT).map(|n| call(&n.to_string(), "t", "{}")).collect();
    let batch = session.execute(calls).await.expect("accepted");
    let result = batch.cancel("enough").await.expect("killed");
    assert_eq!(result.results.len(), COUNT);
    drop((session, client));
    daemon.end();
}

#[tokio::test]
async fn a_refused_kill_is_told_after_all_others_were_sent() {
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
    let client = connect(stream).await;
    let session = client.session_open(session("s", "/")).await.expect("opened");
    let calls = (0..100).map(|n| call(&n.to_string(), "t", "{}")).collect();
    let batch = session.execute(calls).await.expect("accepted");
    let error = batch.kill_all("enough").await.expect_err("half of them were refused");
    let ClientError::Refused(refusal) = error else { panic!("a refusal was sent: {error}") };
    assert_eq!((refusal.code, refusal.message.as_str()), (RefusalCode::Internal, "1"));
    drop((batch, session, client));
    daemon.end();
}

#[tokio::test]
async fn unread_output_holds_others_with_an_error_and_never_a_kill() {
    const PIECE: usize = 64 * 1024;
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let batch = daemon.accept_batch();
        daemon.event(batch.started(0));
        for seq in 0..64 {
            daemon.output(batch.calls[0].0, seq, &[b'x'; PIECE]);
        }
        let (_, request) = daemon.request();
        assert_eq!(request, Request::ToolsList);
        let (id, _) = daemon.request();
        daemon.reply(id, Ok(Reply::CallKilled(KillAnswer::Killed)));
        daemon.event(batch.finished(Status::Killed));
        daemon.until_the_client_goes();
    });
    let options =
        Options { backlog_bytes: 8 * PIECE, request_timeout: Duration::from_millis(300), ..impatient() };
    let client = Client::from_std_stream_with(stream, options).await.expect("accepted");
    let session = client.session_open(session("s", "/")).await.expect("opened");
    let mut batch = session.execute(vec![call("a", "t", "{}")]).await.expect("accepted");
    let error = client.tools().await.expect_err("the answer is behind the output");
    assert!(matches!(error, ClientError::Backlog { .. } | ClientError::Timeout { .. }), "{error}");
    let killed = batch.kill(batch.call_uids()[0], "enough").await.expect("a kill gets through");
    assert_eq!(killed, KillAnswer::Killed);
    let mut bytes = 0;
    while let Some(event) = batch.next_event().await.expect("connected") {
        if let BatchEvent::Output(output) = event {
            bytes += output.bytes.len();
        }
    }
    assert_eq!(bytes, 64 * PIECE, "nothing was lost by the hold");
    drop((batch, session, client));
    daemon.end();
}

#[tokio::test]
async fn missing_output_is_a_protocol_error() {
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let batch = daemon.accept_batch();
        daemon.output(batch.calls[0].0, 0, b"one");
        daemon.output(batch.calls[0].0, 2, b"three");
        daemon.event(batch.finished(Status::Ok));
    });
    let client = connect(stream).await;
    let session = client.session_open(session("s", "/")).await.expect("opened");
    let batch = session.execute(vec![call("a", "t", "{}")]).await.expect("accepted");
    assert!(matches!(batch.finish().await, Err(ClientError::Protocol { .. })));
    daemon.end();
}

#[tokio::test]
async fn a_result_for_other_calls_is_a_protocol_error() {
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let mut batch = daemon.accept_batch();
        batch.calls.pop();
        daemon.event(batch.finished(Status::Ok));
    });
    let client = connect(stream).await;
    let session = client.session_open(session("s", "/")).await.expect("opened");
    let calls = vec![call("a", "t", "{}"), call("b", "t", "{}")];
    let batch = session.execute(calls).await.expect("accepted");
    assert!(matches!(batch.finish().await, Err(ClientError::Protocol { .. })));
    daemon.end();
}

#[tokio::test]
async fn a_request_larger_than_the_sockets_buffer_passes_a_daemon_that_talks_itself() {
    const COUNT: usize = 32;
    let (stream, daemon) = play(|daemon| {
        daemon.shake_hands();
        let batch = daemon.accept_batch();
        daemon.event(batch.started(0));
        // The daemon reads nothing until all of this is taken.
        for seq in 0..COUNT as u64 {
            daemon.output(batch.calls[0].0, seq, &[b'x'; 128 * 1024]);
        }
        let (id, request) = daemon.request();
        let Request::CallKill { reason, .. } = request else { panic!("a kill was awaited") };
        assert_eq!(reason.len(), 4 * 1024 * 1024);
        daemon.reply(id, Ok(Reply::CallKilled(KillAnswer::AlreadyEnded)));
        daemon.until_the_client_goes();
    });
    let client = connect(stream).await;
    let session = client.session_open(session("s", "/")).await.expect("opened");
    let batch = session.execute(vec![call("a", "t", "{}")]).await.expect("accepted");
    let reason = "y".repeat(4 * 1024 * 1024);
    let answer = batch.kill(batch.call_uids()[0], &reason).await.expect("no dead end");
    assert_eq!(answer, KillAnswer::AlreadyEnded);
    drop((batch, session, client));
    daemon.end();
}

#[tokio::test]
async fn the_search_ends_at_the_first_daemon_and_lists_all_that_failed() {
    let directory = tempfile::tempdir().expect("a directory");
    let (missing, present) = (directory.path().join("missing.sock"), directory.path().join("here.sock"));
    let listener = std::os::unix::net::UnixListener::bind(&present).expect("a socket");
    let search = Search { paths: vec![missing.clone(), present], explicit: false };
    let connecting = tokio::spawn(async move { Client::connect_with(&search, Options::default()).await });
    let stream =
        tokio::task::spawn_blocking(move || listener.accept().expect("a client").0).await.expect("no panic");
    let daemon = fake::play_on(stream, |daemon| {
        daemon.shake_hands();
        daemon.until_the_client_goes();
    });
    let client = connecting.await.expect("no panic").expect("the second socket answers");
    drop(client);
    daemon.end();

    let search = Search { paths: vec![missing.clone(), missing.clone()], explicit: false };
    let error = Client::connect_with(&search, Options::default()).await.expect_err("nobody is there");
    let ClientError::Connect { tried, explicit: false } = error else { panic!("a failed search: {error}") };
    assert_eq!(tried.len(), 2);
    let error = Client::connect(&missing).await.expect_err("nobody is there");
    assert!(matches!(error, ClientError::Connect { explicit: true, .. }));
}
