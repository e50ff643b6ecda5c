//! Client ⇄ daemon.
//!
//! ```text
//! client: Hello ─▶ daemon: Hello(Accepted | Refused)
//! client: Request{id, …} ─▶ daemon: Reply{id, Ok | Refusal}     any number in flight, answers in any order
//!                          daemon: Event, Output                 at any time
//!                          daemon: Closing                       the last message before it closes
//! ```
//!
//! The connection that executes a batch gets that batch's events without asking, up to `BatchFinished`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::call::{BatchResult, Blob, CallResult, Containment, Status, Stream};
use crate::id::{BatchId, CallId, CallUid, SessionId, SessionName};
use crate::version::VersionRange;

/// Client → daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientMessage {
    /// Always the first; never changes, for ever.
    Hello(ClientHello),
    /// A request; `id` comes back in its reply and should be unique on the connection.
    Request {
        /// Chosen by the client.
        id: u64,
        /// What is wanted.
        request: Request,
    },
}

/// The client's half of the handshake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientHello {
    /// Versions that the client speaks.
    pub versions: VersionRange,
    /// Name and version of the client program, for logs.
    pub client: String,
}

/// Daemon → client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DaemonMessage {
    /// Always the first; never changes, for ever.
    Hello(DaemonHello),
    /// The answer to a request.
    Reply {
        /// From the request.
        id: u64,
        /// The answer.
        reply: Result<Reply, Refusal>,
    },
    /// Something happened in a session.
    Event(Event),
    /// Output of a call that was asked for with `stream`. `bytes` is the last field so that it can be
    /// forwarded without being decoded.
    Output {
        /// The call.
        call_uid: CallUid,
        /// Counts from 0 in each call; none is missing.
        seq: u64,
        /// From where.
        stream: Stream,
        /// At most [`MAX_CHUNK_BYTES`](crate::limits::MAX_CHUNK_BYTES).
        bytes: Blob,
    },
    /// The daemon closes the connection now.
    Closing {
        /// Why, and what to do.
        reason: String,
    },
}

/// The daemon's half of the handshake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DaemonHello {
    /// Go on with this version.
    Accepted {
        /// The version chosen.
        version: u32,
        /// Name and version of the daemon.
        daemon: String,
        /// New at each start of the daemon; sequence numbers of another epoch mean nothing.
        epoch: u64,
        /// The uid that the kernel reports for this client; what it may see and touch.
        uid: u32,
    },
    /// The daemon closes after this.
    Refused {
        /// Why, and what to do.
        reason: String,
        /// What the daemon speaks.
        versions: VersionRange,
    },
}

/// A session as requests name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionRef {
    /// Whose; `None` is the caller's own uid. Another uid needs root or the admin group.
    pub uid: Option<u32>,
    /// Its name.
    pub name: SessionName,
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The tools there are.
    ToolsList,
    /// Creates a session or re-attaches to it.
    SessionOpen(SessionOpen),
    /// A session's state.
    SessionGet {
        /// Which.
        session: SessionRef,
    },
    /// Ends a session: running calls are killed.
    SessionClose {
        /// Which.
        session: SessionRef,
    },
    /// The caller's sessions (an admin: all).
    SessionList,
    /// Runs the tool calls of one model turn.
    BatchExecute(BatchExecute),
    /// Calls that run or wait, and on request recent ones.
    CallList {
        /// Of this session only.
        session: Option<SessionRef>,
        /// Also calls that have ended and are still known.
        finished: bool,
    },
    /// One call.
    CallGet {
        /// Which.
        call_uid: CallUid,
    },
    /// Output of a call, live or later.
    CallOutput {
        /// Which.
        call_uid: CallUid,
        /// 0, or `next_cursor` of the page before.
        cursor: u64,
        /// At most [`MAX_OUTPUT_PAGE_BYTES`](crate::limits::MAX_OUTPUT_PAGE_BYTES).
        max_bytes: u32,
        /// How long to wait when nothing is there yet; 0 does not wait.
        wait_ms: u64,
    },
    /// Waits for a call's end.
    CallWait {
        /// Which.
        call_uid: CallUid,
        /// How long at most; the answer is `CallEnd(None)` then.
        timeout_ms: u64,
    },
    /// Kills a call. Answered when it is proven gone, or after 2 s with `kill_pending`.
    CallKill {
        /// Which.
        call_uid: CallUid,
        /// For the record and the result; free text.
        reason: String,
    },
    /// How the daemon is.
    ServerStatus,
}

/// Parameters of `session.open`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionOpen {
    /// Chosen by the client.
    pub name: SessionName,
    /// A profile in the daemon's configuration.
    pub agent: Option<String>,
    /// Absolute working directory of the session's calls.
    pub cwd: String,
    /// Environment that the session's calls get on top of the daemon's allow-list.
    pub env: Vec<(String, String)>,
    /// What happens to running calls when the last connection of the session is gone.
    pub on_disconnect: OnDisconnect,
}

/// What happens to a session whose last connection is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDisconnect {
    /// Its calls go on; killed with cause `client_gone` when nobody came back in time.
    Linger,
    /// Its calls are killed at once with cause `client_gone`, and the session ends.
    Abort,
}

