//! One attempt: one worker, one job, one report.
//!
//! ```text
//! hand over the job ──▶ read frames ──▶ Finished ──▶ report
//!        │                  │  ▲
//!        │                  │  └── wishes (terminate, kill) are passed on while reading
//!        │                  └── end-of-file, junk, silence after a kill ──▶ clean up ──▶ report "lost"
//!        └── the idle worker was dead: another worker takes the job, no attempt begins
//! ```
//!
//! Exactly one `Input::AttemptEnded` leaves this task, whatever the worker does.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use toolcell_protocol::call::{Layers, Stream};
use toolcell_protocol::codec;
use toolcell_protocol::frame::{HEADER_BYTES, body_size};
use toolcell_protocol::id::CallUid;
use toolcell_protocol::version::WORKER_PROTOCOL;
use toolcell_protocol::worker_api::{
    Finished, FromWorker, Job, Segment, Stage, ToWorker, WaitStatus, WorkerKind,
};
use toolcell_worker::sys::pidfd_send_signal;

use super::cells::Cells;
use super::output::{OutputLog, TailRing};
use super::{IdleWorker, Reaped};
use crate::core::event::{AttemptEnding, AttemptReport, Input, StartAttempt};
use crate::core::for_model::{self, Rendered};
use crate::dispatcher::Event;
use crate::server::connection::StreamHandle;

/// How long a worker may take to read its job, and to prove a kill, before it is killed itself.
const WORKER_DEADLINE: Duration = Duration::from_secs(3);

/// How long a killed call's output may wait for a reader that does not read.
const READER_PATIENCE: Duration = Duration::from_millis(500);

/// How long the spawner may take to reap a dead worker and its orphans.
const REAP_DEADLINE: Duration = Duration::from_secs(5);

/// How long the kernel may take to empty a killed cgroup before the report says "not proven".
const EMPTY_DEADLINE: Duration = Duration::from_secs(2);

/// Reports of growing output go to the core at most this often.
const OUTPUT_REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// First room of the read buffer; grows to [`FLOOD_BUFFER_BYTES`] while a tool floods.
const READ_BUFFER_BYTES: usize = 8 * 1024;
const FLOOD_BUFFER_BYTES: usize = 512 * 1024;

/// A wish of the core for a running attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// TERM to the tool.
    Terminate,
    /// The whole tree, now.
    Kill,
}

/// Everything that an attempt needs.
#[derive(Debug)]
pub struct Attempt {
    /// What to run.
    pub start: Box<StartAttempt>,
    /// Who runs it.
    pub worker: IdleWorker,
    /// What of the job its socket had no room for yet.
    pub unsent: Vec<u8>,
    /// Where output is pushed to.
    pub stream: Option<StreamHandle>,
    /// Where output is kept.
    pub log: Arc<OutputLog>,
    /// Wishes.
    pub controls: mpsc::UnboundedReceiver<Control>,
    /// For killing and proving by cgroup.
    pub cells: Arc<Cells>,
}

/// Reports that a start never got a worker.
pub async fn report_not_started(events: mpsc::Sender<Event>, call: CallUid, stage: Stage, errno: i32) {
    let report = AttemptReport {
        end: AttemptEnding::NotStarted { stage, errno, what: "a worker process".to_owned() },
        rendered: Rendered::default(),
        proven_gone: true,
    };
    let input = Input::AttemptEnded { call, report: Box::new(report) };
    // The dispatcher is gone only when the daemon is.
    let _ = events.send(Event::Core(input)).await;
}

/// Writes the job to an idle worker, without waiting; gives back what did not fit.
///
/// # Errors
/// When the worker is gone: then it has not begun.
pub fn hand_over(worker: &IdleWorker, job: &Job) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(2048);
    codec::encode_frame(&ToWorker::Hello { version: WORKER_PROTOCOL }, &mut bytes)
        .and_then(|()| codec::encode_frame(&ToWorker::Job(Box::new(job.clone())), &mut bytes))
        .map_err(io::Error::other)?;
    match (&worker.socket).write(&bytes) {
        Ok(written) => {
            bytes.drain(..written);
            Ok(bytes)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(bytes),
        Err(error) => Err(error),
    }
}

/// How reading ended.
enum Reading {
    Finished(Box<Finished>),
    Lost(String),
}

