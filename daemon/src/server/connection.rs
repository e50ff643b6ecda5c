//! One connection: handshake, requests in, messages out.
//!
//! ```text
//! socket ─▶ reader task ─▶ Event::Request ─▶ dispatcher ─▶ ConnHandle ─▶ queue ─▶ writer task ─▶ socket
//!                                            attempt task ─▶ StreamHandle ──▲
//! ```
//!
//! A peer that sends junk, is silent in the handshake or does not read loses its connection and nothing else.
//! The queue is bounded in messages; pushed output is bounded in chunks, and what is over holds the tool.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use toolcell_protocol::call::{Blob, Stream};
use toolcell_protocol::client_api::{
    ClientHello, ClientMessage, DaemonHello, DaemonMessage, EventBody, ExecuteAnswer, Refusal, RefusalCode,
    Reply,
};
use toolcell_protocol::codec;
use toolcell_protocol::frame::FrameBuffer;
use toolcell_protocol::id::CallUid;
use toolcell_protocol::limits::MAX_TEXT_BYTES;
use toolcell_protocol::version::VersionRange;

use crate::core::event::{ConnId, Peer};
use crate::dispatcher::Event;

/// Output chunks that may wait for one connection; with the chunk bound, 1 MiB.
const MAX_QUEUED_CHUNKS: usize = 4;

/// How long a message that announces more may wait for it, so that both leave together. Each write wakes the client,
/// and on a busy host that costs the very call that it waits for a good part of its time.
const COMPANY_DEADLINE: Duration = Duration::from_millis(20);

/// Messages that one write takes together.
const MAX_WRITTEN_TOGETHER: usize = 64;

/// Time that a closing connection has to read its last message.
const FAREWELL_DEADLINE: Duration = Duration::from_secs(1);

/// What every connection must know of the daemon.
#[derive(Debug)]
pub struct Greeting {
    /// Name and version.
    pub daemon: String,
    /// New at each start.
    pub epoch: u64,
    /// Time for the first message.
    pub handshake_timeout: Duration,
    /// Requests of one connection that may be unanswered.
    pub max_pending_requests: usize,
    /// Messages that may wait for one connection.
    pub max_queued_messages: usize,
}

/// Something to write.
#[derive(Debug)]
enum Outgoing {
    /// A whole frame. `lazy`: it may wait for company.
    Frame { frame: Vec<u8>, lazy: bool },
    /// A frame in two parts; the permit comes back when it is written.
    Chunk { head: Vec<u8>, payload: Bytes, _permit: OwnedSemaphorePermit },
    /// Write what is before this, then close.
    Close,
}

/// The dispatcher's end of a connection's queue.
#[derive(Debug, Clone)]
pub struct ConnHandle {
    queue: mpsc::UnboundedSender<Outgoing>,
    queued: Arc<AtomicUsize>,
    max_queued: usize,
    chunks: Arc<Semaphore>,
    pending: Arc<AtomicUsize>,
    kick: Arc<Notify>,
}

