//! Trees: nothing of them is left, in any containment.

use std::time::{Duration, Instant};

use nix::libc;
use toolcell_protocol::call::{Containment, LayerState, Stream};
use toolcell_protocol::worker_api::{AttemptEnd, FromWorker, ToWorker, WaitStatus};

use crate::driver::{Cage, Spawner, in_every_cage, mark, marked, script, state, wait_until};

/// Two sessions away from the tool, deaf to TERM, forking all the time, with its outputs elsewhere.
const ESCAPING: &str = r#"
setsid sh -c 'trap "" TERM HUP; setsid sh -c "trap \"\" TERM HUP; while :; do sleep 0.01 & sleep 0.01; done" & while :; do sleep 1; done' > /dev/null 2>&1 &
"#;

#[test]
fn an_escaping_forking_grandchild_does_not_survive_the_end_of_its_tool() {
    in_every_cage(|cage, spawner| {
        let job = script(&format!("{ESCAPING} sleep 0.05; echo done"));
        let mark = mark(&job);
        let run = spawner.run_in(cage, job);
        let finished = run.finished();
        assert!(marked(&mark).is_empty(), "{cage:?}");
        assert_eq!(finished.end, AttemptEnd::Ended(WaitStatus::Exited(0)));
        assert_eq!(run.text(), "done\n");
        assert!(finished.proven_gone);
        assert!(finished.leftovers.iter().any(|left| left.comm == "sh"), "{:?}", finished.leftovers);
        let expected = match cage {
            Cage::Cgroup => Containment::Cgroup,
            Cage::Namespace => Containment::PidNamespace,
            Cage::Weak => Containment::Weak,
        };
        let layers = finished.layers.as_ref().expect("started");
        assert_eq!(layers.containment, expected);
        let namespace = layers.layers.iter().find(|layer| layer.name == "pid_namespace");
        assert_eq!(
            namespace.map(|layer| layer.state),
            (cage == Cage::Namespace).then_some(LayerState::Enforced)
        );
    });
}

#[test]
fn a_kill_takes_the_whole_tree_however_often_it_is_tried() {
    in_every_cage(|cage, spawner| {
        for _ in 0..10 {
            let job = script(&format!("{ESCAPING} trap '' TERM; while :; do sleep 0.01; done"));
            let mark = mark(&job);
            let mut worker = spawner.start(cage, job);
            worker.started();
            wait_until("the tree", || marked(&mark).len() >= 4);
            let asked = Instant::now();
            worker.send(&ToWorker::Kill);
            let run = worker.finish();
            let finished = run.finished();
            assert!(asked.elapsed() < Duration::from_secs(5), "{:?} in {cage:?}", asked.elapsed());
            assert!(marked(&mark).is_empty(), "{cage:?}");
            assert_eq!(finished.end, AttemptEnd::Ended(WaitStatus::Signaled(libc::SIGKILL)));
            assert!(finished.signalled && finished.proven_gone && finished.leftovers.is_empty());
            spawner.ended_well(worker.pid);
        }
    });
}

