//! A call that crashes or cannot be started gets its status; its 63 siblings are `ok`, in call order.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use toolcell_protocol::call::{CallResult, Containment, Status};
use toolcell_protocol::client_api::CallRequest;
use toolcell_tests::daemon::TestDaemon;
use toolcell_tests::manifests::Manifest;
use toolcell_tests::model::SHORT;
use toolcell_tests::peer::{Peer, call, habit};
use toolcell_tests::setting::{self, Setting};

const BATCH: usize = 64;

/// Runs a batch of 64 with the bad call at this place; everything else must be well. Gives the bad result.
fn beside_siblings(client: &mut Peer, bad: CallRequest, place: usize) -> CallResult {
    let calls = (0..BATCH)
        .map(|at| if at == place { bad.clone() } else { habit(&format!("ok sibling-{at}")) })
        .collect();
    let mut result = client.run(calls);
    assert_eq!(result.results.len(), BATCH);
    for (at, result) in result.results.iter().enumerate().filter(|(at, _)| *at != place) {
        assert_eq!(result.call_id.0, at.to_string());
        assert_eq!(result.status, Status::Ok, "sibling {at}: {result:#?}");
        assert_eq!(result.for_model, format!("sibling-{at}\n"), "sibling {at}: {result:#?}");
    }
    result.results.remove(place)
}

#[test]
fn siblings_of_a_tool_that_crashes_are_ok() {
    setting::in_main_settings(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        for (place, bad) in SHORT.iter().enumerate() {
            bad.check(&beside_siblings(&mut client, bad.call(), place * 4));
        }
    });
}

#[test]
fn siblings_of_a_tool_that_is_killed_from_outside_are_ok() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        let calls: Vec<CallRequest> =
            (0..BATCH).map(|at| habit(if at == 31 { "sleep 60" } else { "sleep 0.2" })).collect();
        let batch = client.execute(calls);
        let pid = client.started(batch.call_uids[31]);
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("the tool is there");
        let result = client.finish(&batch);
        for (at, result) in result.results.iter().enumerate() {
            if at == 31 {
                assert_eq!(result.status, Status::Crashed, "{setting}: {result:#?}");
                assert_eq!(result.status_detail.signal_name.as_deref(), Some("SIGKILL"), "{result:#?}");
            } else {
                assert_eq!(result.status, Status::Ok, "{setting}: {result:#?}");
            }
        }
    });
}

/// Files that cannot be executed, each for a reason of its own.
fn write_unexecutable_files(directory: &Path) {
    let write = |name: &str, content: &[u8], mode: u32| {
        let path = directory.join(name);
        fs::write(&path, content).expect("write a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set its mode");
    };
    fs::create_dir(directory.join("a-directory")).expect("make a directory");
    write("no-permission", b"#!/bin/sh\nexit 0\n", 0o644);
    write("no-interpreter", b"echo this has no first line\n", 0o755);
    write("missing-interpreter", b"#!/nowhere/interpreter\n", 0o755);
    write("empty", b"", 0o755);
    write("cut-off-elf", b"\x7fELF\x02\x01\x01", 0o755);
    // An ELF header is the same for all machines but for the machine's number (at 18): s390.
    let mut foreign = fs::read("/bin/true").expect("read a program");
    foreign[18] = 22;
    foreign[19] = 0;
    write("other-machine", &foreign, 0o755);
}