impl ConnHandle {
    /// Queues a message. `false`: the connection is gone, or so far behind that it is closed now.
    pub fn send(&self, message: &DaemonMessage) -> bool {
        if matches!(message, DaemonMessage::Reply { .. }) {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
        let mut frame = Vec::with_capacity(256);
        if let Err(error) = codec::encode_frame(message, &mut frame) {
            let instead = instead_of_too_large(message, &error);
            let closes = matches!(instead, DaemonMessage::Closing { .. });
            tracing::error!(%error, closes, "a message is too large for a frame");
            let _ = codec::encode_frame(&instead, &mut frame);
            if closes {
                let _ = self.queue.send(Outgoing::Frame { frame, lazy: false });
                let _ = self.queue.send(Outgoing::Close);
                return false;
            }
        }
        if self.queued.fetch_add(1, Ordering::Relaxed) >= self.max_queued {
            // What waits will not be read; the client can connect again and ask.
            self.kick.notify_one();
            return false;
        }
        self.queue.send(Outgoing::Frame { frame, lazy: announces_more(message) }).is_ok()
    }

    /// Tells the peer why, and closes.
    pub fn close(&self, reason: &str) {
        self.send(&DaemonMessage::Closing { reason: reason.to_owned() });
        let _ = self.queue.send(Outgoing::Close);
    }

    /// The end for pushed output.
    #[must_use]
    pub fn stream(&self) -> StreamHandle {
        StreamHandle { queue: self.queue.clone(), chunks: Arc::clone(&self.chunks) }
    }
}

/// An attempt's end of a connection's queue.
#[derive(Debug, Clone)]
pub struct StreamHandle {
    queue: mpsc::UnboundedSender<Outgoing>,
    chunks: Arc<Semaphore>,
}

/// The connection is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

impl StreamHandle {
    /// Queues a chunk of output; waits while too many are unwritten.
    ///
    /// # Errors
    /// [`Gone`] when nobody will ever read it.
    pub async fn send_chunk(
        &self,
        call_uid: CallUid,
        seq: u64,
        stream: Stream,
        payload: Bytes,
    ) -> Result<(), Gone> {
        let permit = Arc::clone(&self.chunks).acquire_owned().await.map_err(|_| Gone)?;
        let mut head = Vec::with_capacity(48);
        let empty = DaemonMessage::Output { call_uid, seq, stream, bytes: Blob::default() };
        codec::encode_frame_head(&empty, payload.len(), &mut head).map_err(|_| Gone)?;
        self.queue.send(Outgoing::Chunk { head, payload, _permit: permit }).map_err(|_| Gone)
    }
}

/// Serves a connection to its end.
pub async fn serve(
    conn: ConnId,
    stream: UnixStream,
    peer: Arc<Peer>,
    greeting: Arc<Greeting>,
    events: mpsc::Sender<Event>,
) {
    let (read, mut write) = stream.into_split();
    let mut reader = Reader { read, frames: FrameBuffer::new(), bytes: vec![0; 4096] };
    let hello = match timeout(greeting.handshake_timeout, reader.next()).await {
        Ok(Ok(Some(ClientMessage::Hello(hello)))) => answer_hello(&hello, &greeting, &peer),
        Ok(Ok(Some(_))) => Err("the first message must be the hello".to_owned()),
        Ok(Ok(None)) => return,
        Ok(Err(Broken::Lines)) => {
            // A person with socat, or a client of the other framing: answer in its own terms.
            let _ = timeout(FAREWELL_DEADLINE, write.write_all(LINES_REFUSAL.as_bytes())).await;
            return;
        }
        Ok(Err(broken)) => Err(broken.to_string()),
        Err(_elapsed) => Err(format!("no hello within {} ms", greeting.handshake_timeout.as_millis())),
    };
    match hello {
        Ok(accepted) => {
            if write_message(&mut write, &DaemonMessage::Hello(accepted)).await.is_err() {
                return;
            }
        }
        Err(reason) => {
            tracing::info!(uid = peer.uid, reason, "a connection was refused");
            let refused = DaemonHello::Refused { reason, versions: VersionRange::CLIENT };
            let _ = write_message(&mut write, &DaemonMessage::Hello(refused)).await;
            return;
        }
    }

    let (queue, outgoing) = mpsc::unbounded_channel();
    let queued = Arc::new(AtomicUsize::new(0));
    let pending = Arc::new(AtomicUsize::new(0));
    let chunks = Arc::new(Semaphore::new(MAX_QUEUED_CHUNKS));
    let kick = Arc::new(Notify::new());
    let handle = ConnHandle {
        queue: queue.clone(),
        queued: Arc::clone(&queued),
        max_queued: greeting.max_queued_messages,
        chunks: Arc::clone(&chunks),
        pending: Arc::clone(&pending),
        kick: Arc::clone(&kick),
    };
    if events.send(Event::Connected { conn, handle: handle.clone() }).await.is_err() {
        return;
    }
    let writer = tokio::spawn(write_all(write, outgoing, queued, chunks));
    let reading = async {
        loop {
            match reader.next().await {
                Ok(None) => return,
                Ok(Some(ClientMessage::Request { id, request })) => {
                    if pending.fetch_add(1, Ordering::Relaxed) >= greeting.max_pending_requests {
                        handle.close(&format!(
                            "more than {} requests are unanswered; wait for answers",
                            greeting.max_pending_requests
                        ));
                        return;
                    }
                    let peer = Arc::clone(&peer);
                    let event = Event::Request { conn, request_id: id, peer, request };
                    if events.send(event).await.is_err() {
                        return;
                    }
                }
                Ok(Some(ClientMessage::Hello(_))) => {
                    handle.close("a second hello; the handshake happens once");
                    return;
                }
                Err(broken) => {
                    tracing::info!(uid = peer.uid, reason = %broken, "a connection is closed for what it sent");
                    handle.close(&broken.to_string());
                    return;
                }
            }
        }
    };
    // A writer that has failed (or was told to close) ends the reading too.
    let mut writer = writer;
    tokio::select! {
        () = reading => {
            let _ = events.send(Event::Disconnected { conn }).await;
            let _ = queue.send(Outgoing::Close);
            let _ = timeout(FAREWELL_DEADLINE, &mut writer).await;
            writer.abort();
        }
        _ = &mut writer => {
            let _ = events.send(Event::Disconnected { conn }).await;
        }
        () = kick.notified() => {
            tracing::info!(uid = peer.uid, "a connection is closed: it does not read what it is sent");
            writer.abort();
            let _ = events.send(Event::Disconnected { conn }).await;
        }
    }
}

/// An answer that does not fit is a refusal; anything else ends the connection, which must not miss it in silence.
fn instead_of_too_large(message: &DaemonMessage, error: &codec::CodecError) -> DaemonMessage {
    let why = format!("the answer does not fit a frame: {error}; ask for less at once");
    match message {
        DaemonMessage::Reply { id, .. } => DaemonMessage::Reply {
            id: *id,
            reply: Err(Refusal { code: RefusalCode::Overloaded, message: why }),
        },
        _ => DaemonMessage::Closing { reason: why },
    }
}

/// More about the same batch follows soon, or within the time that a worker holds a short tool's start back.
const fn announces_more(message: &DaemonMessage) -> bool {
    match message {
        DaemonMessage::Reply { reply: Ok(Reply::BatchAccepted { answer, .. }), .. } => {
            matches!(answer, ExecuteAnswer::ExecutingTools)
        }
        DaemonMessage::Event(event) => {
            matches!(event.body, EventBody::BatchStarted { .. } | EventBody::ToolFinished { .. })
        }
        _ => false,
    }
}

const LINES_REFUSAL: &str = concat!(
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"this daemon speaks length-framed bincode only; "#,
    r#"use a client library, or the toolcell command with --json"}}"#,
    "\n"
);

fn answer_hello(hello: &ClientHello, greeting: &Greeting, peer: &Peer) -> Result<DaemonHello, String> {
    if hello.client.len() > MAX_TEXT_BYTES {
        return Err("the client's name is too long".to_owned());
    }
    let Some(version) = VersionRange::CLIENT.common(hello.versions) else {
        return Err(format!(
            "the client speaks versions {} to {}, this daemon {} to {}; update the older one",
            hello.versions.oldest,
            hello.versions.newest,
            VersionRange::CLIENT.oldest,
            VersionRange::CLIENT.newest
        ));
    };
    tracing::debug!(uid = peer.uid, client = hello.client, version, "a client is here");
    Ok(DaemonHello::Accepted {
        version,
        daemon: greeting.daemon.clone(),
        epoch: greeting.epoch,
        uid: peer.uid,
    })
}

async fn write_message(write: &mut OwnedWriteHalf, message: &DaemonMessage) -> io::Result<()> {
    let mut frame = Vec::new();
    codec::encode_frame(message, &mut frame).map_err(io::Error::other)?;
    timeout(FAREWELL_DEADLINE, write.write_all(&frame)).await?
}

/// Why reading cannot go on.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] toolcell_protocol::frame::FrameError),
    #[error(transparent)]
    Message(#[from] codec::CodecError),
    #[error("the connection ended inside a frame, {0} bytes were left")]
    CutOff(usize),
    #[error("JSON lines instead of frames")]
    Lines,
}

struct Reader {
    read: OwnedReadHalf,
    frames: FrameBuffer,
    bytes: Vec<u8>,
}

impl Reader {
    async fn next(&mut self) -> Result<Option<ClientMessage>, Broken> {
        loop {
            if self.frames.peek() == Some(b'{') {
                return Err(Broken::Lines);
            }
            if let Some(body) = self.frames.next_frame()? {
                return Ok(Some(codec::decode(body)?));
            }
            // A large request is read in large pieces; a quiet connection holds little.
            let wanted = if self.frames.pending_bytes() > 4096 { 256 * 1024 } else { 4096 };
            if self.bytes.len() != wanted {
                self.bytes = vec![0; wanted];
            }
            let got = self.read.read(&mut self.bytes).await?;
            if got == 0 {
                return match self.frames.pending_bytes() {
                    0 => Ok(None),
                    left => Err(Broken::CutOff(left)),
                };
            }
            self.frames.extend(&self.bytes[..got]);
        }
    }
}

async fn write_all(
    mut write: OwnedWriteHalf,
    mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
    queued: Arc<AtomicUsize>,
    chunks: Arc<Semaphore>,
) {
    // Attempts that wait for room must learn that nobody reads any more.
    let _close_chunks = CloseOnDrop(chunks);
    let mut batch = Vec::with_capacity(MAX_WRITTEN_TOGETHER);
    // Set at most once in its time, not once per message: setting a timer has a price too.
    let company = tokio::time::sleep(Duration::ZERO);
    tokio::pin!(company);
    let mut armed = false;
    loop {
        let mut waited = false;
        let room = MAX_WRITTEN_TOGETHER - batch.len();
        tokio::select! {
            got = outgoing.recv_many(&mut batch, room) => if got == 0 { return },
            () = &mut company, if armed => {
                armed = false;
                waited = true;
            }
        }
        let lazy = batch.iter().all(|item| matches!(item, Outgoing::Frame { lazy: true, .. }));
        if lazy && !waited && batch.len() < MAX_WRITTEN_TOGETHER {
            if !armed {
                armed = true;
                company.as_mut().reset(tokio::time::Instant::now() + COMPANY_DEADLINE);
            }
            continue;
        }
        let closes = batch.iter().position(|item| matches!(item, Outgoing::Close));
        let items = &batch[..closes.unwrap_or(batch.len())];
        let frames = items.iter().filter(|item| matches!(item, Outgoing::Frame { .. })).count();
        if write_batch(&mut write, items).await.is_err() || closes.is_some() {
            return;
        }
        queued.fetch_sub(frames, Ordering::Relaxed);
        batch.clear();
    }
}

struct CloseOnDrop(Arc<Semaphore>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

async fn write_batch(write: &mut OwnedWriteHalf, items: &[Outgoing]) -> io::Result<()> {
    if let [Outgoing::Frame { frame, .. }] = items {
        return write.write_all(frame).await;
    }
    let mut slices = Vec::with_capacity(items.len() * 2);
    for item in items {
        match item {
            Outgoing::Frame { frame, .. } => slices.push(IoSlice::new(frame)),
            Outgoing::Chunk { head, payload, .. } => {
                slices.push(IoSlice::new(head));
                slices.push(IoSlice::new(payload));
            }
            Outgoing::Close => {}
        }
    }
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let written = write.write_vectored(rest).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}
