//! `Core`: the state of all sessions and calls, and the three ways in and out of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use toolcell_protocol::call::{BatchResult, CallResult, Details, KillInfo, Layers, Status, Verdict};
use toolcell_protocol::client_api::{CallPhase, Event, EventBody, KillAnswer, OnDisconnect, Reply};
use toolcell_protocol::id::{CallUid, SessionId, SessionName};

use super::admission::Surroundings;
use super::call::{Call, Cause};
use super::event::{AttemptEnding, AttemptReport, ConnId, Effect, Input, Now};
use super::outcome::{Outcome, cancelled_by, classify};
use super::queue::{FairQueue, RunLimits};
use super::session::Session;
use super::timer::{Timer, Timers};
use crate::tools::ToolSet;

/// How long a kill may take before those who asked are told that it is not proven yet.
pub const KILL_PROOF_MS: u64 = 2_000;

/// Bounds that the core keeps.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Calls that may run at once.
    pub run: RunLimits,
    /// Sessions of one uid.
    pub max_sessions_per_uid: usize,
    /// Waiting calls of one uid.
    pub max_queued_per_uid: usize,
    /// Finished calls of one session that stay known.
    pub kept_calls_per_session: usize,
    /// Time that a session without a connection goes on.
    pub session_linger_ms: u64,
    /// Time that running calls have to end by themselves at shutdown.
    pub drain_ms: u64,
}

/// The state of the daemon.
#[derive(Debug)]
pub struct Core {
    pub(super) settings: Settings,
    pub(super) around: Surroundings,
    pub(super) tools: Arc<ToolSet>,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) by_name: BTreeMap<(u32, SessionName), SessionId>,
    pub(super) sessions_of_uid: BTreeMap<u32, usize>,
    pub(super) attached: BTreeMap<ConnId, BTreeSet<SessionId>>,
    pub(super) calls: BTreeMap<CallUid, Call>,
    pub(super) queue: FairQueue,
    pub(super) timers: Timers,
    pub(super) ended: BTreeMap<Status, u64>,
    pub(super) next_waiter: u64,
    pub(super) shutting_down: bool,
    stopped: bool,
    effects: VecDeque<Effect>,
}

/// The moment so many milliseconds from now; values that nobody will live to see are no error.
pub(super) const fn after(now: Now, ms: u64) -> u64 {
    now.mono_us.saturating_add(ms.saturating_mul(1000))
}

impl Core {
    /// A daemon without sessions.
    #[must_use]
    pub fn new(settings: Settings, around: Surroundings, tools: Arc<ToolSet>) -> Self {
        Self {
            settings,
            around,
            tools,
            sessions: BTreeMap::new(),
            by_name: BTreeMap::new(),
            sessions_of_uid: BTreeMap::new(),
            attached: BTreeMap::new(),
            calls: BTreeMap::new(),
            queue: FairQueue::new(settings.run),
            timers: Timers::default(),
            ended: BTreeMap::new(),
            next_waiter: 0,
            shutting_down: false,
            stopped: false,
            effects: VecDeque::new(),
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Now, input: Input) {
        match input {
            Input::Request { from, request, fresh } => self.handle_request(now, &from, request, fresh),
            Input::Disconnected { conn } => self.handle_disconnect(now, conn),
            Input::AttemptStarted { call, pid, layers } => self.handle_started(now, call, pid, layers),
            Input::AttemptOutput { call, total_bytes } => self.handle_output(now, call, total_bytes),
            Input::AttemptEnded { call, report } => self.handle_ended(now, call, *report),
            Input::Deadline => {}
            Input::Shutdown => self.handle_shutdown(now),
        }
        // Whatever came in, deadlines that have passed are served before the shell acts on anything else.
        while let Some(timer) = self.timers.pop_due(now.mono_us) {
            self.handle_timer(now, timer);
        }
        if self.shutting_down && !self.stopped && self.queue.running() == 0 && self.queue.waiting() == 0 {
            self.stopped = true;
            self.effect(Effect::Stopped);
        }
    }

    /// The next thing to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to call [`Core::handle`] at the latest, in `Now::mono_us`.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.next()
    }

