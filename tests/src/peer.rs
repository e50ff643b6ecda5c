//! A client that speaks the protocol by hand: blocking, one thread, able to be slow, rude and wrong.
//!
//! It does not use the client library, so that a mistake on one side cannot hide behind the same mistake on the
//! other.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use toolcell_protocol::call::{BatchResult, Blob, CallResult, Stream};
use toolcell_protocol::client_api::{
    BatchExecute, CallRequest, ClientHello, ClientMessage, DaemonHello, DaemonMessage, Event, EventBody,
    OnDisconnect, Refusal, Reply, Request, ServerStatus, SessionOpen, SessionRef,
};
use toolcell_protocol::codec::{decode, encode_frame};
use toolcell_protocol::frame::FrameBuffer;
use toolcell_protocol::id::{BatchId, CallId, CallUid, SessionId, SessionName};
use toolcell_protocol::version::VersionRange;

use crate::procfs::MARKER;

/// How long anything may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A call of the tool `misbehave` with these words. Its id is its line; [`Peer::execute`] makes ids distinct.
#[must_use]
pub fn habit(line: &str) -> CallRequest {
    call("misbehave", &serde_json::json!({ "line": line }))
}

/// A call of any tool.
#[must_use]
pub fn call(tool: &str, args: &serde_json::Value) -> CallRequest {
    CallRequest {
        call_id: CallId(String::new()),
        tool: tool.to_owned(),
        args: args.to_string(),
        cwd: None,
        timeout_ms: None,
        immune: None,
        stream: false,
    }
}

/// A call of `bash`.
#[must_use]
pub fn bash(command: &str) -> CallRequest {
    call("bash", &serde_json::json!({ "command": command }))
}

/// The same call with a timeout.
#[must_use]
pub fn within(timeout_ms: u64, mut call: CallRequest) -> CallRequest {
    call.timeout_ms = Some(timeout_ms);
    call
}

/// The same call with its output pushed.
#[must_use]
pub const fn streamed(mut call: CallRequest) -> CallRequest {
    call.stream = true;
    call
}

/// A piece of pushed output.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Of which call.
    pub call_uid: CallUid,
    /// Its number.
    pub seq: u64,
    /// From where.
    pub stream: Stream,
    /// The bytes.
    pub bytes: Blob,
}

/// A batch that was accepted.
#[derive(Debug, Clone)]
pub struct Accepted {
    /// Its id.
    pub batch_id: BatchId,
    /// The calls' ids, in call order.
    pub call_uids: Vec<CallUid>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(relay) = &mut self.relay {
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
            let _ = relay.wait();
        }
    }
}

/// One connection.
#[derive(Debug)]
pub struct Peer {
    stream: UnixStream,
    relay: Option<Child>,
    buffer: FrameBuffer,
    next_id: u64,
    /// The session that [`Peer::execute`] uses.
    pub session: SessionRef,
    /// What arrived while something else was waited for.
    waiting: VecDeque<DaemonMessage>,
}

impl Peer {
    /// Connects and says nothing.
    ///
    /// # Errors
    /// When the socket cannot be reached.
    pub fn mute(socket: &Path) -> io::Result<Self> {
        Ok(Self::over(UnixStream::connect(socket)?))
    }

    fn over(stream: UnixStream) -> Self {
        Self {
            stream,
            relay: None,
            buffer: FrameBuffer::new(),
            next_id: 1,
            session: SessionRef { uid: None, name: SessionName::from("none") },
            waiting: VecDeque::new(),
        }
    }

