//! What a running batch yields.

use toolcell_protocol::call::Stream;
use toolcell_protocol::client_api::Event;
use toolcell_protocol::id::CallUid;

/// Output of a call that was executed with `stream`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveOutput {
    /// The call.
    pub call_uid: CallUid,
    /// From where.
    pub stream: Stream,
    /// Never empty in practice, and in arrival order for each call.
    pub bytes: Vec<u8>,
}

/// One thing that happened in a running batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchEvent {
    /// An event of the session that belongs to this batch; `BatchFinished` is the last one.
    Event(Event),
    /// Live output.
    Output(LiveOutput),
}
