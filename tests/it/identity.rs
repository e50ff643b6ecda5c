//! Who may see what, and as whom a call runs. Needs root, since it takes several users.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::Duration;

use serde_json::json;
use toolcell_protocol::call::{Containment, Status};
use toolcell_protocol::client_api::{RefusalCode, Reply, Request, SessionRef};
use toolcell_protocol::id::SessionName;
use toolcell_tests::daemon::TestDaemon;
use toolcell_tests::peer::{Peer, call, habit};
use toolcell_tests::setting::{self, NOBODY, SOMEBODY, Setting, skipped};

/// Runs a test in each containment with a root daemon.
fn with_a_root_daemon(test: impl Fn(&TestDaemon)) {
    if !setting::is_root() {
        return skipped("several users need root");
    }
    for containment in [Containment::Cgroup, Containment::PidNamespace, Containment::Weak] {
        let setting = Setting::own(containment);
        match setting.lacks() {
            None => test(&TestDaemon::in_setting(setting)),
            Some(what) => skipped(&format!("{setting} needs {what}")),
        }
    }
}

#[test]
fn a_root_daemon_runs_a_call_as_its_peer() {
    with_a_root_daemon(|daemon| {
        for (uid, groups) in [(NOBODY, &[][..]), (SOMEBODY, &[7, 4242][..])] {
            let result = daemon.client_as(uid, groups).run_one(habit("ids"));
            assert_eq!(result.status, Status::Ok, "{result:#?}");
            let mut all = groups.to_vec();
            all.sort_unstable();
            let expected = format!("uid {uid} {uid}\ngid {uid} {uid}\ngroups {all:?}\n");
            assert!(result.for_model.starts_with(&expected), "{expected} is not what it said: {result:#?}");
            for line in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
                let none = format!("{line}:\t0000000000000000");
                assert!(result.for_model.contains(&none), "it has capabilities: {result:#?}");
            }
            assert!(result.for_model.contains("NoNewPrivs:\t1"), "{result:#?}");
        }
        // And as root for root.
        let result = daemon.client().run_one(habit("ids"));
        assert!(result.for_model.starts_with("uid 0 0\n"), "{result:#?}");
    });
}

#[test]
fn built_in_tools_open_nothing_before_they_are_their_peer() {
    with_a_root_daemon(|daemon| {
        let secret = daemon.work().join("secret");
        fs::write(&secret, "only root reads this").expect("write a file");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("set its mode");
        let mut client = daemon.client_as(SOMEBODY, &[]);
        let result = client.run_one(call("read_file", &json!({"path": "secret"})));
        assert_eq!(result.status, Status::Error, "{result:#?}");
        assert!(!result.for_model.contains("only root"), "{result:#?}");
        let result = client.run_one(call("write_file", &json!({"path": "secret", "content": "x"})));
        assert_eq!(result.status, Status::Error, "{result:#?}");
        let result = client.run_one(call("write_file", &json!({"path": "mine", "content": "x"})));
        assert_eq!(result.status, Status::Ok, "{result:#?}");
        let owner = fs::metadata(daemon.work().join("mine")).expect("it is there");
        assert_eq!((owner.uid(), owner.gid()), (SOMEBODY, SOMEBODY));
        let result = daemon.client().run_one(call("read_file", &json!({"path": "secret"})));
        assert!(result.for_model.contains("only root reads this"), "{result:#?}");
    });
}

#[test]
fn a_closed_directory_is_closed_to_the_peer_also_as_working_directory() {
    with_a_root_daemon(|daemon| {
        let closed = daemon.work().join("closed");
        fs::create_dir(&closed).expect("make a directory");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("set its mode");
        let mut call = habit("ok");
        call.cwd = Some("closed".into());
        let result = daemon.client_as(SOMEBODY, &[]).run_one(call);
        assert_eq!(result.status, Status::SpawnFailed, "{result:#?}");
        assert_eq!(result.status_detail.stage.as_deref(), Some("cwd"), "{result:#?}");
        assert_eq!(result.status_detail.errno_name.as_deref(), Some("EACCES"), "{result:#?}");
    });
}

/// What one user has: a session with a finished and a running call.
fn someone_busy(peer: &mut Peer) -> [toolcell_protocol::id::CallUid; 2] {
    let finished = peer.run_one(habit("ok my-secret-word")).call_uid;
    let running = peer.execute(vec![habit("sleep 60")]).call_uids[0];
    peer.started(running);
    [finished, running]
}

