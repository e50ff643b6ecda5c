//! Towards workers: the spawner process, the stock of idle workers, and one task per attempt.
//!
//! ```text
//! dispatcher ── start / terminate / kill ──▶ Supervisor ──▶ attempt task ⇄ worker
//!     ▲                                         │ ▲
//!     └── Input::Attempt*, SpawnerEvent ────────┘ └── Fork / Forked / Reaped ── spawner
//! ```
//!
//! [`Supervisor`] is a plain value that the dispatcher owns; only attempts and the two pumps of the spawner's
//! socket are tasks. When the spawner dies it is started again; attempts in flight do not notice.

pub mod attempt;
pub mod cells;
pub mod output;
pub mod spawner;
pub mod spool_dir;

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use toolcell_protocol::call::Leftover;
use toolcell_protocol::id::CallUid;
use toolcell_protocol::worker_api::{FromSpawner, ToSpawner, WaitStatus, WorkerKind};

use crate::core::event::StartAttempt;
use crate::dispatcher::Event;
use crate::server::connection::StreamHandle;
use attempt::{Attempt, Control};
use cells::Cells;
use output::OutputStore;
use spawner::{Spawner, SpawnerError};

/// Fork requests that may be with the spawner at once; keeps its socket from ever being full.
const MAX_FORKS_IN_FLIGHT: usize = 64;

/// How long the stock is left as it is when a worker could not be forked; starts that wait are not held up by it.
const STOCK_PAUSE: Duration = Duration::from_millis(500);

/// How a worker ended, as the spawner reaped it.
pub type Reaped = (WaitStatus, Vec<Leftover>);

/// A worker that waits for its job.
#[derive(Debug)]
pub struct IdleWorker {
    /// Its process id, for the record only; signals go through `pidfd`.
    pub pid: i32,
    /// For the last resort.
    pub pidfd: OwnedFd,
    /// Its socket, non-blocking.
    pub socket: std::os::unix::net::UnixStream,
    /// Name of its cell's cgroup leaf.
    pub leaf: Option<String>,
    /// Which spawner forked it.
    pub generation: u64,
    /// Becomes ready when the spawner has reaped it; fails when that spawner is gone.
    pub reaped: oneshot::Receiver<Reaped>,
}

/// What came from the spawner.
#[derive(Debug)]
pub enum SpawnerEvent {
    /// A message, with the descriptors it brought.
    Message(FromSpawner, Vec<OwnedFd>),
    /// It is gone.
    Gone {
        /// Why, for the log.
        reason: String,
    },
}

#[derive(Debug)]
struct PendingFork {
    kind: WorkerKind,
    leaf: Option<String>,
}

/// A start that waits for a worker, with where its output goes.
#[derive(Debug)]
struct PendingStart {
    start: Box<StartAttempt>,
    stream: Option<StreamHandle>,
}

/// An attempt in flight.
#[derive(Debug)]
struct InFlight {
    control: mpsc::UnboundedSender<Control>,
    worker_pid: i32,
    leaf: Option<String>,
    generation: u64,
}

#[derive(Debug, Default)]
struct Stock {
    idle: VecDeque<IdleWorker>,
    waiting: VecDeque<PendingStart>,
    forking: usize,
    wanted_idle: usize,
}

/// The daemon's side of all workers.
#[derive(Debug)]
pub struct Supervisor {
    events: mpsc::Sender<Event>,
    cells: Arc<Cells>,
    spawner: Option<Spawner>,
    generation: u64,
    restarts: u32,
    exec: Stock,
    builtin: Stock,
    forks: HashMap<u64, PendingFork>,
    next_ticket: u64,
    stock_pause: Option<Instant>,
    reapers: HashMap<i32, oneshot::Sender<Reaped>>,
    attempts: HashMap<CallUid, InFlight>,
    /// Outputs of all known calls.
    pub outputs: OutputStore,
}

impl Supervisor {
    /// Takes over a spawner that was started before the runtime.
    ///
    /// # Errors
    /// When the spawner's socket cannot be used.
    pub fn new(
        events: mpsc::Sender<Event>,
        cells: Arc<Cells>,
        started: spawner::Started,
        idle_workers: usize,
        idle_builtin_workers: usize,
        kept_bytes: usize,
    ) -> Result<Self, SpawnerError> {
        let spawner = Spawner::adopt(started, &cells, events.clone(), 0)?;
        let mut supervisor = Self {
            events,
            cells,
            spawner: Some(spawner),
            generation: 0,
            restarts: 0,
            exec: Stock { wanted_idle: idle_workers, ..Stock::default() },
            builtin: Stock { wanted_idle: idle_builtin_workers, ..Stock::default() },
            forks: HashMap::new(),
            next_ticket: 0,
            stock_pause: None,
            reapers: HashMap::new(),
            attempts: HashMap::new(),
            outputs: OutputStore::new(kept_bytes),
        };
        supervisor.refill();
        Ok(supervisor)
    }

