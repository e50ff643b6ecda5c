//! The socket of a blocking client, driven by whoever waits for something.
//!
//! One waiting thread at a time is the *reader*: it takes the buffer, reads without the lock, gives out what
//! came and wakes the others. A message costs one `read`: the socket's own timeout bounds it, and is set anew
//! only when a deadline is near.
//!
//! Writing is one `write` per request. A daemon that does not take the bytes may itself be waiting for us to
//! read, so a write that does not get on reads in between.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use toolcell_protocol::client_api::{Refusal, Reply, Request};

use crate::answer;
use crate::connection::{Connection, Server};
use crate::error::ClientError;
use crate::inbox::Inbox;
use crate::options::Options;
use crate::receive::ReceiveBuffer;

/// The socket's usual timeout; a wait without a near deadline looks around this often.
const READ_QUANTUM: Duration = Duration::from_secs(5);

/// How long a write may stand still before it reads in between.
const WRITE_QUANTUM: Duration = Duration::from_millis(50);

/// How often such a write reads before it tries again, and how long for nothing.
const READS_PER_STALL: usize = 64;
const READ_PAUSE: Duration = Duration::from_millis(1);

/// What the reading thread takes with it.
#[derive(Debug)]
struct Reader {
    buffer: ReceiveBuffer,
    /// The socket's timeout as it is set now.
    timeout: Duration,
}

#[derive(Debug)]
struct State {
    connection: Connection,
    inbox: Inbox,
    /// `None` while a thread reads.
    reader: Option<Reader>,
}

#[derive(Debug)]
pub struct Pump {
    stream: UnixStream,
    state: Mutex<State>,
    changed: Condvar,
    /// Held from the numbering of a request until its last byte is written.
    writing: Mutex<()>,
    options: Options,
}

/// Why a wait ended without its value.
enum Missed {
    Deadline,
    Failed(ClientError),
}

impl Pump {
    /// Shakes hands over a connected stream.
    pub fn start(stream: UnixStream, options: Options) -> Result<(Self, Server), ClientError> {
        let unusable = |error| ClientError::Handshake { reason: format!("the stream is of no use: {error}") };
        stream.set_nonblocking(false).map_err(unusable)?;
        stream.set_read_timeout(Some(READ_QUANTUM)).map_err(unusable)?;
        stream.set_write_timeout(Some(WRITE_QUANTUM)).map_err(unusable)?;
        let mut connection = Connection::new(&options.client)?;
        let hello = connection.take_outgoing();
        let state = State {
            connection,
            inbox: Inbox::default(),
            reader: Some(Reader { buffer: ReceiveBuffer::default(), timeout: READ_QUANTUM }),
        };
        let pump = Self {
            stream,
            state: Mutex::new(state),
            changed: Condvar::new(),
            writing: Mutex::new(()),
            options,
        };
        let limit = pump.options.connect_timeout;
        let deadline = Instant::now().checked_add(limit);
        let answered = pump
            .write(&hello, deadline)
            .and_then(|()| pump.wait_until(deadline, true, |state| Ok(state.connection.server().cloned())));
        match answered {
            Ok(server) => Ok((pump, server)),
            Err(Missed::Failed(error)) => Err(error),
            Err(Missed::Deadline) => Err(ClientError::Handshake {
                reason: format!("no answer within {} ms; the daemon hangs, restart it", limit.as_millis()),
            }),
        }
    }

    /// Sends a request and waits for its answer.
    pub fn request(&self, request: Request) -> Result<Result<Reply, Refusal>, ClientError> {
        self.submit(vec![request])?.remove(0).answer()
    }

