//! The command as a process with a fake daemon, with none, and without need of one.

mod common;
#[path = "../../tests/fake/mod.rs"]
mod fake;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use toolcell_client::protocol::call::{Status, Verdict};
use toolcell_client::protocol::client_api::{
    DaemonHello, DaemonMessage, EventBody, KillAnswer, Refusal, RefusalCode, Reply, Request,
};
use toolcell_client::protocol::version::VersionRange;

use common::{bash, code, feed, output, signal, text, toolcell, with_input};
use fake::{FakeDaemon, Playing};

const CALL: &str = "019ade3c-5f01-7000-8000-000000000000";
const ONE_CALL: &str = r#"[{"call_id": "1", "tool": "bash"}]"#;

/// A socket that a fake daemon plays behind, for one connection.
struct Faked {
    directory: TempDir,
    playing: JoinHandle<Playing>,
}

impl Faked {
    fn play(script: impl FnOnce(&mut FakeDaemon) + Send + 'static) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(directory.path().join("s")).expect("a socket");
        let playing = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            fake::play_on(stream, script)
        });
        Self { directory, playing }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = toolcell(arguments);
        command.env("TOOLCELL_SOCKET", self.directory.path().join("s"));
        command
    }

    fn end(self) {
        self.playing.join().expect("a client came").end();
    }
}

