//! When a worker, the daemon or a spawner's peer dies: nothing is left, and the truth is told.

use nix::libc;
use toolcell_protocol::worker_api::{FromSpawner, ToSpawner, WaitStatus, WorkerKind};
use toolcell_worker::sys::pidfd_send_signal;

use crate::driver::{Cage, Spawner, in_every_cage, mark, marked, script, state, wait_until};

const TREE: &str = "setsid sh -c 'trap \"\" TERM HUP; setsid sleep 300 & sleep 300' & sleep 300";

/// Both shells, or what they became, and all three sleepers.
fn tree_is_grown(mark: &str) -> bool {
    let comm = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let found = marked(mark);
    found.len() >= 4 && found.iter().filter(|pid| comm(pid) == "sleep\n").count() >= 3
}

#[test]
fn a_killed_worker_takes_its_tool_and_its_grandchildren_along() {
    in_every_cage(|cage, spawner| {
        let job = script(TREE);
        let mark = mark(&job);
        let mut worker = spawner.start(cage, job);
        worker.started();
        wait_until("the tree", || tree_is_grown(&mark));
        pidfd_send_signal(&worker.pidfd, libc::SIGKILL).expect("killed");
        let (status, orphans) = spawner.reaped(worker.pid);
        assert_eq!(status, WaitStatus::Signaled(libc::SIGKILL));
        wait_until("nothing is left", || marked(&mark).is_empty());
        if cage != Cage::Namespace {
            assert!(orphans.iter().any(|orphan| orphan.comm == "sleep"), "{orphans:?} in {cage:?}");
        }
        assert_eq!(worker.receive(), None, "no end is invented");
        if let Some(leaf) = &worker.leaf {
            wait_until("the leaf is removed", || !leaf.exists());
        }
    });
}

#[test]
fn a_worker_whose_daemon_is_gone_kills_its_tree() {
    in_every_cage(|cage, spawner| {
        let job = script(TREE);
        let mark = mark(&job);
        let mut worker = spawner.start(cage, job);
        worker.started();
        wait_until("the tree", || tree_is_grown(&mark));
        let pid = worker.pid;
        drop(worker.stream);
        spawner.ended_well(pid);
        assert!(marked(&mark).is_empty());
    });
}

#[test]
fn when_the_daemon_dies_everything_goes() {
    in_every_cage(|cage, spawner| {
        let mut all = Vec::new();
        for _ in 0..5 {
            let job = script(TREE);
            let mark = mark(&job);
            let mut worker = spawner.start(cage, job);
            worker.started();
            wait_until("the tree", || tree_is_grown(&mark));
            all.push((mark, worker));
        }
        let idle = spawner.worker(WorkerKind::Exec);
        let pids: Vec<i32> = all.iter().map(|(_, worker)| worker.pid).chain([idle.pid]).collect();
        // A dead daemon's descriptors are all closed, in any order.
        let marks: Vec<String> = all.into_iter().map(|(mark, worker)| (mark, drop(worker)).0).collect();
        drop(idle);
        spawner.close();
        for mark in marks {
            assert!(marked(&mark).is_empty(), "{cage:?}");
        }
        assert!(pids.into_iter().all(|pid| state(pid).is_none()));
    });
}

#[test]
fn workers_that_keep_their_sockets_do_not_keep_a_spawner_without_daemon() {
    in_every_cage(|cage, spawner| {
        let job = script(TREE);
        let mark = mark(&job);
        let mut worker = spawner.start(cage, job);
        worker.started();
        wait_until("the tree", || tree_is_grown(&mark));
        // Stopped, so that it cannot see the end-of-file: after its time the spawner kills it.
        pidfd_send_signal(&worker.pidfd, libc::SIGSTOP).expect("stopped");
        spawner.close();
        assert!(marked(&mark).is_empty(), "{cage:?}");
    });
}

#[test]
fn an_idle_worker_that_is_not_needed_leaves_quietly() {
    let mut spawner = Spawner::plain();
    let worker = spawner.worker(WorkerKind::Exec);
    let pid = worker.pid;
    drop(worker);
    spawner.ended_well(pid);
}

#[test]
fn the_spawner_kills_a_worker_on_request_and_only_its_own() {
    let mut spawner = Spawner::plain();
    let worker = spawner.worker(WorkerKind::Builtin);
    spawner.send(&ToSpawner::Kill { pid: std::process::id().cast_signed() });
    spawner.send(&ToSpawner::Kill { pid: worker.pid });
    assert_eq!(spawner.reaped(worker.pid), (WaitStatus::Signaled(libc::SIGKILL), vec![]));
    spawner.send(&ToSpawner::Sweep);
    assert!(matches!(spawner.receive_answer().0, FromSpawner::Swept { killed: 0, clean: true }));
}

#[test]
fn leaves_are_removed_and_a_leaf_that_cannot_be_made_is_told() {
    let mut plain = Spawner::plain();
    let fork = |ticket, leaf: &str| ToSpawner::Fork {
        ticket,
        kind: WorkerKind::Exec,
        leaf: Some(leaf.to_owned()),
        hurry: true,
    };
    plain.send(&fork(1, "x"));
    assert!(matches!(plain.receive_answer().0, FromSpawner::ForkFailed { ticket: 1, .. }));
    let Some(mut spawner) = Spawner::with_cgroups() else { return };
    spawner.send(&fork(100, "../x"));
    let (answer, _) = spawner.receive_answer();
    assert!(matches!(answer, FromSpawner::ForkFailed { ticket: 100, errno: libc::EINVAL, .. }), "{answer:?}");
    let worker = spawner.worker(WorkerKind::Exec);
    let leaf = worker.leaf.clone().expect("a leaf");
    assert!(leaf.is_dir());
    // Taken: refused, and the one that has it keeps it.
    let name = leaf.file_name().expect("a name").to_str().expect("text").to_owned();
    spawner.send(&fork(101, &name));
    let (answer, _) = spawner.receive_answer();
    assert!(matches!(answer, FromSpawner::ForkFailed { ticket: 101, errno: libc::EEXIST, .. }), "{answer:?}");
    assert!(leaf.is_dir());
    let pid = worker.pid;
    drop(worker);
    spawner.ended_well(pid);
    wait_until("the leaf is removed", || !leaf.exists());
}

#[test]
fn a_private_directory_is_removed_with_the_daemon() {
    let directory = tempfile::tempdir().expect("a directory");
    let private = directory.path().join("private");
    std::fs::create_dir_all(private.join("spool/x")).expect("made");
    std::fs::write(private.join("spool/x/1"), b"output").expect("written");
    let mut spawner = Spawner::with(None, Some(private.to_str().expect("text").to_owned()), |_| {});
    assert!(private.exists());
    spawner.close();
    assert!(!private.exists());
    assert!(directory.path().exists());
}

#[test]
fn signals_to_the_spawner_do_not_end_it() {
    let mut spawner = Spawner::plain();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE, libc::SIGTSTP] {
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(spawner.pid),
            nix::sys::signal::Signal::try_from(signal).expect("a signal"),
        )
        .expect("sent");
    }
    assert_eq!(spawner.run(script("echo alive")).text(), "alive\n");
}

#[test]
fn descriptors_of_the_spawner_stay_flat() {
    let Some(mut spawner) = Spawner::with_cgroups() else { return };
    let pid = spawner.pid;
    let open = || std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").count();
    spawner.run(script("true"));
    let before = open();
    for _ in 0..50 {
        spawner.run(script("true"));
    }
    assert_eq!(open(), before);
}
