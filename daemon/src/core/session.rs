//! A session: one agent run of one uid, and the batch that it has in flight.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use toolcell_protocol::client_api::OnDisconnect;
use toolcell_protocol::id::{BatchId, CallUid, SessionId, SessionName};

use super::event::{ConnId, Peer};

/// The batch in flight.
#[derive(Debug)]
pub struct Batch {
    /// Its id.
    pub id: BatchId,
    /// The connection that gets its events.
    pub executor: ConnId,
    /// Its calls, in call order.
    pub calls: Vec<CallUid>,
    /// Calls without a result.
    pub unfinished: usize,
}

/// Why a session is ending, and who waits for that.
#[derive(Debug, Default)]
pub struct Closing {
    /// Requests to answer at the end.
    pub askers: Vec<(ConnId, u64)>,
    /// Calls that were killed for it.
    pub killed: u32,
    /// Calls that never started because of it.
    pub cancelled: u32,
}

/// One session.
#[derive(Debug)]
pub struct Session {
    /// Our id.
    pub id: SessionId,
    /// The client's name.
    pub name: SessionName,
    /// Whose it is; its calls run as them where the daemon is root.
    pub owner: Arc<Peer>,
    /// Its agent profile.
    pub agent: Option<String>,
    /// Working directory.
    pub cwd: String,
    /// Environment on top of the daemon's allow-list.
    pub env: Vec<(String, String)>,
    /// What happens when the last connection is gone.
    pub on_disconnect: OnDisconnect,
    /// Connections attached.
    pub attached: BTreeSet<ConnId>,
    /// The batch in flight.
    pub batch: Option<Batch>,
    /// Finished calls that are still known, oldest first.
    pub kept: VecDeque<CallUid>,
    /// Number of the newest event.
    pub last_seq: u64,
    /// Nobody came back to it in time; it ends with its last call.
    pub abandoned: bool,
    /// It is ending.
    pub closing: Option<Closing>,
}
