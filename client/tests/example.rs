//! The example is compiled into this test and run against a fake daemon.

#[path = "../examples/agent.rs"]
#[allow(dead_code)]
mod agent;
mod fake;

use std::os::unix::net::UnixListener;

use toolcell_client::address::Search;
use toolcell_client::protocol::call::Status;
use toolcell_client::protocol::client_api::{Reply, Request};

#[tokio::test]
async fn the_example_runs_a_whole_turn() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("toolcell.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let accepting = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        fake::play_on(stream, |daemon| {
            daemon.shake_hands();
            let batch = daemon.accept_batch();
            assert_eq!(batch.calls.len(), 3);
            daemon.event(batch.started(1));
            daemon.output(batch.calls[1].0, 0, b"live\n");
            daemon.event(batch.tool_finished(1, Status::Ok));
            daemon.event(batch.finished(Status::Ok));
            let (id, request) = daemon.request();
            assert!(matches!(request, Request::SessionClose { .. }));
            daemon.reply(id, Ok(Reply::SessionClosed { killed: 0, cancelled: 0 }));
            daemon.until_the_client_goes();
        })
    });
    let mut told = Vec::new();
    agent::run(&Search::only(&path), &mut told).await.expect("the turn ends well");
    accepting.join().expect("a client came").end();
    let told = String::from_utf8(told).expect("text");
    for line in [
        "live Stdout: live",
        "finished toolu_2: ok",
        "result toolu_3: ok: text of toolu_3",
        "verdict: next turn",
    ] {
        assert!(told.contains(line), "{line:?} is missing in:\n{told}");
    }
}

#[test]
fn the_readme_shows_the_short_example_as_it_is_compiled() {
    let example = include_str!("../examples/one_turn.rs");
    let shown = &example[example.find("\nuse ").expect("it uses the library")..];
    assert!(include_str!("../../README.md").contains(shown), "the README has another text than the example");
}