#[test]
fn siblings_of_a_tool_that_cannot_be_started_are_ok_and_it_names_step_and_error() {
    let cases = [
        ("./nowhere", "exec", "ENOENT"),
        ("no-such-program-in-the-path", "lookup", "ENOENT"),
        ("./a-directory", "exec", "EACCES"),
        ("./no-permission", "exec", "EACCES"),
        ("./no-interpreter", "exec", "ENOEXEC"),
        ("./missing-interpreter", "exec", "ENOENT"),
        ("./empty", "exec", "ENOEXEC"),
        ("./cut-off-elf", "exec", "ENOEXEC"),
        ("./other-machine", "exec", "ENOEXEC"),
    ];
    setting::in_main_settings(|setting| {
        let mut builder = TestDaemon::configure(setting);
        for (at, (program, ..)) in cases.iter().enumerate() {
            builder = builder.manifest(Manifest::new(&format!("bad{at}"), &[program], &[]));
        }
        let daemon = builder.start();
        write_unexecutable_files(&daemon.work());
        let mut client = daemon.client();
        for (at, (program, stage, errno)) in cases.iter().enumerate() {
            let bad = call(&format!("bad{at}"), &json!({}));
            let result = beside_siblings(&mut client, bad, 63 - at);
            assert_eq!(result.status, Status::SpawnFailed, "{program}: {result:#?}");
            assert_eq!(result.status_detail.stage.as_deref(), Some(*stage), "{program}: {result:#?}");
            assert_eq!(result.status_detail.errno_name.as_deref(), Some(*errno), "{program}: {result:#?}");
            assert!(result.for_model.contains(program), "{program} is not named: {result:#?}");
            assert!(result.details.exit_code.is_none() && result.details.signal.is_none(), "{result:#?}");
        }
    });
}

#[test]
fn a_working_directory_that_cannot_be_entered_is_named() {
    setting::everywhere(|setting| {
        let daemon = TestDaemon::in_setting(setting);
        let mut client = daemon.client();
        let mut bad = habit("ok");
        bad.cwd = Some("not-there".into());
        let result = beside_siblings(&mut client, bad, 7);
        assert_eq!(result.status, Status::SpawnFailed, "{result:#?}");
        assert_eq!(result.status_detail.stage.as_deref(), Some("cwd"), "{result:#?}");
        assert_eq!(result.status_detail.errno_name.as_deref(), Some("ENOENT"), "{result:#?}");
        assert!(result.for_model.contains("not-there"), "{result:#?}");
    });
}

#[test]
fn a_thousand_short_calls_leave_no_zombie_no_descriptor_and_no_memory() {
    let best = Setting::own(Containment::Cgroup);
    let setting = if best.lacks().is_some() { Setting::own(Containment::Weak) } else { best };
    let daemon = TestDaemon::in_setting(setting);
    let mut client = daemon.client();
    let spawner = daemon.spawner().expect("a spawner");
    let hundred = |client: &mut Peer| {
        let lines = ["ok", "exit 1", "raise 9", "leak-pipe 20", "flood 200000"];
        let result = client.run((0..100).map(|at| habit(lines[at % lines.len()])).collect());
        assert!(result.results.iter().all(|result| result.status != Status::WorkerFailed));
    };
    // The first hundreds fill what is kept of finished calls.
    for _ in 0..3 {
        hundred(&mut client);
    }
    let look = || {
        let files = |pid| toolcell_tests::procfs::open_files(pid).len();
        let resident = |pid| toolcell_tests::procfs::resident_kib(pid).unwrap_or(0);
        (files(daemon.pid()), files(spawner), resident(daemon.pid()), resident(spawner))
    };
    let before = look();
    for _ in 0..10 {
        hundred(&mut client);
    }
    let after = look();
    assert!(after.0 <= before.0 + 6, "descriptors of the daemon: {} then {}", before.0, after.0);
    assert!(after.1 <= before.1 + 4, "descriptors of the spawner: {} then {}", before.1, after.1);
    assert!(after.2 <= before.2 + 8 * 1024, "KiB of the daemon: {} then {}", before.2, after.2);
    assert!(after.3 <= before.3 + 1024, "KiB of the spawner: {} then {}", before.3, after.3);
    toolcell_tests::waiting::wait_until_none("no zombie is left", std::time::Duration::from_secs(5), || {
        let mut family = toolcell_tests::procfs::descendants(daemon.pid());
        family.retain(|process| process.state == 'Z');
        family
    });
}
