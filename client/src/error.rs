//! What can go wrong between a client and the daemon; each message says what to do next.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;
use toolcell_protocol::client_api::Refusal;
use toolcell_protocol::id::BatchId;

/// A socket that was tried and why it was of no use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// The socket's path.
    pub path: PathBuf,
    /// What the system said.
    pub reason: String,
    /// The kind of `reason`, for programs.
    pub kind: std::io::ErrorKind,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

/// Why a request has no answer. A tool's failure is never one of these.
///
/// `Clone`, since everybody who waits on a connection learns of its end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No daemon could be reached.
    #[error("no toolcell daemon can be reached (tried {}); {}", list(.tried), advice(*.explicit))]
    Connect {
        /// Every socket that was tried, in order.
        tried: Vec<Tried>,
        /// The one socket was named by the caller or by `TOOLCELL_SOCKET`, so nothing else was tried.
        explicit: bool,
    },
    /// There is something behind the socket, and the two could not agree to talk.
    #[error("handshake with the daemon failed: {reason}")]
    Handshake {
        /// What happened and what to do.
        reason: String,
    },
    /// The daemon understood the request and refused it.
    #[error("refused by the daemon ({}): {}", .0.code.name(), .0.message)]
    Refused(Refusal),
    /// The connection ended while something was still awaited. What the daemon had accepted may still run.
    #[error(
        "connection to the daemon lost: {reason}; what it had accepted may still run: connect again and ask \
         for the call"
    )]
    ConnectionLost {
        /// What ended it.
        reason: String,
    },
    /// The daemon said something that this client cannot make sense of. The connection is of no use any more.
    #[error("the daemon broke the protocol: {reason}; check that client and daemon are of one release")]
    Protocol {
        /// What it said.
        reason: String,
    },
    /// No answer in time. The request may still be carried out.
    #[error(
        "no answer to {what} within {after_ms} ms; it may still be carried out: ask again or look at the daemon's log"
    )]
    Timeout {
        /// The request.
        what: &'static str,
        /// How long was waited.
        after_ms: u64,
    },
    /// This connection is blocked by output that its owner does not read.
    #[error(
        "{bytes} bytes of live output of another batch on this connection are not being read; read or drop that \
         RunningBatch, or give it a connection of its own"
    )]
    Backlog {
        /// Bytes that wait for their reader.
        bytes: usize,
    },
    /// The request cannot be sent as it is.
    #[error("the request cannot be sent: {reason}")]
    BadRequest {
        /// Which bound it breaks.
        reason: String,
    },
    /// The same idempotency key was executed again on this connection, and the newer `RunningBatch` has the events.
    #[error("batch {batch_id} is now followed by a newer RunningBatch of this connection; use that one")]
    TakenOver {
        /// The batch.
        batch_id: BatchId,
    },
}

impl ClientError {
    pub(crate) fn protocol(reason: impl Into<String>) -> Self {
        Self::Protocol { reason: reason.into() }
    }

    pub(crate) fn lost(reason: impl Into<String>) -> Self {
        Self::ConnectionLost { reason: reason.into() }
    }
}

fn list(tried: &[Tried]) -> String {
    if tried.is_empty() {
        return "nothing".to_owned();
    }
    tried.iter().map(Tried::to_string).collect::<Vec<_>>().join("; ")
}

const fn advice(explicit: bool) -> &'static str {
    if explicit {
        "start toolcelld on that socket, or name another one"
    } else {
        "start toolcelld, or set TOOLCELL_SOCKET to its socket"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_search_lists_what_was_tried_and_says_what_to_do() {
        let tried = vec![Tried {
            path: PathBuf::from("/run/toolcell/toolcell.sock"),
            reason: "No such file".to_owned(),
            kind: std::io::ErrorKind::NotFound,
        }];
        let text = ClientError::Connect { tried: tried.clone(), explicit: false }.to_string();
        assert_eq!(
            text,
            "no toolcell daemon can be reached (tried /run/toolcell/toolcell.sock: No such file); start \
             toolcelld, or set TOOLCELL_SOCKET to its socket"
        );
        assert!(ClientError::Connect { tried, explicit: true }.to_string().contains("on that socket"));
    }
}
