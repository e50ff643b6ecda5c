//! Daemon ⇄ spawner and daemon ⇄ worker.
//!
//! ```text
//! daemon ── SEQPACKET socketpair (spawner's stdin) ── spawner     one ToSpawner / FromSpawner a packet, + fds
//! daemon ── STREAM socketpair ── worker                            frames of ToWorker / FromWorker
//!
//! ToSpawner::Hello ─▶ FromSpawner::Hello, then any of
//!     Fork{ticket}  ─▶ Forked{ticket, pid} + fds [socket, pidfd]  … later Reaped{pid, status}
//!                   ─▶ ForkFailed{ticket, …}
//!     Kill{pid}     ─▶ (nothing; Reaped follows)
//!     Sweep         ─▶ Swept
//!
//! FromWorker::Hello ─▶ ToWorker::Hello, Job ─▶ Started? ─▶ Output* / Spooled* ─▶ Finished, end-of-file
//! ```
//!
//! Both ends come from one build and must match exactly ([`WORKER_PROTOCOL`](crate::version::WORKER_PROTOCOL)).
//! `Finished` is the last frame; end-of-file without it is the worker's failure. End-of-file on the worker's
//! side means that the daemon is gone: kill the tree.

use serde::{Deserialize, Serialize};

use crate::call::{Blob, Layers, Leftover, LimitName, Stream};
use crate::id::CallUid;

/// Which kind of worker waits in the stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WorkerKind {
    /// Runs a native binary in the tool leaf; lives outside that leaf, so that it survives the leaf's kill.
    Exec,
    /// Runs a built-in tool without exec; lives inside the tool leaf.
    Builtin,
}

/// Daemon → spawner. One packet each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSpawner {
    /// Always the first; never changes.
    Hello(SpawnerSetup),
    /// Fork one idle worker.
    Fork {
        /// Comes back in the answer.
        ticket: u64,
        /// Its kind.
        kind: WorkerKind,
        /// Name of the tool leaf to make below the cgroup base; needs `cgroup_base`.
        leaf: Option<String>,
        /// A call waits for it. Else it is for the stock: the spawner does it a moment later, one at a time, and the
        /// worker prepares itself as far as it can.
        hurry: bool,
    },
    /// SIGKILL a worker that it forked and has not reaped.
    Kill {
        /// The worker.
        pid: i32,
    },
    /// Kill and reap every child that is not a known worker, until none is left.
    Sweep,
}

/// What a spawner must know first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnerSetup {
    /// [`WORKER_PROTOCOL`](crate::version::WORKER_PROTOCOL) of the daemon.
    pub version: u32,
    /// Absolute path of the directory below which tool leaves are made.
    pub cgroup_base: Option<String>,
    /// Private directory to remove, with all that is in it, once the daemon is gone (an embedded daemon's).
    pub remove_at_exit: Option<String>,
}

/// Spawner → daemon. One packet each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromSpawner {
    /// Always the first; never changes.
    Hello {
        /// Its [`WORKER_PROTOCOL`](crate::version::WORKER_PROTOCOL).
        version: u32,
        /// Its process id.
        pid: i32,
    },
    /// A worker was forked; the packet carries two descriptors: its socket, its pidfd.
    Forked {
        /// From the request.
        ticket: u64,
        /// The worker.
        pid: i32,
    },
    /// No worker could be forked.
    ForkFailed {
        /// From the request.
        ticket: u64,
        /// The step that failed.
        stage: Stage,
        /// The kernel's error number.
        errno: i32,
    },
    /// A worker ended and was reaped. Not sent for one that exited with 0: that has said `Finished` before.
    Reaped {
        /// The worker.
        pid: i32,
        /// How.
        status: WaitStatus,
        /// Strangers (orphans of the dead cell) that were killed and reaped because of it.
        orphans: Vec<Leftover>,
    },
    /// Answer to `Sweep`: how many processes were killed, and whether none was left at the end.
    Swept {
        /// Killed and reaped.
        killed: u32,
        /// No stranger is left.
        clean: bool,
    },
}

/// How a process ended, as the kernel tells its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitStatus {
    /// It exited.
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
}

