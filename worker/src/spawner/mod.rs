//! The spawner: a small single-threaded process between the daemon and its workers.
//!
//! It forks idle workers on request, hands their socket and pidfd to the daemon, reaps them, reports how they
//! ended, and kills whatever a dead worker left. Every page it touches is paid for by each later fork, so it
//! does little, and does it with little memory.
//!
//! ```text
//!            Hello                        end-of-file on the socket
//! starting ────────▶ serving ──────────────────────────────────▶ closing ──▶ exit
//!                     │  Fork ─▶ worker born                      built-ins are killed at once, the other
//!                     │  SIGCHLD ─▶ reap, report, leaf removed    workers have 5 s to kill their trees
//!                     ▼
//!                   (one event at a time)
//! ```
//!
//! All signals are blocked, SIGCHLD is read from a signalfd: whoever signals the daemon's group by accident does
//! not reach it, and it ends with the daemon only, by end-of-file.

mod fork;
mod leaves;
mod orphans;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::{SfdFlags, SigSet, SignalFd};
use nix::unistd::{Pid, dup2_stdout};
use toolcell_protocol::codec;
use toolcell_protocol::version::WORKER_PROTOCOL;
use toolcell_protocol::worker_api::{FromSpawner, SpawnerSetup, Stage, ToSpawner, WaitStatus, WorkerKind};

use self::leaves::Leaves;
use self::orphans::Sweep;
use crate::confine::InheritedLimits;
use crate::sys;
use crate::sys::process::{Children, default_dispositions, exit_now, reap};

/// Time that workers get to kill their trees when the daemon is gone.
const CLOSING_TIME: Duration = Duration::from_secs(5);

/// Time that one sweep may hold the spawner up. What is still there then (uninterruptible sleep) is tried again.
const SWEEP_TIME: Duration = Duration::from_millis(500);

/// Pause before strangers that would not die are tried again.
const SWEEP_PAUSE: Duration = Duration::from_millis(100);

/// What every worker of this spawner inherits as plain memory.
#[derive(Debug)]
pub(crate) struct Facts {
    /// The resource limits that the spawner was born with.
    pub(crate) limits: InheritedLimits,
    /// Leaves count memory.
    pub(crate) memory_controller: bool,
}

/// Forks for the stock wait so long, each: an agent's next call follows upon the last one's end at once or not for long,
/// and in the first case a processor is free only when its tool runs.
const STOCK_PAUSE: Duration = Duration::from_micros(300);

/// A worker that was forked and not yet reaped.
#[derive(Debug)]
struct Worker {
    pid: i32,
    kind: WorkerKind,
    leaf: Option<String>,
}

/// Runs a spawner on standard input; never returns.
pub(crate) fn run() -> ! {
    let code = match Spawner::start().and_then(Spawner::serve) {
        Ok(()) => 0,
        Err(error) => {
            complain(&error.to_string());
            2
        }
    };
    exit_now(code)
}

/// To whoever reads the daemon's standard error.
fn complain(what: &str) {
    let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("toolcell-spawner: {what}\n"));
}

struct Spawner {
    facts: Facts,
    children: SignalFd,
    workers: Vec<Worker>,
    leaves: Leaves,
    remove_at_exit: Option<String>,
    /// Set once the daemon is gone: when patience ends.
    closing: Option<Instant>,
    /// Strangers were left by a sweep: when to try again.
    sweep_at: Option<Instant>,
    /// Forks for the daemon's stock, and when the next one is due.
    for_stock: VecDeque<(u64, WorkerKind, Option<String>)>,
    stock_at: Option<Instant>,
}

