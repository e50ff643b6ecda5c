//! The border of the core: everything that can happen, and everything that it can ask for.

use std::sync::Arc;

use toolcell_protocol::call::{CallResult, Layers};
use toolcell_protocol::client_api::{Event, Refusal, Reply, Request, ServerStatus};
use toolcell_protocol::id::{BatchId, CallUid, SessionId};
use toolcell_protocol::worker_api::{Finished, Job, Stage, WaitStatus, WorkerKind};

use super::for_model::Rendered;

/// The time, as it comes in with each input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Now {
    /// Microseconds since some fixed moment; never goes back. All deadlines are on this scale.
    pub mono_us: u64,
    /// Milliseconds since 1970, for people; may jump.
    pub wall_ms: u64,
}

/// One connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// Who is at the other end of a connection, as the kernel told us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Sees and touches every session (root, or a member of the admin group).
    pub admin: bool,
    /// HOME, USER, LOGNAME and SHELL of that user, where the daemon serves others than itself.
    pub home_env: Vec<(String, String)>,
}

/// A request and where its answer goes.
#[derive(Debug, Clone)]
pub struct Asker {
    /// The connection.
    pub conn: ConnId,
    /// The client's number of the request.
    pub request_id: u64,
    /// Who asks.
    pub peer: Arc<Peer>,
}

/// Ids that an input may use up. Made outside, since making them takes a clock and randomness.
#[derive(Debug, Clone, Default)]
pub struct FreshIds {
    /// For `session.open`.
    pub session: Option<SessionId>,
    /// For `batch.execute`.
    pub batch: Option<BatchId>,
    /// For `batch.execute`: one for each call.
    pub calls: Vec<CallUid>,
}

impl FreshIds {
    /// Makes what this request needs with the given source of ids.
    pub fn for_request(request: &Request, mut next: impl FnMut() -> uuid::Uuid) -> Self {
        match request {
            Request::SessionOpen(_) => Self { session: Some(SessionId(next())), ..Self::default() },
            Request::BatchExecute(batch) => Self {
                batch: Some(BatchId(next())),
                calls: batch.calls.iter().map(|_| CallUid(next())).collect(),
                ..Self::default()
            },
            _ => Self::default(),
        }
    }
}

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// A client asks for something.
    Request {
        /// Who, and where the answer goes.
        from: Asker,
        /// What.
        request: Request,
        /// Ids to use.
        fresh: FreshIds,
    },
    /// A connection is gone.
    Disconnected {
        /// Which.
        conn: ConnId,
    },
    /// The tool of an attempt runs.
    AttemptStarted {
        /// The call.
        call: CallUid,
        /// The tool's process.
        pid: i32,
        /// What is in force.
        layers: Layers,
    },
    /// An attempt wrote output; all bytes so far.
    AttemptOutput {
        /// The call.
        call: CallUid,
        /// All bytes so far.
        total_bytes: u64,
    },
    /// An attempt is over; nothing more comes of it.
    AttemptEnded {
        /// The call.
        call: CallUid,
        /// How.
        report: Box<AttemptReport>,
    },
    /// A deadline has come (or nothing: spurious wake-ups are harmless).
    Deadline,
    /// The daemon shall end.
    Shutdown,
}

/// How an attempt ended, as the supervisor tells it.
#[derive(Debug)]
pub struct AttemptReport {
    /// What is known.
    pub end: AttemptEnding,
    /// The bounded text made of its output.
    pub rendered: Rendered,
    /// It is proven that no process of the cell is left.
    pub proven_gone: bool,
}

/// What is known of an attempt's end.
#[derive(Debug)]
pub enum AttemptEnding {
    /// The worker said `Finished`.
    Finished(Box<Finished>),
    /// No worker could be forked, or the job could not be handed over.
    NotStarted {
        /// The step.
        stage: Stage,
        /// The kernel's error number.
        errno: i32,
        /// What was tried.
        what: String,
    },
    /// The worker ended without `Finished`.
    WorkerLost {
        /// How, where the spawner could tell.
        wait: Option<WaitStatus>,
        /// What broke, for people.
        reason: String,
        /// What had been in force, if the tool had started.
        layers: Option<Layers>,
        /// Output bytes that had arrived, by stream.
        output_bytes: (u64, u64),
    },
}

/// What to do.
#[derive(Debug)]
pub enum Effect {
    /// Answer a request.
    Reply {
        /// Where to.
        conn: ConnId,
        /// The client's number of the request.
        request_id: u64,
        /// The answer.
        reply: Result<Reply, Refusal>,
    },
    /// Answer `server.status` after filling in what only the shells know.
    ReplyStatus {
        /// Where to.
        conn: ConnId,
        /// The client's number of the request.
        request_id: u64,
        /// With the core's own figures.
        status: Box<ServerStatus>,
    },
    /// Tell a connection what happened in a session.
    Event {
        /// Where to.
        conn: ConnId,
        /// What.
        event: Event,
    },
    /// Start an attempt. Exactly one `AttemptEnded` must follow.
    StartAttempt(Box<StartAttempt>),
    /// Send TERM to a running attempt's tool.
    TerminateAttempt {
        /// The call.
        call: CallUid,
    },
    /// Kill a running attempt's whole tree.
    KillAttempt {
        /// The call.
        call: CallUid,
    },
    /// Answer `call.output` from what is kept.
    ReadOutput {
        /// Where to.
        conn: ConnId,
        /// The client's number of the request.
        request_id: u64,
        /// The call.
        call: CallUid,
        /// From where.
        cursor: u64,
        /// How much at most.
        max_bytes: u32,
        /// How long to wait for the first byte.
        wait_ms: u64,
        /// The call has its result; else its output may still be about to begin.
        ended: bool,
    },
    /// The call is not known any more: forget its output.
    ForgetOutput {
        /// The call.
        call: CallUid,
    },
    /// A call has its result: the one record of it in the log.
    LogEnd {
        /// Name of the session.
        session: String,
        /// Whose.
        uid: u32,
        /// The result.
        result: Arc<CallResult>,
    },
    /// Nothing runs any more and nothing will.
    Stopped,
}

/// One attempt to start.
#[derive(Debug)]
pub struct StartAttempt {
    /// Which kind of worker it needs.
    pub kind: WorkerKind,
    /// The job.
    pub job: Job,
    /// Push the output to this connection.
    pub stream_to: Option<ConnId>,
    /// Bound of the text for the model.
    pub for_model_bytes: usize,
    /// The tool promised JSON on standard output.
    pub expect_json: bool,
    /// What the text for the model says about bytes that it leaves out.
    pub how_to_read: String,
}