/// The moving parts while frames are read.
struct Running {
    call: CallUid,
    socket: UnixStream,
    kind: WorkerKind,
    pidfd: std::os::fd::OwnedFd,
    leaf: Option<String>,
    cells: Arc<Cells>,
    events: mpsc::Sender<Event>,
    stream: Option<StreamHandle>,
    log: Arc<OutputLog>,
    inline_bytes: u64,
    ring: TailRing,
    next_seq: u64,
    by_stream: (u64, u64),
    layers: Option<Layers>,
    last_report: Instant,
    greeted: bool,
    kill_deadline: Option<Instant>,
}

impl Attempt {
    /// Runs it to its end.
    pub async fn run(self, events: mpsc::Sender<Event>) {
        let Self { start, worker, unsent, stream, log, mut controls, cells } = self;
        let IdleWorker { pid, pidfd, socket, leaf, reaped, .. } = worker;
        let StartAttempt { kind, job, for_model_bytes, expect_json, how_to_read, .. } = *start;
        let call = job.call_uid;
        let (inline_bytes, tail_bytes) = (job.output.inline_bytes, job.output.tail_bytes);

        let socket = match UnixStream::from_std(socket) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::error!(pid, %error, "cannot watch a worker's socket");
                let _ = pidfd_send_signal(&pidfd, nix::libc::SIGKILL);
                let errno = error.raw_os_error().unwrap_or(nix::libc::EIO);
                return report_not_started(events, call, Stage::Fork, errno).await;
            }
        };
        let mut running = Running {
            call,
            socket,
            kind,
            pidfd,
            leaf,
            cells,
            events: events.clone(),
            stream,
            log: Arc::clone(&log),
            inline_bytes,
            ring: TailRing::new(usize::try_from(tail_bytes).unwrap_or(0)),
            next_seq: 0,
            by_stream: (0, 0),
            layers: None,
            last_report: Instant::now(),
            greeted: false,
            kill_deadline: None,
        };
        if !unsent.is_empty() && timeout(WORKER_DEADLINE, running.socket.write_all(&unsent)).await.is_err() {
            // It does not read its job; a failed write shows as end-of-file below.
            let _ = pidfd_send_signal(&running.pidfd, nix::libc::SIGKILL);
        }
        let reading = running.read_to_end(&mut controls).await;
        let (end, proven_gone) = match reading {
            Reading::Finished(finished) => {
                let proven = finished.proven_gone;
                if !proven {
                    tracing::warn!(%call, "a killed tree is not proven gone; trying on");
                    tokio::spawn(keep_killing(Arc::clone(&running.cells), running.leaf.clone()));
                }
                (AttemptEnding::Finished(finished), proven)
            }
            Reading::Lost(reason) => {
                let (wait, proven) = running.clean_up(reaped).await;
                let ending = AttemptEnding::WorkerLost {
                    wait,
                    reason,
                    layers: running.layers.take(),
                    output_bytes: running.by_stream,
                };
                (ending, proven)
            }
        };
        let tail = std::mem::replace(&mut running.ring, TailRing::new(0)).into_segments();
        let rendered =
            close_log(&log, &end, running.by_stream, tail, for_model_bytes, expect_json, &how_to_read);
        log.wake();
        let report = Box::new(AttemptReport { end, rendered, proven_gone });
        let _ = events.send(Event::Core(Input::AttemptEnded { call, report })).await;
    }
}

impl Running {
    async fn read_to_end(&mut self, controls: &mut mpsc::UnboundedReceiver<Control>) -> Reading {
        let mut buffer = BytesMut::with_capacity(READ_BUFFER_BYTES);
        loop {
            match self.take_frames(&mut buffer, controls).await {
                Ok(None) => {}
                Ok(Some(finished)) => return Reading::Finished(finished),
                Err(reason) => return Reading::Lost(reason),
            }
            let deadline = self.kill_deadline;
            tokio::select! {
                control = controls.recv() => if let Some(control) = control { self.wish(control).await },
                read = self.socket.read_buf(&mut buffer) => match read {
                    Ok(0) => return Reading::Lost("its socket ended without a last frame".to_owned()),
                    Ok(got) => {
                        let full = buffer.len() == buffer.capacity();
                        if full || got >= FLOOD_BUFFER_BYTES / 8 {
                            buffer.reserve(FLOOD_BUFFER_BYTES);
                        } else if buffer.capacity() - buffer.len() < READ_BUFFER_BYTES / 2 {
                            buffer.reserve(READ_BUFFER_BYTES);
                        }
                    }
                    Err(error) => return Reading::Lost(format!("its socket failed: {error}")),
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    // It did not answer a kill in time: its tree is killed with it.
                    self.kill_deadline = None;
                    let _ = pidfd_send_signal(&self.pidfd, nix::libc::SIGKILL);
                }
            }
        }
    }