    pub(super) fn effect(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// Numbers an event and sends it to the connection that executes the batch.
    pub(super) fn event(&mut self, now: Now, session: SessionId, body: EventBody) {
        let Some(of) = self.sessions.get_mut(&session) else { return };
        of.last_seq += 1;
        let event = Event { session_id: session, seq: of.last_seq, at_ms: now.wall_ms, body };
        if let Some(batch) = &of.batch {
            let conn = batch.executor;
            self.effect(Effect::Event { conn, event });
        }
    }

    /// Starts every waiting call that has a place.
    pub(super) fn start_ready(&mut self, now: Now) {
        while let Some(uid) = self.queue.pop() {
            let Some(call) = self.calls.get_mut(&uid) else { continue };
            let Some(start) = call.to_start.take() else { continue };
            call.phase = CallPhase::Starting;
            call.attempts += 1;
            call.starting = Some(now);
            let wall_us = after(now, call.timeout_ms);
            self.timers.set(Timer::Wall(uid), wall_us);
            self.effect(Effect::StartAttempt(start));
        }
    }

    fn handle_started(&mut self, now: Now, uid: CallUid, pid: i32, layers: Layers) {
        let Some(call) = self.calls.get_mut(&uid) else { return };
        if !call.in_flight() {
            return;
        }
        call.pid = Some(pid);
        call.started = Some(now);
        call.layers = Some(layers);
        if call.phase == CallPhase::Starting {
            call.phase = CallPhase::Running;
        }
        let body = EventBody::ToolStarted {
            call_uid: uid,
            call_id: call.id.clone(),
            name: call.tool.clone(),
            pid,
            args: call.args.clone(),
        };
        let (session, timeout_ms, idle) = (call.session, call.timeout_ms, call.idle_timeout_ms);
        if call.cause.is_none() {
            self.timers.set(Timer::Wall(uid), after(now, timeout_ms));
            if let Some(idle_ms) = idle {
                self.timers.set(Timer::Idle(uid), after(now, idle_ms));
            }
        }
        self.event(now, session, body);
    }

    fn handle_output(&mut self, now: Now, uid: CallUid, total_bytes: u64) {
        let Some(call) = self.calls.get_mut(&uid) else { return };
        call.output_bytes = total_bytes;
        if let (Some(idle_ms), CallPhase::Running) = (call.idle_timeout_ms, call.phase) {
            self.timers.set(Timer::Idle(uid), after(now, idle_ms));
        }
    }

    /// Ends a call for this cause, if it has not ended: cancels it, or starts to kill it.
    pub(super) fn end_call(&mut self, now: Now, uid: CallUid, cause: &Cause) -> KillAnswer {
        let Some(call) = self.calls.get_mut(&uid) else { return KillAnswer::AlreadyEnded };
        match call.phase {
            CallPhase::Finished => KillAnswer::AlreadyEnded,
            CallPhase::Queued => {
                let session = call.session;
                self.queue.remove(session, uid);
                self.finish_unstarted(now, uid, cancelled_by(cause));
                self.finish_batch_if_empty(now, session);
                KillAnswer::Cancelled
            }
            CallPhase::Terminating => {
                // Being ended already: the first cause stays, and a second wish means "now".
                if !matches!(cause, Cause::WallTimeout { .. } | Cause::IdleTimeout { .. }) {
                    self.timers.clear(Timer::Grace(uid));
                    self.effect(Effect::KillAttempt { call: uid });
                }
                KillAnswer::Killed
            }
            CallPhase::Starting | CallPhase::Running => {
                let grace_ms = match cause {
                    Cause::WallTimeout { .. } | Cause::IdleTimeout { .. } => call.timeout_grace_ms,
                    _ => call.kill_grace_ms,
                };
                call.cause = Some((cause.clone(), now.mono_us));
                call.phase = CallPhase::Terminating;
                self.timers.clear(Timer::Wall(uid));
                self.timers.clear(Timer::Idle(uid));
                if grace_ms == 0 {
                    self.effect(Effect::KillAttempt { call: uid });
                } else {
                    self.effect(Effect::TerminateAttempt { call: uid });
                    self.timers.set(Timer::Grace(uid), after(now, grace_ms));
                }
                KillAnswer::Killed
            }
        }
    }

    fn handle_timer(&mut self, now: Now, timer: Timer) {
        match timer {
            Timer::Wall(uid) => {
                if let Some(timeout_ms) = self.calls.get(&uid).map(|call| call.timeout_ms) {
                    self.end_call(now, uid, &Cause::WallTimeout { timeout_ms });
                }
            }
            Timer::Idle(uid) => {
                if let Some(timeout_ms) = self.calls.get(&uid).and_then(|call| call.idle_timeout_ms) {
                    self.end_call(now, uid, &Cause::IdleTimeout { timeout_ms });
                }
            }
            Timer::Grace(uid) => self.effect(Effect::KillAttempt { call: uid }),
            Timer::KillProof(uid) => self.answer_kill_waiters(uid, Some(KillAnswer::KillPending)),
            Timer::Wait(uid, number) => {
                let Some(call) = self.calls.get_mut(&uid) else { return };
                let Some(at) = call.waiters.iter().position(|waiter| waiter.number == number) else { return };
                let waiter = call.waiters.remove(at);
                self.effect(Effect::Reply {
                    conn: waiter.conn,
                    request_id: waiter.request_id,
                    reply: Ok(Reply::CallEnd(None)),
                });
            }
            Timer::Linger(id) => self.abandon_session(now, id),
            Timer::Drain => {
                let running: Vec<CallUid> =
                    self.calls.values().filter(|call| call.in_flight()).map(|call| call.uid).collect();
                for uid in running {
                    self.end_call(now, uid, &Cause::Shutdown);
                }
            }
        }
    }

    fn handle_disconnect(&mut self, now: Now, conn: ConnId) {
        for id in self.attached.remove(&conn).unwrap_or_default() {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            session.attached.remove(&conn);
            if !session.attached.is_empty() {
                continue;
            }
            match session.on_disconnect {
                OnDisconnect::Abort => self.abandon_session(now, id),
                OnDisconnect::Linger => {
                    self.timers.set(Timer::Linger(id), after(now, self.settings.session_linger_ms));
                }
            }
        }
    }

    /// Nobody is there for the session any more: its killable calls end now, and it ends with its last call.
    fn abandon_session(&mut self, now: Now, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.abandoned = true;
        let calls = session.batch.as_ref().map(|batch| batch.calls.clone()).unwrap_or_default();
        for uid in calls {
            if self.calls.get(&uid).is_some_and(|call| !call.immune) {
                self.end_call(now, uid, &Cause::ClientGone);
            }
        }
        if self.sessions.get(&id).is_some_and(|session| session.batch.is_none()) {
            self.close_session(now, id, &Cause::ClientGone, None);
        }
    }

    fn handle_shutdown(&mut self, now: Now) {
        if self.shutting_down {
            // A second wish means "now".
            self.timers.set(Timer::Drain, now.mono_us);
            return;
        }
        self.shutting_down = true;
        let waiting: Vec<CallUid> =
            self.calls.values().filter(|call| call.phase == CallPhase::Queued).map(|call| call.uid).collect();
        for uid in waiting {
            self.end_call(now, uid, &Cause::Shutdown);
        }
        self.timers.set(Timer::Drain, after(now, self.settings.drain_ms));
    }

    fn handle_ended(&mut self, now: Now, uid: CallUid, report: AttemptReport) {
        let Some(call) = self.calls.get_mut(&uid) else { return };
        if !call.in_flight() {
            return;
        }
        let cause = call.cause.as_ref().map(|(cause, _)| cause);
        let mut outcome = classify(cause, &report.end, &call.rlimits);
        let killed = cause.is_some() && matches!(outcome.status, Status::Killed | Status::TimedOut);
        let mut details = details_of(call, &report, now);
        let mut text = report.rendered.text;
        match report.rendered.structured {
            Some(Ok(json)) => details.structured = Some(json),
            Some(Err(reason)) if outcome.status == Status::Ok => {
                outcome.status = Status::Error;
                outcome.detail.message = Some(format!("the tool promised JSON: {reason}"));
            }
            _ => {}
        }
        details.omitted_bytes = report.rendered.omitted_bytes;
        details.truncated = report.rendered.omitted_bytes > 0;
        if let (Some((cause, since_us)), true) = (&call.cause, killed) {
            details.kill = Some(KillInfo {
                cause: cause.name().to_owned(),
                took_us: now.mono_us.saturating_sub(*since_us),
                proven_gone: report.proven_gone,
            });
        }
        append_footer(&mut text, &outcome);
        let session = call.session;
        // Killed means gone: without the proof nobody is told that it is.
        let reason = details.kill.as_ref().filter(|kill| kill.proven_gone).map(|kill| kill.cause.clone());
        let event = reason.map(|reason| EventBody::ToolKilled {
            call_uid: uid,
            call_id: call.id.clone(),
            name: call.tool.clone(),
            reason,
        });
        if let Some(event) = event {
            self.event(now, session, event);
        }
        self.queue.finished(session);
        for timer in [Timer::Wall(uid), Timer::Idle(uid), Timer::Grace(uid)] {
            self.timers.clear(timer);
        }
        self.finish(now, uid, outcome, text, details);
        self.finish_batch_if_empty(now, session);
        self.start_ready(now);
    }

    /// Gives a result to a call that no worker ever had.
    pub(super) fn finish_unstarted(&mut self, now: Now, uid: CallUid, outcome: Outcome) {
        let text = outcome.detail.message.clone().unwrap_or_default();
        self.finish(now, uid, outcome, text, Details::default());
    }

    fn finish(&mut self, now: Now, uid: CallUid, outcome: Outcome, for_model: String, details: Details) {
        let Some(call) = self.calls.get_mut(&uid) else { return };
        let result = Arc::new(CallResult {
            call_id: call.id.clone(),
            call_uid: uid,
            tool: call.tool.clone(),
            status: outcome.status,
            status_detail: outcome.detail,
            for_model,
            details,
        });
        call.phase = CallPhase::Finished;
        call.to_start = None;
        call.result = Some(Arc::clone(&result));
        let session_id = call.session;
        let waiters = std::mem::take(&mut call.waiters);
        let body = EventBody::ToolFinished {
            call_uid: uid,
            call_id: call.id.clone(),
            name: call.tool.clone(),
            status: result.status,
            duration_us: result.details.duration_us,
        };
        *self.ended.entry(result.status).or_default() += 1;
        self.event(now, session_id, body);
        for waiter in waiters {
            self.timers.clear(Timer::Wait(uid, waiter.number));
            self.effect(Effect::Reply {
                conn: waiter.conn,
                request_id: waiter.request_id,
                reply: Ok(Reply::CallEnd(Some(Arc::clone(&result)))),
            });
        }
        self.answer_kill_waiters(uid, None);
        let Some(session) = self.sessions.get_mut(&session_id) else { return };
        if let Some(batch) = session.batch.as_mut() {
            batch.unfinished = batch.unfinished.saturating_sub(1);
        }
        session.kept.push_back(uid);
        let (name, owner) = (session.name.0.clone(), session.owner.uid);
        self.effect(Effect::LogEnd { session: name, uid: owner, result });
    }

    fn answer_kill_waiters(&mut self, uid: CallUid, instead: Option<KillAnswer>) {
        let Some(call) = self.calls.get_mut(&uid) else { return };
        let waiters = std::mem::take(&mut call.kill_waiters);
        self.timers.clear(Timer::KillProof(uid));
        for waiter in waiters {
            self.effect(Effect::Reply {
                conn: waiter.conn,
                request_id: waiter.request_id,
                reply: Ok(Reply::CallKilled(instead.unwrap_or(waiter.answer))),
            });
        }
    }

    /// Ends the batch when the last of its calls has its result.
    pub(super) fn finish_batch_if_empty(&mut self, now: Now, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(batch) = &session.batch else { return };
        if batch.unfinished > 0 {
            return;
        }
        let mut results = batch
            .calls
            .iter()
            .filter_map(|uid| self.calls.get(uid)?.result.as_deref().cloned())
            .collect::<Vec<_>>();
        fit_frame(&mut results);
        let result = BatchResult {
            batch_id: batch.id,
            session_id: id,
            verdict: Verdict::NextTurn,
            messages: Vec::new(),
            reason: None,
            steering: Vec::new(),
            results,
        };
        self.event(now, id, EventBody::BatchFinished(Arc::new(result)));
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let batch_len = session.batch.take().map_or(0, |batch| batch.calls.len());
        let abandoned = session.abandoned;
        self.forget_old_calls(id, batch_len);
        if abandoned {
            self.close_session(now, id, &Cause::ClientGone, None);
        } else {
            self.remove_if_closed(id);
        }
    }

    /// Keeps memory bounded: only the newest finished calls of a session stay known, the last batch's in any case.
    fn forget_old_calls(&mut self, id: SessionId, last_batch: usize) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let surplus = session.kept.len().saturating_sub(self.settings.kept_calls_per_session.max(last_batch));
        let old: Vec<CallUid> = session.kept.drain(..surplus).collect();
        self.forget(old);
    }

