//! The socket of an asynchronous client, driven by whoever waits for something.
//!
//! ```text
//! waiter A ──┐ lock ┌───────────────────────────────────────┐
//! waiter B ──┼─────▶│ write what is outgoing, read, give out │──▶ wakes the waiters whose message came
//! waiter C ──┘      └───────────────────────────────────────┘
//! ```
//!
//! One waiter at a time is the *reader*: tokio remembers the last waker of each direction of a socket, so only
//! the reader polls it. A reader that has got what it wanted, or is dropped, wakes another waiter, which
//! becomes the reader. Nothing awaits between a read and the giving out, so dropping a future loses nothing.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::timeout;
use toolcell_protocol::client_api::{Refusal, Reply, Request};

use crate::answer;
use crate::connection::{Connection, Server};
use crate::error::ClientError;
use crate::inbox::Inbox;
use crate::options::Options;

/// Key of the one who waits for the handshake; requests start at 1.
const HANDSHAKE: u64 = 0;

#[derive(Debug)]
struct State {
    stream: UnixStream,
    connection: Connection,
    inbox: Inbox,
    wakers: HashMap<u64, Waker>,
    reader: Option<u64>,
}

#[derive(Debug)]
pub struct Pump {
    state: Mutex<State>,
    options: Options,
}

/// What a waiter's look at the inbox brought.
enum Look<T> {
    Done(Result<T, ClientError>),
    /// Reading is on hold until somebody reads what waits for him.
    Held,
}

impl Pump {
    /// Shakes hands over a connected stream.
    pub async fn start(stream: UnixStream, options: Options) -> Result<(Self, Server), ClientError> {
        let connection = Connection::new(&options.client)?;
        let state =
            State { stream, connection, inbox: Inbox::default(), wakers: HashMap::new(), reader: None };
        let pump = Self { state: Mutex::new(state), options };
        let limit = pump.options.connect_timeout;
        let handshake = poll_fn(|cx| pump.poll_server(cx));
        match timeout(limit, handshake).await {
            Ok(server) => server.map(|server| (pump, server)),
            Err(_) => Err(ClientError::Handshake {
                reason: format!("no answer within {} ms; the daemon hangs, restart it", limit.as_millis()),
            }),
        }
    }

    /// Sends a request and waits for its answer.
    pub async fn request(&self, request: Request) -> Result<Result<Reply, Refusal>, ClientError> {
        self.submit(request)?.answer().await
    }