    /// The spawner's process id, while there is one.
    #[must_use]
    pub fn spawner_pid(&self) -> Option<i32> {
        self.spawner.as_ref().map(Spawner::pid)
    }

    /// Times that the spawner was started again.
    #[must_use]
    pub const fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Workers that wait for a job.
    #[must_use]
    pub fn idle_workers(&self) -> usize {
        self.exec.idle.len() + self.builtin.idle.len()
    }

    /// Starts an attempt: with a worker from the stock, else as soon as one is forked.
    pub fn start(&mut self, start: Box<StartAttempt>, stream: Option<StreamHandle>) {
        let kind = start.kind;
        let mut pending = PendingStart { start, stream };
        while let Some(worker) = self.stock(kind).idle.pop_front() {
            match self.run(pending, worker) {
                Ok(()) => return,
                // It died while it was idle; the next one takes the call.
                Err(again) => pending = again,
            }
        }
        self.stock(kind).waiting.push_back(pending);
        self.refill();
    }

    /// Hands a running attempt a wish.
    pub fn control(&mut self, call: CallUid, control: Control) {
        if let Some(attempt) = self.attempts.get(&call) {
            // An attempt that has just ended does not listen any more, and need not.
            let _ = attempt.control.send(control);
            return;
        }
        // Still waiting for a worker: it never starts.
        for stock in [&mut self.exec, &mut self.builtin] {
            if let Some(at) = stock.waiting.iter().position(|pending| pending.start.job.call_uid == call)
                && stock.waiting.remove(at).is_some()
            {
                let events = self.events.clone();
                tokio::spawn(attempt::report_not_started(
                    events,
                    call,
                    toolcell_protocol::worker_api::Stage::Fork,
                    nix::libc::ECANCELED,
                ));
                return;
            }
        }
    }

    /// An attempt is over.
    pub fn attempt_ended(&mut self, call: CallUid) {
        if let Some(attempt) = self.attempts.remove(&call) {
            // A worker that ends well is not reported.
            self.reapers.remove(&attempt.worker_pid);
            // The spawner that would have removed its leaf is gone.
            if let (Some(leaf), true) = (attempt.leaf, attempt.generation != self.generation) {
                tokio::spawn(Arc::clone(&self.cells).remove_leaf(leaf));
            }
        }
    }

    /// Something came from the spawner.
    pub fn handle_spawner(&mut self, generation: u64, event: SpawnerEvent) {
        if generation != self.generation {
            return;
        }
        match event {
            SpawnerEvent::Message(FromSpawner::Hello { .. }, _) => {}
            SpawnerEvent::Message(FromSpawner::Forked { ticket, pid }, fds) => self.forked(ticket, pid, fds),
            SpawnerEvent::Message(FromSpawner::ForkFailed { ticket, stage, errno }, _) => {
                self.fork_failed(ticket, stage, errno);
            }
            SpawnerEvent::Message(FromSpawner::Reaped { pid, status, orphans }, _) => {
                if let Some(reaper) = self.reapers.remove(&pid) {
                    // Nobody waits for an attempt that has already reported its end.
                    let _ = reaper.send((status, orphans));
                }
                for stock in [&mut self.exec, &mut self.builtin] {
                    stock.idle.retain(|worker| worker.pid != pid);
                }
            }
            SpawnerEvent::Message(FromSpawner::Swept { killed, clean }, _) => {
                tracing::debug!(killed, clean, "the spawner swept");
            }
            SpawnerEvent::Gone { reason } => self.restart_spawner(&reason),
        }
    }

    /// Ends the spawner: closes its socket and waits until it has cleaned up and is gone.
    pub async fn shut_down(&mut self) {
        self.exec.idle.clear();
        self.builtin.idle.clear();
        if let Some(spawner) = self.spawner.take() {
            spawner.shut_down().await;
        }
    }

    const fn stock(&mut self, kind: WorkerKind) -> &mut Stock {
        match kind {
            WorkerKind::Exec => &mut self.exec,
            WorkerKind::Builtin => &mut self.builtin,
        }
    }

    /// Hands the job to the worker before anything else is done, since everybody waits for just that.
    fn run(&mut self, pending: PendingStart, worker: IdleWorker) -> Result<(), PendingStart> {
        let unsent = match attempt::hand_over(&worker, &pending.start.job) {
            Ok(unsent) => unsent,
            Err(error) => {
                tracing::warn!(pid = worker.pid, %error, "an idle worker cannot take a job; another one does");
                return Err(pending);
            }
        };
        let PendingStart { start, stream } = pending;
        let call = start.job.call_uid;
        let log = self.outputs.open(call);
        log.kept().spool = start.job.output.spool.as_ref().map(|spool| (&spool.path).into());
        let (control, controls) = mpsc::unbounded_channel();
        let (worker_pid, leaf, generation) = (worker.pid, worker.leaf.clone(), worker.generation);
        self.attempts.insert(call, InFlight { control, worker_pid, leaf, generation });
        let attempt =
            Attempt { start, worker, unsent, stream, log, controls, cells: Arc::clone(&self.cells) };
        tokio::spawn(attempt.run(self.events.clone()));
        Ok(())
    }

