//! How a tool ends, and how it fails to start.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use toolcell_protocol::call::{Blob, LimitName};
use toolcell_protocol::worker_api::{Action, AttemptEnd, Stage, WaitStatus, WorkerKind};

use crate::driver::{Cage, Spawner, in_every_cage, job, script};

fn write_executable(path: &Path, content: &[u8]) {
    std::fs::write(path, content).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("made executable");
}

fn spawn_failure(end: &AttemptEnd) -> (Stage, Errno, &str) {
    match end {
        AttemptEnd::SpawnFailed { stage, errno, what } => (*stage, Errno::from_raw(*errno), what),
        other => panic!("it was started: {other:?}"),
    }
}

#[test]
fn exit_codes_and_signals_arrive_as_they_are_in_every_containment() {
    in_every_cage(|cage, spawner| {
        for (text, end) in [
            ("exit 0", WaitStatus::Exited(0)),
            ("exit 3", WaitStatus::Exited(3)),
            ("exit 255", WaitStatus::Exited(255)),
            ("kill -SEGV $$", WaitStatus::Signaled(libc::SIGSEGV)),
            ("kill -KILL $$", WaitStatus::Signaled(libc::SIGKILL)),
            ("kill -34 $$", WaitStatus::Signaled(34)),
        ] {
            let run = spawner.run_in(cage, script(text));
            let finished = run.finished();
            assert_eq!(finished.end, AttemptEnd::Ended(end), "{text} in {cage:?}");
            assert!(!finished.signalled && finished.killed_for.is_none());
            assert!(finished.proven_gone && finished.leftovers.is_empty(), "{text} in {cage:?}");
            assert!(run.started.expect("started").0 > 0);
        }
    });
}

#[test]
fn both_outputs_of_a_short_tool_arrive_whole() {
    in_every_cage(|cage, spawner| {
        let run = spawner.run_in(cage, script("echo out; echo err >&2; echo more"));
        assert_eq!((run.text(), &run.stderr[..]), ("out\nmore\n", &b"err\n"[..]));
        let finished = run.finished();
        assert_eq!((finished.stdout_bytes, finished.stderr_bytes, finished.omitted_bytes), (9, 4, 0));
        assert!(!finished.stdout_open_after_exit && finished.tail.is_empty() && finished.spool.is_none());
        assert!(finished.duration_us > 0);
        assert!(finished.usage.peak_memory_bytes > 100_000);
    });
}

#[test]
fn what_cannot_be_executed_is_told_with_stage_and_errno() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("text").to_owned();
    write_executable(directory.path().join("no-interpreter-line").as_path(), b"echo hello\n");
    write_executable(directory.path().join("missing-interpreter").as_path(), b"#!/no/such/interpreter\n");
    std::fs::write(directory.path().join("not-executable"), b"#!/bin/sh\n").expect("written");
    // An ELF header for a machine that this is not: e_machine of a VAX.
    let mut foreign = std::fs::read("/bin/true").expect("/bin/true");
    foreign[18..20].copy_from_slice(&[75, 0]);
    write_executable(directory.path().join("foreign").as_path(), &foreign);
    write_executable(directory.path().join("cut-off").as_path(), &foreign[..20]);
    in_every_cage(|cage, spawner| {
        for (program, stage, errno, what) in [
            (path("missing"), Stage::Exec, Errno::ENOENT, "missing"),
            (path("missing-interpreter"), Stage::Exec, Errno::ENOENT, "interpreter or loader"),
            (path("no-interpreter-line"), Stage::Exec, Errno::ENOEXEC, "no-interpreter-line"),
            (path("not-executable"), Stage::Exec, Errno::EACCES, "not-executable"),
            (path("foreign"), Stage::Exec, Errno::ENOEXEC, "foreign"),
            (path("cut-off"), Stage::Exec, Errno::ENOEXEC, "cut-off"),
            (path(""), Stage::Exec, Errno::EACCES, ""),
            ("no-such-program-anywhere".to_owned(), Stage::Lookup, Errno::ENOENT, "/usr/bin/no-such-program"),
            (String::new(), Stage::Lookup, Errno::ENOENT, "no program"),
        ] {
            let run = spawner.run_in(cage, job(&[&program]));
            let (got_stage, got_errno, got_what) = spawn_failure(&run.finished().end);
            assert_eq!((got_stage, got_errno), (stage, errno), "{program} in {cage:?}");
            assert!(got_what.contains(what), "{got_what:?}");
            assert!(run.started.is_none() && run.finished().layers.is_none());
        }
        let mut nowhere = job(&["true"]);
        nowhere.cwd = path("no-such-directory");
        let run = spawner.run_in(cage, nowhere);
        let (stage, errno, what) = spawn_failure(&run.finished().end);
        assert_eq!((stage, errno), (Stage::Cwd, Errno::ENOENT));
        assert!(what.contains("no-such-directory"));
        let nul = Action::Exec { argv: vec![Blob(b"true".to_vec()), Blob(b"a\0b".to_vec())], stdin: None };
        let run = spawner.run_in(cage, toolcell_protocol::worker_api::Job { action: nul, ..job(&["true"]) });
        assert_eq!(spawn_failure(&run.finished().end).1, Errno::EINVAL);
    });
}

