//! The one loop: gather an event, let the core decide, perform what it asks for.
//!
//! ```text
//! server ──┐                          ┌─▶ server (replies, events)
//! supervisor ─▶ Event ─▶ Core::handle ─▶ Effect ─▶ supervisor (start, terminate, kill)
//! signals ─┘        ▲                 └─▶ log
//!                   └── next deadline
//! ```
//!
//! The only file that touches both the core and the shells. Nothing here waits for anything but the next event
//! or deadline.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;
use tokio::time::Instant;
use toolcell_protocol::client_api::{DaemonMessage, Refusal, RefusalCode, Reply, Request, ServerStatus};
use toolcell_protocol::worker_api::FromSpawner;

use crate::core::Core;
use crate::core::event::{Asker, ConnId, Effect, FreshIds, Input, Now, Peer};
use crate::server::connection::ConnHandle;
use crate::server::listener::Doorkeeper;
use crate::supervisor::attempt::Control;
use crate::supervisor::cells::Cells;
use crate::supervisor::output::OutputLog;
use crate::supervisor::{SpawnerEvent, Supervisor};

/// Everything that can wake the daemon.
#[derive(Debug)]
pub enum Event {
    /// A connection has shaken hands.
    Connected {
        /// Which.
        conn: ConnId,
        /// Its queue.
        handle: ConnHandle,
    },
    /// A connection asks for something.
    Request {
        /// Which.
        conn: ConnId,
        /// The client's number.
        request_id: u64,
        /// Who.
        peer: Arc<Peer>,
        /// What.
        request: Request,
    },
    /// A connection is gone.
    Disconnected {
        /// Which.
        conn: ConnId,
    },
    /// An attempt has something for the core.
    Core(Input),
    /// Something came from a spawner.
    Spawner {
        /// Of which spawner; an older one's words mean nothing.
        generation: u64,
        /// What.
        event: SpawnerEvent,
    },
    /// The daemon shall end.
    Shutdown,
    /// Another connection, handed in by the program that the daemon lives in.
    Adopt(OwnedFd),
}

/// What `server.status` says that never changes.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Name and version.
    pub daemon: String,
    /// New at each start.
    pub epoch: u64,
    /// Lives inside a command.
    pub embedded: bool,
    /// Manifests that could not be loaded.
    pub broken_manifests: Vec<String>,
}

/// The loop's own state.
#[derive(Debug)]
pub struct Dispatcher {
    core: Core,
    supervisor: Supervisor,
    connections: HashMap<ConnId, ConnHandle>,
    doorkeeper: Arc<Doorkeeper>,
    cells: Arc<Cells>,
    identity: Identity,
    started: Instant,
    stopped: bool,
}

impl Dispatcher {
    /// Joins the core and the shells.
    #[must_use]
    pub fn new(
        core: Core,
        supervisor: Supervisor,
        doorkeeper: Arc<Doorkeeper>,
        cells: Arc<Cells>,
        identity: Identity,
    ) -> Self {
        Self {
            core,
            supervisor,
            connections: HashMap::new(),
            doorkeeper,
            cells,
            identity,
            started: Instant::now(),
            stopped: false,
        }
    }

