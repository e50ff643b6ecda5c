//! What a connection can be told, and short ways to write requests.

use std::time::Duration;

use toolcell_protocol::client_api::{CallRequest, OnDisconnect, SessionOpen};
use toolcell_protocol::id::{CallId, SessionName};

/// How a connection behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Name and version of this program, for the daemon's log.
    pub client: String,
    /// Longest time for connecting and for the handshake, each.
    pub connect_timeout: Duration,
    /// Longest time for an answer, on top of the time that the request itself may wait (`call_wait`,
    /// `call_output`, `call_kill`). The running of a batch has no timeout here: its calls have their own.
    pub request_timeout: Duration,
    /// Bytes of live output and events that may wait on this connection for their readers. Above, reading stops
    /// for everybody but those readers until they have caught up, or [`Backlog`](crate::ClientError::Backlog).
    pub backlog_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            client: concat!("toolcell-client/", env!("CARGO_PKG_VERSION")).to_owned(),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            backlog_bytes: 32 * 1024 * 1024,
        }
    }
}

/// A session with the usual settings: no agent profile, no extra environment, and calls that linger when the
/// connection is lost. `cwd` must be absolute.
#[must_use]
pub fn session(name: &str, cwd: &str) -> SessionOpen {
    SessionOpen {
        name: SessionName::from(name),
        agent: None,
        cwd: cwd.to_owned(),
        env: Vec::new(),
        on_disconnect: OnDisconnect::Linger,
    }
}

/// A call with the tool's own settings; `args` is the JSON text of an object.
#[must_use]
pub fn call(call_id: &str, tool: &str, args: &str) -> CallRequest {
    CallRequest {
        call_id: CallId::from(call_id),
        tool: tool.to_owned(),
        args: args.to_owned(),
        cwd: None,
        timeout_ms: None,
        immune: None,
        stream: false,
    }
}
