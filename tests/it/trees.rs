//! Process trees that do not want to end: gone, whole, when the end of their call is told. (Rows K.)

use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::json;
use toolcell_protocol::call::{Containment, Status};
use toolcell_protocol::client_api::{KillAnswer, OnDisconnect, Reply, Request, SessionRef};
use toolcell_protocol::id::{CallUid, SessionName};
use toolcell_tests::cgroups;
use toolcell_tests::daemon::TestDaemon;
use toolcell_tests::peer::{Peer, bash, call, habit, within};
use toolcell_tests::procfs;
use toolcell_tests::setting::{self, Setting, skipped};
use toolcell_tests::waiting::{wait_until, wait_until_none};

fn kill(client: &mut Peer, call_uid: CallUid) -> KillAnswer {
    match client.granted(Request::CallKill { call_uid, reason: "the test says so".into() }) {
        Reply::CallKilled(answer) => answer,
        other => panic!("no answer to a kill but {other:?}"),
    }
}

/// Nothing may be left at the moment when the end was told.
fn none_left(daemon: &TestDaemon, what: &str) {
    let left = daemon.tool_processes();
    assert!(left.is_empty(), "{}: {what}: left when the end was told: {left:?}", daemon.setting);
}

#[test]
fn k01_a_timeout_ends_the_shell_and_what_it_left_at_the_pipes() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let script = "mkfifo f; (while :; do echo x; sleep 0.01; done) > f & cat f";
        let started = Instant::now();
        let result = daemon.client().run_one(within(1000, bash(script)));
        assert_eq!(result.status, Status::TimedOut, "{result:#?}");
        // Not the 60 s or more of a group kill that left somebody at the pipe; how quick it is, others measure.
        assert!(started.elapsed() < Duration::from_secs(20), "took {:?}", started.elapsed());
        none_left(&daemon, "a writer into a fifo");
    });
}

#[test]
fn k02_a_process_substitution_does_not_hold_the_call() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let started = Instant::now();
        // `cat` of the substitution waits for something that never comes.
        let result = daemon.client().run_one(bash("exec > >(cat; sleep 30); echo hello"));
        assert_eq!(result.status, Status::Ok, "{result:#?}");
        assert!(result.for_model.contains("hello"), "{result:#?}");
        assert!(result.details.stdout_open_after_exit, "{result:#?}");
        assert!(!result.details.leftovers.is_empty(), "{result:#?}");
        assert!(started.elapsed() < Duration::from_secs(15), "took {:?}", started.elapsed());
        none_left(&daemon, "a process substitution");
    });
}

#[test]
fn k03_the_port_of_a_killed_server_is_free_again() {
    if !std::path::Path::new("/usr/bin/perl").exists() {
        return skipped("the server of this test needs perl");
    }
    setting::in_main_settings(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let server = format!(
            "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(LocalAddr => \"127.0.0.1\", \
             LocalPort => {port}, Listen => 1, ReuseAddr => 1) or die; $SIG{{TERM}} = \"IGNORE\"; sleep 60' & wait"
        );
        let batch = client.execute(vec![bash(&server)]);
        let taken = || TcpListener::bind(("127.0.0.1", port)).is_err();
        wait_until(
            "the server listens",
            Duration::from_secs(20),
            || if taken() { Ok(()) } else { Err("free") },
        );
        assert_eq!(kill(&mut client, batch.call_uids[0]), KillAnswer::Killed);
        wait_until(
            "the port is free",
            Duration::from_secs(1),
            || if taken() { Err("taken") } else { Ok(()) },
        );
        client.finish(&batch);
    });
}

#[test]
fn k04_a_busy_child_stops_using_cpu_when_the_timeout_has_come() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let result = daemon.client().run_one(within(700, bash("(trap '' TERM; while :; do :; done) & wait")));
        assert_eq!(result.status, Status::TimedOut, "{result:#?}");
        none_left(&daemon, "a busy child");
        let used = result.details.user_cpu_us.unwrap_or(0);
        assert!(used > 50_000, "the child's CPU time is not in the result: {result:#?}");
    });
}

#[test]
fn k05_twenty_timeouts_in_a_row_leave_nothing() {
    setting::in_main_settings(|setting| {
        let daemon = TestDaemon::configure(setting).tool("impatient", "kill_grace_ms = 50").start();
        let mut client = daemon.client();
        let mut baseline = 0;
        wait_until("the stock is full", Duration::from_secs(5), || {
            let idle = client.status().idle_workers;
            baseline = procfs::descendants(daemon.pid()).len();
            if idle == toolcell_tests::full_stock() { Ok(()) } else { Err(idle) }
        });
        for _ in 0..20 {
            let impatient = call("impatient", &json!({"line": "hidden-family stay 20"}));
            let result = client.run_one(within(200, impatient));
            assert_eq!(result.status, Status::TimedOut, "{result:#?}");
            none_left(&daemon, "after a timeout");
        }
        wait_until("the number of processes is as before", Duration::from_secs(5), || {
            let now = procfs::descendants(daemon.pid()).len();
            if now <= baseline + 1 { Ok(()) } else { Err((baseline, now)) }
        });
    });
}