/// Parameters of `batch.execute`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchExecute {
    /// Where.
    pub session: SessionRef,
    /// At most [`MAX_CALLS_PER_BATCH`](crate::limits::MAX_CALLS_PER_BATCH), with distinct `call_id`s.
    pub calls: Vec<CallRequest>,
    /// Idempotency key: the same key in the same session answers with the batch that is there.
    pub key: Option<String>,
}

/// One call of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRequest {
    /// The caller's id.
    pub call_id: CallId,
    /// The tool's name.
    pub tool: String,
    /// JSON text of an object.
    pub args: String,
    /// Absolute, or relative to the session's; `None` is the session's.
    pub cwd: Option<String>,
    /// Wall-clock timeout; `None` is the tool's. Capped by the daemon's configuration.
    pub timeout_ms: Option<u64>,
    /// Overrides the manifest.
    pub immune: Option<bool>,
    /// Push the output to this connection as it comes, whole, and keep no spool. A reader that does not read
    /// holds its own tool, and nothing else.
    pub stream: bool,
}

/// What a daemon answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To `ToolsList`.
    Tools(Vec<ToolInfo>),
    /// To `SessionOpen`.
    SessionOpened {
        /// The session.
        session_id: SessionId,
        /// It did not exist before.
        created: bool,
        /// Sequence number of its newest event; 0 if there is none.
        last_seq: u64,
    },
    /// To `SessionGet`.
    Session(Box<SessionInfo>),
    /// To `SessionClose`: how many running calls were killed, how many waiting ones cancelled.
    SessionClosed {
        /// Killed.
        killed: u32,
        /// Never started.
        cancelled: u32,
    },
    /// To `SessionList`.
    Sessions(Vec<SessionInfo>),
    /// To `BatchExecute`.
    BatchAccepted {
        /// The batch.
        batch_id: BatchId,
        /// What now.
        answer: ExecuteAnswer,
        /// Our ids, in call order.
        call_uids: Vec<CallUid>,
    },
    /// To `CallList`.
    Calls(Vec<CallInfo>),
    /// To `CallGet`.
    Call(Box<CallRecord>),
    /// To `CallOutput`.
    Output(OutputPage),
    /// To `CallWait`; `None`: it still runs.
    CallEnd(Option<Arc<CallResult>>),
    /// To `CallKill`.
    CallKilled(KillAnswer),
    /// To `ServerStatus`.
    Status(Box<ServerStatus>),
}

/// What a batch's acceptance means for the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecuteAnswer {
    /// Calls run; `BatchFinished` follows.
    ExecutingTools,
    /// Nothing could run; `BatchFinished` follows at once.
    NextTurn,
    /// The run should end; `BatchFinished` follows at once.
    Abort,
}

/// What became of a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillAnswer {
    /// It ran, and is proven gone.
    Killed,
    /// It never started, and never will.
    Cancelled,
    /// It had ended before.
    AlreadyEnded,
    /// Not proven gone within 2 s; the daemon keeps trying.
    KillPending,
}

/// A refusal: the peer's fault or the daemon's state, never a tool's failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// For people: what is wrong and what to do next.
    pub message: String,
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// A field is out of its bounds; `message` names it.
    BadRequest,
    /// The handshake has not happened, or happened twice.
    Handshake,
    /// The session has a batch in flight.
    BatchInProgress,
    /// Two calls of the batch have one `call_id`.
    DuplicateCallId,
    /// No session of that name (or none that the caller may see).
    UnknownSession,
    /// No call of that uid (or none that the caller may see).
    UnknownCall,
    /// Exists, and is not the caller's.
    NotPermitted,
    /// A limit of the daemon is reached; try again later.
    Overloaded,
    /// The daemon is ending.
    ShuttingDown,
    /// The call's output is not kept any more.
    OutputExpired,
    /// No agent profile of that name.
    UnknownAgent,
    /// Our own fault; the daemon's log has more.
    Internal,
}

impl RefusalCode {
    /// The name used in JSON and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::Handshake => "handshake",
            Self::BatchInProgress => "batch_in_progress",
            Self::DuplicateCallId => "duplicate_call_id",
            Self::UnknownSession => "unknown_session",
            Self::UnknownCall => "unknown_call",
            Self::NotPermitted => "not_permitted",
            Self::Overloaded => "overloaded",
            Self::ShuttingDown => "shutting_down",
            Self::OutputExpired => "output_expired",
            Self::UnknownAgent => "unknown_agent",
            Self::Internal => "internal",
        }
    }
}

/// One tool as clients see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolInfo {
    /// Its name.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON text of its schema.
    pub input_schema: String,
    /// One of the nine kinds (`read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch`, `other`).
    pub kind: String,
    /// Does not change anything.
    pub read_only: bool,
    /// May destroy something.
    pub destructive: bool,
    /// Twice is as good as once.
    pub idempotent: bool,
    /// Reaches beyond this host.
    pub open_world: bool,
    /// Steering and `killable` aborts spare it.
    pub immune: bool,
    /// Runs alone in its session.
    pub exclusive: bool,
    /// Wall-clock timeout.
    pub timeout_ms: u64,
    /// `builtin`, or the manifest's path.
    pub source: String,
    /// What it runs, as the manifest has it; empty for built-ins that run without exec.
    pub command: Vec<String>,
}