/// The steps from fork to exec, in their order; one of them is named when a call cannot be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Making the cell's cgroup leaf.
    Cgroup,
    /// Making pipes, standard input, shared memory.
    Pipes,
    /// Cloning the process.
    Fork,
    /// Entering namespaces.
    Namespaces,
    /// Mounting, `/proc` included.
    Mounts,
    /// Writing the uid and gid maps of a user namespace.
    IdMaps,
    /// A session of its own.
    Session,
    /// The signal that reaches the tool when its worker dies.
    ParentDeath,
    /// Standard input, output and error.
    Stdio,
    /// Resource limits.
    Rlimits,
    /// Groups, gid and uid.
    Identity,
    /// Working directory.
    Cwd,
    /// No new privileges.
    NoNewPrivileges,
    /// Closing inherited descriptors.
    CloseFds,
    /// Finding the program in PATH.
    Lookup,
    /// The exec itself.
    Exec,
}

impl Stage {
    /// The name used in JSON and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Pipes => "pipes",
            Self::Fork => "fork",
            Self::Namespaces => "namespaces",
            Self::Mounts => "mounts",
            Self::IdMaps => "id_maps",
            Self::Session => "session",
            Self::ParentDeath => "parent_death",
            Self::Stdio => "stdio",
            Self::Rlimits => "rlimits",
            Self::Identity => "identity",
            Self::Cwd => "cwd",
            Self::NoNewPrivileges => "no_new_privileges",
            Self::CloseFds => "close_fds",
            Self::Lookup => "lookup",
            Self::Exec => "exec",
        }
    }
}

/// Daemon → worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToWorker {
    /// Always the first; never changes.
    Hello {
        /// [`WORKER_PROTOCOL`](crate::version::WORKER_PROTOCOL) of the daemon.
        version: u32,
    },
    /// The one job of this worker.
    Job(Box<Job>),
    /// TERM, then CONT, to the tool's process group. The daemon keeps the deadline.
    Terminate,
    /// Kill the whole tree now, prove that it is gone, then finish.
    Kill,
    /// Nobody reads the stream any more: count, keep the tail, drop the rest.
    StopStream,
}

/// One attempt of one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The call.
    pub call_uid: CallUid,
    /// Counts from 1.
    pub attempt: u32,
    /// The tool's name.
    pub tool: String,
    /// What to run.
    pub action: Action,
    /// As whom; `None` when the daemon is not root.
    pub identity: Option<Identity>,
    /// Absolute working directory.
    pub cwd: String,
    /// The whole environment, `NAME`, `value`.
    pub env: Vec<(String, String)>,
    /// File mode creation mask.
    pub umask: u32,
    /// Resource limits.
    pub rlimits: Rlimits,
    /// CPU time of the whole tree after which it is killed.
    pub tree_cpu_ms: Option<u64>,
    /// Run the tool in a PID namespace of its own (containment where there is no cgroup).
    pub pid_namespace: bool,
    /// What to do with its output.
    pub output: OutputPolicy,
}

/// What a job runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// A native binary.
    Exec {
        /// Program and arguments; a program without a slash is looked up in the job's own PATH.
        argv: Vec<Blob>,
        /// Standard input; `None` is `/dev/null`.
        stdin: Option<Blob>,
    },
    /// A built-in tool, run in the worker without exec.
    Builtin {
        /// `read_file`, `write_file`, …
        name: String,
        /// JSON text, already valid against the tool's schema.
        args: String,
    },
}

/// As whom an attempt runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Resource limits of a tool's processes; `None` leaves what is inherited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimits {
    /// CPU seconds of one process: soft at this value (SIGXCPU), hard one second later.
    pub cpu_seconds: Option<u64>,
    /// Largest file that may be written (SIGXFSZ).
    pub fsize_bytes: Option<u64>,
    /// Open files, soft.
    pub nofile_soft: Option<u64>,
    /// Open files, hard.
    pub nofile_hard: Option<u64>,
    /// Core file size.
    pub core_bytes: Option<u64>,
    /// Stack of the main thread.
    pub stack_bytes: Option<u64>,
    /// Locked memory.
    pub memlock_bytes: Option<u64>,
    /// Address space; breaks runtimes that reserve much, so unset by default.
    pub as_bytes: Option<u64>,
    /// Processes of the user; counts the whole user, so unset by default.
    pub nproc: Option<u64>,
}

/// What a worker does with output.
///
/// The first `inline_bytes` always travel as [`FromWorker::Output`]. After that: with `stream` everything
/// travels so (the socket's own back-pressure holds the tool); with a spool the bytes go to the file, which
/// then has the output from its first byte on, and only [`FromWorker::Spooled`] travels; with neither the
/// worker counts and keeps the tail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPolicy {
    /// Bytes that always travel.
    pub inline_bytes: u64,
    /// Bytes of the end that [`Finished::tail`] brings.
    pub tail_bytes: u64,
    /// Send everything.
    pub stream: bool,
    /// Kill the tool when it has written more than this.
    pub max_total_bytes: Option<u64>,
    /// Where to spool; the file is made only when the output grows beyond `inline_bytes`.
    pub spool: Option<SpoolPolicy>,
}