#[test]
fn k06_a_tool_that_detaches_itself_is_killed_and_listed_by_name() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let result =
            daemon.client().run_one(bash("setsid -f sleep 60 > /dev/null 2>&1; sleep 0.2; echo detached"));
        assert_eq!(result.status, Status::Ok, "{result:#?}");
        let names: Vec<&str> = result.details.leftovers.iter().map(|left| left.comm.as_str()).collect();
        assert_eq!(names, ["sleep"], "{result:#?}");
        none_left(&daemon, "a detached sleep");
    });
}

#[test]
fn k07_a_child_that_ignores_term_goes_although_its_parent_has_gone() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::configure(setting).tool("patient", "kill_grace_ms = 30000").start();
        let patient = call("patient", &json!({"line": "parent-exits-on-term 60"}));
        let started = Instant::now();
        let result = daemon.client().run_one(within(300, patient));
        assert_eq!(result.status, Status::TimedOut, "{result:#?}");
        // The parent exits on TERM; what is left of the cell is killed then and not after the grace.
        assert!(started.elapsed() < Duration::from_secs(20), "took {:?}", started.elapsed());
        none_left(&daemon, "a child that ignores TERM");
    });
}

#[test]
fn k08_a_tool_with_a_grace_may_clean_up() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::configure(setting).tool("graceful", "kill_grace_ms = 30000").start();
        let mut client = daemon.client();
        let path = daemon.work().join("cleaned");
        let line = format!("touch-on-term {} 200", path.display());
        let batch = client.execute(vec![call("graceful", &json!({ "line": line }))]);
        client.wait_for_output(batch.call_uids[0], "waiting");
        let started = Instant::now();
        assert_eq!(kill(&mut client, batch.call_uids[0]), KillAnswer::Killed);
        let result = client.finish(&batch).results.remove(0);
        assert_eq!(result.status, Status::Killed, "{result:#?}");
        assert!(path.exists(), "the tool had no time to clean up: {result:#?}");
        assert!(started.elapsed() < Duration::from_secs(20), "the grace was waited for to its end");
    });
}

#[test]
fn k10_every_process_group_of_a_chain_goes() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        let batch = client.execute(vec![habit("tree 8 60")]);
        wait_until("the chain is up", Duration::from_secs(20), || {
            let seen = daemon.tool_processes().len();
            if seen == 8 { Ok(()) } else { Err(seen) }
        });
        assert_eq!(kill(&mut client, batch.call_uids[0]), KillAnswer::Killed);
        none_left(&daemon, "a chain of process groups");
        client.finish(&batch);
    });
}

#[test]
fn k11_child_and_grandchild_that_ignore_term_go_with_kill() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::configure(setting).tool("stubborn", "kill_grace_ms = 200").start();
        let line = "hidden-family stay 20";
        let result = daemon.client().run_one(within(300, call("stubborn", &json!({ "line": line }))));
        assert_eq!(result.status, Status::TimedOut, "{result:#?}");
        none_left(&daemon, "a family that ignores TERM");
    });
}

#[test]
fn k12_a_tool_that_forks_without_end_never_leaves_a_survivor() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        for _ in 0..20 {
            let batch = client.execute(vec![habit("fork-run stay 20")]);
            client.started(batch.call_uids[0]);
            assert_eq!(kill(&mut client, batch.call_uids[0]), KillAnswer::Killed);
            none_left(&daemon, "a fork run");
            client.finish(&batch);
        }
    });
}

#[test]
fn k13_a_tool_that_forks_into_new_sessions_without_end_never_leaves_a_survivor() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        for round in 0..20 {
            let mode = if round % 2 == 0 { "stay" } else { "exit" };
            let batch = client.execute(vec![habit(&format!("setsid-run {mode} 20"))]);
            client.started(batch.call_uids[0]);
            let answer = kill(&mut client, batch.call_uids[0]);
            assert!(matches!(answer, KillAnswer::Killed | KillAnswer::AlreadyEnded), "{answer:?}");
            let result = client.finish(&batch).results.remove(0);
            none_left(&daemon, "a run of sessions");
            let layers = result.details.layers.expect("it started");
            assert_eq!(layers.containment, setting.containment);
        }
    });
}

#[test]
fn k14_a_daemonised_tool_is_found_and_killed() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        for _ in 0..10 {
            let result = client.run_one(habit("daemonize 60"));
            assert_eq!(result.status, Status::Ok, "{result:#?}");
            // The process between the two forks may be on its way out still.
            assert!((1..=2).contains(&result.details.leftovers.len()), "{result:#?}");
            none_left(&daemon, "a daemonised tool");
        }
    });
}

