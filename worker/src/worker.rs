//! A worker: one process, one socket, one attempt.
//!
//! ```text
//! born ─▶ shed ─▶ kit made, pages touched ─▶ Hello ──▶ (waits in the stock) ──▶ Hello, Job ─▶ runs it ─▶ exit
//!                                                            │
//!                                                            └ end-of-file: not needed any more ─▶ exit
//! ```
//!
//! Everything that a job does not decide is made before the job comes: pipes and a signalfd. The exit code tells
//! the spawner whether the tree is proven gone.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SigSet, SignalFd};
use nix::unistd::{getpid, pipe2};
use toolcell_protocol::version::WORKER_PROTOCOL;
use toolcell_protocol::worker_api::{
    Action, AttemptEnd, Finished, FromWorker, Job, Stage, ToWorker, WorkerKind,
};

use crate::cgroup::Cgroup;
use crate::channel::{Channel, Received};
use crate::job::Refusal;
use crate::spawner::Facts;
use crate::{builtin, rehearse, sanitize, supervise};

/// Everything said and done, nothing left behind.
pub(crate) const EXIT_DONE: i32 = 0;
/// The daemon said something that makes no sense.
pub(crate) const EXIT_PROTOCOL: i32 = 2;
/// Something of the tree may be left: the spawner must look.
pub(crate) const EXIT_NOT_GONE: i32 = 3;
/// It could not be set up or get into its cell.
pub(crate) const EXIT_NO_CELL: i32 = 4;
/// It panicked.
pub(crate) const EXIT_PANICKED: i32 = 101;

/// What a worker that execs makes before its job comes.
#[derive(Debug)]
pub(crate) struct Kit {
    pub(crate) stdout: Pipe,
    pub(crate) stderr: Pipe,
    /// Tells that a child has ended.
    pub(crate) children: SignalFd,
    /// This worker.
    pub(crate) pid: i32,
}

/// One output of the tool; only our end does not block.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
}

impl Pipe {
    fn new() -> Result<Self, Errno> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self { read, write })
    }
}

impl Kit {
    pub(crate) fn new() -> Result<Self, Errno> {
        let mut child = SigSet::empty();
        child.add(Signal::SIGCHLD);
        Ok(Self {
            stdout: Pipe::new()?,
            stderr: Pipe::new()?,
            children: SignalFd::with_flags(&child, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?,
            pid: getpid().as_raw(),
        })
    }
}

/// Runs a worker from its birth to its end; the result is its exit code.
pub(crate) fn run(
    facts: &Facts,
    kind: WorkerKind,
    socket: OwnedFd,
    leaf: Option<Cgroup>,
    hurry: bool,
) -> i32 {
    let kept: &[_] = match &leaf {
        Some(leaf) => &[socket.as_fd(), leaf.as_fd()],
        None => &[socket.as_fd()],
    };
    if sanitize::shed(kept).is_err() {
        return EXIT_NO_CELL;
    }
    let mut channel = Channel::new(socket);
    // A failure (out of descriptors) is told when the job is there, as its result.
    let kit = (kind == WorkerKind::Exec).then(Kit::new);
    if !hurry {
        rehearse::rehearse(facts, kind);
    }
    channel.queue(&FromWorker::Hello { version: WORKER_PROTOCOL });
    if !matches!(channel.flush_all(), Ok(true)) {
        return EXIT_DONE;
    }
    match wait_for_job(&mut channel) {
        Ok(Some(job)) => start(facts, kit, channel, leaf, &job),
        Ok(None) => EXIT_DONE,
        Err(code) => code,
    }
}

fn start(
    facts: &Facts,
    kit: Option<Result<Kit, Errno>>,
    channel: Channel,
    leaf: Option<Cgroup>,
    job: &Job,
) -> i32 {
    match (&job.action, kit) {
        (Action::Exec { argv, stdin }, Some(Ok(kit))) => {
            supervise::run(facts, kit, channel, leaf, job, argv, stdin.as_ref())
        }
        (Action::Builtin { name, args }, None) => {
            builtin::run(facts, channel, leaf.as_ref(), job, name, args)
        }
        (Action::Exec { .. }, Some(Err(errno))) => {
            refuse(channel, Refusal::new(Stage::Pipes, errno, "pipes and memory of the worker"))
        }
        // A worker of the wrong kind.
        _ => EXIT_PROTOCOL,
    }
}

/// Waits in the stock. `None`: the daemon does not need this worker.
fn wait_for_job(channel: &mut Channel) -> Result<Option<Box<Job>>, i32> {
    let mut greeted = false;
    loop {
        while let Some(message) = channel.next().map_err(|_| EXIT_PROTOCOL)? {
            match message {
                ToWorker::Hello { version: WORKER_PROTOCOL } if !greeted => greeted = true,
                ToWorker::Job(job) if greeted => return Ok(Some(job)),
                _ => return Err(EXIT_PROTOCOL),
            }
        }
        if channel.receive(true) == Received::Gone {
            return Ok(None);
        }
    }
}

/// Tells that the tool could not be started.
pub(crate) fn refuse(mut channel: Channel, refusal: Refusal) -> i32 {
    let Refusal { stage, errno, what } = refusal;
    let end = AttemptEnd::SpawnFailed { stage, errno: errno as i32, what };
    channel.queue(&FromWorker::Finished(Box::new(Finished::new(end, None))));
    let _ = channel.flush_all();
    EXIT_DONE
}
