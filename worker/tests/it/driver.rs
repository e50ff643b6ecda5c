//! A minimal daemon's side of a spawner: starts the real binary, asks for workers, speaks with them, waits with
//! deadlines, and proves at the end that nothing is left.

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use toolcell_protocol::call::{Layers, Leftover, Stream};
use toolcell_protocol::codec;
use toolcell_protocol::frame::{self, FrameBuffer};
use toolcell_protocol::id::CallUid;
use toolcell_protocol::version::WORKER_PROTOCOL;
use toolcell_protocol::worker_api::{
    Action, Finished, FromSpawner, FromWorker, Job, OutputPolicy, Rlimits, SpawnerSetup, ToSpawner, ToWorker,
    WaitStatus, WorkerKind,
};
use toolcell_worker::cgroup;

/// Longest wait for anything; a test that needs it has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The variable by which a test finds its processes again.
pub const MARK: &str = "TOOLCELL_TEST_MARK";

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A name that no other test, and no other run, has.
pub fn unique() -> String {
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Waits until something holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Says why a test is not run here.
pub fn skipped(needs: &str) {
    eprintln!("skipped: needs {needs}");
}

/// How a tool's tree is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cage {
    Cgroup,
    Namespace,
    Weak,
}

/// Runs a test in each containment that this machine has.
pub fn in_every_cage(test: impl Fn(Cage, &mut Spawner)) {
    for cage in [Cage::Weak, Cage::Namespace, Cage::Cgroup] {
        let Some(mut spawner) = Spawner::for_cage(cage) else { continue };
        eprintln!("containment: {cage:?}");
        test(cage, &mut spawner);
        spawner.close();
    }
}

/// A running spawner.
pub struct Spawner {
    child: Child,
    socket: Option<OwnedFd>,
    base: Option<PathBuf>,
    tickets: u64,
    reaped: HashMap<i32, (WaitStatus, Vec<Leftover>)>,
    pub pid: i32,
}

impl Spawner {
    /// Without cgroups.
    pub fn plain() -> Self {
        Self::with(None, None, |_| {})
    }

    /// With a cgroup base of its own, if this machine lets us make one.
    pub fn with_cgroups() -> Option<Self> {
        let needs = "a writable cgroup2 directory";
        let Ok(own) = cgroup::own_directory() else {
            skipped(needs);
            return None;
        };
        let base = own.join(format!("toolcell-test-{}", unique()));
        if cgroup::create(&base).is_err() {
            skipped(needs);
            return None;
        }
        Some(Self::with(Some(base), None, |_| {}))
    }

    pub fn for_cage(cage: Cage) -> Option<Self> {
        match cage {
            Cage::Cgroup => Self::with_cgroups(),
            Cage::Namespace if !nix::unistd::geteuid().is_root() => {
                skipped("root, for a PID namespace without a user namespace");
                None
            }
            Cage::Namespace | Cage::Weak => Some(Self::plain()),
        }
    }

    pub fn with(
        base: Option<PathBuf>,
        remove_at_exit: Option<String>,
        adjust: impl FnOnce(&mut std::process::Command),
    ) -> Self {
        let (socket, theirs) = toolcell_worker::spawner_socketpair().expect("a socketpair");
        let binary = Path::new(env!("CARGO_BIN_EXE_toolcell-worker"));
        let mut command = toolcell_worker::spawner_command_of(binary, theirs);
        adjust(&mut command);
        let child = command.spawn().expect("the spawner starts");
        drop(command);
        let mut spawner =
            Self { child, socket: Some(socket), base, tickets: 0, reaped: HashMap::new(), pid: 0 };
        let setup = SpawnerSetup {
            version: WORKER_PROTOCOL,
            cgroup_base: spawner.base.as_ref().map(|base| base.to_str().expect("text").to_owned()),
            remove_at_exit,
        };
        spawner.send(&ToSpawner::Hello(setup));
        match spawner.receive() {
            (FromSpawner::Hello { version: WORKER_PROTOCOL, pid }, _) => spawner.pid = pid,
            other => panic!("not a Hello: {other:?}"),
        }
        assert_eq!(spawner.pid, spawner.child.id().cast_signed());
        spawner
    }

    pub fn base(&self) -> &Path {
        self.base.as_deref().expect("a spawner with cgroups")
    }

    pub fn send(&self, message: &ToSpawner) {
        let socket = self.socket.as_ref().expect("open");
        let bytes = codec::encode(message).expect("encoded");
        toolcell_worker::sys::send_packet(socket, &bytes, &[]).expect("sent");
    }