#[test]
fn another_user_sees_nothing_of_my_sessions_and_touches_nothing() {
    with_a_root_daemon(|daemon| {
        let mut mine = daemon.client_as(SOMEBODY, &[]);
        let calls = someone_busy(&mut mine);
        let mut other = daemon.peer_as(NOBODY, &[]);
        assert_eq!(other.granted(Request::SessionList), Reply::Sessions(Vec::new()));
        for finished in [false, true] {
            let list = other.granted(Request::CallList { session: None, finished });
            assert_eq!(list, Reply::Calls(Vec::new()));
        }
        for call_uid in calls {
            let asks = [
                Request::CallGet { call_uid },
                Request::CallOutput { call_uid, cursor: 0, max_bytes: 1000, wait_ms: 0 },
                Request::CallWait { call_uid, timeout_ms: 1 },
                Request::CallKill { call_uid, reason: "mischief".into() },
            ];
            for ask in asks {
                // Not even that it exists.
                assert_eq!(other.refused(ask).code, RefusalCode::UnknownCall);
            }
        }
        let name = mine.session.name.clone();
        for uid in [None, Some(SOMEBODY)] {
            let session = SessionRef { uid, name: name.clone() };
            for ask in [
                Request::SessionGet { session: session.clone() },
                Request::SessionClose { session: session.clone() },
                Request::CallList { session: Some(session), finished: true },
            ] {
                let code = other.refused(ask).code;
                assert!(matches!(code, RefusalCode::UnknownSession | RefusalCode::NotPermitted), "{code:?}");
            }
        }
        // The same name is another session for another user.
        other.open(
            &name.0,
            &daemon.work(),
            &daemon.marker,
            toolcell_protocol::client_api::OnDisconnect::Abort,
        );
        assert_eq!(other.run_one(habit("ok")).status, Status::Ok);
        let Reply::Session(session) = mine.granted(Request::SessionGet { session: mine.session.clone() })
        else {
            panic!("no session")
        };
        assert_eq!((session.uid, session.calls.len()), (SOMEBODY, 1));
    });
}

#[test]
fn root_sees_and_touches_every_session() {
    with_a_root_daemon(|daemon| {
        let mut mine = daemon.client_as(SOMEBODY, &[]);
        let [finished, running] = someone_busy(&mut mine);
        let mut root = daemon.peer();
        let Reply::Sessions(sessions) = root.granted(Request::SessionList) else { panic!("no list") };
        assert!(sessions.iter().any(|session| session.uid == SOMEBODY), "{sessions:#?}");
        let (out, ..) = root.read_output(finished);
        assert_eq!(out, b"my-secret-word\n");
        let killed = root.granted(Request::CallKill { call_uid: running, reason: "maintenance".into() });
        assert_eq!(killed, Reply::CallKilled(toolcell_protocol::client_api::KillAnswer::Killed));
        daemon.wait_until_no_tool_is_left(Duration::from_secs(1));
        let session = SessionRef { uid: Some(SOMEBODY), name: SessionName(mine.session.name.0.clone()) };
        assert!(matches!(root.granted(Request::SessionGet { session }), Reply::Session(_)));
    });
}

#[test]
fn output_files_of_one_user_are_closed_to_another() {
    with_a_root_daemon(|daemon| {
        let mut mine = daemon.client_as(SOMEBODY, &[]);
        let result = mine.run_one(habit("flood 3000000"));
        assert!(result.details.spool.is_some(), "{result:#?}");
        let directory = daemon.work().parent().expect("a parent").join("run");
        let script = format!("find {} -type f -readable; true", directory.display());
        let found = daemon.client_as(NOBODY, &[]).run_one(toolcell_tests::peer::bash(&script));
        assert_eq!(found.status, Status::Ok, "{found:#?}");
        let readable: Vec<&str> = found.for_model.lines().filter(|line| line.starts_with('/')).collect();
        assert!(readable.is_empty(), "another user can read {readable:?}");
    });
}

#[test]
fn an_ordinary_daemon_does_not_serve_other_users() {
    if !setting::is_root() {
        return skipped("several users need root");
    }
    let setting = Setting { uid: Some(NOBODY), containment: Containment::Weak };
    let daemon = TestDaemon::configure(setting).set("server.socket_mode", "\"0666\"").start();
    let relay = toolcell_tests::binaries::program("misbehave");
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", "12345", "--regid", "12345", "--clear-groups"]);
    command.arg(relay).arg("relay").arg(daemon.socket());
    command.stderr(std::process::Stdio::null());
    assert!(Peer::through(command).is_err(), "another user was served");
    // Its own user is.
    let mut client = daemon.client_as(NOBODY, &[]);
    let result = client.run_one(habit("ids"));
    assert!(result.for_model.starts_with("uid 65534 65534\n"), "{result:#?}");
}

#[test]
fn s18_a_tool_cannot_look_into_the_daemon_the_spawner_or_its_worker() {
    with_a_root_daemon(|daemon| {
        let spawner = daemon.spawner().expect("a spawner");
        let mut client = daemon.client_as(SOMEBODY, &[]);
        let mut targets = vec![daemon.pid(), spawner];
        targets.extend(daemon.workers().iter().map(|worker| worker.id.pid));
        for target in targets {
            let result = client.run_one(habit(&format!("peek {target}")));
            // In a PID namespace the process is not even there.
            let closed = result.for_model.lines().filter(|line| !line.ends_with("readable")).count();
            assert_eq!(closed, 3, "{}: {result:#?}", daemon.setting);
        }
    });
}