    fn forget(&mut self, calls: impl IntoIterator<Item = CallUid>) {
        for uid in calls {
            self.calls.remove(&uid);
            self.effect(Effect::ForgetOutput { call: uid });
        }
    }

    /// Removes a session that was asked to end and has nothing in flight.
    pub(super) fn remove_if_closed(&mut self, id: SessionId) {
        let done = self
            .sessions
            .get(&id)
            .is_some_and(|session| session.closing.is_some() && session.batch.is_none());
        if !done {
            return;
        }
        let Some(session) = self.sessions.remove(&id) else { return };
        self.by_name.remove(&(session.owner.uid, session.name));
        if let Some(count) = self.sessions_of_uid.get_mut(&session.owner.uid) {
            *count -= 1;
            if *count == 0 {
                self.sessions_of_uid.remove(&session.owner.uid);
            }
        }
        for conn in session.attached {
            if let Some(of_conn) = self.attached.get_mut(&conn) {
                of_conn.remove(&id);
            }
        }
        self.timers.clear(Timer::Linger(id));
        self.forget(session.kept);
        let closing = session.closing.unwrap_or_default();
        for (conn, request_id) in closing.askers {
            self.effect(Effect::Reply {
                conn,
                request_id,
                reply: Ok(Reply::SessionClosed { killed: closing.killed, cancelled: closing.cancelled }),
            });
        }
    }
}

