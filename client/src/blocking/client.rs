//! Requests and their answers, blocking.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use toolcell_protocol::call::CallResult;
use toolcell_protocol::client_api::{
    CallInfo, CallRecord, KillAnswer, OutputPage, Request, ServerStatus, SessionInfo, SessionOpen,
    SessionRef, ToolInfo,
};
use toolcell_protocol::id::CallUid;

use super::batch::Session;
use super::pump::Pump;
use crate::address::{Search, tried};
use crate::answer;
use crate::connection::Server;
use crate::error::ClientError;
use crate::options::Options;

/// A connection to a daemon. Cheap to clone; all clones share the connection, and any number of threads may
/// wait on it, each for its own request.
#[derive(Debug, Clone)]
pub struct Client {
    pub(super) pump: Arc<Pump>,
    server: Arc<Server>,
}

impl Client {
    /// Connects to the daemon behind this socket.
    ///
    /// # Errors
    /// [`ClientError::Connect`] and [`ClientError::Handshake`].
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ClientError> {
        Self::connect_with(&Search::only(path), Options::default())
    }

    /// Connects to the daemon that this process's environment points to (see [`address`](crate::address)).
    ///
    /// # Errors
    /// [`ClientError::Connect`], listing what was tried, and [`ClientError::Handshake`].
    pub fn connect_default() -> Result<Self, ClientError> {
        Self::connect_with(&Search::from_environment(), Options::default())
    }

    /// Connects to the first of these sockets that takes a connection.
    ///
    /// # Errors
    /// [`ClientError::Connect`], listing what was tried, and [`ClientError::Handshake`].
    pub fn connect_with(search: &Search, options: Options) -> Result<Self, ClientError> {
        let mut failed = Vec::new();
        for path in &search.paths {
            match UnixStream::connect(path) {
                Ok(stream) => return Self::start(stream, options),
                Err(error) => failed.push(tried(path, &error)),
            }
        }
        Err(search.failed(failed))
    }

    /// Talks over a stream that is connected already, like that of an embedded daemon.
    ///
    /// # Errors
    /// [`ClientError::Handshake`].
    pub fn from_std_stream(stream: UnixStream) -> Result<Self, ClientError> {
        Self::from_std_stream_with(stream, Options::default())
    }

    /// The same with options.
    ///
    /// # Errors
    /// [`ClientError::Handshake`].
    pub fn from_std_stream_with(stream: UnixStream, options: Options) -> Result<Self, ClientError> {
        Self::start(stream, options)
    }

    fn start(stream: UnixStream, options: Options) -> Result<Self, ClientError> {
        let (pump, server) = Pump::start(stream, options)?;
        Ok(Self { pump: Arc::new(pump), server: Arc::new(server) })
    }

    /// What the daemon said of itself in the handshake.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The tools there are.
    ///
    /// # Errors
    /// Any [`ClientError`] but those of connecting; so for all requests.
    pub fn tools(&self) -> Result<Vec<ToolInfo>, ClientError> {
        answer::tools(self.pump.request(Request::ToolsList)?)
    }

    /// Creates a session or re-attaches to it. Dropping the [`Session`] does nothing to it.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub fn session_open(&self, open: SessionOpen) -> Result<Session, ClientError> {
        let name = open.name.clone();
        let opened = self.pump.request(Request::SessionOpen(open))?;
        let (session_id, created, last_seq) = answer::session_opened(opened)?;
        Ok(Session::new(self.clone(), name, session_id, created, last_seq))
    }

    /// The caller's sessions (an admin: all).
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub fn session_list(&self) -> Result<Vec<SessionInfo>, ClientError> {
        answer::sessions(self.pump.request(Request::SessionList)?)
    }

    /// A session's state.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub fn session_get(&self, session: SessionRef) -> Result<SessionInfo, ClientError> {
        answer::session(self.pump.request(Request::SessionGet { session })?)
    }

    /// Ends a session; answers how many running calls were killed and how many waiting ones cancelled.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub fn session_close(&self, session: SessionRef) -> Result<(u32, u32), ClientError> {
        answer::session_closed(self.pump.request(Request::SessionClose { session })?)
    }

    /// Calls that run or wait, and with `finished` those that have ended and are still known.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub fn call_list(
        &self,
        session: Option<SessionRef>,
        finished: bool,
    ) -> Result<Vec<CallInfo>, ClientError> {
        answer::calls(self.pump.request(Request::CallList { session, finished })?)
    }

    /// Everything kept about one call.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub fn call_get(&self, call_uid: CallUid) -> Result<CallRecord, ClientError> {
        answer::call(self.pump.request(Request::CallGet { call_uid })?)
    }

    /// A page of a call's output, live or later. Start with cursor 0 and go on with the page's `next_cursor`
    /// until its `end`; waits up to `wait` when nothing is there yet.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub fn call_output(
        &self,
        call_uid: CallUid,
        cursor: u64,
        max_bytes: u32,
        wait: Duration,
    ) -> Result<OutputPage, ClientError> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        answer::output(self.pump.request(Request::CallOutput { call_uid, cursor, max_bytes, wait_ms })?)
    }

    /// Waits for a call's end, at most so long; `None`: it still runs.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub fn call_wait(
        &self,
        call_uid: CallUid,
        limit: Duration,
    ) -> Result<Option<Arc<CallResult>>, ClientError> {
        let timeout_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        answer::call_end(self.pump.request(Request::CallWait { call_uid, timeout_ms })?)
    }

    /// Kills a call, and answers when it is proven gone or after 2 s.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub fn call_kill(&self, call_uid: CallUid, reason: &str) -> Result<KillAnswer, ClientError> {
        let reason = reason.to_owned();
        answer::killed(self.pump.request(Request::CallKill { call_uid, reason })?)
    }

    /// How the daemon is.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub fn server_status(&self) -> Result<ServerStatus, ClientError> {
        answer::status(self.pump.request(Request::ServerStatus)?)
    }
}
