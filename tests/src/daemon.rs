//! A real `toolcelld` with everything of its own: directory, configuration, tools, socket, log.
//!
//! When it is dropped it is ended like a service, and then nothing of it may be left: no process, no control
//! group, no file.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use toolcell_protocol::call::Containment;
use toolcell_protocol::client_api::OnDisconnect;

use crate::manifests::Manifest;
use crate::peer::Peer;
use crate::procfs::{self, MARKER, ProcessId};
use crate::setting::Setting;
use crate::{binaries, cgroups, waiting};

/// What a daemon is to be like before it is started.
#[derive(Debug)]
pub struct Builder {
    setting: Setting,
    lines: Vec<String>,
    env: Vec<(String, String)>,
    manifests: Vec<(String, String)>,
    others: Vec<Manifest>,
    descriptors: Option<u64>,
}

impl Builder {
    /// Sets one key of the configuration, like `limits.drain_ms`.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        self.lines.push(format!("{key} = {value}"));
        self
    }

    /// Gives the daemon a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Offers the misbehaving tool under another name, with these lines in its manifest.
    #[must_use]
    pub fn tool(mut self, name: &str, toml: &str) -> Self {
        self.manifests.push((name.to_owned(), toml.to_owned()));
        self
    }

    /// Offers a tool.
    #[must_use]
    pub fn manifest(mut self, manifest: Manifest) -> Self {
        self.others.push(manifest);
        self
    }

    /// Gives it a hard limit of open descriptors.
    #[must_use]
    pub const fn descriptors(mut self, limit: u64) -> Self {
        self.descriptors = Some(limit);
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// When it does not start; its log is in the message.
    #[must_use]
    pub fn start(self) -> TestDaemon {
        TestDaemon::start(self)
    }
}

/// A running daemon.
#[derive(Debug)]
pub struct TestDaemon {
    child: Child,
    directory: TempDir,
    /// As whom it runs and how it holds trees.
    pub setting: Setting,
    /// The value of the marker variable in the environment of its tools.
    pub marker: String,
    /// Every process number that it had, one for each start.
    pids: BTreeSet<i32>,
    /// Processes of it that were seen; all must be gone at the end.
    seen: BTreeSet<ProcessId>,
    env: Vec<(String, String)>,
    descriptors: Option<u64>,
    sessions: AtomicU32,
    checked: bool,
}

impl TestDaemon {
    /// A daemon in this setting, to be configured.
    #[must_use]
    pub fn configure(setting: Setting) -> Builder {
        let containment = format!("cells.containment = {:?}", setting.containment.name());
        Builder {
            setting,
            lines: vec![containment],
            env: Vec::new(),
            manifests: Vec::new(),
            others: Vec::new(),
            descriptors: None,
        }
    }

    /// A daemon in this setting as it comes.
    #[must_use]
    pub fn in_setting(setting: Setting) -> Self {
        Self::configure(setting).start()
    }