    /// Puts a request into the outgoing bytes; they leave with the next wait, many together.
    pub fn submit(&self, request: Request) -> Result<Awaited<'_>, ClientError> {
        let what = answer::name(&request);
        let wait = self.options.request_timeout.saturating_add(answer::held_by_daemon(&request));
        let urgent = answer::is_urgent(&request);
        let executes = matches!(request, Request::BatchExecute(_));
        let mut state = self.lock();
        let id = state.connection.request(request)?;
        if executes {
            state.inbox.expect_batch(id);
        } else {
            state.inbox.expect_answer(id);
        }
        Ok(Awaited { pump: self, id, what, wait, urgent })
    }

    /// Waits until `take` finds something in the inbox. `key` is the waiter's.
    pub async fn wait<T>(
        &self,
        key: u64,
        urgent: bool,
        mut take: impl FnMut(&mut Inbox) -> Result<Option<T>, ClientError>,
    ) -> Result<T, ClientError> {
        let _leave = Leave { pump: self, key };
        loop {
            match poll_fn(|cx| self.poll_inbox(key, urgent, cx, &mut take)).await {
                Look::Done(result) => return result,
                Look::Held => {
                    let released = poll_fn(|cx| self.poll_hold(key, cx));
                    if timeout(self.options.request_timeout, released).await.is_err() {
                        return Err(ClientError::Backlog { bytes: self.lock().inbox.backlog_bytes() });
                    }
                }
            }
        }
    }

    /// Takes something out of the inbox that frees others of a hold, or nothing.
    pub fn with_inbox<T>(&self, act: impl FnOnce(&mut Inbox) -> T) -> T {
        let mut state = self.lock();
        let held = state.inbox.backlog_bytes() > self.options.backlog_bytes;
        let result = act(&mut state.inbox);
        if held && state.inbox.backlog_bytes() <= self.options.backlog_bytes {
            state.wake_all();
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way through a change; a waiter's `take` only looks.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll_server(&self, cx: &mut Context<'_>) -> Poll<Result<Server, ClientError>> {
        let mut state = self.lock();
        loop {
            if let Some(server) = state.connection.server() {
                let server = server.clone();
                state.reader = None;
                return Poll::Ready(Ok(server));
            }
            if let Some(error) = state.connection.failure() {
                return Poll::Ready(Err(error.clone()));
            }
            state.write(cx);
            if state.read(HANDSHAKE, cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn poll_inbox<T>(
        &self,
        key: u64,
        urgent: bool,
        cx: &mut Context<'_>,
        take: &mut impl FnMut(&mut Inbox) -> Result<Option<T>, ClientError>,
    ) -> Poll<Look<T>> {
        let mut guard = self.lock();
        let state = &mut *guard;
        loop {
            let before = state.inbox.backlog_bytes();
            let taken = take(&mut state.inbox);
            if before > self.options.backlog_bytes
                && state.inbox.backlog_bytes() <= self.options.backlog_bytes
            {
                state.wake_all();
            }
            match taken {
                Ok(Some(value)) => return Poll::Ready(Look::Done(Ok(value))),
                Err(error) => return Poll::Ready(Look::Done(Err(error))),
                Ok(None) => {}
            }
            // What had arrived whole before the end was given out above.
            if let Some(error) = state.connection.failure() {
                return Poll::Ready(Look::Done(Err(error.clone())));
            }
            state.write(cx);
            if !urgent && state.inbox.backlog_bytes() > self.options.backlog_bytes {
                return Poll::Ready(Look::Held);
            }
            let others_read = state.reader.is_some_and(|reader| reader != key);
            if others_read || state.read(key, cx).is_pending() {
                state.remember(key, cx);
                return Poll::Pending;
            }
        }
    }

    fn poll_hold(&self, key: u64, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        // Whoever is held does not read, so that an urgent waiter can.
        if state.reader == Some(key) {
            state.reader = None;
            state.wake_all();
        }
        if state.inbox.backlog_bytes() <= self.options.backlog_bytes || state.connection.failure().is_some() {
            return Poll::Ready(());
        }
        state.remember(key, cx);
        Poll::Pending
    }

    fn leave(&self, key: u64) {
        let mut state = self.lock();
        state.wakers.remove(&key);
        if state.reader == Some(key) {
            state.reader = None;
        }
        // Also when the place of the reader was offered to this waiter and it never came to take it.
        if state.reader.is_none() {
            if state.inbox.backlog_bytes() > self.options.backlog_bytes {
                // One of them may be on hold, and would not read.
                state.wake_all();
            } else if let Some(key) = state.wakers.keys().next().copied() {
                state.wake(key);
            }
        }
    }
}

impl State {
    /// Writes as much of the outgoing bytes as the socket takes now.
    fn write(&mut self, cx: &mut Context<'_>) {
        while !self.connection.outgoing().is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, self.connection.outgoing()) {
                Poll::Ready(Ok(count)) => self.connection.sent(count),
                // The reading side says why: a daemon that closes often says a last word before.
                Poll::Ready(Err(_)) => {
                    let rest = self.connection.outgoing().len();
                    self.connection.sent(rest);
                }
                Poll::Pending => return,
            }
        }
    }

    /// Reads once and gives out what came.
    fn read(&mut self, key: u64, cx: &mut Context<'_>) -> Poll<()> {
        self.reader = Some(key);
        let mut buffer = ReadBuf::new(self.connection.received().spare());
        let read = Pin::new(&mut self.stream).poll_read(cx, &mut buffer);
        let count = buffer.filled().len();
        match read {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(())) if count == 0 => self.connection.handle_end(None),
            Poll::Ready(Ok(())) => self.connection.received().filled(count),
            Poll::Ready(Err(error)) => self.connection.handle_end(Some(&error)),
        }
        self.give_out(key);
        Poll::Ready(())
    }

    fn give_out(&mut self, reader: u64) {
        loop {
            match self.connection.next_message() {
                Ok(Some(received)) => match self.inbox.handle(received) {
                    Ok(Some(key)) if key != reader => self.wake(key),
                    Ok(_) => {}
                    Err(error) => self.connection.fail(error),
                },
                Ok(None) => return,
                Err(_) => {
                    self.wake_all();
                    return;
                }
            }
        }
    }

    fn remember(&mut self, key: u64, cx: &Context<'_>) {
        match self.wakers.get_mut(&key) {
            Some(waker) => waker.clone_from(cx.waker()),
            None => {
                self.wakers.insert(key, cx.waker().clone());
            }
        }
    }

    fn wake(&mut self, key: u64) {
        if let Some(waker) = self.wakers.remove(&key) {
            waker.wake();
        }
    }

    fn wake_all(&mut self) {
        for (_, waker) in self.wakers.drain() {
            waker.wake();
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
    urgent: bool,
}

impl Awaited<'_> {
    /// Waits for the answer.
    pub async fn answer(self) -> Result<Result<Reply, Refusal>, ClientError> {
        let answer = self.pump.wait(self.id, self.urgent, |inbox| Ok(inbox.take_answer(self.id)));
        match timeout(self.wait, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(ClientError::Timeout {
                what: self.what,
                after_ms: u64::try_from(self.wait.as_millis()).unwrap_or(u64::MAX),
            }),
        }
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.pump.with_inbox(|inbox| inbox.forget_answer(self.id));
    }
}

/// A waiter goes, with or without what it waited for.
struct Leave<'a> {
    pump: &'a Pump,
    key: u64,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.pump.leave(self.key);
    }
}