    pub fn receive(&mut self) -> (FromSpawner, Vec<OwnedFd>) {
        let socket = self.socket.as_ref().expect("open");
        assert!(readable(socket, PATIENCE), "the spawner says nothing");
        let packet = toolcell_worker::sys::recv_packet(socket).expect("a packet").expect("not the end");
        (codec::decode(&packet.bytes).expect("a message"), packet.fds)
    }

    /// The next message that is not a report of a worker's end; those are kept.
    pub fn receive_answer(&mut self) -> (FromSpawner, Vec<OwnedFd>) {
        loop {
            match self.receive() {
                (FromSpawner::Reaped { pid, status, orphans }, _) => {
                    self.reaped.insert(pid, (status, orphans));
                }
                other => return other,
            }
        }
    }

    /// A fresh worker, greeted.
    pub fn worker(&mut self, kind: WorkerKind) -> Worker {
        self.tickets += 1;
        let leaf = self.base.as_ref().map(|_| format!("leaf-{}", self.tickets));
        self.send(&ToSpawner::Fork { ticket: self.tickets, kind, leaf: leaf.clone(), hurry: true });
        let (answer, mut fds) = self.receive_answer();
        let pid = match answer {
            FromSpawner::Forked { ticket, pid } if ticket == self.tickets => pid,
            other => panic!("no worker: {other:?}"),
        };
        let pidfd = fds.pop().expect("a pidfd");
        let stream = UnixStream::from(fds.pop().expect("a socket"));
        let leaf = leaf.map(|leaf| self.base().join(leaf));
        let mut worker = Worker { pid, stream, pidfd, leaf, inbox: FrameBuffer::new() };
        assert_eq!(worker.receive(), Some(FromWorker::Hello { version: WORKER_PROTOCOL }));
        worker.send(&ToWorker::Hello { version: WORKER_PROTOCOL });
        worker
    }

    /// A worker that has its job.
    pub fn start(&mut self, cage: Cage, mut job: Job) -> Worker {
        job.pid_namespace = cage == Cage::Namespace;
        let kind = match job.action {
            Action::Exec { .. } => WorkerKind::Exec,
            Action::Builtin { .. } => WorkerKind::Builtin,
        };
        let mut worker = self.worker(kind);
        worker.send(&ToWorker::Job(Box::new(job)));
        worker
    }

    /// Runs a job to its end, without a cage of its own.
    pub fn run(&mut self, job: Job) -> Run {
        self.run_in(if self.base.is_some() { Cage::Cgroup } else { Cage::Weak }, job)
    }

    /// Runs a job to its end.
    pub fn run_in(&mut self, cage: Cage, job: Job) -> Run {
        let mut worker = self.start(cage, job);
        let run = worker.finish();
        self.ended_well(worker.pid);
        run
    }

    /// Waits until a worker is reaped that has left nothing behind: of such a one nothing is reported.
    pub fn ended_well(&mut self, pid: i32) {
        wait_until("the worker is reaped", || state(pid).is_none());
        self.send(&ToSpawner::Sweep);
        let (answer, _) = self.receive_answer();
        assert!(matches!(answer, FromSpawner::Swept { killed: 0, clean: true }), "{answer:?}");
        assert_eq!(self.reaped.remove(&pid), None);
    }

    /// Waits until the end of a worker that did not end well is reported.
    pub fn reaped(&mut self, pid: i32) -> (WaitStatus, Vec<Leftover>) {
        loop {
            if let Some(end) = self.reaped.remove(&pid) {
                return end;
            }
            match self.receive() {
                (FromSpawner::Reaped { pid, status, orphans }, _) => {
                    self.reaped.insert(pid, (status, orphans));
                }
                other => panic!("not a report: {other:?}"),
            }
        }
    }

    /// Says good-bye; the spawner must end and leave nothing.
    pub fn close(&mut self) {
        self.socket = None;
        let mut status = None;
        wait_until("the spawner's end", || {
            status = self.child.try_wait().expect("waited");
            status.is_some()
        });
        assert_eq!(status.and_then(|status| status.code()), Some(0), "the spawner's exit code");
        if let Some(base) = self.base.take() {
            assert!(!base.exists(), "the cgroup base is still there");
        }
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        if self.socket.is_some() && !std::thread::panicking() {
            self.close();
        }
    }
}

/// A worker, from its daemon's side.
pub struct Worker {
    pub pid: i32,
    pub stream: UnixStream,
    pub pidfd: OwnedFd,
    pub leaf: Option<PathBuf>,
    inbox: FrameBuffer,
}

impl Worker {
    pub fn send(&mut self, message: &ToWorker) {
        frame::write_blocking(&mut self.stream, &codec::encode(message).expect("encoded")).expect("sent");
    }