    async fn wish(&mut self, control: Control) {
        let message = match (control, self.kind) {
            // A built-in runs in the worker itself, which does not listen meanwhile.
            (_, WorkerKind::Builtin) => {
                let _ = pidfd_send_signal(&self.pidfd, nix::libc::SIGKILL);
                return;
            }
            (Control::Terminate, WorkerKind::Exec) => ToWorker::Terminate,
            (Control::Kill, WorkerKind::Exec) => {
                self.kill_leaf();
                self.kill_deadline.get_or_insert_with(|| Instant::now() + WORKER_DEADLINE);
                ToWorker::Kill
            }
        };
        self.tell(&message).await;
    }

    /// Tells the worker; one that does not read is dealt with by the kill deadline, one that is gone by its
    /// end-of-file.
    async fn tell(&mut self, message: &ToWorker) {
        let mut bytes = Vec::with_capacity(16);
        if codec::encode_frame(message, &mut bytes).is_ok() {
            let _ = timeout(Duration::from_millis(100), self.socket.write_all(&bytes)).await;
        }
    }

    fn kill_leaf(&self) -> bool {
        let Some(leaf) = &self.leaf else { return false };
        self.cells.open_leaf(leaf).is_some_and(|group| group.kill().is_ok())
    }

    async fn take_frames(
        &mut self,
        buffer: &mut BytesMut,
        controls: &mut mpsc::UnboundedReceiver<Control>,
    ) -> Result<Option<Box<Finished>>, String> {
        while let Some(head) = buffer.first_chunk::<HEADER_BYTES>() {
            let size = body_size(*head).map_err(|error| error.to_string())?;
            if buffer.len() < HEADER_BYTES + size {
                buffer.reserve(HEADER_BYTES + size - buffer.len());
                return Ok(None);
            }
            let mut body = buffer.split_to(HEADER_BYTES + size).freeze();
            body.advance(HEADER_BYTES);
            if let Some((seq, stream, payload)) = codec::peek_output(&body) {
                let payload = body.slice_ref(payload);
                self.take_output(seq, stream, payload, controls).await?;
                continue;
            }
            match codec::decode::<FromWorker>(&body).map_err(|error| error.to_string())? {
                FromWorker::Hello { version } if version == WORKER_PROTOCOL && !self.greeted => {
                    self.greeted = true
                }
                FromWorker::Hello { version } => {
                    return Err(format!("an unexpected hello of version {version}"));
                }
                _ if !self.greeted => return Err("its first frame was not a hello".to_owned()),
                FromWorker::Started { pid, layers } => {
                    self.layers = Some(layers.clone());
                    self.report(Input::AttemptStarted { call: self.call, pid, layers }).await;
                }
                FromWorker::Output { .. } => return Err("an output frame that cannot be read".to_owned()),
                FromWorker::Spooled { total_bytes, spool_bytes } => {
                    {
                        let mut kept = self.log.kept();
                        kept.total_bytes = total_bytes;
                        kept.spool_bytes = spool_bytes;
                    }
                    self.grew(total_bytes).await;
                }
                FromWorker::Finished(finished) => return Ok(Some(finished)),
            }
        }
        Ok(None)
    }

    async fn take_output(
        &mut self,
        seq: u64,
        stream: Stream,
        payload: Bytes,
        controls: &mut mpsc::UnboundedReceiver<Control>,
    ) -> Result<(), String> {
        if seq != self.next_seq {
            return Err(format!("output chunk {seq} came where {} was due", self.next_seq));
        }
        self.next_seq += 1;
        let length = payload.len() as u64;
        match stream {
            Stream::Stdout => self.by_stream.0 += length,
            Stream::Stderr => self.by_stream.1 += length,
        }
        let total_bytes = {
            let mut kept = self.log.kept();
            let room =
                usize::try_from(self.inline_bytes.saturating_sub(kept.head_bytes)).unwrap_or(usize::MAX);
            let to_head = room.min(payload.len());
            if to_head > 0 {
                kept.head.push(Segment { stream, bytes: payload[..to_head].to_vec().into() });
                kept.head_bytes += to_head as u64;
            }
            kept.total_bytes += length;
            if to_head < payload.len() {
                self.ring.push(stream, payload.slice(to_head..));
            }
            kept.total_bytes
        };
        if let Some(handle) = self.stream.clone() {
            let sending = handle.send_chunk(self.call, seq, stream, payload);
            tokio::pin!(sending);
            loop {
                tokio::select! {
                    sent = &mut sending => {
                        if sent.is_err() {
                            // Its reader is gone: the tool goes on, and the output is counted.
                            self.stream = None;
                            self.tell(&ToWorker::StopStream).await;
                        }
                        break;
                    }
                    control = controls.recv() => if let Some(control) = control { self.wish(control).await },
                    // The reader holds the tool, so the tool's silence must not count against it.
                    () = tokio::time::sleep(Duration::from_millis(100)) => {
                        self.report(Input::AttemptOutput { call: self.call, total_bytes }).await;
                    }
                }
                if let Some(deadline) = self.kill_deadline
                    && Instant::now() + WORKER_DEADLINE >= deadline + READER_PATIENCE
                {
                    // A killed call does not wait for a reader that does not read: what it has written since is
                    // counted and not shown, and the kill is answered in time.
                    self.stream = None;
                    break;
                }
            }
        }
        self.grew(total_bytes).await;
        Ok(())
    }