/// Bytes of texts that the results of one batch may have together; the rest of a frame is for everything else.
const BATCH_TEXT_BYTES: usize = 10 * 1024 * 1024;

/// All results of a batch leave in one frame. Where their texts are too large for it, the largest ones are cut to an
/// equal share; each call's own record (`call.get`) keeps the whole.
fn fit_frame(results: &mut [CallResult]) {
    let size = |result: &CallResult| {
        result.for_model.len() + result.details.structured.as_ref().map_or(0, String::len)
    };
    if results.iter().map(size).sum::<usize>() <= BATCH_TEXT_BYTES {
        return;
    }
    let share = BATCH_TEXT_BYTES / results.len().max(1);
    for result in results.iter_mut().filter(|result| size(result) > share) {
        result.details.structured = None;
        if result.for_model.len() > share {
            let before = result.for_model.len();
            let text = super::for_model::shorten(&result.for_model, share, &result.call_uid.to_string());
            result.details.omitted_bytes += (before - text.len().min(before)) as u64;
            result.details.truncated = true;
            result.for_model = text;
        }
    }
}

/// One blank-free line under the output says how the call ended, unless it simply worked.
fn append_footer(text: &mut String, outcome: &Outcome) {
    match (&outcome.detail.message, text.is_empty()) {
        (None, true) if outcome.status == Status::Ok => text.push_str("(no output)"),
        (None, _) => {}
        (Some(message), empty) => {
            if !empty && !text.ends_with('\n') {
                text.push('\n');
            }
            let limit = message.floor_char_boundary(super::admission::FOOTER_BYTES - 8);
            text.push('[');
            text.push_str(&message[..limit]);
            text.push(']');
        }
    }
}