    fn start(builder: Builder) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let directory = tempfile::Builder::new().prefix("toolcell-test-").tempdir().expect("a directory");
        let root = directory.path();
        open_to_all(root, 0o755);
        for (name, mode) in [("tools.d", 0o755), ("work", 0o777), ("run", 0o755), ("bin", 0o755)] {
            fs::create_dir(root.join(name)).expect("make a directory");
            open_to_all(&root.join(name), mode);
        }
        let uid = builder.setting.daemon_uid();
        if crate::setting::is_root() {
            chown(root.join("run"), Some(uid), Some(uid)).expect("give the directory to the daemon's user");
        }
        let misbehave = binaries::reachable_program("misbehave", &root.join("bin"));
        Manifest::misbehave("misbehave", &misbehave).write(&root.join("tools.d"));
        for (name, toml) in &builder.manifests {
            Manifest::misbehave(name, &misbehave).with(toml).write(&root.join("tools.d"));
        }
        for manifest in &builder.others {
            manifest.write(&root.join("tools.d"));
        }
        let mut lines = builder.lines;
        lines.push("tools_dirs = [\"tools.d\"]".to_owned());
        lines.push("server.socket = \"run/toolcell.sock\"".to_owned());
        if uid == 0 && !lines.iter().any(|line| line.starts_with("server.socket_mode")) {
            lines.push("server.socket_mode = \"0666\"".to_owned());
        }
        fs::write(root.join("toolcelld.toml"), lines.join("\n") + "\n").expect("write the configuration");
        let marker = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let env = builder.env;
        let child = launch(root, builder.setting, &env, builder.descriptors);
        let mut daemon = Self {
            child,
            directory,
            setting: builder.setting,
            marker,
            pids: BTreeSet::new(),
            seen: BTreeSet::new(),
            env,
            descriptors: builder.descriptors,
            sessions: AtomicU32::new(0),
            checked: false,
        };
        daemon.wait_until_it_answers();
        daemon
    }

    fn wait_until_it_answers(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let Err(refused) = Peer::connect(&self.socket()) else {
                self.pids.insert(self.pid());
                // Else the check at the end would look at the wrong place.
                let in_groups = self.setting.containment == Containment::Cgroup;
                assert!(!in_groups || !self.own_groups().is_empty(), "the daemon's groups are not found");
                return;
            };
            if let Some(status) = self.child.try_wait().expect("ask for the daemon's end") {
                self.checked = true;
                panic!("toolcelld ended with {status} at its start; its log:\n{}", self.log());
            }
            assert!(
                Instant::now() < deadline,
                "toolcelld does not answer ({refused}); its log:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its process.
    ///
    /// # Panics
    /// Never: a process number fits.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process number fits")
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("run/toolcell.sock")
    }

    /// A directory in which its tools may write.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    /// The directory of its manifests.
    #[must_use]
    pub fn tools(&self) -> PathBuf {
        self.directory.path().join("tools.d")
    }

    /// What it has written to standard error so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("daemon.log")).unwrap_or_default()
    }

    /// A connection without a session.
    ///
    /// # Panics
    /// When there is none to be had.
    #[must_use]
    pub fn peer(&self) -> Peer {
        match Peer::connect(&self.socket()) {
            Ok(peer) => peer,
            Err(error) => panic!("cannot connect: {error}; the daemon's log:\n{}", self.log()),
        }
    }

    /// A connection with a session of its own, whose calls end with it.
    ///
    /// # Panics
    /// When there is none to be had.
    #[must_use]
    pub fn client(&self) -> Peer {
        self.client_that(OnDisconnect::Abort)
    }

    /// A connection with a session of its own.
    ///
    /// # Panics
    /// When there is none to be had.
    #[must_use]
    pub fn client_that(&self, on_disconnect: OnDisconnect) -> Peer {
        let name = format!("session-{}", self.sessions.fetch_add(1, Ordering::Relaxed));
        let mut peer = self.peer();
        peer.open(&name, &self.work(), &self.marker, on_disconnect);
        peer
    }

    /// A connection without a session, as another user (and with these supplementary groups). Needs root.
    ///
    /// # Panics
    /// When there is none to be had.
    #[must_use]
    pub fn peer_as(&self, uid: u32, groups: &[u32]) -> Peer {
        let bin = self.directory.path().join("bin");
        let program = binaries::reachable_program("misbehave", &bin);
        let groups = groups.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}"));
        if groups.is_empty() {
            command.arg("--clear-groups");
        } else {
            command.arg(format!("--groups={groups}"));
        }
        command.arg(program).arg("relay").arg(self.socket());
        match Peer::through(command) {
            Ok(peer) => peer,
            Err(error) => panic!("cannot connect as {uid}: {error}; the daemon's log:\n{}", self.log()),
        }
    }

    /// The same with a session of its own.
    ///
    /// # Panics
    /// When there is none to be had.
    #[must_use]
    pub fn client_as(&self, uid: u32, groups: &[u32]) -> Peer {
        let name = format!("session-{}", self.sessions.fetch_add(1, Ordering::Relaxed));
        let mut peer = self.peer_as(uid, groups);
        peer.open(&name, &self.work(), &self.marker, OnDisconnect::Abort);
        peer
    }

    /// The processes of its tools. Not zombies.
    #[must_use]
    pub fn tool_processes(&self) -> Vec<procfs::Process> {
        procfs::processes_with_marker(&self.marker)
    }

    /// Waits until no process of any tool is left.
    ///
    /// # Panics
    /// When some stay.
    pub fn wait_until_no_tool_is_left(&self, limit: Duration) -> Duration {
        waiting::wait_until_none("no process of a tool is left", limit, || self.tool_processes())
    }

    /// Remembers the processes that it has now, so that their end can be checked later.
    pub fn remember_processes(&mut self) {
        self.seen.extend(procfs::descendants(self.pid()).into_iter().map(|process| process.id));
    }

    /// Its idle and busy workers: the children of its spawner.
    #[must_use]
    pub fn workers(&self) -> Vec<procfs::Process> {
        let Some(spawner) = self.spawner() else { return Vec::new() };
        procfs::processes().into_iter().filter(|process| process.parent == spawner).collect()
    }

    /// Its spawner.
    #[must_use]
    pub fn spawner(&self) -> Option<i32> {
        self.peer().status().spawner_pid
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When it is gone.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("the daemon is there");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().expect("ask for the daemon's end") {
                return status;
            }
            if Instant::now() > deadline {
                let log = self.log();
                let _ = self.child.kill();
                panic!("toolcelld does not end within {limit:?}; its log:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGKILL, as the out-of-memory killer does it.
    ///
    /// # Panics
    /// When it does not end.
    pub fn crash(&mut self) {
        self.remember_processes();
        self.signal(Signal::SIGKILL);
        self.wait(Duration::from_secs(10));
    }

    /// Starts it again in the same place, after it has ended.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_again(&mut self) {
        self.child = launch(self.directory.path(), self.setting, &self.env, self.descriptors);
        self.wait_until_it_answers();
    }

    /// Starts it again and does not wait until it answers.
    pub fn start_without_waiting(&mut self) {
        self.child = launch(self.directory.path(), self.setting, &self.env, self.descriptors);
    }

    /// Processes that were seen and are still there.
    #[must_use]
    pub fn left_behind(&self) -> Vec<procfs::Process> {
        procfs::still_there(&self.seen)
    }

    /// Ends it with SIGTERM and checks that nothing is left.
    ///
    /// # Panics
    /// When it does not end well or something is left.
    pub fn end(mut self) {
        self.end_and_check();
    }

    fn end_and_check(&mut self) {
        self.checked = true;
        if self.child.try_wait().expect("ask for the daemon's end").is_none() {
            self.remember_processes();
            self.signal(Signal::SIGTERM);
            let status = self.wait(Duration::from_secs(20));
            assert!(status.success(), "toolcelld ended with {status}; its log:\n{}", self.log());
        }
        self.check_that_nothing_is_left();
    }

    /// Checks that no process, no control group and no file is left. Only after its end.
    ///
    /// # Panics
    /// When something is left.
    pub fn check_that_nothing_is_left(&self) {
        // PID 1 may reap late.
        let limit = Duration::from_secs(10);
        waiting::wait_until_none("every process of the daemon is gone", limit, || {
            procfs::still_there(&self.seen)
        });
        self.wait_until_no_tool_is_left(limit);
        waiting::wait_until_none("every control group of the daemon is gone", limit, || self.own_groups());
        waiting::wait_until_none("every file of the daemon is gone", limit, || self.own_files());
    }

    /// Control groups whose name says that they are this daemon's, and what is below them.
    fn own_groups(&self) -> Vec<PathBuf> {
        let prefixes: Vec<String> = self.pids.iter().map(|pid| format!("toolcell-{pid}-")).collect();
        let Some(mount) = cgroups::mount_point() else { return Vec::new() };
        let is_own = |part: &std::ffi::OsStr| {
            let part = part.to_string_lossy();
            prefixes.iter().any(|prefix| part.starts_with(prefix.as_str()))
        };
        let mut found: Vec<PathBuf> = cgroups::groups_below(&mount).into_iter().collect();
        found.retain(|group| group.iter().any(is_own));
        found
    }

    /// Files in its run directory; a lock file may stay.
    fn own_files(&self) -> Vec<PathBuf> {
        let mut left = Vec::new();
        let mut open = vec![self.directory.path().join("run")];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.extension().is_some_and(|extension| extension == "lock") {
                    continue;
                }
                if path.is_dir() {
                    open.push(path.clone());
                } else {
                    left.push(path);
                }
            }
        }
        left
    }
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        if self.checked {
            let _ = self.child.kill();
            let _ = self.child.wait();
            return;
        }
        if !std::thread::panicking() {
            self.end_and_check();
            return;
        }
        // The test has failed: say what the daemon said, and leave nothing running.
        use std::io::Write as _;
        let log = self.log();
        let from = log.floor_char_boundary(log.len().saturating_sub(8 * 1024));
        let _ = writeln!(std::io::stderr(), "setting {}; the daemon's log:\n{}", self.setting, &log[from..]);
        let _ = self.child.kill();
        let _ = self.child.wait();
        for process in self.tool_processes() {
            let _ = kill(Pid::from_raw(process.id.pid), Signal::SIGKILL);
        }
    }
}

fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set the mode of a directory");
}

fn launch(root: &Path, setting: Setting, env: &[(String, String)], descriptors: Option<u64>) -> Child {
    let log = File::options().create(true).append(true).open(root.join("daemon.log")).expect("make the log");
    let program = binaries::reachable_program("toolcelld", &root.join("bin"));
    let mut command = match descriptors {
        None => Command::new(program),
        Some(limit) => {
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(format!("ulimit -n {limit}; exec \"$0\" \"$@\"")).arg(program);
            shell
        }
    };
    command.arg("--config").arg(root.join("toolcelld.toml"));
    command.env_clear();
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", "/nonexistent").env("LANG", "C.UTF-8");
    command.env("XDG_RUNTIME_DIR", root.join("run"));
    command.envs(env.iter().map(|(name, value)| (name, value)));
    command.env(format!("{MARKER}_DAEMON"), "1");
    command.current_dir(root).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    if let Some(uid) = setting.uid {
        command.uid(uid).gid(uid);
    }
    command.spawn().expect("start toolcelld")
}