    async fn grew(&mut self, total_bytes: u64) {
        self.log.wake();
        if self.last_report.elapsed() >= OUTPUT_REPORT_INTERVAL {
            self.last_report = Instant::now();
            self.report(Input::AttemptOutput { call: self.call, total_bytes }).await;
        }
    }

    async fn report(&self, input: Input) {
        let _ = self.events.send(Event::Core(input)).await;
    }

    /// The worker is lost: kills it and its cell, and waits for the proof.
    async fn clean_up(
        &mut self,
        reaped: tokio::sync::oneshot::Receiver<Reaped>,
    ) -> (Option<WaitStatus>, bool) {
        let _ = pidfd_send_signal(&self.pidfd, nix::libc::SIGKILL);
        self.kill_leaf();
        let wait = match timeout(REAP_DEADLINE, reaped).await {
            Ok(Ok((status, _orphans))) => Some(status),
            // Its spawner is gone too, or does not answer.
            Ok(Err(_)) | Err(_) => None,
        };
        let proven = match &self.leaf {
            Some(leaf) => empty(&self.cells, leaf).await,
            // The spawner reports a worker as reaped only after its orphans.
            None => wait.is_some(),
        };
        (wait, proven)
    }
}

/// Kills a leaf until it is empty or gone; says whether it is.
async fn empty(cells: &Cells, leaf: &str) -> bool {
    let deadline = Instant::now() + EMPTY_DEADLINE;
    loop {
        let Some(group) = cells.open_leaf(leaf) else { return true };
        match group.is_populated() {
            Ok(false) => return true,
            Err(error) if error.raw_os_error() == Some(nix::libc::ENODEV) => return true,
            Ok(true) | Err(_) => {
                let _ = group.kill();
            }
        }
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Goes on killing what could not be proven gone in time, so that nothing stays for ever because of one
/// process that the kernel would not let go.
async fn keep_killing(cells: Arc<Cells>, leaf: Option<String>) {
    let Some(leaf) = leaf else { return };
    for _ in 0..600 {
        if empty(&cells, &leaf).await {
            return;
        }
    }
    tracing::error!(leaf, "a cell cannot be emptied; a process in it does not react to SIGKILL");
}

/// Completes what is kept of the output and makes the text for the model.
fn close_log(
    log: &OutputLog,
    end: &AttemptEnding,
    by_stream: (u64, u64),
    streamed_tail: Vec<Segment>,
    for_model_bytes: usize,
    expect_json: bool,
    how_to_read: &str,
) -> Rendered {
    let mut kept = log.kept();
    kept.ended = true;
    kept.tail = streamed_tail;
    kept.total_bytes = kept.total_bytes.max(by_stream.0 + by_stream.1);
    if let AttemptEnding::Finished(finished) = end {
        kept.total_bytes = finished.stdout_bytes + finished.stderr_bytes;
        kept.tail.extend(finished.tail.iter().cloned());
        if let Some(spool) = &finished.spool {
            kept.spool_bytes = spool.bytes;
        }
    }
    let tail_bytes: u64 = kept.tail.iter().map(|segment| segment.bytes.0.len() as u64).sum();
    kept.gap_bytes = kept.total_bytes.saturating_sub(kept.head_bytes + tail_bytes);
    let view = for_model::Kept { head: &kept.head, gap_bytes: kept.gap_bytes, tail: &kept.tail };
    for_model::render(view, for_model_bytes, expect_json, how_to_read)
}
