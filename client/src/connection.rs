//! The client's half of the protocol without I/O and without a clock: bytes in → messages out, requests in →
//! bytes out. Both faces drive it, and tests drive it in memory.
//!
//! ```text
//!            Hello(Accepted)              Closing, end of stream
//! Handshake ────────────────▶ Open ─────────────────────────────────▶ Failed(ConnectionLost)
//!     │ Hello(Refused), end     │ an answer to nothing, bytes that are no message
//!     ▼                         ▼
//! Failed(Handshake)          Failed(Protocol)
//! ```
//!
//! `Failed` is final: everything from then on gets the same error.

use std::collections::HashSet;

use toolcell_protocol::client_api::{
    ClientHello, ClientMessage, DaemonHello, DaemonMessage, Event, Refusal, Reply, Request,
};
use toolcell_protocol::codec::{self, CodecError};
use toolcell_protocol::frame::HEADER_BYTES;
use toolcell_protocol::version::VersionRange;

use crate::error::ClientError;
use crate::event::LiveOutput;
use crate::receive::ReceiveBuffer;

/// Memory for requests that a quiet connection may keep.
const KEEP_OUTGOING_BYTES: usize = 1024 * 1024;

/// What the daemon said of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The version that was agreed on.
    pub version: u32,
    /// Its name and version.
    pub daemon: String,
    /// New at each start; sequence numbers of another epoch mean nothing.
    pub epoch: u64,
    /// The uid that the kernel reports for this client.
    pub uid: u32,
}

/// A message that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// The handshake is done.
    Accepted,
    /// The answer to a request of ours, the only one.
    Reply {
        /// From [`Connection::request`].
        id: u64,
        /// The answer.
        reply: Result<Reply, Refusal>,
    },
    /// Something happened in a session.
    Event(Event),
    /// Live output.
    Output {
        /// Counts from 0 in each call.
        seq: u64,
        /// The output.
        output: LiveOutput,
    },
}

/// A message and what it cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The message.
    pub message: Incoming,
    /// Bytes of its frame.
    pub frame_bytes: usize,
}

#[derive(Debug)]
enum State {
    Handshake,
    Open(Server),
    Failed(ClientError),
}

/// One conversation with a daemon.
#[derive(Debug)]
pub struct Connection {
    state: State,
    received: ReceiveBuffer,
    outgoing: Vec<u8>,
    /// How much of `outgoing` is on its way.
    sent: usize,
    unanswered: HashSet<u64>,
    next_id: u64,
}

impl Connection {
    /// A new conversation; [`outgoing`](Self::outgoing) holds its first message.
    ///
    /// # Errors
    /// [`ClientError::BadRequest`] when the client's name does not fit a frame.
    pub fn new(client: &str) -> Result<Self, ClientError> {
        let hello = ClientHello { versions: VersionRange::CLIENT, client: client.to_owned() };
        let mut outgoing = Vec::with_capacity(512);
        codec::encode_frame(&ClientMessage::Hello(hello), &mut outgoing).map_err(bad_request)?;
        Ok(Self {
            state: State::Handshake,
            received: ReceiveBuffer::default(),
            outgoing,
            sent: 0,
            unanswered: HashSet::new(),
            next_id: 1,
        })
    }

    /// What the daemon said of itself, once the handshake is done.
    #[must_use]
    pub const fn server(&self) -> Option<&Server> {
        match &self.state {
            State::Open(server) => Some(server),
            State::Handshake | State::Failed(_) => None,
        }
    }

    /// Why the conversation is over, if it is.
    #[must_use]
    pub const fn failure(&self) -> Option<&ClientError> {
        match &self.state {
            State::Failed(error) => Some(error),
            State::Handshake | State::Open(_) => None,
        }
    }

    /// Adds a request to the outgoing bytes and returns its id.
    ///
    /// # Errors
    /// The failure, [`ClientError::Handshake`] before the handshake is done, and [`ClientError::BadRequest`]
    /// when the request does not fit a frame.
    pub fn request(&mut self, request: Request) -> Result<u64, ClientError> {
        match &self.state {
            State::Open(_) => {}
            State::Failed(error) => return Err(error.clone()),
            State::Handshake => {
                return Err(ClientError::Handshake { reason: "it is not done yet; wait for it".to_owned() });
            }
        }
        let id = self.next_id;
        codec::encode_frame(&ClientMessage::Request { id, request }, &mut self.outgoing)
            .map_err(bad_request)?;
        self.next_id += 1;
        self.unanswered.insert(id);
        Ok(id)
    }