#[test]
fn k16_a_stopped_tool_is_woken_so_that_it_can_clean_up() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::configure(setting).tool("graceful", "kill_grace_ms = 30000").start();
        let mut client = daemon.client();
        let path = daemon.work().join("cleaned");
        let line = format!("touch-on-term {} 0", path.display());
        let batch = client.execute(vec![call("graceful", &json!({ "line": line }))]);
        let pid = client.started(batch.call_uids[0]);
        client.wait_for_output(batch.call_uids[0], "waiting");
        let tool = nix::unistd::Pid::from_raw(pid);
        nix::sys::signal::kill(tool, nix::sys::signal::Signal::SIGSTOP).expect("stop the tool");
        assert_eq!(kill(&mut client, batch.call_uids[0]), KillAnswer::Killed);
        assert!(path.exists(), "the stopped tool was not woken");
        client.finish(&batch);
    });
}

#[test]
fn k17_a_tool_that_stops_its_own_group_is_still_timed_out() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let started = Instant::now();
        let result = daemon.client().run_one(within(400, habit("kill-group 19")));
        assert_eq!(result.status, Status::TimedOut, "{result:#?}");
        assert!(started.elapsed() < Duration::from_secs(15), "took {:?}", started.elapsed());
        none_left(&daemon, "a stopped group");
    });
}

#[test]
fn k20_a_frozen_group_is_killed_all_the_same() {
    let setting = Setting::own(Containment::Cgroup);
    if let Some(what) = setting.lacks() {
        return skipped(&format!("freezing needs {what}"));
    }
    let daemon = TestDaemon::in_setting(setting);
    let mut client = daemon.client();
    let batch = client.execute(vec![habit("tree 5 60")]);
    let pid = client.started(batch.call_uids[0]);
    let group = cgroups::group_of(pid).expect("the tool has a group");
    fs::write(group.join("cgroup.freeze"), "1").expect("freeze the group");
    assert_eq!(kill(&mut client, batch.call_uids[0]), KillAnswer::Killed);
    none_left(&daemon, "a frozen tree");
    client.finish(&batch);
    wait_until_none("the group is gone", Duration::from_secs(5), || {
        group.exists().then(|| group.clone()).into_iter().collect()
    });
}

#[test]
fn k21_a_tool_that_kills_everything_it_may_reaches_nothing_of_ours() {
    if !setting::is_root() {
        return skipped("a tool that kills all of its user's processes needs a user of its own, so root");
    }
    for containment in [Containment::Cgroup, Containment::PidNamespace, Containment::Weak] {
        let setting = Setting::own(containment);
        if let Some(what) = setting.lacks() {
            skipped(&format!("{setting} needs {what}"));
            continue;
        }
        let daemon = TestDaemon::in_setting(setting);
        // Users of their own: the tool takes along everything else of its user.
        let mut bystander = daemon.client_as(61_001, &[]);
        let quiet = bystander.execute(vec![habit("sleep 1.5")]);
        bystander.started(quiet.call_uids[0]);
        let script = "kill -9 -1; pkill -9 toolcell; true";
        let by = killer_result(&daemon, script);
        assert!(matches!(by, Status::Ok | Status::Crashed | Status::Error), "{setting}: {by:?}");

        let result = bystander.finish(&quiet).results.remove(0);
        assert_eq!(result.status, Status::Ok, "{setting}: a bystander was hit: {result:#?}");
        assert_eq!(daemon.client().run_one(habit("ok")).status, Status::Ok);
        assert_eq!(daemon.peer().status().spawner_restarts, 0, "{setting}: the spawner was hit");
    }
}

/// Runs a script as a user whose connection it kills, too: root asks for it in that user's session.
fn killer_result(daemon: &TestDaemon, script: &str) -> Status {
    let mut victim = daemon.peer_as(61_002, &[]);
    victim.open("killer", &daemon.work(), &daemon.marker, OnDisconnect::Linger);
    let mut root = daemon.peer();
    root.session = SessionRef { uid: Some(61_002), name: SessionName::from("killer") };
    root.run_one(bash(script)).status
}

#[test]
fn k22_a_tool_that_signals_its_own_group_hits_only_itself() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        let result = client.run(vec![habit("sleep 0.5"), habit("kill-group 15"), habit("sleep 0.5")]);
        assert_eq!(result.results[0].status, Status::Ok);
        assert_eq!(result.results[1].status, Status::Crashed);
        assert_eq!(result.results[1].status_detail.signal_name.as_deref(), Some("SIGTERM"));
        assert_eq!(result.results[2].status, Status::Ok);
    });
}
