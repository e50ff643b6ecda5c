//! The `toolcell` command on a daemon of its own and on one that runs: exit codes, JSON, nothing left behind.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;
use toolcell_protocol::call::Containment;
use toolcell_tests::binaries::{program, workspace};
use toolcell_tests::daemon::TestDaemon;
use toolcell_tests::manifests::Manifest;
use toolcell_tests::procfs::{self, MARKER};
use toolcell_tests::setting::Setting;
use toolcell_tests::waiting::{wait_until, wait_until_none};
use toolcell_tests::{cgroups, peer};

/// A place for one command: its own temporary directory, no daemon to be found.
struct Place {
    directory: TempDir,
    marker: String,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("toolcell-cli-").tempdir().expect("a directory");
        for name in ["tmp", "run", "work", "tools.d"] {
            fs::create_dir(directory.path().join(name)).expect("make a directory");
        }
        Manifest::misbehave("misbehave", &program("misbehave")).write(&directory.path().join("tools.d"));
        Manifest::new("missing", &["/nowhere/program"], &[]).write(&directory.path().join("tools.d"));
        let marker = directory.path().display().to_string();
        Self { directory, marker }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("toolcell"));
        command.args(arguments).env_clear().current_dir(self.path("work"));
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.path("work"));
        command
            .env("TMPDIR", self.path("tmp"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("LANG", "C.UTF-8");
        command.env(MARKER, &self.marker).stdin(Stdio::null());
        command
    }

    /// Runs a command on a daemon of its own that knows the misbehaving tool.
    fn own(&self, arguments: &[&str]) -> Output {
        let tools = self.path("tools.d").display().to_string();
        let mut all = vec!["--no-daemon", "--tools", &tools, "--env", MARKER];
        all.extend(arguments);
        self.command(&all).output().expect("run toolcell")
    }

    fn start(&self, arguments: &[&str]) -> Running<'_> {
        let tools = self.path("tools.d").display().to_string();
        let mut all = vec!["--no-daemon", "--tools", &tools, "--env", MARKER];
        all.extend(arguments);
        let mut command = self.command(&all);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running { place: self, child: command.spawn().expect("start toolcell") }
    }

    /// Nothing of a command may be left: no process, no file, no group.
    fn is_clean(&self, pid: u32) {
        let limit = Duration::from_secs(10);
        wait_until_none("every process is gone", limit, || procfs::processes_with_marker(&self.marker));
        for name in ["tmp", "run"] {
            wait_until_none("every file is gone", limit, || {
                fs::read_dir(self.path(name)).expect("read").map(|e| e.expect("read").path()).collect()
            });
        }
        wait_until_none("every control group is gone", limit, || groups_of(pid));
    }
}

/// Control groups that a daemon in this process has made.
fn groups_of(pid: u32) -> Vec<PathBuf> {
    let Some(mount) = cgroups::mount_point() else { return Vec::new() };
    let wanted = format!("toolcell-{pid}-");
    let mut found: Vec<PathBuf> = cgroups::groups_below(&mount).into_iter().collect();
    found.retain(|group| group.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&wanted)));
    found
}

struct Running<'a> {
    place: &'a Place,
    child: Child,
}

