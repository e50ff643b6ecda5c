//! The life of one call.
//!
//! ```text
//!            admission says no ───────────────────────────────────────────────┐
//! Queued ──▶ Starting ──▶ Running ──▶ Terminating ──▶ Finished(exactly one result)
//!   │            │            └──────── ended ─────────▶ ▲
//!   │            └───────────── could not start ─────────┤
//!   └───────────────────────────── cancelled ────────────┘
//! ```
//!
//! * *Queued*: admitted, waits for a place. Ends by a place or by a kill (then `cancelled`).
//! * *Starting*: a worker has the job. The wall-clock deadline runs from here.
//! * *Running*: the tool runs; idle deadline too, if there is one.
//! * *Terminating*: the one cause is recorded and the tree is being ended. What the attempt reports then is
//!   read in the light of that cause; a call that had ended by itself before keeps its own end.
//! * *Finished*: it has its result, for ever.

use std::sync::Arc;

use toolcell_protocol::call::{CallResult, Layers};
use toolcell_protocol::client_api::{CallInfo, CallPhase, KillAnswer};
use toolcell_protocol::id::{BatchId, CallId, CallUid, SessionId};

use super::event::{ConnId, Now, StartAttempt};

/// Why a call is being ended. The first one stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// Its wall-clock timeout ran out.
    WallTimeout {
        /// The timeout.
        timeout_ms: u64,
    },
    /// It wrote nothing for too long.
    IdleTimeout {
        /// The timeout.
        timeout_ms: u64,
    },
    /// Somebody asked for it.
    Requested {
        /// What they said.
        reason: String,
    },
    /// Its client is gone.
    ClientGone,
    /// Its session was closed.
    SessionClosed,
    /// The daemon ends.
    Shutdown,
}

impl Cause {
    /// The word used in results, events and logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::WallTimeout { .. } => "wall_timeout",
            Self::IdleTimeout { .. } => "idle_timeout",
            Self::Requested { .. } => "kill_requested",
            Self::ClientGone => "client_gone",
            Self::SessionClosed => "session_closed",
            Self::Shutdown => "shutdown",
        }
    }
}

/// Somebody who waits for a call's end with `call.wait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiter {
    /// Number of the waiter, for its timer.
    pub number: u64,
    /// Where the answer goes.
    pub conn: ConnId,
    /// The client's number of the request.
    pub request_id: u64,
}

/// Somebody who asked for a kill and waits for the proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KillWaiter {
    /// Where the answer goes.
    pub conn: ConnId,
    /// The client's number of the request.
    pub request_id: u64,
    /// The answer when the proof is there.
    pub answer: KillAnswer,
}

/// One call.
#[derive(Debug)]
pub struct Call {
    /// Our id.
    pub uid: CallUid,
    /// The caller's id.
    pub id: CallId,
    /// Its session.
    pub session: SessionId,
    /// Its batch.
    pub batch: BatchId,
    /// The tool's name as the caller wrote it.
    pub tool: String,
    /// JSON text of the arguments.
    pub args: String,
    /// Spared by steering and `killable` aborts.
    pub immune: bool,
    /// When the batch was accepted.
    pub accepted_us: u64,
    /// Where it is.
    pub phase: CallPhase,
    /// The resource limits that its job has.
    pub rlimits: toolcell_protocol::worker_api::Rlimits,
    /// What to start, until it is started.
    pub to_start: Option<Box<StartAttempt>>,
    /// Attempts made so far.
    pub attempts: u32,
    /// Wall-clock timeout.
    pub timeout_ms: u64,
    /// Idle timeout.
    pub idle_timeout_ms: Option<u64>,
    /// Time between TERM and KILL when a timeout ends it.
    pub timeout_grace_ms: u64,
    /// The same when something else ends it.
    pub kill_grace_ms: u64,
    /// Why it is being ended, and since when.
    pub cause: Option<(Cause, u64)>,
    /// The tool's process.
    pub pid: Option<i32>,
    /// When the attempt was handed over, and what the wall clock said then.
    pub starting: Option<Now>,
    /// When the tool was started.
    pub started: Option<Now>,
    /// What is in force.
    pub layers: Option<Layers>,
    /// Output so far.
    pub output_bytes: u64,
    /// The one result.
    pub result: Option<Arc<CallResult>>,
    /// Who waits for its end.
    pub waiters: Vec<Waiter>,
    /// Who waits for the proof of a kill.
    pub kill_waiters: Vec<KillWaiter>,
}

impl Call {
    /// The line of `call.list`.
    #[must_use]
    pub fn info(&self, session_name: &toolcell_protocol::id::SessionName, uid: u32, now: Now) -> CallInfo {
        let since_ms = |from_us: u64| now.mono_us.saturating_sub(from_us) / 1000;
        CallInfo {
            call_uid: self.uid,
            call_id: self.id.clone(),
            session: session_name.clone(),
            uid,
            tool: self.tool.clone(),
            phase: self.phase,
            status: self.result.as_ref().map(|result| result.status),
            pid: if matches!(self.phase, CallPhase::Finished) { None } else { self.pid },
            age_ms: since_ms(self.accepted_us),
            running_ms: match (&self.result, self.started) {
                (None, Some(started)) => Some(since_ms(started.mono_us)),
                _ => None,
            },
            output_bytes: self.output_bytes,
            immune: self.immune,
        }
    }

    /// A worker has it, and its end has not been reported.
    #[must_use]
    pub const fn in_flight(&self) -> bool {
        matches!(self.phase, CallPhase::Starting | CallPhase::Running | CallPhase::Terminating)
    }
}
