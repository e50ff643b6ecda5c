//! Plain values about calls that every part of toolcell uses: statuses, results and their details.
//!
//! Their JSON form (snake_case, absent is null) is a contract with programs that read `--json`.

use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::{BatchId, CallId, CallUid, SessionId};

/// Raw bytes. On the wire a length and the bytes; in JSON the text, with U+FFFD where it is not UTF-8.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Blob(pub Vec<u8>);

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.0.len())
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(&String::from_utf8_lossy(&self.0))
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BlobVisitor;

        impl<'de> Visitor<'de> for BlobVisitor {
            type Value = Blob;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Blob, E> {
                Ok(Blob(bytes.to_vec()))
            }

            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Blob, E> {
                Ok(Blob(bytes))
            }

            fn visit_str<E>(self, text: &str) -> Result<Blob, E> {
                Ok(Blob(text.as_bytes().to_vec()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Blob, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = items.next_element::<u8>()? {
                    if bytes.len() >= crate::limits::MAX_FRAME_BYTES {
                        return Err(A::Error::custom("too many bytes"));
                    }
                    bytes.push(byte);
                }
                Ok(Blob(bytes))
            }
        }

        if deserializer.is_human_readable() {
            deserializer.deserialize_str(BlobVisitor)
        } else {
            deserializer.deserialize_byte_buf(BlobVisitor)
        }
    }
}

/// How a call ended. Parameters are in [`StatusDetail`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The tool said that it worked (exit code 0).
    Ok,
    /// The tool exited with another code, or said that it failed.
    Error,
    /// A signal that nobody of ours sent ended the tool.
    Crashed,
    /// Wall-clock or idle timeout (`timeout_kind`).
    TimedOut,
    /// The kernel's out-of-memory killer ended the tool.
    OomKilled,
    /// A limit ended the tool (`limit`).
    LimitExceeded,
    /// Somebody had it killed (`reason`).
    Killed,
    /// Never started, since the batch or the session ended first (`reason`).
    Cancelled,
    /// A plugin or a detector did not let it start (`by`).
    Blocked,
    /// The arguments do not fit the tool's schema (`field`).
    InvalidArgs,
    /// There is no tool of that name (`nearest`).
    UnknownTool,
    /// The tool exists and is switched off.
    ToolDisabled,
    /// A step between fork and exec failed (`stage`, `errno`).
    SpawnFailed,
    /// Our own worker process failed, and the tool's real end is not known.
    WorkerFailed,
    /// Goes on beyond its batch; its end comes later.
    Detached,
    /// The daemon died and no record of the end was left.
    Unknown,
}

impl Status {
    /// Every status, in the order of the wire.
    pub const ALL: [Self; 16] = [
        Self::Ok,
        Self::Error,
        Self::Crashed,
        Self::TimedOut,
        Self::OomKilled,
        Self::LimitExceeded,
        Self::Killed,
        Self::Cancelled,
        Self::Blocked,
        Self::InvalidArgs,
        Self::UnknownTool,
        Self::ToolDisabled,
        Self::SpawnFailed,
        Self::WorkerFailed,
        Self::Detached,
        Self::Unknown,
    ];

    /// The name used in JSON, logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Crashed => "crashed",
            Self::TimedOut => "timed_out",
            Self::OomKilled => "oom_killed",
            Self::LimitExceeded => "limit_exceeded",
            Self::Killed => "killed",
            Self::Cancelled => "cancelled",
            Self::Blocked => "blocked",
            Self::InvalidArgs => "invalid_args",
            Self::UnknownTool => "unknown_tool",
            Self::ToolDisabled => "tool_disabled",
            Self::SpawnFailed => "spawn_failed",
            Self::WorkerFailed => "worker_failed",
            Self::Detached => "detached",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which of the tool's two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A limit that a cell enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitName {
    /// CPU time, of one process (rlimit) or of the whole tree.
    Cpu,
    /// Size of a written file (rlimit `fsize`).
    Fsize,
    /// Open files (rlimit `nofile`).
    Nofile,
    /// Memory (cgroup `memory.max`, or rlimit `as`).
    Memory,
    /// Processes (cgroup `pids.max`, or rlimit `nproc`).
    Pids,
    /// Bytes of output.
    Output,
}

impl LimitName {
    /// The name used in JSON and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Fsize => "fsize",
            Self::Nofile => "nofile",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Output => "output",
        }
    }
}

/// The parameters of a [`Status`]; what does not apply is null.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusDetail {
    /// One sentence for a person: what happened and what to do next.
    pub message: Option<String>,
    /// `error`: the exit code, if the tool exited.
    pub exit_code: Option<i32>,
    /// `crashed`: the signal's number.
    pub signal: Option<i32>,
    /// `crashed`: the signal's name, like `SIGSEGV`.
    pub signal_name: Option<String>,
    /// `killed`, `cancelled`: why (`client_gone`, `kill_requested`, `session_closed`, `shutdown`, …).
    pub reason: Option<String>,
    /// `limit_exceeded`: which.
    pub limit: Option<LimitName>,
    /// `limit_exceeded`: the value that was set, in the unit of that limit's key.
    pub limit_value: Option<u64>,
    /// `timed_out`: `wall` or `idle`.
    pub timeout_kind: Option<String>,
    /// `timed_out`: the timeout that ran out.
    pub timeout_ms: Option<u64>,
    /// `spawn_failed`: the step that failed.
    pub stage: Option<String>,
    /// `spawn_failed`: the kernel's error number.
    pub errno: Option<i32>,
    /// `spawn_failed`: the error's name, like `ENOENT`.
    pub errno_name: Option<String>,
    /// `blocked`: the plugin or detector.
    pub by: Option<String>,
    /// `invalid_args`: JSON pointer to the field that does not fit.
    pub field: Option<String>,
    /// `unknown_tool`: the nearest names there are, best first.
    pub nearest: Vec<String>,
}