/// Where a worker spools output, and how much.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpoolPolicy {
    /// Absolute path of the file to make (mode 0600, must not exist).
    pub path: String,
    /// Bytes of output that it may hold; what comes after is counted and dropped.
    pub max_bytes: u64,
}

/// A piece of output in arrival order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// From where.
    pub stream: Stream,
    /// The bytes.
    pub bytes: Blob,
}

/// Worker → daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromWorker {
    /// Always the first; never changes. Sent as soon as the worker is ready for its job.
    Hello {
        /// Its [`WORKER_PROTOCOL`](crate::version::WORKER_PROTOCOL).
        version: u32,
    },
    /// The tool runs: exec has succeeded, or the built-in was entered.
    Started {
        /// The tool's process as the daemon sees it.
        pid: i32,
        /// What is in force.
        layers: Layers,
    },
    /// Output; chunks are numbered from 0 and none is missing. `bytes` must stay the last field: the daemon
    /// forwards it without decoding it.
    Output {
        /// Number of this chunk.
        seq: u64,
        /// From where.
        stream: Stream,
        /// At most [`MAX_CHUNK_BYTES`](crate::limits::MAX_CHUNK_BYTES).
        bytes: Blob,
    },
    /// Output went to the spool (or was dropped) since the last report.
    Spooled {
        /// All bytes that the tool has written so far.
        total_bytes: u64,
        /// Bytes of output in the spool file so far.
        spool_bytes: u64,
    },
    /// Always the last.
    Finished(Box<Finished>),
}

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// What happened.
    pub end: AttemptEnd,
    /// The worker had signalled the tree on the daemon's behalf (`Terminate`, `Kill`) before the main process
    /// ended. When it had not, the end is the tool's own, whatever cause the daemon has on record.
    pub signalled: bool,
    /// A limit for which the worker itself killed the tool, with the value that was set.
    pub killed_for: Option<(LimitName, u64)>,
    /// Limits that were touched.
    pub limits_hit: Vec<LimitName>,
    /// Bytes written to standard output.
    pub stdout_bytes: u64,
    /// Bytes written to standard error.
    pub stderr_bytes: u64,
    /// The last `tail_bytes` of what did not travel as `Output`.
    pub tail: Vec<Segment>,
    /// Bytes that neither travelled nor are in `tail`.
    pub omitted_bytes: u64,
    /// The spool file, if one was made.
    pub spool: Option<crate::call::SpoolInfo>,
    /// A grandchild held an output pipe after the tool's exit.
    pub stdout_open_after_exit: bool,
    /// Bytes of standard input that were not read.
    pub stdin_unread_bytes: u64,
    /// CPU and memory.
    pub usage: Usage,
    /// Processes that outlived the main process and were killed.
    pub leftovers: Vec<Leftover>,
    /// It is proven that no process of the tree is left.
    pub proven_gone: bool,
    /// From exec to the end of the main process.
    pub duration_us: u64,
    /// What was in force; `None` when the tool could not be started.
    pub layers: Option<Layers>,
}

impl Finished {
    /// An end with nothing else to tell.
    #[must_use]
    pub const fn new(end: AttemptEnd, layers: Option<Layers>) -> Self {
        Self {
            end,
            signalled: false,
            killed_for: None,
            limits_hit: Vec::new(),
            stdout_bytes: 0,
            stderr_bytes: 0,
            tail: Vec::new(),
            omitted_bytes: 0,
            spool: None,
            stdout_open_after_exit: false,
            stdin_unread_bytes: 0,
            usage: Usage { user_cpu_us: 0, system_cpu_us: 0, peak_memory_bytes: 0 },
            leftovers: Vec::new(),
            proven_gone: true,
            duration_us: 0,
            layers,
        }
    }
}

/// What happened to the tool's main process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptEnd {
    /// It ended by itself or by a signal.
    Ended(WaitStatus),
    /// It could not be started.
    SpawnFailed {
        /// The step.
        stage: Stage,
        /// The kernel's error number.
        errno: i32,
        /// What was tried, like the path.
        what: String,
    },
    /// A built-in tool ended; its text came as `Output`.
    Builtin {
        /// Whether it worked.
        ok: bool,
    },
}

/// CPU and memory of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// User CPU time of all reaped processes.
    pub user_cpu_us: u64,
    /// System CPU time of all reaped processes.
    pub system_cpu_us: u64,
    /// Largest resident size of one of them.
    pub peak_memory_bytes: u64,
}