    /// Connects and shakes hands.
    ///
    /// # Errors
    /// When the socket cannot be reached or the handshake fails.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let mut peer = Self::mute(socket)?;
        match peer.shake_hands(VersionRange::CLIENT)? {
            DaemonHello::Accepted { .. } => Ok(peer),
            DaemonHello::Refused { reason, .. } => Err(io::Error::other(reason)),
        }
    }

    /// Connects through a program that relays between its standard input and the daemon's socket, and shakes
    /// hands. The daemon sees that program's user.
    ///
    /// # Errors
    /// When the program cannot be started or the handshake fails.
    pub fn through(mut command: Command) -> io::Result<Self> {
        let (near, far) = UnixStream::pair()?;
        let relay = command.stdin(OwnedFd::from(far)).stdout(Stdio::null()).spawn()?;
        // Otherwise this process would hold the relay's end of the pair open.
        drop(command);
        let mut peer = Self::over(near);
        peer.relay = Some(relay);
        match peer.shake_hands(VersionRange::CLIENT)? {
            DaemonHello::Accepted { .. } => Ok(peer),
            DaemonHello::Refused { reason, .. } => Err(io::Error::other(reason)),
        }
    }

    /// SIGKILL for the program that relays: what the daemon sees is the death of a client process.
    ///
    /// # Panics
    /// When there is none.
    pub fn kill_relay(&mut self) {
        let relay = self.relay.as_mut().expect("this connection goes through a relay");
        relay.kill().expect("kill the relay");
        relay.wait().expect("reap the relay");
    }

    /// Shakes hands with these versions.
    ///
    /// # Errors
    /// When the connection ends or something else than a hello comes.
    pub fn shake_hands(&mut self, versions: VersionRange) -> io::Result<DaemonHello> {
        self.send(&ClientMessage::Hello(ClientHello { versions, client: "toolcell-tests".into() }))?;
        match self.receive(PATIENCE)? {
            Some(DaemonMessage::Hello(hello)) => Ok(hello),
            other => Err(io::Error::other(format!("no hello but {other:?}"))),
        }
    }

    /// The socket itself.
    pub const fn raw(&mut self) -> &mut UnixStream {
        &mut self.stream
    }

    /// Sends one message.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn send(&mut self, message: &ClientMessage) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode_frame(message, &mut bytes).map_err(io::Error::other)?;
        self.stream.write_all(&bytes)
    }

    /// The next message as it comes; `None` at the end of the stream.
    ///
    /// # Errors
    /// `TimedOut` when nothing comes in time; anything that the socket reports.
    pub fn receive(&mut self, limit: Duration) -> io::Result<Option<DaemonMessage>> {
        if let Some(message) = self.waiting.pop_front() {
            return Ok(Some(message));
        }
        self.receive_new(limit)
    }

    fn receive_new(&mut self, limit: Duration) -> io::Result<Option<DaemonMessage>> {
        let deadline = Instant::now() + limit;
        let mut piece = vec![0_u8; 64 * 1024];
        loop {
            if let Some(body) = self.buffer.next_frame().map_err(io::Error::other)? {
                return decode(body).map(Some).map_err(io::Error::other);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut piece) {
                Ok(0) => return Ok(None),
                Ok(bytes) => self.buffer.extend(&piece[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the first message that is wanted and keeps the others in their order.
    ///
    /// # Errors
    /// As [`Peer::receive`], and `UnexpectedEof` at the end of the stream.
    pub fn wait_for<T>(
        &mut self,
        limit: Duration,
        mut wanted: impl FnMut(&DaemonMessage) -> Option<T>,
    ) -> io::Result<T> {
        if let Some((at, found)) =
            self.waiting.iter().enumerate().find_map(|(at, message)| Some((at, wanted(message)?)))
        {
            self.waiting.remove(at);
            return Ok(found);
        }
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.receive_new(left)? {
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(message) => match wanted(&message) {
                    Some(found) => return Ok(found),
                    None => self.waiting.push_back(message),
                },
            }
        }
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// As [`Peer::wait_for`].
    pub fn ask(&mut self, request: Request) -> io::Result<Result<Reply, Refusal>> {
        let id = self.post(request)?;
        self.answer(id)
    }

    /// Sends a request and does not wait; gives its number.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn post(&mut self, request: Request) -> io::Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&ClientMessage::Request { id, request })?;
        Ok(id)
    }

    /// Waits for the answer to a request.
    ///
    /// # Errors
    /// As [`Peer::wait_for`].
    pub fn answer(&mut self, id: u64) -> io::Result<Result<Reply, Refusal>> {
        self.wait_for(PATIENCE, |message| match message {
            DaemonMessage::Reply { id: answered, reply } if *answered == id => Some(reply.clone()),
            _ => None,
        })
    }

    /// Sends a request that must be granted.
    ///
    /// # Panics
    /// When it is refused or the connection is gone.
    pub fn granted(&mut self, request: Request) -> Reply {
        let asked = format!("{request:?}");
        match self.ask(request) {
            Ok(Ok(reply)) => reply,
            Ok(Err(refusal)) => panic!("{asked}: refused: {refusal:?}"),
            Err(error) => panic!("{asked}: {error}"),
        }
    }

    /// Sends a request that must be refused.
    ///
    /// # Panics
    /// When it is granted or the connection is gone.
    pub fn refused(&mut self, request: Request) -> Refusal {
        let asked = format!("{request:?}");
        match self.ask(request) {
            Ok(Err(refusal)) => refusal,
            other => panic!("{asked}: not refused but {other:?}"),
        }
    }

    /// Opens a session whose calls carry the marker, and uses it from now on.
    ///
    /// # Panics
    /// When it is refused.
    pub fn open(&mut self, name: &str, cwd: &Path, marker: &str, on_disconnect: OnDisconnect) -> SessionId {
        let open = SessionOpen {
            name: SessionName::from(name),
            agent: None,
            cwd: cwd.display().to_string(),
            env: vec![(MARKER.to_owned(), marker.to_owned())],
            on_disconnect,
        };
        self.session = SessionRef { uid: None, name: SessionName::from(name) };
        match self.granted(Request::SessionOpen(open)) {
            Reply::SessionOpened { session_id, .. } => session_id,
            other => panic!("no session but {other:?}"),
        }
    }

    /// Starts a batch in the session. Calls without an id get their place as one.
    ///
    /// # Panics
    /// When it is refused.
    pub fn execute(&mut self, calls: Vec<CallRequest>) -> Accepted {
        let request = self.batch_request(calls);
        match self.granted(request) {
            Reply::BatchAccepted { batch_id, call_uids, .. } => Accepted { batch_id, call_uids },
            other => panic!("no batch but {other:?}"),
        }
    }

    /// The request that starts a batch in the session. Calls without an id get their place as one.
    #[must_use]
    pub fn batch_request(&self, mut calls: Vec<CallRequest>) -> Request {
        for (place, call) in calls.iter_mut().enumerate() {
            if call.call_id.0.is_empty() {
                call.call_id = CallId(place.to_string());
            }
        }
        Request::BatchExecute(BatchExecute { session: self.session.clone(), calls, key: None })
    }

    /// Waits for the end of a batch.
    ///
    /// # Errors
    /// As [`Peer::wait_for`].
    pub fn try_finish(&mut self, batch: &Accepted) -> io::Result<BatchResult> {
        self.wait_for(PATIENCE, |message| match message {
            DaemonMessage::Event(Event { body: EventBody::BatchFinished(result), .. })
                if result.batch_id == batch.batch_id =>
            {
                Some(BatchResult::clone(result))
            }
            _ => None,
        })
    }

    /// Waits for the end of a batch.
    ///
    /// # Panics
    /// When it does not come.
    pub fn finish(&mut self, batch: &Accepted) -> BatchResult {
        let result = match self.try_finish(batch) {
            Ok(result) => result,
            Err(error) => panic!("the batch did not end: {error}; still waiting: {:?}", self.waiting),
        };
        let answered: Vec<CallUid> = result.results.iter().map(|result| result.call_uid).collect();
        assert_eq!(answered, batch.call_uids, "exactly one result per call, in call order");
        result
    }

    /// Runs a batch to its end.
    ///
    /// # Panics
    /// When it is refused or does not end.
    pub fn run(&mut self, calls: Vec<CallRequest>) -> BatchResult {
        let batch = self.execute(calls);
        self.finish(&batch)
    }

    /// Runs one call to its end.
    ///
    /// # Panics
    /// When it is refused or does not end.
    pub fn run_one(&mut self, call: CallRequest) -> CallResult {
        self.run(vec![call]).results.remove(0)
    }

    /// Waits until a call's tool runs; gives its process.
    ///
    /// # Panics
    /// When it does not start.
    pub fn started(&mut self, call: CallUid) -> i32 {
        let started =
            self.wait_for(PATIENCE, |message| match message {
                DaemonMessage::Event(Event {
                    body: EventBody::ToolStarted { call_uid, pid, .. }, ..
                }) if *call_uid == call => Some(*pid),
                _ => None,
            });
        started.unwrap_or_else(|error| panic!("the call did not start: {error}; waiting: {:?}", self.waiting))
    }

    /// The next piece of pushed output.
    ///
    /// # Errors
    /// As [`Peer::wait_for`].
    pub fn chunk(&mut self, limit: Duration) -> io::Result<Chunk> {
        self.wait_for(limit, |message| match message {
            DaemonMessage::Output { call_uid, seq, stream, bytes } => {
                Some(Chunk { call_uid: *call_uid, seq: *seq, stream: *stream, bytes: bytes.clone() })
            }
            _ => None,
        })
    }

    /// Waits until a running call has written this.
    ///
    /// # Panics
    /// When it ends without having written it.
    pub fn wait_for_output(&mut self, call_uid: CallUid, wanted: &str) {
        let (mut seen, mut cursor) = (Vec::new(), 0);
        loop {
            let request = Request::CallOutput { call_uid, cursor, max_bytes: 65_536, wait_ms: 10_000 };
            let Reply::Output(page) = self.granted(request) else { panic!("not a page of output") };
            seen.extend(page.pieces.into_iter().flat_map(|piece| piece.bytes.0));
            let text = String::from_utf8_lossy(&seen);
            if text.contains(wanted) {
                return;
            }
            assert!(!page.end, "it ended without {wanted:?}: {text:?}");
            cursor = page.next_cursor;
        }
    }

    /// The whole output that is kept of a call: standard output, standard error, and how much was skipped.
    ///
    /// # Panics
    /// When it is refused.
    pub fn read_output(&mut self, call_uid: CallUid) -> (Vec<u8>, Vec<u8>, u64) {
        let (mut out, mut err, mut skipped, mut cursor) = (Vec::new(), Vec::new(), 0, 0);
        loop {
            let max_bytes = 1024 * 1024;
            let request = Request::CallOutput { call_uid, cursor, max_bytes, wait_ms: 10_000 };
            let Reply::Output(page) = self.granted(request) else { panic!("not a page of output") };
            for piece in page.pieces {
                match piece.stream {
                    Stream::Stdout => out.extend_from_slice(&piece.bytes.0),
                    Stream::Stderr => err.extend_from_slice(&piece.bytes.0),
                }
            }
            skipped += page.skipped_bytes;
            cursor = page.next_cursor;
            if page.end {
                return (out, err, skipped);
            }
        }
    }

    /// How the daemon is.
    ///
    /// # Panics
    /// When it does not say.
    pub fn status(&mut self) -> ServerStatus {
        match self.granted(Request::ServerStatus) {
            Reply::Status(status) => *status,
            other => panic!("no status but {other:?}"),
        }
    }
}
