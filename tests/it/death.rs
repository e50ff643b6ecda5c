//! SIGKILL of a worker, of the spawner, of a client and of the daemon, at random moments of a running batch: every
//! call has exactly one result, nothing is left, and everything goes on. (Rows D.)

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use toolcell_protocol::call::{Containment, Status};
use toolcell_protocol::client_api::{CallRequest, OnDisconnect, RefusalCode, Reply, Request};
use toolcell_tests::daemon::TestDaemon;
use toolcell_tests::peer::{Peer, call, habit};
use toolcell_tests::procfs;
use toolcell_tests::setting::{self, Setting};
use toolcell_tests::waiting::{wait_until, wait_until_none};

const TIMES: u64 = 10;

/// A number that looks random and is the same in every run.
fn scatter(seed: u64) -> u64 {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    x ^= x >> 32;
    x = x.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 29)
}

/// A moment while the batch of [`mixture`] runs.
fn pause_at_random(seed: u64) {
    std::thread::sleep(Duration::from_micros(scatter(seed) % 250_000));
}

/// Calls that are somewhere in their lives at any moment of the next 300 ms.
fn mixture() -> Vec<CallRequest> {
    let lines = [
        "sleep 0.3",
        "ok",
        "drip 10 20",
        "flood 500000",
        "tree 3 0.25",
        "exit 3",
        "leak-pipe 20",
        "sleep 0.1",
        "spin 1 0.2",
        "hidden-family exit 20",
        "last-moment 4000",
        "sleep 0.2",
    ];
    let mut calls: Vec<CallRequest> = lines.iter().map(|line| habit(line)).collect();
    calls.push(call("read_file", &serde_json::json!({"path": "/etc/passwd"})));
    calls.push(call("list_dir", &serde_json::json!({"path": "/etc"})));
    calls
}

/// Whether this is how the call ends when nothing is killed.
fn is_own_end(line: usize, status: Status) -> bool {
    status == if line == 5 { Status::Error } else { Status::Ok }
}

fn all_is_well(daemon: &TestDaemon) {
    let mut client = daemon.client();
    let result = client.run(mixture());
    for (line, result) in result.results.iter().enumerate() {
        assert!(is_own_end(line, result.status), "after the kill: {result:#?}");
    }
}

#[test]
fn a_killed_worker_costs_its_own_call_only() {
    setting::in_main_settings(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let spawner = daemon.spawner().expect("a spawner");
        let mut calls_lost = 0;
        for round in 0..TIMES {
            let mut client = daemon.client();
            let batch = client.execute(mixture());
            pause_at_random(round);
            let processes = procfs::processes();
            let mut workers: Vec<_> = processes.iter().filter(|process| process.parent == spawner).collect();
            // Nine times one that has a tool, once whichever comes.
            if round > 0 {
                workers.retain(|worker| processes.iter().any(|tool| tool.parent == worker.id.pid));
            }
            let chosen = scatter(round + 100) as usize % workers.len().max(1);
            if let Some(worker) = workers.get(chosen) {
                let _ = kill(Pid::from_raw(worker.id.pid), Signal::SIGKILL);
            }
            let result = client.finish(&batch);
            let lost: Vec<_> = result
                .results
                .iter()
                .enumerate()
                .filter(|(line, result)| !is_own_end(*line, result.status))
                .map(|(_, result)| result)
                .collect();
            assert!(lost.len() <= 1, "{setting}: one worker was killed: {lost:#?}");
            calls_lost += lost.len();
            for lost in lost {
                // A killed worker, or a tool that died with it before that was noticed; never an invented code.
                assert_eq!(lost.status, Status::WorkerFailed, "{setting}: {lost:#?}");
                assert!(lost.details.exit_code.is_none(), "{setting}: {lost:#?}");
            }
            daemon.wait_until_no_tool_is_left(Duration::from_secs(3));
        }
        assert!(calls_lost > 0, "no kill has hit a running call");
        all_is_well(&daemon);
        assert_eq!(daemon.peer().status().spawner_restarts, 0);
    });
}

#[test]
fn d03_three_levels_of_children_die_with_their_worker() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let spawner = daemon.spawner().expect("a spawner");
        let mut client = daemon.client();
        for line in ["tree 4 60", "hidden-family stay 20", "setsid-run stay 20"] {
            let batch = client.execute(vec![habit(line)]);
            let tool = client.started(batch.call_uids[0]);
            wait_until("the family is up", Duration::from_secs(10), || {
                let seen = daemon.tool_processes().len();
                if seen >= 2 { Ok(()) } else { Err(seen) }
            });
            // The worker is the one child of the spawner above the tool.
            let mut worker = tool;
            while let Some(parent) = procfs::process(worker).map(|process| process.parent) {
                if parent == spawner {
                    break;
                }
                worker = parent;
            }
            kill(Pid::from_raw(worker), Signal::SIGKILL).expect("the worker is there");
            let result = client.finish(&batch).results.remove(0);
            assert_eq!(result.status, Status::WorkerFailed, "{setting}: {line}: {result:#?}");
            let left = daemon.tool_processes();
            assert!(left.is_empty(), "{setting}: {line}: left when the end was told: {left:?}");
        }
    });
}