#[test]
fn a_second_interrupt_ends_at_once() {
    let (killing, was_asked) = mpsc::channel();
    let faked = Faked::play(move |daemon| {
        daemon.shake_hands();
        let batch = daemon.accept_batch();
        daemon.event(batch.started(0));
        let (_, request) = daemon.request();
        assert!(matches!(request, Request::CallKill { .. }));
        // Not answered: this kill never ends.
        killing.send(()).expect("the test waits");
        daemon.until_the_client_goes();
    });
    let mut child = faked
        .command(&["batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    feed(&mut child, ONE_CALL);
    let mut progress = BufReader::new(child.stderr.take().expect("piped"));
    progress.read_line(&mut String::new()).expect("the start");
    signal(&child, "INT");
    was_asked.recv_timeout(Duration::from_secs(10)).expect("the first one kills");
    signal(&child, "INT");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    faked.end();
}

#[test]
fn a_named_daemon_that_is_not_there_is_69_and_never_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let missing = directory.path().join("missing.sock");
    let run = toolcell(&["run", "bash", &bash("echo ran")])
        .env("TOOLCELL_SOCKET", &missing)
        .output()
        .expect("the command starts");
    assert_eq!(code(&run), 69);
    assert!(run.stdout.is_empty());
    assert!(text(&run.stderr).contains("missing.sock"), "{run:?}");
    let missing = missing.to_str().expect("UTF-8");
    assert_eq!(code(&output(&["--socket", missing, "tools"])), 69);
}

#[test]
fn without_a_name_a_daemon_of_its_own_is_the_last_resort() {
    if Path::new("/run/toolcell/toolcell.sock").exists() {
        let _ = writeln!(std::io::stderr(), "skipped: needs a host without a running toolcelld");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let run = toolcell(&["run", "bash", &bash("echo ran")])
        .env("XDG_RUNTIME_DIR", directory.path())
        .output()
        .expect("the command starts");
    assert_eq!(text(&run.stdout), "ran\n");
    let ps = toolcell(&["ps"]).env("XDG_RUNTIME_DIR", directory.path()).output().expect("it starts");
    assert_eq!(code(&ps), 69, "there is nothing to list without a daemon");
}

#[test]
fn a_refused_handshake_is_69() {
    let faked = Faked::play(|daemon| {
        daemon.receive();
        daemon.send(&DaemonMessage::Hello(DaemonHello::Refused {
            reason: "from the future".to_owned(),
            versions: VersionRange { oldest: 8, newest: 9 },
        }));
        daemon.until_the_client_goes();
    });
    let output = faked.command(&["tools"]).output().expect("it starts");
    assert_eq!(code(&output), 69);
    assert!(text(&output.stderr).contains("from the future"), "{output:?}");
    faked.end();
}

#[test]
fn a_connection_cut_in_a_call_is_125_and_no_result() {
    for arguments in [&["run", "bash", "{}"][..], &["run", "bash", "{}", "--json"]] {
        let faked = Faked::play(|daemon| {
            daemon.shake_hands();
            let batch = daemon.accept_batch();
            daemon.event(batch.started(0));
        });
        let output = faked.command(arguments).output().expect("the command starts");
        assert_eq!(code(&output), 125, "{output:?}");
        assert!(text(&output.stderr).contains("connection to the daemon lost"), "{output:?}");
        assert!(output.stdout.is_empty());
        faked.end();
    }
}

#[test]
fn refusals_have_their_exit_codes() {
    for (refused, expected) in [(RefusalCode::NotPermitted, 77), (RefusalCode::ShuttingDown, 69)] {
        let faked = Faked::play(move |daemon| {
            daemon.shake_hands();
            let (id, _) = daemon.request();
            daemon.reply(id, Err(Refusal { code: refused, message: "no, since".to_owned() }));
            daemon.until_the_client_goes();
        });
        let output = faked.command(&["run", "bash", "{}"]).output().expect("the command starts");
        assert_eq!(code(&output), expected, "{output:?}");
        assert!(text(&output.stderr).contains("no, since"), "{output:?}");
        faked.end();
    }
}

#[test]
fn an_abort_is_a_verdict_with_an_exit_code_of_its_own() {
    let faked = Faked::play(|daemon| {
        daemon.shake_hands();
        let batch = daemon.accept_batch();
        let mut result = batch.result(Status::Blocked);
        result.verdict = Verdict::Abort;
        result.reason = Some("three blocks in a row".to_owned());
        daemon.event(EventBody::BatchFinished(Arc::new(result)));
        daemon.until_the_client_goes();
    });
    let output = with_input(faked.command(&["batch", "-"]), ONE_CALL);
    assert_eq!(code(&output), 3);
    assert!(text(&output.stdout).ends_with("verdict: abort\nreason: three blocks in a row\n"), "{output:?}");
    faked.end();
}

#[test]
fn a_kill_that_is_not_proven_is_75_and_says_so() {
    let faked = Faked::play(|daemon| {
        daemon.shake_hands();
        let (id, request) = daemon.request();
        let Request::CallKill { call_uid, reason } = request else {
            panic!("a kill was awaited: {request:?}")
        };
        assert_eq!((call_uid.to_string().as_str(), reason.as_str()), (CALL, "wrong branch"));
        daemon.reply(id, Ok(Reply::CallKilled(KillAnswer::KillPending)));
        daemon.until_the_client_goes();
    });
    let arguments = ["kill", CALL, "--reason", "wrong branch", "--json"];
    let output = faked.command(&arguments).output().expect("it starts");
    assert_eq!(code(&output), 75);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer, json!({ "call_uid": CALL, "answer": "kill_pending" }));
    faked.end();
}

#[test]
fn a_call_that_still_runs_is_null_and_75() {
    let faked = Faked::play(|daemon| {
        daemon.shake_hands();
        let (id, request) = daemon.request();
        assert!(matches!(request, Request::CallWait { timeout_ms: 0..=10, .. }), "{request:?}");
        // The rest of the 10 ms may need more questions.
        daemon.stream.set_read_timeout(None).expect("a socket");
        daemon.reply(id, Ok(Reply::CallEnd(None)));
        while let Some(message) = daemon.receive() {
            let toolcell_client::protocol::client_api::ClientMessage::Request { id, .. } = message else {
                panic!("a request was awaited")
            };
            daemon.reply(id, Ok(Reply::CallEnd(None)));
        }
    });
    let output = faked.command(&["wait", CALL, "--timeout-ms", "10", "--json"]).output().expect("it starts");
    assert_eq!((code(&output), text(&output.stdout).as_str()), (75, "null\n"));
    faked.end();
}

#[test]
fn validate_tells_good_files_from_bad_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    let (good, bad) = (directory.path().join("good.toml"), directory.path().join("bad.toml"));
    std::fs::write(&good, "[limits]\nmax_running = 3\n").expect("written");
    std::fs::write(&bad, "[limits]\nmax_runing = 3\n").expect("written");
    let (good, bad) = (good.to_str().expect("UTF-8"), bad.to_str().expect("UTF-8"));
    assert_eq!(code(&output(&["validate", good])), 0);
    let output = output(&["validate", good, bad, "--json"]);
    assert_eq!(code(&output), 78);
    let findings: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((findings[0]["ok"].as_bool(), findings[1]["ok"].as_bool()), (Some(true), Some(false)));
}

#[test]
fn help_and_version_are_no_errors() {
    for arguments in [&["--help"][..], &["--version"], &["run", "--help"]] {
        let output = output(arguments);
        assert_eq!(code(&output), 0);
        assert!(!output.stdout.is_empty() && output.stderr.is_empty());
    }
}