fn details_of(call: &Call, report: &AttemptReport, now: Now) -> Details {
    let mut details = Details {
        started_at_ms: call.started.or(call.starting).map(|at| at.wall_ms),
        queued_us: call.starting.map(|at| at.mono_us.saturating_sub(call.accepted_us)),
        attempts: call.attempts,
        layers: call.layers.clone(),
        ..Details::default()
    };
    match &report.end {
        AttemptEnding::Finished(finished) => {
            use toolcell_protocol::worker_api::{AttemptEnd, WaitStatus};
            match finished.end {
                AttemptEnd::Ended(WaitStatus::Exited(code)) => details.exit_code = Some(code),
                AttemptEnd::Ended(WaitStatus::Signaled(signal)) => details.signal = Some(signal),
                AttemptEnd::SpawnFailed { .. } | AttemptEnd::Builtin { .. } => {}
            }
            if !matches!(finished.end, AttemptEnd::SpawnFailed { .. }) {
                details.duration_us = Some(finished.duration_us);
            }
            details.user_cpu_us = Some(finished.usage.user_cpu_us);
            details.system_cpu_us = Some(finished.usage.system_cpu_us);
            details.peak_memory_bytes = Some(finished.usage.peak_memory_bytes);
            details.stdout_bytes = finished.stdout_bytes;
            details.stderr_bytes = finished.stderr_bytes;
            details.stdout_open_after_exit = finished.stdout_open_after_exit;
            details.stdin_unread_bytes = finished.stdin_unread_bytes;
            details.spool.clone_from(&finished.spool);
            details.leftovers.clone_from(&finished.leftovers);
            details.limits_hit.clone_from(&finished.limits_hit);
            if finished.layers.is_some() {
                details.layers.clone_from(&finished.layers);
            }
        }
        AttemptEnding::WorkerLost { layers, output_bytes, .. } => {
            (details.stdout_bytes, details.stderr_bytes) = *output_bytes;
            details.duration_us = call.started.map(|at| now.mono_us.saturating_sub(at.mono_us));
            if layers.is_some() {
                details.layers.clone_from(layers);
            }
        }
        AttemptEnding::NotStarted { .. } => {}
    }
    details
}