#[test]
fn a_busy_file_is_tried_again_and_reported_if_it_stays_busy() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tool");
    write_executable(&path, &std::fs::read("/bin/true").expect("/bin/true"));
    let tool = path.to_str().expect("text");
    let mut spawner = Spawner::plain();
    let writer = std::fs::OpenOptions::new().append(true).open(&path).expect("opened");
    let run = spawner.run(job(&[tool]));
    let (stage, errno, what) = spawn_failure(&run.finished().end);
    assert_eq!((stage, errno, what), (Stage::Exec, Errno::ETXTBSY, tool));
    // Released before the first try or between two: it makes no difference.
    let mut worker = spawner.worker(WorkerKind::Exec);
    worker.send(&toolcell_protocol::worker_api::ToWorker::Job(Box::new(job(&[tool]))));
    drop(writer);
    assert_eq!(worker.finish().finished().end, AttemptEnd::Ended(WaitStatus::Exited(0)));
}

#[test]
fn standard_input_is_delivered_and_what_was_not_read_is_counted() {
    let with_input = |argv: &[&str], input: Vec<u8>| {
        let mut job = job(argv);
        let Action::Exec { stdin, .. } = &mut job.action else { unreachable!("an exec") };
        *stdin = Some(Blob(input));
        job
    };
    let all_bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    in_every_cage(|cage, spawner| {
        let mut echo = with_input(&["cat"], all_bytes.clone());
        echo.output.inline_bytes = 1 << 20;
        let run = spawner.run_in(cage, echo);
        assert!(run.stdout == all_bytes, "every byte value survives both ways");
        assert_eq!(run.finished().stdin_unread_bytes, 0);
        let run =
            spawner.run_in(cage, with_input(&["dd", "bs=1", "count=10", "status=none"], vec![b'x'; 1000]));
        assert_eq!((run.text(), run.finished().stdin_unread_bytes), ("xxxxxxxxxx", 990));
        let run = spawner.run_in(cage, with_input(&["sh", "-c", "exit 3"], vec![b'x'; 1 << 20]));
        assert_eq!(run.finished().end, AttemptEnd::Ended(WaitStatus::Exited(3)));
        assert_eq!(run.finished().stdin_unread_bytes, 1 << 20);
        // Without input: end-of-file at once, on a descriptor that is open.
        let run = spawner.run_in(cage, script("cat; readlink /proc/self/fd/0"));
        assert_eq!((run.text(), &run.stderr[..]), ("/dev/null\n", &b""[..]));
    });
}

#[test]
fn a_tool_that_signals_its_own_group_ends_alone() {
    in_every_cage(|cage, spawner| {
        let run = spawner.run_in(cage, script("kill -TERM 0; echo not reached"));
        let finished = run.finished();
        assert_eq!(finished.end, AttemptEnd::Ended(WaitStatus::Signaled(libc::SIGTERM)));
        assert!(!finished.signalled, "it was the tool's own doing");
    });
}

#[test]
fn a_cpu_limit_and_a_file_size_limit_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut spawner = Spawner::plain();
    let mut spin = script("while :; do :; done");
    spin.rlimits.cpu_seconds = Some(1);
    let run = spawner.run(spin);
    assert_eq!(run.finished().end, AttemptEnd::Ended(WaitStatus::Signaled(libc::SIGXCPU)));
    assert_eq!(run.finished().limits_hit, [LimitName::Cpu]);
    // The kernel samples for the limit and counts exactly for the usage; on a loaded machine they differ.
    assert!(run.finished().usage.user_cpu_us + run.finished().usage.system_cpu_us > 300_000);
    let mut write = job(&["dd", "if=/dev/zero", "of=large", "bs=1000", "count=10", "status=none"]);
    write.cwd = directory.path().to_str().expect("text").to_owned();
    write.rlimits.fsize_bytes = Some(5000);
    let run = spawner.run(write);
    assert_eq!(run.finished().end, AttemptEnd::Ended(WaitStatus::Signaled(libc::SIGXFSZ)));
    assert_eq!(run.finished().limits_hit, [LimitName::Fsize]);
    assert_eq!(std::fs::metadata(directory.path().join("large")).expect("made").len(), 5000);
}

#[test]
fn the_cpu_budget_counts_the_whole_tree() {
    in_every_cage(|cage, spawner| {
        // No process alone uses the budget up.
        let mut spin = script("for i in 1 2 3 4; do (while :; do :; done) & done; wait");
        spin.tree_cpu_ms = Some(400);
        let run = spawner.run_in(cage, spin);
        let finished = run.finished();
        assert_eq!(finished.killed_for, Some((LimitName::Cpu, 400)), "{cage:?}");
        assert_eq!(finished.end, AttemptEnd::Ended(WaitStatus::Signaled(libc::SIGKILL)));
        assert!(finished.proven_gone && !finished.signalled);
        let used = finished.usage.user_cpu_us + finished.usage.system_cpu_us;
        assert!(used < 3_000_000, "ended near the budget, not at {used} us");
    });
}

#[test]
fn a_builtin_answers_like_a_tool() {
    for mut spawner in [Some(Spawner::plain()), Spawner::with_cgroups()].into_iter().flatten() {
        let mut unknown = job(&[]);
        unknown.action = Action::Builtin { name: "no_such_builtin".to_owned(), args: "{}".to_owned() };
        let run = spawner.run_in(Cage::Weak, unknown.clone());
        assert_eq!(run.finished().end, AttemptEnd::Builtin { ok: false });
        assert!(run.text().contains("no_such_builtin"), "{:?}", run.text());
        assert_eq!(run.finished().stdout_bytes, run.stdout.len() as u64);
        assert!(run.started.is_some());
        unknown.cwd = "/no/such/directory".to_owned();
        let run = spawner.run_in(Cage::Weak, unknown);
        assert_eq!(spawn_failure(&run.finished().end).0, Stage::Cwd);
    }
}