    /// Bytes to write, as soon as the socket takes them.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.sent..]
    }

    /// `count` bytes of [`outgoing`](Self::outgoing) were written.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.outgoing.len() {
            self.sent = 0;
            self.outgoing.clear();
            self.outgoing.shrink_to(KEEP_OUTGOING_BYTES);
        }
    }

    /// Takes the outgoing bytes away, for a face that writes outside of its lock.
    pub(crate) fn take_outgoing(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.outgoing);
        bytes.drain(..std::mem::take(&mut self.sent));
        bytes
    }

    /// The buffer to read into; follow with [`next_message`](Self::next_message) until it has none.
    pub(crate) const fn received(&mut self) -> &mut ReceiveBuffer {
        &mut self.received
    }

    /// Bytes arrived. Follow with [`next_message`](Self::next_message) until it has none.
    pub fn handle_bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let spare = self.received.spare();
            let count = spare.len().min(bytes.len());
            spare[..count].copy_from_slice(&bytes[..count]);
            self.received.filled(count);
            bytes = &bytes[count..];
        }
    }

    /// The stream ended, cleanly or with an error of the system.
    pub fn handle_end(&mut self, error: Option<&std::io::Error>) {
        let mut reason = match error {
            Some(error) => error.to_string(),
            None => "the daemon closed it".to_owned(),
        };
        let pending = self.received.pending_bytes();
        if pending > 0 {
            reason = format!("{reason} after {pending} bytes of an unfinished message");
        }
        match self.state {
            State::Handshake => self.fail(ClientError::Handshake {
                reason: format!("{reason}, before it answered; is a toolcell daemon behind this socket?"),
            }),
            State::Open(_) => self.fail(ClientError::lost(reason)),
            State::Failed(_) => {}
        }
    }

    /// Ends the conversation with an error; the first one stands.
    pub fn fail(&mut self, error: ClientError) {
        if self.failure().is_none() {
            self.state = State::Failed(error);
        }
    }

    /// The next message that has arrived whole.
    ///
    /// # Errors
    /// The failure, for ever.
    pub fn next_message(&mut self) -> Result<Option<Received>, ClientError> {
        match self.read_message() {
            Ok(received) => Ok(received),
            Err(error) => {
                self.fail(error);
                // The first failure stands, whichever it was.
                Err(self.failure().cloned().unwrap_or_else(|| ClientError::lost("unknown")))
            }
        }
    }

    fn read_message(&mut self) -> Result<Option<Received>, ClientError> {
        if let State::Failed(error) = &self.state {
            return Err(error.clone());
        }
        let open = matches!(self.state, State::Open(_));
        let not_ours = |reason: String| {
            if open {
                ClientError::Protocol { reason }
            } else {
                ClientError::Handshake { reason: format!("{reason}; this is not a toolcell daemon") }
            }
        };
        let Some(body) = self.received.next_frame().map_err(|error| not_ours(error.to_string()))? else {
            return Ok(None);
        };
        let frame_bytes = HEADER_BYTES + body.len();
        let message: DaemonMessage = codec::decode(body).map_err(|error| not_ours(error.to_string()))?;
        let message = if open { self.accept_message(message)? } else { self.accept_hello(message)? };
        Ok(Some(Received { message, frame_bytes }))
    }

    fn accept_hello(&mut self, message: DaemonMessage) -> Result<Incoming, ClientError> {
        let reason = match message {
            DaemonMessage::Hello(DaemonHello::Accepted { version, daemon, epoch, uid }) => {
                let spoken = VersionRange { oldest: version, newest: version };
                if VersionRange::CLIENT.common(spoken).is_some() {
                    self.state = State::Open(Server { version, daemon, epoch, uid });
                    return Ok(Incoming::Accepted);
                }
                let VersionRange { oldest, newest } = VersionRange::CLIENT;
                format!("{daemon} chose version {version}, this client speaks {oldest} to {newest}")
            }
            DaemonMessage::Hello(DaemonHello::Refused { reason, versions }) => {
                let VersionRange { oldest, newest } = VersionRange::CLIENT;
                format!(
                    "{reason} (the daemon speaks versions {} to {}, this client {oldest} to {newest}; use a \
                     client and a daemon of one release)",
                    versions.oldest, versions.newest
                )
            }
            DaemonMessage::Closing { reason } => reason,
            DaemonMessage::Reply { .. } | DaemonMessage::Event(_) | DaemonMessage::Output { .. } => {
                "the daemon spoke before it had answered the handshake".to_owned()
            }
        };
        Err(ClientError::Handshake { reason })
    }

    fn accept_message(&mut self, message: DaemonMessage) -> Result<Incoming, ClientError> {
        match message {
            DaemonMessage::Reply { id, reply } => {
                if self.unanswered.remove(&id) {
                    Ok(Incoming::Reply { id, reply })
                } else {
                    Err(ClientError::protocol(format!("an answer to request {id}, which awaits none")))
                }
            }
            DaemonMessage::Event(event) => Ok(Incoming::Event(event)),
            DaemonMessage::Output { call_uid, seq, stream, bytes } => {
                Ok(Incoming::Output { seq, output: LiveOutput { call_uid, stream, bytes: bytes.0 } })
            }
            DaemonMessage::Closing { reason } => Err(ClientError::lost(reason)),
            DaemonMessage::Hello(_) => Err(ClientError::protocol("a second handshake")),
        }
    }
}

fn bad_request(error: CodecError) -> ClientError {
    ClientError::BadRequest { reason: error.to_string() }
}