impl Running<'_> {
    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid fits")
    }

    /// Waits until this many processes of its tools run; gives all of its processes.
    fn tools_run(&self, count: usize) -> BTreeSet<procfs::ProcessId> {
        wait_until("its tools run", Duration::from_secs(20), || {
            let tools = procfs::processes_with_marker(&self.place.marker);
            let running = tools.iter().filter(|process| process.comm == "misbehave").count();
            if running >= count { Ok(()) } else { Err(running) }
        });
        procfs::descendants(self.pid()).into_iter().map(|process| process.id).collect()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("it runs");
    }

    fn end(self) -> Output {
        self.child.wait_with_output().expect("it ends")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn object(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: not one object: {output:?}"))
}

#[test]
fn run_passes_output_and_exit_code_on() {
    let place = Place::new();
    let cases: [(&str, Value, i32); 9] = [
        ("misbehave", json!({"line": "say some-words some-errors 0"}), 0),
        ("misbehave", json!({"line": "exit 7"}), 7),
        ("misbehave", json!({"line": "segv"}), 128 + 11),
        ("misbehave", json!({"line": "raise 9"}), 128 + 9),
        ("missing", json!({}), 126),
        ("no_such_tool", json!({}), 127),
        ("misbehave", json!({"line": 7}), 2),
        ("bash", json!({"command": "exit 3"}), 3),
        ("list_dir", json!({}), 0),
    ];
    for (tool, args, code) in cases {
        let output = place.own(&["run", tool, &args.to_string()]);
        assert_eq!(output.status.code(), Some(code), "{tool} {args}: {output:?}");
    }
    let output = place.own(&["run", "misbehave", r#"{"line": "say some-words some-errors 0"}"#]);
    assert_eq!(text(&output.stdout), "some-words\n");
    assert!(text(&output.stderr).contains("some-errors\n"), "{output:?}");
    let output = place.own(&["run", "misbehave", r#"{"line": "all-bytes 1000"}"#]);
    let all: Vec<u8> = (0..=255).collect();
    assert!(output.stdout == all.repeat(1000), "{} bytes", output.stdout.len());
}

#[test]
fn run_that_times_out_ends_with_124() {
    let place = Place::new();
    let started = Instant::now();
    let output = place.own(&["run", "--timeout-ms", "300", "misbehave", r#"{"line": "sleep 60"}"#]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn wrong_usage_is_2_and_a_daemon_that_cannot_be_reached_is_69() {
    let place = Place::new();
    assert_eq!(place.own(&["run"]).status.code(), Some(2));
    assert_eq!(place.own(&["no-such-command"]).status.code(), Some(2));
    assert_eq!(place.own(&["run", "bash", "this is not JSON"]).status.code(), Some(2));
    let nowhere = place.path("run/nobody.sock");
    let mut named = place.command(&["run", "bash", r#"{"command": "true"}"#]);
    let output = named.env("TOOLCELL_SOCKET", &nowhere).output().expect("run toolcell");
    assert_eq!(output.status.code(), Some(69), "never embedded when a socket is named: {output:?}");
    assert!(text(&output.stderr).contains("nobody.sock"), "{output:?}");
    let output = place.command(&["ps"]).output().expect("run toolcell");
    assert_eq!(output.status.code(), Some(69), "{output:?}");
}

#[test]
fn a_bad_configuration_is_78_and_names_file_and_line() {
    let place = Place::new();
    let file = place.path("work/toolcelld.toml");
    fs::write(&file, "[limits]\nmax_runing = 3\n").expect("write a file");
    let file = file.display().to_string();
    let output = place.command(&["--config", &file, "run", "bash", r#"{"command": "true"}"#]).output();
    let output = output.expect("run toolcell");
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    assert!(
        text(&output.stderr).contains("toolcelld.toml") && text(&output.stderr).contains("line 2"),
        "{output:?}"
    );
    let output = place.command(&["validate", &file]).output().expect("run toolcell");
    assert_eq!(output.status.code(), Some(78), "{output:?}");
}

/// The batch of most tests: an end of every kind.
fn batch() -> Value {
    json!([
        {"call_id": "fine", "tool": "misbehave", "args": {"line": "ok hello"}},
        {"call_id": "fails", "tool": "misbehave", "args": {"line": "exit 3"}},
        {"call_id": "crashes", "tool": "misbehave", "args": {"line": "segv"}},
        {"call_id": "hangs", "tool": "misbehave", "args": {"line": "ignore-term 60"}, "timeout_ms": 300},
        {"call_id": "floods", "tool": "misbehave", "args": {"line": "flood 3000000"}},
        {"call_id": "missing", "tool": "missing", "args": {}},
        {"call_id": "unknown", "tool": "misbehaves", "args": {}},
        {"call_id": "wrong", "tool": "misbehave", "args": {"lines": "ok"}},
        {"call_id": "built-in", "tool": "read_file", "args": {"path": "/etc/passwd"}},
        {"call_id": "shell", "tool": "bash", "args": {"command": "echo from bash"}},
    ])
}

const STATUSES: [&str; 10] =
    ["ok", "error", "crashed", "timed_out", "ok", "spawn_failed", "unknown_tool", "invalid_args", "ok", "ok"];

fn check_batch(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "a verdict was printed: {output:?}");
    let value = object(output);
    let keys: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected: BTreeSet<&str> =
        ["batch_id", "messages", "reason", "results", "session_id", "steering", "verdict"].into();
    assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), expected);
    assert_eq!(value["verdict"], "next_turn");
    let results = value["results"].as_array().expect("results");
    let ids: Vec<&str> = results.iter().map(|result| result["call_id"].as_str().expect("an id")).collect();
    let asked = batch();
    let asked: Vec<&str> = asked
        .as_array()
        .expect("calls")
        .iter()
        .map(|call| call["call_id"].as_str().expect("an id"))
        .collect();
    assert_eq!(ids, asked, "results are in call order");
    let statuses: Vec<&str> = results.iter().map(|result| result["status"].as_str().expect("text")).collect();
    assert_eq!(statuses, STATUSES, "{value:#}");
    for result in results {
        for key in ["call_uid", "tool", "status_detail", "for_model", "details"] {
            assert!(!result[key].is_null(), "{key} is missing: {result:#}");
        }
    }
    assert_eq!(results[2]["status_detail"]["signal_name"], "SIGSEGV");
    assert_eq!(results[4]["details"]["stdout_bytes"], 3_000_000);
    assert_eq!(results[6]["status_detail"]["nearest"][0], "misbehave");
}

#[test]
fn a_batch_prints_one_object_with_every_result_and_leaves_nothing() {
    let place = Place::new();
    let as_array = place.path("work/array.json");
    fs::write(&as_array, batch().to_string()).expect("write a file");
    let as_lines = place.path("work/lines.json");
    let lines: Vec<String> = batch().as_array().expect("calls").iter().map(Value::to_string).collect();
    fs::write(&as_lines, lines.join("\n")).expect("write a file");
    for file in [as_array, as_lines] {
        let running = place.start(&["batch", "--json", &file.display().to_string()]);
        let pid = running.child.id();
        let output = running.end();
        check_batch(&output);
        place.is_clean(pid);
    }
}

#[test]
fn a_batch_is_read_from_standard_input_too() {
    let place = Place::new();
    let tools = place.path("tools.d").display().to_string();
    let mut command = place.command(&["--no-daemon", "--tools", &tools, "batch", "--json", "-"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    child.stdin.take().expect("piped").write_all(batch().to_string().as_bytes()).expect("write the batch");
    check_batch(&child.wait_with_output().expect("it ends"));
}

#[test]
fn a_batch_whose_command_is_interrupted_leaves_nothing() {
    let calls = json!([
        {"call_id": "1", "tool": "misbehave", "args": {"line": "tree 4 60"}},
        {"call_id": "2", "tool": "misbehave", "args": {"line": "ignore-term 60"}},
        {"call_id": "3", "tool": "misbehave", "args": {"line": "hidden-family stay 20"}},
    ]);
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGKILL] {
        let place = Place::new();
        let file = place.path("work/batch.json");
        fs::write(&file, calls.to_string()).expect("write a file");
        let running = place.start(&["batch", "--json", &file.display().to_string()]);
        let family = running.tools_run(7);
        let pid = running.child.id();
        running.signal(signal);
        let started = Instant::now();
        let output = running.end();
        assert!(!output.status.success(), "{signal}: {output:?}");
        assert!(started.elapsed() < Duration::from_secs(20), "{signal}: took {:?}", started.elapsed());
        wait_until_none("every process is gone", Duration::from_secs(10), || procfs::still_there(&family));
        place.is_clean(pid);
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_command_and_its_tool() {
    let place = Place::new();
    let mut running = place.start(&["run", "misbehave", r#"{"line": "flood 100000000000"}"#]);
    let mut first = [0_u8; 1000];
    let mut stdout = running.child.stdout.take().expect("piped");
    std::io::Read::read_exact(&mut stdout, &mut first).expect("some output");
    drop(stdout);
    let pid = running.child.id();
    let output = running.end();
    assert!(!output.status.success(), "{output:?}");
    place.is_clean(pid);
}

/// The command line of the README's first example, without the part that builds.
fn first_command_of_the_readme() -> Option<Vec<String>> {
    let readme = fs::read_to_string(workspace().join("README.md")).ok()?;
    let line = readme.lines().find(|line| line.trim_start().starts_with("cargo run"))?;
    let (_, arguments) = line.split_once(" -- ")?;
    Some(arguments.split_ascii_whitespace().map(str::to_owned).collect())
}

#[test]
fn the_first_command_of_the_readme_runs_and_answers_every_call() {
    let place = Place::new();
    let arguments = first_command_of_the_readme().expect("the README's first command is `cargo run … -- …`");
    let mut command = place.command(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let child = command.current_dir(workspace()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("start toolcell");
    let pid = child.id();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    place.is_clean(pid);
    // The same with JSON has one result for each call of the file.
    let mut with_json: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if !with_json.contains(&"--json") {
        with_json.push("--json");
    }
    let output = place.command(&with_json).current_dir(workspace()).output().expect("run toolcell");
    let results = object(&output)["results"].as_array().expect("results").len();
    let file = arguments.iter().find(|argument| argument.ends_with(".json")).expect("a batch file");
    let calls = fs::read_to_string(workspace().join(file)).expect("the file is there");
    let calls: Vec<Value> = serde_json::from_str(&calls).expect("an array of calls");
    assert_eq!(results, calls.len());
}

#[test]
fn commands_about_calls_work_on_a_daemon_that_runs() {
    let daemon = TestDaemon::in_setting(Setting::own(Containment::Weak));
    let place = Place::new();
    let socket = daemon.socket().display().to_string();
    let on_daemon = |arguments: &[&str]| {
        let mut all = vec!["--socket", &socket];
        all.extend(arguments);
        place.command(&all).output().expect("run toolcell")
    };
    let tools = object(&on_daemon(&["tools", "--json"]));
    assert!(tools.to_string().contains("\"misbehave\""), "{tools:#}");
    let mut client = daemon.client();
    let batch = client.execute(vec![peer::habit("drip 600 100"), peer::habit("exit 5")]);
    client.wait_for_output(batch.call_uids[0], "line 0");
    let (running, ended) = (batch.call_uids[0].to_string(), batch.call_uids[1].to_string());
    let waited = on_daemon(&["wait", &ended]);
    assert_eq!(waited.status.code(), Some(5), "{waited:?}");
    let listed = text(&on_daemon(&["ps", "--json"]).stdout);
    assert!(listed.contains(&running) && !listed.contains(&ended), "{listed}");
    let output = on_daemon(&["output", &running]);
    assert!(text(&output.stdout).starts_with("line 0\n"), "{output:?}");
    let killed = on_daemon(&["kill", &running, "--reason", "enough"]);
    assert_eq!(killed.status.code(), Some(0), "{killed:?}");
    let result = client.finish(&batch).results.remove(0);
    assert!(result.for_model.contains("enough"), "{result:#?}");
    let unknown = on_daemon(&["output", "01920000-0000-7000-8000-000000000000"]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
    let run = on_daemon(&["run", "misbehave", r#"{"line": "exit 9"}"#]);
    assert_eq!(run.status.code(), Some(9), "{run:?}");
}

#[test]
fn validate_names_file_and_line_and_doctor_always_answers() {
    let place = Place::new();
    let manifest = place.path("work/bad.toml");
    fs::write(&manifest, "name = \"bad\"\ndescription = \"x\"\ncommand = [\"true\"]\nnonsense = 1\n")
        .expect("write");
    let output =
        place.command(&["validate", &manifest.display().to_string()]).output().expect("run toolcell");
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(said.contains("bad.toml") && said.contains("nonsense") && said.contains('4'), "{said}");
    let good = Path::new("examples/tools.d");
    let output = place.command(&["validate", &workspace().join(good).display().to_string()]).output();
    assert_eq!(output.expect("run toolcell").status.code(), Some(0));
    let doctor = place.command(&["doctor", "--json"]).output().expect("run toolcell");
    assert_eq!(doctor.status.code(), Some(0), "{doctor:?}");
    assert!(object(&doctor).to_string().contains("cgroup"), "{doctor:?}");
}
