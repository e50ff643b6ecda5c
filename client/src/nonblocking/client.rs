//! Requests and their answers, for tokio.

use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};
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

/// How long to wait before a daemon with a full accept queue is asked again.
const ACCEPT_QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// A connection to a daemon. Cheap to clone; all clones share the connection, and any number of requests may be
/// in flight on it. Needs a tokio runtime with I/O and time enabled.
///
/// Every future of this library may be dropped at any time. A request that was sent is carried out all the
/// same; only its answer is lost.
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
    pub async fn connect(path: impl AsRef<Path>) -> Result<Self, ClientError> {
        Self::connect_with(&Search::only(path), Options::default()).await
    }

    /// Connects to the daemon that this process's environment points to (see [`address`](crate::address)).
    ///
    /// # Errors
    /// [`ClientError::Connect`], listing what was tried, and [`ClientError::Handshake`].
    pub async fn connect_default() -> Result<Self, ClientError> {
        Self::connect_with(&Search::from_environment(), Options::default()).await
    }

    /// Connects to the first of these sockets that takes a connection.
    ///
    /// # Errors
    /// [`ClientError::Connect`], listing what was tried, and [`ClientError::Handshake`].
    pub async fn connect_with(search: &Search, options: Options) -> Result<Self, ClientError> {
        let mut failed = Vec::new();
        for path in &search.paths {
            match open(path, options.connect_timeout).await {
                Ok(stream) => return Self::start(stream, options).await,
                Err(error) => failed.push(tried(path, &error)),
            }
        }
        Err(search.failed(failed))
    }

    /// Talks over a stream that is connected already, like that of an embedded daemon.
    ///
    /// # Errors
    /// [`ClientError::Handshake`].
    pub async fn from_std_stream(stream: StdUnixStream) -> Result<Self, ClientError> {
        Self::from_std_stream_with(stream, Options::default()).await
    }

    /// The same with options.
    ///
    /// # Errors
    /// [`ClientError::Handshake`].
    pub async fn from_std_stream_with(stream: StdUnixStream, options: Options) -> Result<Self, ClientError> {
        let stream =
            stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream)).map_err(|error| {
                ClientError::Handshake { reason: format!("the stream is of no use: {error}") }
            })?;
        Self::start(stream, options).await
    }

    async fn start(stream: UnixStream, options: Options) -> Result<Self, ClientError> {
        let (pump, server) = Pump::start(stream, options).await?;
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
    pub async fn tools(&self) -> Result<Vec<ToolInfo>, ClientError> {
        answer::tools(self.pump.request(Request::ToolsList).await?)
    }

    /// Creates a session or re-attaches to it. Dropping the [`Session`] does nothing to it.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub async fn session_open(&self, open: SessionOpen) -> Result<Session, ClientError> {
        let name = open.name.clone();
        let opened = self.pump.request(Request::SessionOpen(open)).await?;
        let (session_id, created, last_seq) = answer::session_opened(opened)?;
        Ok(Session::new(self.clone(), name, session_id, created, last_seq))
    }

    /// The caller's sessions (an admin: all).
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub async fn session_list(&self) -> Result<Vec<SessionInfo>, ClientError> {
        answer::sessions(self.pump.request(Request::SessionList).await?)
    }

    /// A session's state.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub async fn session_get(&self, session: SessionRef) -> Result<SessionInfo, ClientError> {
        answer::session(self.pump.request(Request::SessionGet { session }).await?)
    }

    /// Ends a session; answers how many running calls were killed and how many waiting ones cancelled.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub async fn session_close(&self, session: SessionRef) -> Result<(u32, u32), ClientError> {
        answer::session_closed(self.pump.request(Request::SessionClose { session }).await?)
    }

    /// Calls that run or wait, and with `finished` those that have ended and are still known.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub async fn call_list(
        &self,
        session: Option<SessionRef>,
        finished: bool,
    ) -> Result<Vec<CallInfo>, ClientError> {
        answer::calls(self.pump.request(Request::CallList { session, finished }).await?)
    }

    /// Everything kept about one call.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub async fn call_get(&self, call_uid: CallUid) -> Result<CallRecord, ClientError> {
        answer::call(self.pump.request(Request::CallGet { call_uid }).await?)
    }

    /// A page of a call's output, live or later. Start with cursor 0 and go on with the page's `next_cursor`
    /// until its `end`; waits up to `wait` when nothing is there yet.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub async fn call_output(
        &self,
        call_uid: CallUid,
        cursor: u64,
        max_bytes: u32,
        wait: Duration,
    ) -> Result<OutputPage, ClientError> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        answer::output(self.pump.request(Request::CallOutput { call_uid, cursor, max_bytes, wait_ms }).await?)
    }

    /// Waits for a call's end, at most so long; `None`: it still runs.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub async fn call_wait(
        &self,
        call_uid: CallUid,
        limit: Duration,
    ) -> Result<Option<Arc<CallResult>>, ClientError> {
        let timeout_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        answer::call_end(self.pump.request(Request::CallWait { call_uid, timeout_ms }).await?)
    }

    /// Kills a call, and answers when it is proven gone or after 2 s.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub async fn call_kill(&self, call_uid: CallUid, reason: &str) -> Result<KillAnswer, ClientError> {
        let reason = reason.to_owned();
        answer::killed(self.pump.request(Request::CallKill { call_uid, reason }).await?)
    }

    /// How the daemon is.
    ///
    /// # Errors
    /// See [`tools`](Self::tools).
    pub async fn server_status(&self) -> Result<ServerStatus, ClientError> {
        answer::status(self.pump.request(Request::ServerStatus).await?)
    }
}

/// Connects; a full accept queue (which a Unix socket reports at once) is waited for.
async fn open(path: &Path, limit: Duration) -> std::io::Result<UnixStream> {
    let give_up = Instant::now() + limit;
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < give_up => {
                sleep(ACCEPT_QUEUE_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}