    /// Runs until the core has stopped, then ends the spawner. `adopt` takes in connections.
    pub async fn run(mut self, mut events: mpsc::Receiver<Event>, adopt: impl Fn(OwnedFd)) {
        let timer = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(timer);
        let mut armed = false;
        while !self.stopped {
            if events.is_empty() {
                // Writers and attempts go first: they have what others wait for.
                tokio::task::yield_now().await;
                if events.is_empty() {
                    self.supervisor.refill();
                }
            }
            // The timer is set when a deadline comes before it, and left alone when deadlines go away: a wake-up
            // for nothing now and then is cheaper than setting it for each call.
            let next = self.core.next_deadline().map(|at_us| self.started + Duration::from_micros(at_us));
            if let Some(next) = next
                && (!armed || next < timer.deadline())
            {
                armed = true;
                timer.as_mut().reset(next);
            }
            let event = tokio::select! {
                event = events.recv() => event,
                () = &mut timer, if armed => {
                    armed = false;
                    self.core.handle(self.now(), Input::Deadline);
                    self.perform();
                    continue;
                }
            };
            match event {
                Some(Event::Adopt(fd)) => adopt(fd),
                Some(event) => self.take(event),
                // Every sender is gone: so is the program.
                None => break,
            }
            self.perform();
        }
        for handle in self.connections.values() {
            handle.close("the daemon is ending");
        }
        // Let the writers bring the last messages out before the sockets go.
        let farewell = Instant::now() + Duration::from_millis(200);
        while self.doorkeeper.connections() > 0 && Instant::now() < farewell {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Workers that were just forked may still be in the queue, and would wait for a daemon that never comes.
        events.close();
        while events.try_recv().is_ok() {}
        self.supervisor.shut_down().await;
    }

    fn now(&self) -> Now {
        let mono_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { mono_us, wall_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX) }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Connected { conn, handle } => {
                self.connections.insert(conn, handle);
            }
            Event::Request { conn, request_id, peer, request } => {
                let fresh = FreshIds::for_request(&request, uuid::Uuid::now_v7);
                let from = Asker { conn, request_id, peer };
                self.core.handle(self.now(), Input::Request { from, request, fresh });
            }
            Event::Disconnected { conn } => {
                self.connections.remove(&conn);
                self.core.handle(self.now(), Input::Disconnected { conn });
            }
            Event::Core(input) => {
                if let Input::AttemptEnded { call, .. } = &input {
                    self.supervisor.attempt_ended(*call);
                }
                self.core.handle(self.now(), input);
            }
            Event::Spawner { generation, event } => {
                if let SpawnerEvent::Message(FromSpawner::Hello { pid, .. }, _) = &event {
                    tracing::debug!(pid, "the spawner is ready");
                }
                self.supervisor.handle_spawner(generation, event);
            }
            Event::Shutdown => self.core.handle(self.now(), Input::Shutdown),
            // Taken by `run`.
            Event::Adopt(_) => {}
        }
    }

    fn perform(&mut self) {
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::Reply { conn, request_id, reply } => self.reply(conn, request_id, reply),
                Effect::ReplyStatus { conn, request_id, mut status } => {
                    self.complete(&mut status);
                    self.reply(conn, request_id, Ok(Reply::Status(status)));
                }
                Effect::Event { conn, event } => self.send(conn, &DaemonMessage::Event(event)),
                Effect::StartAttempt(start) => {
                    let stream =
                        start.stream_to.and_then(|conn| self.connections.get(&conn)).map(ConnHandle::stream);
                    self.supervisor.start(start, stream);
                }
                Effect::TerminateAttempt { call } => self.supervisor.control(call, Control::Terminate),
                Effect::KillAttempt { call } => self.supervisor.control(call, Control::Kill),
                Effect::ReadOutput { conn, request_id, call, cursor, max_bytes, wait_ms, ended } => {
                    let log = if ended {
                        self.supervisor.outputs.get(call)
                    } else {
                        Some(self.supervisor.outputs.open(call))
                    };
                    self.read_output(conn, request_id, log, cursor, max_bytes, wait_ms);
                }
                Effect::ForgetOutput { call } => self.supervisor.outputs.forget(call),
                Effect::LogEnd { session, uid, result } => {
                    self.supervisor.outputs.ended(result.call_uid);
                    crate::telemetry::call_ended(&session, uid, &result);
                }
                Effect::Stopped => self.stopped = true,
            }
        }
    }

    fn reply(&mut self, conn: ConnId, request_id: u64, reply: Result<Reply, Refusal>) {
        self.send(conn, &DaemonMessage::Reply { id: request_id, reply });
    }

    fn send(&mut self, conn: ConnId, message: &DaemonMessage) {
        if let Some(handle) = self.connections.get(&conn)
            && !handle.send(message)
        {
            self.connections.remove(&conn);
        }
    }

    fn read_output(
        &self,
        conn: ConnId,
        request_id: u64,
        log: Option<Arc<OutputLog>>,
        cursor: u64,
        max_bytes: u32,
        wait_ms: u64,
    ) {
        let Some(handle) = self.connections.get(&conn).cloned() else { return };
        tokio::spawn(async move {
            let reply = match log {
                None => Ok(Reply::Output(toolcell_protocol::client_api::OutputPage {
                    pieces: Vec::new(),
                    next_cursor: cursor,
                    end: true,
                    skipped_bytes: 0,
                })),
                Some(log) => log
                    .read(cursor, max_bytes as usize, Duration::from_millis(wait_ms))
                    .await
                    .map(Reply::Output)
                    .map_err(|error| output_refusal(&error)),
            };
            handle.send(&DaemonMessage::Reply { id: request_id, reply });
        });
    }

    fn complete(&self, status: &mut ServerStatus) {
        status.daemon.clone_from(&self.identity.daemon);
        status.pid = i32::try_from(std::process::id()).unwrap_or(0);
        status.uid = nix::unistd::Uid::effective().as_raw();
        status.spawner_pid = self.supervisor.spawner_pid();
        status.embedded = self.identity.embedded;
        status.epoch = self.identity.epoch;
        status.containment_reason = self.cells.reason().map(str::to_owned);
        status.idle_workers = u32::try_from(self.supervisor.idle_workers()).unwrap_or(u32::MAX);
        status.spawner_restarts = self.supervisor.restarts();
        status.connections = u32::try_from(self.doorkeeper.connections()).unwrap_or(u32::MAX);
        status.broken_manifests.clone_from(&self.identity.broken_manifests);
    }
}

fn output_refusal(error: &std::io::Error) -> Refusal {
    if error.kind() == std::io::ErrorKind::NotFound {
        return Refusal {
            code: RefusalCode::OutputExpired,
            message: "the output is not kept any more; raise output.kept_bytes or read it sooner".to_owned(),
        };
    }
    if error.kind() == std::io::ErrorKind::InvalidInput {
        return Refusal {
            code: RefusalCode::BadRequest,
            message: "call.output cursor: not 0 and not the next_cursor of a page; begin with 0".to_owned(),
        };
    }
    Refusal { code: RefusalCode::Internal, message: format!("the output cannot be read: {error}") }
}