/// A session's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Our id.
    pub session_id: SessionId,
    /// The client's name for it.
    pub name: SessionName,
    /// Whose.
    pub uid: u32,
    /// Its agent profile.
    pub agent: Option<String>,
    /// Working directory.
    pub cwd: String,
    /// What happens when its last connection is gone.
    pub on_disconnect: OnDisconnect,
    /// Connections attached now.
    pub attached: u32,
    /// Names of the tools that it may call.
    pub active_tools: Vec<String>,
    /// The batch in flight.
    pub batch: Option<BatchId>,
    /// Calls that run or wait.
    pub calls: Vec<CallInfo>,
    /// Sequence number of its newest event.
    pub last_seq: u64,
}

/// Where a call is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallPhase {
    /// Admitted, waits for a place.
    Queued,
    /// A worker has it.
    Starting,
    /// The tool runs.
    Running,
    /// It is being ended.
    Terminating,
    /// It has its result.
    Finished,
}

/// One line of `call.list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallInfo {
    /// Our id.
    pub call_uid: CallUid,
    /// The caller's id.
    pub call_id: CallId,
    /// Name of its session.
    pub session: SessionName,
    /// Whose.
    pub uid: u32,
    /// The tool.
    pub tool: String,
    /// Where it is.
    pub phase: CallPhase,
    /// How it ended, if it has.
    pub status: Option<Status>,
    /// The tool's process, while it runs.
    pub pid: Option<i32>,
    /// Since the batch was accepted.
    pub age_ms: u64,
    /// Since the tool was started.
    pub running_ms: Option<u64>,
    /// Output so far.
    pub output_bytes: u64,
    /// Spared by steering and `killable` aborts.
    pub immune: bool,
}

/// Everything kept about one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRecord {
    /// The line of `call.list`.
    pub info: CallInfo,
    /// JSON text of the arguments that were used.
    pub args: String,
    /// The result, if it has ended.
    pub result: Option<Arc<CallResult>>,
}

/// A page of output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPage {
    /// Pieces in arrival order.
    pub pieces: Vec<OutputPiece>,
    /// Ask with this next.
    pub next_cursor: u64,
    /// The call has ended and nothing comes after this page.
    pub end: bool,
    /// Bytes between the last page and this one that were not kept.
    pub skipped_bytes: u64,
}

/// A piece of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPiece {
    /// From where.
    pub stream: Stream,
    /// The bytes.
    pub bytes: Blob,
}

/// How the daemon is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Name and version.
    pub daemon: String,
    /// Process id.
    pub pid: i32,
    /// Process id of the spawner, while there is one.
    pub spawner_pid: Option<i32>,
    /// As whom it runs.
    pub uid: u32,
    /// Lives inside a `toolcell` command.
    pub embedded: bool,
    /// Since it started.
    pub uptime_ms: u64,
    /// New at each start.
    pub epoch: u64,
    /// How trees are held together.
    pub containment: Containment,
    /// Why not better, if it is not the best one.
    pub containment_reason: Option<String>,
    /// Idle workers waiting.
    pub idle_workers: u32,
    /// Times the spawner was started again.
    pub spawner_restarts: u32,
    /// Connections.
    pub connections: u32,
    /// Sessions.
    pub sessions: u32,
    /// Calls that run.
    pub running: u32,
    /// Calls that wait.
    pub queued: u32,
    /// Calls that ended, by status, since the start.
    pub ended: Vec<(Status, u64)>,
    /// Paths of manifests that could not be loaded, with the reason.
    pub broken_manifests: Vec<String>,
}

/// Something that happened in a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Where.
    pub session_id: SessionId,
    /// Rises by one in each session.
    pub seq: u64,
    /// When: milliseconds since 1970.
    pub at_ms: u64,
    /// What.
    pub body: EventBody,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventBody {
    /// A batch was accepted.
    BatchStarted {
        /// Which.
        batch_id: BatchId,
        /// Calls in it.
        count: u32,
    },
    /// A tool runs.
    ToolStarted {
        /// Which.
        call_uid: CallUid,
        /// The caller's id.
        call_id: CallId,
        /// The tool.
        name: String,
        /// Its process.
        pid: i32,
        /// JSON text of the arguments that it got.
        args: String,
    },
    /// A call was killed and its whole tree is gone.
    ToolKilled {
        /// Which.
        call_uid: CallUid,
        /// The caller's id.
        call_id: CallId,
        /// The tool.
        name: String,
        /// Why.
        reason: String,
    },
    /// A call has its result (also one that never started).
    ToolFinished {
        /// Which.
        call_uid: CallUid,
        /// The caller's id.
        call_id: CallId,
        /// The tool.
        name: String,
        /// How it ended.
        status: Status,
        /// From start to end; null if it never started.
        duration_us: Option<u64>,
    },
    /// A batch ended.
    BatchFinished(Arc<BatchResult>),
}