#[test]
fn a_killed_spawner_is_started_again_and_no_call_is_lost() {
    setting::in_main_settings(|setting| {
        let mut daemon = TestDaemon::in_setting(setting);
        for round in 0..TIMES {
            let mut client = daemon.client();
            let batch = client.execute(mixture());
            daemon.remember_processes();
            pause_at_random(round + 1000);
            daemon.remember_processes();
            let spawner = wait_for_spawner(&daemon);
            kill(Pid::from_raw(spawner), Signal::SIGKILL).expect("the spawner is there");
            let result = client.finish(&batch);
            for (line, result) in result.results.iter().enumerate() {
                let honest = is_own_end(line, result.status)
                    || matches!(result.status, Status::WorkerFailed | Status::SpawnFailed);
                assert!(honest, "{setting}: {result:#?}");
            }
            daemon.wait_until_no_tool_is_left(Duration::from_secs(5));
            assert_ne!(wait_for_spawner(&daemon), spawner, "{setting}");
        }
        all_is_well(&daemon);
        assert!(daemon.peer().status().spawner_restarts >= 1);
    });
}

fn wait_for_spawner(daemon: &TestDaemon) -> i32 {
    let mut found = 0;
    wait_until("there is a spawner", Duration::from_secs(10), || {
        found =
            daemon.spawner().filter(|pid| procfs::process(*pid).is_some_and(|p| p.state != 'Z')).unwrap_or(0);
        if found > 0 { Ok(()) } else { Err("none") }
    });
    found
}

#[test]
fn a_killed_client_takes_its_calls_along_and_nobody_elses() {
    setting::in_main_settings(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        for round in 0..TIMES {
            let mut bystander = daemon.client();
            let quiet = bystander.execute(vec![habit("sleep 0.4"), habit("drip 4 50")]);
            let mut relay = std::process::Command::new(toolcell_tests::binaries::program("misbehave"));
            relay.arg("relay").arg(daemon.socket());
            let mut client = if setting.daemon_uid() == 0 || !setting::is_root() {
                Peer::through(relay).expect("a client of its own process")
            } else {
                daemon.peer_as(setting.daemon_uid(), &[])
            };
            client.open(&format!("doomed-{round}"), &daemon.work(), &daemon.marker, OnDisconnect::Abort);
            client.execute(mixture());
            pause_at_random(round + 2000);
            client.kill_relay();
            let result = bystander.finish(&quiet);
            assert!(result.results.iter().all(|result| result.status == Status::Ok), "{result:#?}");
            daemon.wait_until_no_tool_is_left(Duration::from_secs(5));
            wait_until("no call is running", Duration::from_secs(5), || {
                let status = bystander.status();
                if status.running + status.queued == 0 { Ok(()) } else { Err(status.running) }
            });
        }
        all_is_well(&daemon);
    });
}

#[test]
fn a_killed_daemon_leaves_nothing_and_its_next_start_works() {
    setting::in_main_settings(|setting| {
        let mut daemon = TestDaemon::in_setting(setting);
        for round in 0..TIMES {
            let mut client = daemon.client();
            let batch = client.execute(mixture());
            pause_at_random(round + 3000);
            daemon.crash();
            // Either the whole result was there, or the connection ends without one: nothing is invented.
            let before_the_end = client.try_finish(&batch).ok();
            if let Some(result) = &before_the_end {
                assert_eq!(result.results.len(), batch.call_uids.len());
            }
            daemon.wait_until_no_tool_is_left(Duration::from_secs(8));
            daemon.start_again();
            // The new daemon says honestly what it knows of the old one's calls.
            let mut client = daemon.peer();
            match client.ask(Request::CallGet { call_uid: batch.call_uids[0] }).expect("it answers") {
                Err(refusal) => assert_eq!(refusal.code, RefusalCode::UnknownCall),
                Ok(Reply::Call(record)) => {
                    let status = record.result.as_ref().map(|result| result.status);
                    assert!(before_the_end.is_some() || status == Some(Status::Unknown), "{record:#?}");
                }
                Ok(other) => panic!("no record but {other:?}"),
            }
        }
        all_is_well(&daemon);
    });
}

#[test]
fn a_daemon_that_is_killed_while_it_starts_leaves_nothing() {
    let setting = Setting::own(Containment::Weak);
    let mut daemon = TestDaemon::in_setting(setting);
    for round in 0..TIMES {
        daemon.crash();
        daemon.start_without_waiting();
        std::thread::sleep(Duration::from_micros(scatter(round + 4000) % 30_000));
    }
    daemon.crash();
    wait_until_none("every process is gone", Duration::from_secs(8), || daemon.left_behind());
    daemon.start_again();
    all_is_well(&daemon);
}

#[test]
fn d02_a_daemon_that_dies_in_the_moment_of_a_start_leaves_no_tool() {
    setting::in_main_settings(|setting| {
        let mut daemon = TestDaemon::in_setting(setting);
        for round in 0..30 {
            let mut client = daemon.client();
            let request = client.batch_request((0..4).map(|_| habit("sleep 60")).collect());
            client.post(request).expect("sent");
            std::thread::sleep(Duration::from_micros(scatter(round + 5000) % 6_000));
            daemon.crash();
            daemon.wait_until_no_tool_is_left(Duration::from_secs(8));
            daemon.start_again();
        }
    });
}