/// What keeps a cell's processes together and proves that they are gone, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Containment {
    /// A cgroup v2 leaf of its own.
    Cgroup,
    /// A PID namespace of its own.
    PidNamespace,
    /// Stop, walk and kill by the worker and the spawner as subreapers.
    Weak,
}

impl Containment {
    /// The name used in JSON, logs and configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::PidNamespace => "pid_namespace",
            Self::Weak => "weak",
        }
    }
}

/// Whether one layer of a cell was in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerState {
    /// In force.
    Enforced,
    /// Asked for, and not to be had on this host.
    Unavailable,
}

/// One layer and whether it was in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Like `rlimit_cpu`, `no_new_privileges`, `identity`.
    pub name: String,
    /// Whether it was in force.
    pub state: LayerState,
    /// The value that was set, or why it could not be had.
    pub detail: Option<String>,
}

/// What was really in force around one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layers {
    /// How the process tree was held together.
    pub containment: Containment,
    /// Everything else, in the order in which it was applied.
    pub layers: Vec<Layer>,
}

/// A process that was still there when the tool's main process had ended, and was killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// Its process id, of no use any more.
    pub pid: i32,
    /// Its name, at most 15 bytes (the kernel's `comm`).
    pub comm: String,
}

/// What became of a call's spool file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpoolInfo {
    /// Bytes of output in the file.
    pub bytes: u64,
    /// Whether that is all of the output.
    pub complete: bool,
    /// Why not, if writing failed.
    pub error: Option<String>,
}

/// How the killing of a call went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillInfo {
    /// The recorded cause, as in `status_detail.reason` or the name of the timeout or limit.
    pub cause: String,
    /// Time from the first signal to the proof that the tree was gone.
    pub took_us: u64,
    /// Whether it is proven that nothing is left.
    pub proven_gone: bool,
}

/// Everything about an attempt that the model is not shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Details {
    /// The exit code, if the tool exited.
    pub exit_code: Option<i32>,
    /// The signal that ended the tool, if one did.
    pub signal: Option<i32>,
    /// When the tool was started: milliseconds since 1970.
    pub started_at_ms: Option<u64>,
    /// From acceptance of the batch to the start of the tool.
    pub queued_us: Option<u64>,
    /// From the start of the tool to its end.
    pub duration_us: Option<u64>,
    /// User CPU time of the tree.
    pub user_cpu_us: Option<u64>,
    /// System CPU time of the tree.
    pub system_cpu_us: Option<u64>,
    /// Largest resident size of one process (rusage), or of the cell where the cgroup counts it.
    pub peak_memory_bytes: Option<u64>,
    /// Bytes written to standard output.
    pub stdout_bytes: u64,
    /// Bytes written to standard error.
    pub stderr_bytes: u64,
    /// Bytes of output that `for_model` leaves out.
    pub omitted_bytes: u64,
    /// Whether `for_model` leaves anything out.
    pub truncated: bool,
    /// A grandchild still held an output pipe when the tool's main process had ended.
    pub stdout_open_after_exit: bool,
    /// Bytes of standard input that the tool did not read.
    pub stdin_unread_bytes: u64,
    /// For `output = "json"`: the tool's standard output, checked to be JSON.
    pub structured: Option<String>,
    /// The spool file, if one was written.
    pub spool: Option<SpoolInfo>,
    /// How many attempts were made; 0 if the call never started.
    pub attempts: u32,
    /// What was in force, if the call started.
    pub layers: Option<Layers>,
    /// Processes that outlived the tool's main process and were killed.
    pub leftovers: Vec<Leftover>,
    /// Limits that were touched without ending the tool.
    pub limits_hit: Vec<LimitName>,
    /// How the killing went, if the call was killed.
    pub kill: Option<KillInfo>,
}

/// The one result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallResult {
    /// The caller's id, echoed.
    pub call_id: CallId,
    /// Our id.
    pub call_uid: CallUid,
    /// The tool's name as the caller wrote it.
    pub tool: String,
    /// How it ended.
    pub status: Status,
    /// Parameters of the status.
    pub status_detail: StatusDetail,
    /// What the model should read: bounded text.
    pub for_model: String,
    /// What the model should not read.
    pub details: Details,
}

/// What a batch ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Give the results to the model and go on.
    NextTurn,
    /// The same, with `messages` added.
    Intervene,
    /// End the run; `reason` says why.
    Abort,
}

/// How a batch ended: exactly one result per call, in call order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchResult {
    /// The batch.
    pub batch_id: BatchId,
    /// Its session.
    pub session_id: SessionId,
    /// What to do next.
    pub verdict: Verdict,
    /// Texts of `intervene`.
    pub messages: Vec<String>,
    /// Reason of `abort`.
    pub reason: Option<String>,
    /// Texts that steering left for the next turn.
    pub steering: Vec<String>,
    /// One result per call, in call order.
    pub results: Vec<CallResult>,
}