    /// Asks for as many forks as waiting starts and the stock want. While calls run, a stock that is more than a
    /// quarter full is left alone: a fork takes a processor that they can use better.
    pub fn refill(&mut self) {
        let quiet = self.attempts.is_empty();
        let paused = self.stock_pause.is_some_and(|until| Instant::now() < until);
        for kind in [WorkerKind::Exec, WorkerKind::Builtin] {
            let stock = self.stock(kind);
            let low = (stock.idle.len() + stock.forking) * 4 <= stock.wanted_idle;
            let fill = !paused && (quiet || low);
            loop {
                let in_flight = self.forks.len();
                let stock = self.stock(kind);
                let wanted = stock.waiting.len() + if fill { stock.wanted_idle } else { 0 };
                if stock.idle.len() + stock.forking >= wanted || in_flight >= MAX_FORKS_IN_FLIGHT {
                    break;
                }
                let hurry = stock.waiting.len() > stock.forking;
                let Some(spawner) = &self.spawner else { return };
                self.next_ticket += 1;
                let ticket = self.next_ticket;
                let leaf = self.cells.next_leaf();
                if let Err(error) = spawner.send(&ToSpawner::Fork { ticket, kind, leaf: leaf.clone(), hurry })
                {
                    // Its reader sees the same end and has it started again.
                    tracing::warn!(%error, "cannot ask the spawner for a worker");
                    return;
                }
                self.stock(kind).forking += 1;
                self.forks.insert(ticket, PendingFork { kind, leaf });
            }
        }
    }

    fn forked(&mut self, ticket: u64, pid: i32, fds: Vec<OwnedFd>) {
        let Some(PendingFork { kind, leaf }) = self.forks.remove(&ticket) else { return };
        self.stock(kind).forking -= 1;
        let Ok([socket, pidfd]) = <[OwnedFd; 2]>::try_from(fds) else {
            tracing::error!(pid, "the spawner sent a worker without its two descriptors");
            return;
        };
        let socket = std::os::unix::net::UnixStream::from(socket);
        if let Err(error) = socket.set_nonblocking(true) {
            tracing::error!(pid, %error, "cannot use a worker's socket");
            return;
        }
        let (reaper, reaped) = oneshot::channel();
        self.reapers.insert(pid, reaper);
        let worker = IdleWorker { pid, pidfd, socket, leaf, generation: self.generation, reaped };
        match self.stock(kind).waiting.pop_front() {
            None => self.stock(kind).idle.push_back(worker),
            Some(pending) => {
                if let Err(again) = self.run(pending, worker) {
                    self.stock(kind).waiting.push_front(again);
                }
            }
        }
        if !(self.exec.waiting.is_empty() && self.builtin.waiting.is_empty()) {
            self.refill();
        }
    }

    fn fork_failed(&mut self, ticket: u64, stage: toolcell_protocol::worker_api::Stage, errno: i32) {
        let Some(PendingFork { kind, leaf }) = self.forks.remove(&ticket) else { return };
        self.stock(kind).forking -= 1;
        tracing::warn!(stage = stage.name(), errno, ?leaf, "a worker could not be forked");
        // A host without memory or processes must not be asked again and again.
        self.stock_pause = Some(Instant::now() + STOCK_PAUSE);
        if let Some(pending) = self.stock(kind).waiting.pop_front() {
            let events = self.events.clone();
            tokio::spawn(attempt::report_not_started(events, pending.start.job.call_uid, stage, errno));
        }
    }

    fn restart_spawner(&mut self, reason: &str) {
        self.generation += 1;
        self.restarts += 1;
        // Nobody tells us any more how its workers ended; attempts see their senders go.
        self.reapers.clear();
        self.forks.clear();
        self.exec.forking = 0;
        self.builtin.forking = 0;
        if let Some(old) = self.spawner.take() {
            old.abandon();
        }
        tracing::warn!(reason, restarts = self.restarts, "the spawner is gone; starting another");
        let started = spawner::start()
            .and_then(|started| Spawner::adopt(started, &self.cells, self.events.clone(), self.generation));
        match started {
            Ok(spawner) => {
                self.spawner = Some(spawner);
                self.refill();
            }
            Err(error) => {
                tracing::error!(%error, "the spawner cannot be started; trying again in a second");
                let (events, generation) = (self.events.clone(), self.generation);
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    let event = SpawnerEvent::Gone { reason: "it could not be started".to_owned() };
                    let _ = events.send(Event::Spawner { generation, event }).await;
                });
            }
        }
    }
}