    /// Sends requests in one write.
    pub fn submit(&self, requests: Vec<Request>) -> Result<Vec<Awaited<'_>>, ClientError> {
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut awaited = Vec::with_capacity(requests.len());
        let mut state = self.lock();
        for request in requests {
            let wait = self.options.request_timeout.saturating_add(answer::held_by_daemon(&request));
            let (what, urgent) = (answer::name(&request), answer::is_urgent(&request));
            let executes = matches!(request, Request::BatchExecute(_));
            let id = match state.connection.request(request) {
                Ok(id) => id,
                Err(error) => {
                    // Those before it are numbered, and leave with the next write.
                    drop(state);
                    return Err(error);
                }
            };
            if executes {
                state.inbox.expect_batch(id);
            } else {
                state.inbox.expect_answer(id);
            }
            let deadline = Instant::now().checked_add(wait);
            awaited.push(Awaited { pump: self, id, what, wait, deadline, urgent });
        }
        let bytes = state.connection.take_outgoing();
        drop(state);
        let deadline = awaited.iter().filter_map(|one| one.deadline).max();
        let written = self.write(&bytes, deadline);
        drop(writing);
        match written {
            Ok(()) => Ok(awaited),
            Err(Missed::Failed(error)) => Err(error),
            Err(Missed::Deadline) => {
                // Part of a message is out; nothing that came after it could be understood.
                let error = ClientError::lost("the daemon does not take requests; is it stopped?");
                self.lock().connection.fail(error.clone());
                self.changed.notify_all();
                Err(error)
            }
        }
    }

    /// Waits until `take` finds something in the inbox, however long it takes.
    pub fn wait<T>(
        &self,
        mut take: impl FnMut(&mut Inbox) -> Result<Option<T>, ClientError>,
    ) -> Result<T, ClientError> {
        match self.wait_until(None, false, |state| take(&mut state.inbox)) {
            Ok(value) => Ok(value),
            Err(Missed::Failed(error)) => Err(error),
            Err(Missed::Deadline) => Err(ClientError::lost("a wait without a deadline reached it")),
        }
    }

    /// The same, at most so long; `None` then.
    pub fn wait_for<T>(
        &self,
        limit: Duration,
        mut take: impl FnMut(&mut Inbox) -> Result<Option<T>, ClientError>,
    ) -> Result<Option<T>, ClientError> {
        match self.wait_until(Instant::now().checked_add(limit), false, |state| take(&mut state.inbox)) {
            Ok(value) => Ok(Some(value)),
            Err(Missed::Failed(error)) => Err(error),
            Err(Missed::Deadline) => Ok(None),
        }
    }

    /// Takes something out of the inbox that frees others of a hold.
    pub fn with_inbox<T>(&self, act: impl FnOnce(&mut Inbox) -> T) -> T {
        let result = act(&mut self.lock().inbox);
        self.changed.notify_all();
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until<T>(
        &self,
        deadline: Option<Instant>,
        urgent: bool,
        mut take: impl FnMut(&mut State) -> Result<Option<T>, ClientError>,
    ) -> Result<T, Missed> {
        let mut held_since = None;
        let mut state = self.lock();
        loop {
            let held = state.inbox.backlog_bytes() > self.options.backlog_bytes;
            let taken = take(&mut state);
            if held && state.inbox.backlog_bytes() <= self.options.backlog_bytes {
                self.changed.notify_all();
            }
            if let Some(value) = taken.map_err(Missed::Failed)? {
                return Ok(value);
            }
            // What had arrived whole before the end was given out above.
            if let Some(error) = state.connection.failure() {
                return Err(Missed::Failed(error.clone()));
            }
            let now = Instant::now();
            let left =
                deadline.map_or(READ_QUANTUM, |at| at.saturating_duration_since(now).min(READ_QUANTUM));
            if left.is_zero() {
                return Err(Missed::Deadline);
            }
            let bytes = state.inbox.backlog_bytes();
            if !urgent && bytes > self.options.backlog_bytes {
                let since = *held_since.get_or_insert(now);
                if now.saturating_duration_since(since) >= self.options.request_timeout {
                    return Err(Missed::Failed(ClientError::Backlog { bytes }));
                }
                state = self.sleep(state, left.min(self.options.request_timeout));
                continue;
            }
            held_since = None;
            state = match state.reader.take() {
                Some(reader) => self.read(state, reader, left).0,
                None => self.sleep(state, left),
            };
        }
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Reads once, without the lock, gives out what came, and says whether anything did.
    fn read<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        mut reader: Reader,
        limit: Duration,
    ) -> (MutexGuard<'a, State>, bool) {
        drop(state);
        if reader.timeout != limit && self.stream.set_read_timeout(Some(limit)).is_ok() {
            reader.timeout = limit;
        }
        let read = (&self.stream).read(reader.buffer.spare());
        if let Ok(count) = read {
            reader.buffer.filled(count);
        }
        let mut state = self.lock();
        std::mem::swap(state.connection.received(), &mut reader.buffer);
        state.give_out();
        match read {
            Ok(0) => state.connection.handle_end(None),
            Ok(_) => {}
            Err(ref error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(ref error) => state.connection.handle_end(Some(error)),
        }
        std::mem::swap(state.connection.received(), &mut reader.buffer);
        state.reader = Some(reader);
        self.changed.notify_all();
        (state, matches!(read, Ok(1..)))
    }

    /// Reads for a write that stands still, so that the daemon can go on; another thread may do that already.
    fn read_what_is_there(&self) -> Result<(), Missed> {
        let mut state = self.lock();
        for _ in 0..READS_PER_STALL {
            let Some(reader) = state.reader.take() else { break };
            let came;
            (state, came) = self.read(state, reader, READ_PAUSE);
            if !came {
                break;
            }
        }
        match state.connection.failure() {
            Some(error) => Err(Missed::Failed(error.clone())),
            None => Ok(()),
        }
    }

    fn write(&self, mut bytes: &[u8], deadline: Option<Instant>) -> Result<(), Missed> {
        while !bytes.is_empty() {
            match (&self.stream).write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if deadline.is_some_and(|at| Instant::now() >= at) {
                        return Err(Missed::Deadline);
                    }
                    self.read_what_is_there()?;
                }
                // The reading side says why: a daemon that closes often says a last word before.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }
}

impl State {
    fn give_out(&mut self) {
        loop {
            match self.connection.next_message() {
                Ok(Some(received)) => {
                    if let Err(error) = self.inbox.handle(received) {
                        self.connection.fail(error);
                    }
                }
                Ok(None) | Err(_) => return,
            }
        }
    }
}

/// A request on its way. Dropped, its answer is dropped too when it comes.
#[derive(Debug)]
pub struct Awaited<'a> {
    pump: &'a Pump,
    /// The request's id.
    pub id: u64,
    what: &'static str,
    wait: Duration,
    deadline: Option<Instant>,
    urgent: bool,
}

impl Awaited<'_> {
    /// Waits for the answer.
    pub fn answer(self) -> Result<Result<Reply, Refusal>, ClientError> {
        let answer =
            self.pump.wait_until(self.deadline, self.urgent, |state| Ok(state.inbox.take_answer(self.id)));
        match answer {
            Ok(answer) => Ok(answer),
            Err(Missed::Failed(error)) => Err(error),
            Err(Missed::Deadline) => Err(ClientError::Timeout {
                what: self.what,
                after_ms: u64::try_from(self.wait.as_millis()).unwrap_or(u64::MAX),
            }),
        }
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.pump.lock().inbox.forget_answer(self.id);
    }
}