    /// The next message; `None` at the end.
    pub fn receive(&mut self) -> Option<FromWorker> {
        loop {
            if let Some(body) = self.inbox.next_frame().expect("good frames") {
                return Some(codec::decode(body).expect("a message"));
            }
            assert!(readable(&self.stream, PATIENCE), "the worker says nothing");
            let mut piece = [0; 65_536];
            match self.stream.read(&mut piece) {
                Ok(0) => {
                    assert_eq!(self.inbox.pending_bytes(), 0, "the worker ended inside a frame");
                    return None;
                }
                Ok(count) => self.inbox.extend(&piece[..count]),
                // What was not read of ours when the worker ended.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("reading: {error}"),
            }
        }
    }

    /// Waits for `Started`.
    pub fn started(&mut self) -> (i32, Layers) {
        match self.receive() {
            Some(FromWorker::Started { pid, layers }) => (pid, layers),
            other => panic!("not started: {other:?}"),
        }
    }

    /// Reads on to the end.
    pub fn finish(&mut self) -> Run {
        self.finish_watched(|_| {})
    }

    /// Reads on to the end, showing every message.
    pub fn finish_watched(&mut self, mut watch: impl FnMut(&FromWorker)) -> Run {
        let mut run = Run::default();
        let mut next_chunk = 0;
        loop {
            let message = self.receive().expect("Finished comes before the end");
            watch(&message);
            match message {
                FromWorker::Hello { .. } => panic!("a second Hello"),
                FromWorker::Started { pid, layers } => {
                    assert!(run.started.is_none() && next_chunk == 0, "Started comes first, and once");
                    run.started = Some((pid, layers));
                }
                FromWorker::Output { seq, stream, bytes } => {
                    assert_eq!(seq, next_chunk, "chunks are numbered without a gap");
                    assert!(bytes.0.len() <= toolcell_protocol::limits::MAX_CHUNK_BYTES);
                    next_chunk += 1;
                    match stream {
                        Stream::Stdout => run.stdout.extend_from_slice(&bytes.0),
                        Stream::Stderr => run.stderr.extend_from_slice(&bytes.0),
                    }
                }
                FromWorker::Spooled { total_bytes, spool_bytes } => {
                    run.spooled.push((total_bytes, spool_bytes))
                }
                FromWorker::Finished(finished) => {
                    run.finished = Some(*finished);
                    break;
                }
            }
        }
        assert_eq!(self.receive(), None, "Finished is the last frame");
        run
    }
}

/// All that a worker said.
#[derive(Debug, Default)]
pub struct Run {
    pub started: Option<(i32, Layers)>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub spooled: Vec<(u64, u64)>,
    pub finished: Option<Finished>,
}

impl Run {
    pub fn finished(&self) -> &Finished {
        self.finished.as_ref().expect("it has finished")
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("text")
    }
}

/// A job with an environment that marks its processes.
pub fn job(argv: &[&str]) -> Job {
    Job {
        call_uid: CallUid(Default::default()),
        attempt: 1,
        tool: "test".to_owned(),
        action: Action::Exec {
            argv: argv.iter().map(|arg| arg.as_bytes().to_vec().into()).collect(),
            stdin: None,
        },
        identity: None,
        cwd: "/".to_owned(),
        env: vec![
            ("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            (MARK.to_owned(), unique()),
        ],
        umask: 0o022,
        rlimits: Rlimits { core_bytes: Some(0), ..Rlimits::default() },
        tree_cpu_ms: None,
        pid_namespace: false,
        output: OutputPolicy {
            inline_bytes: 64 * 1024,
            tail_bytes: 32 * 1024,
            stream: false,
            max_total_bytes: None,
            spool: None,
        },
    }
}

/// A job that runs a shell script.
pub fn script(text: &str) -> Job {
    job(&["sh", "-c", text])
}

/// The mark of a job.
pub fn mark(job: &Job) -> String {
    job.env.iter().find(|(name, _)| name == MARK).expect("marked").1.clone()
}

/// Processes, zombies not counted, that carry a mark.
pub fn marked(mark: &str) -> Vec<i32> {
    let wanted = format!("{MARK}={mark}");
    let pids = std::fs::read_dir("/proc").expect("/proc").flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
        })
        .collect()
}

/// The state letter of a process.
pub fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn readable(fd: impl AsFd, time: Duration) -> bool {
    let deadline = Instant::now() + time;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(left).expect("a short time");
        match poll(&mut fds, timeout) {
            Ok(count) => return count > 0,
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
    }
}
