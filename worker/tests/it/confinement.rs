//! What a tool finds around itself.

use nix::unistd::geteuid;
use toolcell_protocol::worker_api::{Action, AttemptEnd, Identity, Stage, WaitStatus};

use crate::driver::{MARK, Spawner, in_every_cage, job, mark, script, skipped, wait_until};

#[test]
fn the_environment_is_the_jobs_and_nothing_else() {
    in_every_cage(|cage, spawner| {
        let mut env = job(&["/usr/bin/env"]);
        env.env = vec![("A".to_owned(), "1".to_owned()), ("EMPTY".to_owned(), String::new())];
        assert_eq!(spawner.run_in(cage, env).text(), "A=1\nEMPTY=\n");
    });
}

#[test]
fn a_tool_has_three_descriptors_and_no_signal_is_ignored_or_blocked() {
    in_every_cage(|cage, spawner| {
        let run = spawner.run_in(cage, job(&["ls", "-l", "/proc/self/fd"]));
        let open: Vec<&str> = run
            .text()
            .lines()
            // The directory itself, which `ls` has open.
            .filter(|line| line.contains(" -> ") && !line.ends_with("/fd"))
            .filter_map(|line| line.split(" -> ").next()?.rsplit(' ').next())
            .collect();
        assert_eq!(open, ["0", "1", "2"], "{}", run.text());
        let status = spawner.run_in(cage, job(&["cat", "/proc/self/status"]));
        let field = |name: &str| {
            let line = status.text().lines().find_map(|line| line.strip_prefix(name)).expect(name);
            line.trim().to_owned()
        };
        for name in ["SigIgn:", "SigBlk:", "SigPnd:", "ShdPnd:"] {
            assert_eq!(field(name), "0000000000000000", "{name} in {cage:?}");
        }
        assert_eq!(field("NoNewPrivs:"), "1");
    });
}

#[test]
fn a_tool_leads_its_own_session_and_its_writer_dies_of_a_closed_pipe() {
    in_every_cage(|cage, spawner| {
        let run =
            spawner.run_in(cage, script("ps -o pid=,pgid=,sid= -p $$ 2>/dev/null || cat /proc/self/stat"));
        assert_eq!(run.finished().end, AttemptEnd::Ended(WaitStatus::Exited(0)));
        let numbers: Vec<&str> = run.text().split_whitespace().take(3).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] == pair[1]), "{}", run.text());
        let run = spawner.run_in(cage, script("yes | head -n 1"));
        assert_eq!((run.text(), run.stderr.len()), ("y\n", 0), "{cage:?}");
    });
}

#[test]
fn limits_umask_and_working_directory_are_what_the_job_says() {
    let directory = tempfile::tempdir().expect("a directory");
    let cwd = directory.path().canonicalize().expect("a path");
    in_every_cage(|cage, spawner| {
        let mut job = script("ulimit -n; ulimit -Hn; ulimit -c; ulimit -t; ulimit -Ht; umask; pwd");
        job.cwd = cwd.to_str().expect("text").to_owned();
        job.umask = 0o027;
        job.rlimits.nofile_soft = Some(100);
        job.rlimits.nofile_hard = Some(200);
        job.rlimits.cpu_seconds = Some(50);
        let run = spawner.run_in(cage, job);
        let expected = format!("100\n200\n0\n50\n51\n0027\n{}\n", cwd.display());
        assert_eq!(run.text(), expected, "{cage:?}");
        let layers = &run.finished().layers.as_ref().expect("started").layers;
        let detail = |name: &str| {
            let layer = layers.iter().find(|layer| layer.name == name).expect(name);
            layer.detail.clone()
        };
        assert_eq!(detail("rlimit_nofile").as_deref(), Some("100 (hard 200)"));
        assert_eq!(detail("rlimit_cpu").as_deref(), Some("50 (hard 51)"));
        assert_eq!(detail("no_new_privileges"), None);
    });
}

#[test]
fn a_root_daemons_tools_run_as_somebody_else_with_exactly_their_groups() {
    if !geteuid().is_root() {
        skipped("root, to give identities");
        return;
    }
    let identity = Identity { uid: 65_534, gid: 65_534, groups: vec![65_534, 12_345, 12_346] };
    in_every_cage(|cage, spawner| {
        let mut job = script("id -u; id -g; id -G; cat /proc/self/status; echo again > /dev/stdout");
        job.identity = Some(identity.clone());
        let run = spawner.run_in(cage, job);
        let text = run.text();
        assert!(text.starts_with("65534\n65534\n65534 12345 12346\n"), "{text}");
        assert!(text.ends_with("again\n"), "it may open its own output again: {:?}", run.stderr);
        assert!(text.contains("CapEff:\t0000000000000000\n") && text.contains("CapPrm:\t0000000000000000\n"));
        let mut secret = script("cat /etc/shadow");
        secret.identity = Some(identity.clone());
        let run = spawner.run_in(cage, secret);
        assert_ne!(run.finished().end, AttemptEnd::Ended(WaitStatus::Exited(0)));
        assert!(run.stdout.is_empty());
        // The working directory is entered as that user, too.
        let mut private = script("true");
        private.identity = Some(identity.clone());
        private.cwd = "/root".to_owned();
        let run = spawner.run_in(cage, private);
        let AttemptEnd::SpawnFailed { stage, errno, .. } = run.finished().end else {
            panic!("{:?}", run.finished().end)
        };
        assert_eq!((stage, errno), (Stage::Cwd, nix::libc::EACCES));
    });
}

#[test]
fn the_daemons_environment_reaches_neither_tool_nor_worker() {
    let mut spawner = Spawner::with(None, None, |command| {
        command.env_clear();
    });
    let job = script("exec sleep 300");
    let mark = mark(&job);
    let mut worker = spawner.start(crate::driver::Cage::Weak, job);
    let (tool, _) = worker.started();
    let environ = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap_or_default();
    assert_eq!(environ(worker.pid), "");
    // While the shell becomes `sleep` there is nothing to see for a moment.
    wait_until("its environment", || environ(tool).contains(&format!("{MARK}={mark}")));
    assert!(!environ(tool).contains("CARGO"));
    worker.send(&toolcell_protocol::worker_api::ToWorker::Kill);
    worker.finish();
}

#[test]
fn a_builtin_is_confined_before_it_touches_anything() {
    if !geteuid().is_root() {
        skipped("root, to give identities");
        return;
    }
    let mut spawner = Spawner::plain();
    let mut builtin = job(&[]);
    builtin.action = Action::Builtin { name: "no_such_builtin".to_owned(), args: "{}".to_owned() };
    builtin.identity = Some(Identity { uid: 65_534, gid: 65_534, groups: vec![] });
    builtin.cwd = "/root".to_owned();
    let run = spawner.run_in(crate::driver::Cage::Weak, builtin);
    let AttemptEnd::SpawnFailed { stage, errno, .. } = run.finished().end else {
        panic!("{:?}", run.finished().end)
    };
    assert_eq!((stage, errno), (Stage::Cwd, nix::libc::EACCES));
}