#[test]
fn terminate_lets_a_tool_say_good_bye() {
    in_every_cage(|cage, spawner| {
        let mut worker = spawner
            .start(cage, script("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done"));
        worker.started();
        // The handler is set once the tool says so.
        match worker.receive() {
            Some(FromWorker::Output { bytes, .. }) => assert_eq!(bytes.0, b"ready\n"),
            other => panic!("{other:?}"),
        }
        worker.send(&ToWorker::Terminate);
        let mut last_words = Vec::new();
        let end = loop {
            match worker.receive().expect("Finished") {
                FromWorker::Finished(finished) => break finished,
                FromWorker::Output { bytes, stream: Stream::Stdout, .. } => last_words.extend(bytes.0),
                // The shell's own remark about its child, which got the signal too.
                FromWorker::Output { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(last_words, b"bye\n", "{cage:?}");
        assert_eq!(end.end, AttemptEnd::Ended(WaitStatus::Exited(7)), "{cage:?}");
        assert!(end.signalled);
    });
}

#[test]
fn a_tool_that_has_stopped_itself_hears_terminate() {
    in_every_cage(|cage, spawner| {
        let mut worker = spawner.start(cage, script("kill -STOP 0; echo went on"));
        let (pid, _) = worker.started();
        wait_until("the tool has stopped", || state(pid) == Some('T'));
        worker.send(&ToWorker::Terminate);
        let run = worker.finish();
        assert_eq!(run.finished().end, AttemptEnd::Ended(WaitStatus::Signaled(libc::SIGTERM)), "{cage:?}");
    });
}

#[test]
fn a_background_process_that_holds_a_pipe_ends_in_time_and_is_listed() {
    in_every_cage(|cage, spawner| {
        let begun = Instant::now();
        let run = spawner.run_in(cage, script("echo A; sleep 300 & echo B"));
        let finished = run.finished();
        // The window is 200 ms; a loaded machine gets more, and none waits for the sleeper.
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(run.text(), "A\nB\n");
        assert_eq!(finished.end, AttemptEnd::Ended(WaitStatus::Exited(0)));
        assert!(finished.stdout_open_after_exit && finished.proven_gone);
        let names: Vec<_> = finished.leftovers.iter().map(|left| left.comm.as_str()).collect();
        assert_eq!(names, ["sleep"], "{cage:?}");
        assert!(Duration::from_micros(finished.duration_us) < begun.elapsed() - Duration::from_millis(200));
    });
}

#[test]
fn a_background_process_without_pipes_delays_nothing_and_is_listed() {
    in_every_cage(|cage, spawner| {
        let run = spawner.run_in(cage, script("sleep 300 > /dev/null 2>&1 & echo $!"));
        let finished = run.finished();
        assert!(!finished.stdout_open_after_exit && finished.proven_gone);
        assert_eq!(finished.leftovers.len(), 1, "{cage:?}");
        assert_eq!(finished.leftovers[0].comm, "sleep");
    });
}

#[test]
fn what_a_finishing_background_process_still_writes_is_not_lost() {
    in_every_cage(|cage, spawner| {
        let run = spawner.run_in(cage, script("(sleep 0.05; echo late) & echo early"));
        assert_eq!(run.text(), "early\nlate\n", "{cage:?}");
        assert!(!run.finished().stdout_open_after_exit);
    });
}

#[test]
fn orphans_of_a_running_tool_are_reaped_while_it_runs() {
    let mut spawner = Spawner::plain();
    let mut worker = spawner.start(Cage::Weak, script("for i in 1 2 3 4 5; do (true &) ; done; sleep 300"));
    worker.started();
    let children = format!("/proc/{0}/task/{0}/children", worker.pid);
    wait_until("only the tool is left", || {
        let text = std::fs::read_to_string(&children).unwrap_or_default();
        text.split_whitespace().count() == 1
    });
    worker.send(&ToWorker::Kill);
    assert!(worker.finish().finished().proven_gone);
}

#[test]
fn an_ordinary_users_trees_are_killed_and_listed_too() {
    if !nix::unistd::geteuid().is_root() {
        crate::driver::skipped("root, to become somebody else");
        return;
    }
    let mut spawner = Spawner::with(None, None, |command| {
        std::os::unix::process::CommandExt::uid(command, 65_534);
        std::os::unix::process::CommandExt::gid(command, 65_534);
    });
    for cage in [Cage::Weak, Cage::Namespace] {
        let job = script(&format!("{ESCAPING} id -u; sleep 300 & echo $$"));
        let mark = mark(&job);
        let run = spawner.run_in(cage, job);
        assert!(marked(&mark).is_empty(), "{cage:?}");
        let finished = run.finished();
        assert!(finished.proven_gone && finished.stdout_open_after_exit);
        assert!(finished.leftovers.iter().any(|left| left.comm == "sleep"), "{:?}", finished.leftovers);
        let layers = finished.layers.as_ref().expect("started");
        let layer = layers.layers.iter().find(|layer| layer.name == "pid_namespace");
        match layer.map(|layer| layer.state) {
            None => assert_eq!((cage, layers.containment), (Cage::Weak, Containment::Weak)),
            // A user namespace that is asked for and refused is said, and the tool runs without.
            Some(LayerState::Unavailable) => {
                assert_eq!(layers.containment, Containment::Weak);
                assert!(layer.is_some_and(|layer| layer.detail.is_some()));
            }
            Some(LayerState::Enforced) => {
                assert_eq!(layers.containment, Containment::PidNamespace);
                assert_eq!(run.text(), "65534\n2\n", "the ids are kept, and the tool is not PID 1");
            }
        }
    }
}