impl Spawner {
    fn start() -> io::Result<Self> {
        // What workers and tools get as standard input: whatever our own output was, this can be read.
        dup2_stdout(std::fs::File::options().read(true).write(true).open("/dev/null")?)?;
        SigSet::all().thread_block()?;
        default_dispositions();
        sys::patience::be_patient();
        // A session of its own: a group kill aimed at the daemon leaves us alive to clean up after it.
        let _ = nix::unistd::setsid();
        nix::sys::prctl::set_child_subreaper(true)?;
        // Tools of the same user must not look into us or our workers, which hold jobs and descriptors.
        nix::sys::prctl::set_dumpable(false)?;
        let mut child = SigSet::empty();
        child.add(Signal::SIGCHLD);
        let children = SignalFd::with_flags(&child, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let setup = greet()?;
        // The daemon makes the base before it starts us; without it every Fork with a leaf fails and says so.
        let leaves = Leaves::new(setup.cgroup_base.as_deref().map(Path::new));
        let memory_controller = leaves.has_controller("memory");
        Ok(Self {
            facts: Facts { limits: InheritedLimits::read(), memory_controller },
            children,
            workers: Vec::new(),
            leaves,
            remove_at_exit: setup.remove_at_exit,
            for_stock: VecDeque::new(),
            stock_at: None,
            closing: None,
            sweep_at: None,
        })
    }

    fn serve(mut self) -> io::Result<()> {
        loop {
            if self.closing.is_some() && self.workers.is_empty() {
                self.close();
                return Ok(());
            }
            let (packet, child) = self.wait()?;
            if child {
                // Taken first, and there is never more than one: a child that ends from here on raises it again.
                let _ = self.children.read_signal();
                self.reap_all();
            }
            if packet {
                self.take_packet();
            }
            self.on_time();
        }
    }

    /// One request. A daemon that talks nonsense is as good as gone.
    fn take_packet(&mut self) {
        let request = match sys::recv_packet(socket()) {
            Ok(Some(packet)) => codec::decode::<ToSpawner>(&packet.bytes).map_err(|error| error.to_string()),
            Ok(None) => return self.begin_closing(),
            Err(error) => Err(error.to_string()),
        };
        if let Err(why) = request.and_then(|request| self.handle(request)) {
            complain(&why);
            self.begin_closing();
        }
    }

    /// Waits for something to do: a packet, a child, the clock.
    fn wait(&self) -> io::Result<(bool, bool)> {
        let timers = [self.closing, self.sweep_at, self.leaves.next_try(), self.stock_at];
        let timeout = timers.into_iter().flatten().min().map(crate::clock::until);
        let mut fds =
            [PollFd::new(self.children.as_fd(), PollFlags::POLLIN), PollFd::new(socket(), PollFlags::POLLIN)];
        // Once the daemon is gone its socket would be ready for ever.
        let watched = if self.closing.is_some() { 1 } else { 2 };
        nix::poll::ppoll(&mut fds[..watched], timeout, None)
            .map(drop)
            .or_else(crate::clock::not_interrupted)?;
        let ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        Ok((watched == 2 && ready(&fds[1]), ready(&fds[0])))
    }

    fn handle(&mut self, request: ToSpawner) -> Result<(), String> {
        match request {
            ToSpawner::Hello(_) => return Err("the daemon said Hello twice".to_owned()),
            // A built-in is over before the pause would be.
            ToSpawner::Fork { ticket, kind: kind @ WorkerKind::Builtin, leaf, hurry } => {
                self.fork_worker(ticket, kind, leaf, hurry);
            }
            ToSpawner::Fork { ticket, kind, leaf, hurry: true } => self.fork_worker(ticket, kind, leaf, true),
            ToSpawner::Fork { ticket, kind, leaf, hurry: false } => {
                self.for_stock.push_back((ticket, kind, leaf));
                self.stock_at.get_or_insert_with(|| Instant::now() + STOCK_PAUSE);
            }
            ToSpawner::Kill { pid } => {
                // Only a child that is not reaped yet: the number cannot be anybody else's.
                if self.workers.iter().any(|worker| worker.pid == pid) {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
            }
            ToSpawner::Sweep => {
                let sweep = self.sweep();
                self.reap_all();
                self.send(&FromSpawner::Swept { killed: sweep.killed(), clean: sweep.clean }, &[]);
            }
        }
        Ok(())
    }

    fn fork_worker(&mut self, ticket: u64, kind: WorkerKind, leaf: Option<String>, hurry: bool) {
        match fork::worker(&self.facts, &self.leaves, kind, leaf.as_deref(), hurry) {
            Ok(born) => {
                self.workers.push(Worker { pid: born.pid, kind, leaf });
                let fds = [born.socket.as_fd(), born.pidfd.as_fd()];
                self.send(&FromSpawner::Forked { ticket, pid: born.pid }, &fds);
            }
            Err(fork::Failure { stage, errno }) => {
                // With the stage `Cgroup` there is none, or it is another cell's.
                if let Some(leaf) = leaf.filter(|_| stage != Stage::Cgroup) {
                    self.leaves.remove(&leaf);
                }
                self.send(&FromSpawner::ForkFailed { ticket, stage, errno: errno as i32 }, &[]);
            }
        }
    }

    /// Reaps every child that has ended and reports the workers among them.
    fn reap_all(&mut self) {
        while let Children::Ended(pid, status) = reap(-1) {
            let Some(at) = self.workers.iter().position(|worker| worker.pid == pid) else {
                // A stranger: a dead cell's orphan. It may have brothers.
                self.sweep();
                continue;
            };
            let worker = self.workers.swap_remove(at);
            // Zero says that the worker has proven its tree gone.
            let orphans = if status == WaitStatus::Exited(0) {
                Vec::new()
            } else {
                let mut found = worker.leaf.as_deref().map(|leaf| self.leaves.kill(leaf)).unwrap_or_default();
                found.extend(self.sweep().found);
                found.sort_by_key(|orphan| orphan.pid);
                found.dedup_by_key(|orphan| orphan.pid);
                found
            };
            if let Some(leaf) = worker.leaf {
                self.leaves.remove(&leaf);
            }
            // The daemon has heard `Finished` of a worker that ended well, and must not be woken once more for it.
            if status != WaitStatus::Exited(0) {
                self.send(&FromSpawner::Reaped { pid, status, orphans }, &[]);
            }
        }
    }

    /// Kills and reaps every child that is not a known worker.
    fn sweep(&mut self) -> Sweep {
        let workers = &self.workers;
        let sweep = orphans::sweep(&|pid| workers.iter().any(|worker| worker.pid == pid), SWEEP_TIME);
        self.sweep_at = (!sweep.clean).then(|| Instant::now() + SWEEP_PAUSE);
        sweep
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        self.leaves.retry(now);
        if self.stock_at.is_some_and(|at| now >= at) {
            if let Some((ticket, kind, leaf)) = self.for_stock.pop_front() {
                self.fork_worker(ticket, kind, leaf, false);
            }
            self.stock_at = (!self.for_stock.is_empty()).then(|| Instant::now() + STOCK_PAUSE);
        }
        if self.sweep_at.is_some_and(|at| now >= at) {
            let workers = &self.workers;
            let sweep = orphans::sweep(&|pid| workers.iter().any(|worker| worker.pid == pid), Duration::ZERO);
            self.sweep_at = (!sweep.clean).then(|| now + SWEEP_PAUSE);
            self.reap_all();
        }
        if self.closing.is_some_and(|deadline| now >= deadline) {
            for worker in &self.workers {
                let _ = kill(Pid::from_raw(worker.pid), Signal::SIGKILL);
            }
            self.closing = Some(now + CLOSING_TIME);
        }
    }

    fn begin_closing(&mut self) {
        self.closing = Some(Instant::now() + CLOSING_TIME);
        for worker in &self.workers {
            // A built-in does not look at its socket while it works, and has no tree to take care of.
            if worker.kind == WorkerKind::Builtin {
                let _ = kill(Pid::from_raw(worker.pid), Signal::SIGKILL);
            }
        }
    }

    /// The daemon and all workers are gone.
    fn close(&mut self) {
        let deadline = Instant::now() + CLOSING_TIME;
        while !self.sweep().clean && Instant::now() < deadline {}
        self.leaves.close(deadline);
        if let Some(directory) = self.remove_at_exit.take() {
            let directory = Path::new(&directory);
            if directory.is_absolute() && directory.parent().is_some() {
                let _ = std::fs::remove_dir_all(directory);
            }
        }
    }

    /// A daemon that is gone shows as end-of-file; there is nobody to tell here.
    fn send(&self, message: &FromSpawner, fds: &[BorrowedFd<'_>]) {
        if self.closing.is_none()
            && let Ok(bytes) = codec::encode(message)
        {
            let _ = sys::send_packet(socket(), &bytes, fds);
        }
    }
}

/// The daemon's socket.
const fn socket() -> BorrowedFd<'static> {
    sys::fds::STDIN
}

/// The first packets: who we are, and what we must know.
fn greet() -> io::Result<SpawnerSetup> {
    let hello = FromSpawner::Hello { version: WORKER_PROTOCOL, pid: nix::unistd::getpid().as_raw() };
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let bytes = codec::encode(&hello).map_err(|error| invalid(error.to_string()))?;
    // A daemon that is gone already has still said what must be removed.
    match sys::send_packet(socket(), &bytes, &[]) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        sent => sent?,
    }
    let mut packet = sys::recv_packet(socket())?;
    if packet.is_none() {
        // Left without reading our Hello: that shows once as an end, and its own Hello is behind it.
        packet = sys::recv_packet(socket())?;
    }
    let packet = packet.ok_or_else(|| invalid("the daemon left before its Hello".into()))?;
    match codec::decode::<ToSpawner>(&packet.bytes).map_err(|error| invalid(error.to_string()))? {
        ToSpawner::Hello(setup) if setup.version == WORKER_PROTOCOL => Ok(setup),
        ToSpawner::Hello(setup) => Err(invalid(format!(
            "the daemon speaks version {}, this spawner {WORKER_PROTOCOL}; both must come from one build",
            setup.version
        ))),
        other => Err(invalid(format!("the first packet must be Hello, not {other:?}"))),
    }
}
