//! What a client may ask for: each request is checked and then answered, queued or refused with a reason.
//!
//! A uid sees and touches only its own sessions; an admin all. What one may not see does not exist.

use std::collections::BTreeSet;
use std::sync::Arc;

use toolcell_protocol::client_api::{
    BatchExecute, CallPhase, CallRecord, EventBody, ExecuteAnswer, KillAnswer, Refusal, RefusalCode, Reply,
    Request, ServerStatus, SessionInfo, SessionOpen, SessionRef,
};
use toolcell_protocol::id::{CallUid, SessionId};
use toolcell_protocol::limits::{
    MAX_ARGS_BYTES, MAX_CALLS_PER_BATCH, MAX_ENV_BYTES, MAX_ENV_VARS, MAX_OUTPUT_PAGE_BYTES, MAX_TEXT_BYTES,
    MAX_WAIT_MS,
};
use toolcell_protocol::worker_api::Rlimits;

use super::admission::admit;
use super::call::{Call, Cause, KillWaiter, Waiter};
use super::event::{Asker, Effect, FreshIds, Now};
use super::machine::{Core, KILL_PROOF_MS, after};
use super::session::{Batch, Closing, Session};
use super::timer::Timer;

type Answer = Result<Reply, Refusal>;

fn refuse<T>(code: RefusalCode, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { code, message: message.into() })
}

impl Core {
    /// Answers a request, now or later.
    pub(super) fn handle_request(&mut self, now: Now, from: &Asker, request: Request, fresh: FreshIds) {
        let answer = match request {
            Request::ToolsList => Some(Ok(Reply::Tools(self.tools.to_info()))),
            Request::SessionOpen(open) => Some(self.session_open(from, open, fresh)),
            Request::SessionGet { session } => Some(
                self.find_session(from, &session)
                    .map(|id| Reply::Session(Box::new(self.session_info(id, now)))),
            ),
            Request::SessionClose { session } => self.session_close(now, from, &session).transpose(),
            Request::SessionList => Some(Ok(self.session_list(now, from))),
            Request::BatchExecute(batch) => self.batch_execute(now, from, batch, fresh).transpose(),
            Request::CallList { session, finished } => {
                Some(self.call_list(now, from, session.as_ref(), finished))
            }
            Request::CallGet { call_uid } => Some(self.call_get(now, from, call_uid)),
            Request::CallOutput { call_uid, cursor, max_bytes, wait_ms } => {
                match self.find_call(from, call_uid) {
                    Ok(call) => {
                        let ended = self.calls.get(&call).is_some_and(|call| call.result.is_some());
                        self.effect(Effect::ReadOutput {
                            ended,
                            conn: from.conn,
                            request_id: from.request_id,
                            call,
                            cursor,
                            max_bytes: max_bytes
                                .min(u32::try_from(MAX_OUTPUT_PAGE_BYTES).unwrap_or(u32::MAX)),
                            wait_ms: wait_ms.min(MAX_WAIT_MS),
                        });
                        None
                    }
                    Err(refusal) => Some(Err(refusal)),
                }
            }
            Request::CallWait { call_uid, timeout_ms } => {
                self.call_wait(now, from, call_uid, timeout_ms).transpose()
            }
            Request::CallKill { call_uid, reason } => self.call_kill(now, from, call_uid, reason).transpose(),
            Request::ServerStatus => {
                let status = Box::new(self.status(now));
                self.effect(Effect::ReplyStatus { conn: from.conn, request_id: from.request_id, status });
                None
            }
        };
        if let Some(reply) = answer {
            self.effect(Effect::Reply { conn: from.conn, request_id: from.request_id, reply });
        }
    }

    fn session_open(&mut self, from: &Asker, open: SessionOpen, fresh: FreshIds) -> Answer {
        if self.shutting_down {
            return refuse(RefusalCode::ShuttingDown, "the daemon is ending; connect again in a moment");
        }
        open.name
            .check()
            .or_else(|error| refuse(RefusalCode::BadRequest, format!("session.open name: {error}")))?;
        check_path("session.open cwd", &open.cwd)?;
        check_env(&open.env)?;
        if let Some(agent) = &open.agent {
            return refuse(
                RefusalCode::UnknownAgent,
                format!(
                    "there is no agent profile {agent:?} in the daemon's configuration; open without one"
                ),
            );
        }
        let uid = from.peer.uid;
        if let Some(&id) = self.by_name.get(&(uid, open.name.clone())) {
            let Some(session) = self.sessions.get_mut(&id) else {
                return refuse(RefusalCode::Internal, "the session's name leads nowhere");
            };
            if session.closing.is_some() {
                return refuse(
                    RefusalCode::BatchInProgress,
                    format!("session {} is being closed; open it again in a moment", open.name),
                );
            }
            session.attached.insert(from.conn);
            session.abandoned = false;
            session.cwd = open.cwd;
            session.env = open.env;
            session.on_disconnect = open.on_disconnect;
            let last_seq = session.last_seq;
            self.attached.entry(from.conn).or_default().insert(id);
            self.timers.clear(Timer::Linger(id));
            return Ok(Reply::SessionOpened { session_id: id, created: false, last_seq });
        }
        let of_uid = self.sessions_of_uid.entry(uid).or_default();
        if *of_uid >= self.settings.max_sessions_per_uid {
            return refuse(
                RefusalCode::Overloaded,
                format!("uid {uid} has {of_uid} sessions, the limit; close some with session.close"),
            );
        }
        let Some(id) = fresh.session else {
            return refuse(RefusalCode::Internal, "no id was made for the session");
        };
        *of_uid += 1;
        self.by_name.insert((uid, open.name.clone()), id);
        self.attached.entry(from.conn).or_default().insert(id);
        self.sessions.insert(
            id,
            Session {
                id,
                name: open.name,
                owner: Arc::clone(&from.peer),
                agent: open.agent,
                cwd: open.cwd,
                env: open.env,
                on_disconnect: open.on_disconnect,
                attached: BTreeSet::from([from.conn]),
                batch: None,
                kept: std::collections::VecDeque::new(),
                last_seq: 0,
                abandoned: false,
                closing: None,
            },
        );
        Ok(Reply::SessionOpened { session_id: id, created: true, last_seq: 0 })
    }

    fn session_close(
        &mut self,
        now: Now,
        from: &Asker,
        session: &SessionRef,
    ) -> Result<Option<Reply>, Refusal> {
        let id = self.find_session(from, session)?;
        let asker = (from.conn, from.request_id);
        self.close_session(now, id, &Cause::SessionClosed, Some(asker));
        Ok(None)
    }

    /// Ends a session: kills what runs (immune calls too, it is their session), cancels what waits, and removes
    /// it when the last result is there.
    pub(super) fn close_session(
        &mut self,
        now: Now,
        id: SessionId,
        cause: &Cause,
        asker: Option<(super::event::ConnId, u64)>,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let first = session.closing.is_none();
        session.closing.get_or_insert_with(Closing::default).askers.extend(asker);
        if first {
            let calls = session.batch.as_ref().map(|batch| batch.calls.clone()).unwrap_or_default();
            for call in calls {
                let killed = self.end_call(now, call, cause);
                let Some(closing) = self.sessions.get_mut(&id).and_then(|session| session.closing.as_mut())
                else {
                    continue;
                };
                match killed {
                    KillAnswer::Cancelled => closing.cancelled += 1,
                    KillAnswer::Killed | KillAnswer::KillPending => closing.killed += 1,
                    KillAnswer::AlreadyEnded => {}
                }
            }
        }
        self.remove_if_closed(id);
    }

    fn session_list(&self, now: Now, from: &Asker) -> Reply {
        Reply::Sessions(
            self.sessions
                .values()
                .filter(|session| from.peer.admin || session.owner.uid == from.peer.uid)
                .take(MAX_LISTED)
                .map(|session| self.session_info(session.id, now))
                .collect(),
        )
    }

    fn session_info(&self, id: SessionId, now: Now) -> SessionInfo {
        let session = &self.sessions[&id];
        SessionInfo {
            session_id: id,
            name: session.name.clone(),
            uid: session.owner.uid,
            agent: session.agent.clone(),
            cwd: session.cwd.clone(),
            on_disconnect: session.on_disconnect,
            attached: u32::try_from(session.attached.len()).unwrap_or(u32::MAX),
            active_tools: self.tools.names().map(str::to_owned).collect(),
            batch: session.batch.as_ref().map(|batch| batch.id),
            calls: session
                .batch
                .iter()
                .flat_map(|batch| &batch.calls)
                .filter_map(|uid| self.calls.get(uid))
                .filter(|call| call.phase != CallPhase::Finished)
                .map(|call| call.info(&session.name, session.owner.uid, now))
                .collect(),
            last_seq: session.last_seq,
        }
    }

    fn batch_execute(
        &mut self,
        now: Now,
        from: &Asker,
        batch: BatchExecute,
        fresh: FreshIds,
    ) -> Result<Option<Reply>, Refusal> {
        if self.shutting_down {
            return refuse(RefusalCode::ShuttingDown, "the daemon is ending; no new batch is accepted");
        }
        let session_id = self.find_session(from, &batch.session)?;
        let session = &self.sessions[&session_id];
        if session.closing.is_some() {
            return refuse(RefusalCode::UnknownSession, format!("session {} is being closed", session.name));
        }
        if let Some(running) = &session.batch {
            return refuse(
                RefusalCode::BatchInProgress,
                format!(
                    "session {} has batch {} in flight with {} calls to go; wait for batch_finished, or kill them",
                    session.name, running.id, running.unfinished
                ),
            );
        }
        check_batch(&batch)?;
        let uid = session.owner.uid;
        let waiting = self.queue.waiting_of(uid);
        if waiting + batch.calls.len() > self.settings.max_queued_per_uid {
            return refuse(
                RefusalCode::Overloaded,
                format!(
                    "uid {uid} has {waiting} calls waiting; {} more would pass limits.max_queued_per_uid = {}",
                    batch.calls.len(),
                    self.settings.max_queued_per_uid
                ),
            );
        }
        let (Some(batch_id), true) = (fresh.batch, fresh.calls.len() == batch.calls.len()) else {
            return refuse(RefusalCode::Internal, "no ids were made for the batch");
        };

        // Everything is decided, in call order, before anything is started.
        let decisions: Vec<_> = batch
            .calls
            .iter()
            .zip(&fresh.calls)
            .map(|(call, uid)| admit(&self.tools, &self.around, session, from.conn, *uid, call))
            .collect();
        let runnable = decisions.iter().filter(|decision| decision.is_ok()).count();
        let answer = if runnable > 0 { ExecuteAnswer::ExecutingTools } else { ExecuteAnswer::NextTurn };
        let count = u32::try_from(batch.calls.len()).unwrap_or(u32::MAX);
        if let Some(session) = self.sessions.get_mut(&session_id) {
            session.batch = Some(Batch {
                id: batch_id,
                executor: from.conn,
                calls: fresh.calls.clone(),
                unfinished: batch.calls.len(),
            });
        }
        self.effect(Effect::Reply {
            conn: from.conn,
            request_id: from.request_id,
            reply: Ok(Reply::BatchAccepted { batch_id, answer, call_uids: fresh.calls.clone() }),
        });
        self.event(now, session_id, EventBody::BatchStarted { batch_id, count });

        let mut not_run = Vec::new();
        for ((request, call_uid), decision) in batch.calls.into_iter().zip(fresh.calls).zip(decisions) {
            let mut call = Call {
                uid: call_uid,
                id: request.call_id,
                session: session_id,
                batch: batch_id,
                tool: request.tool,
                args: request.args,
                immune: false,
                accepted_us: now.mono_us,
                phase: CallPhase::Queued,
                rlimits: Rlimits::default(),
                to_start: None,
                attempts: 0,
                timeout_ms: 0,
                idle_timeout_ms: None,
                timeout_grace_ms: 0,
                kill_grace_ms: 0,
                cause: None,
                pid: None,
                starting: None,
                started: None,
                layers: None,
                output_bytes: 0,
                result: None,
                waiters: Vec::new(),
                kill_waiters: Vec::new(),
            };
            match decision {
                Ok(admitted) => {
                    call.immune = admitted.immune;
                    call.timeout_ms = admitted.timeout_ms;
                    call.idle_timeout_ms = admitted.idle_timeout_ms;
                    call.timeout_grace_ms = admitted.timeout_grace_ms;
                    call.kill_grace_ms = admitted.kill_grace_ms;
                    call.rlimits = admitted.start.job.rlimits.clone();
                    call.to_start = Some(admitted.start);
                    self.calls.insert(call_uid, call);
                    self.queue.push(uid, session_id, call_uid);
                }
                Err(outcome) => {
                    self.calls.insert(call_uid, call);
                    not_run.push((call_uid, outcome));
                }
            }
        }
        for (call_uid, outcome) in not_run {
            self.finish_unstarted(now, call_uid, *outcome);
        }
        self.finish_batch_if_empty(now, session_id);
        self.start_ready(now);
        Ok(None)
    }

    fn call_list(&self, now: Now, from: &Asker, session: Option<&SessionRef>, finished: bool) -> Answer {
        let only = session.map(|session| self.find_session(from, session)).transpose()?;
        let list = |call: &&Call| finished || call.phase != CallPhase::Finished;
        let calls = match only {
            // A session's own calls are found without looking at anybody else's.
            Some(id) => {
                let session = &self.sessions[&id];
                let in_flight = session.batch.iter().flat_map(|batch| &batch.calls);
                let mut uids: BTreeSet<CallUid> = in_flight.copied().collect();
                uids.extend(session.kept.iter().copied());
                uids.iter().filter_map(|uid| self.calls.get(uid)).filter(list).collect::<Vec<_>>()
            }
            None => self.calls.values().filter(list).collect(),
        };
        Ok(Reply::Calls(
            calls
                .into_iter()
                .filter_map(|call| {
                    let session = self.sessions.get(&call.session)?;
                    (from.peer.admin || session.owner.uid == from.peer.uid)
                        .then(|| call.info(&session.name, session.owner.uid, now))
                })
                .take(MAX_LISTED)
                .collect(),
        ))
    }

    fn call_get(&self, now: Now, from: &Asker, uid: CallUid) -> Answer {
        self.find_call(from, uid)?;
        let call = &self.calls[&uid];
        let session = &self.sessions[&call.session];
        Ok(Reply::Call(Box::new(CallRecord {
            info: call.info(&session.name, session.owner.uid, now),
            args: call.args.clone(),
            result: call.result.clone(),
        })))
    }

    fn call_wait(
        &mut self,
        now: Now,
        from: &Asker,
        uid: CallUid,
        timeout_ms: u64,
    ) -> Result<Option<Reply>, Refusal> {
        self.find_call(from, uid)?;
        self.next_waiter += 1;
        let number = self.next_waiter;
        let Some(call) = self.calls.get_mut(&uid) else { return Ok(None) };
        if call.result.is_some() || timeout_ms == 0 {
            return Ok(Some(Reply::CallEnd(call.result.clone())));
        }
        call.waiters.push(Waiter { number, conn: from.conn, request_id: from.request_id });
        self.timers.set(Timer::Wait(uid, number), after(now, timeout_ms.min(MAX_WAIT_MS)));
        Ok(None)
    }

    fn call_kill(
        &mut self,
        now: Now,
        from: &Asker,
        uid: CallUid,
        reason: String,
    ) -> Result<Option<Reply>, Refusal> {
        self.find_call(from, uid)?;
        if reason.len() > MAX_TEXT_BYTES {
            return refuse(RefusalCode::BadRequest, "call.kill reason: too long");
        }
        let reason = if reason.is_empty() { "no reason given".to_owned() } else { reason };
        let answer = self.end_call(now, uid, &Cause::Requested { reason });
        if answer == KillAnswer::Killed
            && let Some(call) = self.calls.get_mut(&uid)
        {
            call.kill_waiters.push(KillWaiter { conn: from.conn, request_id: from.request_id, answer });
            self.timers.set(Timer::KillProof(uid), after(now, KILL_PROOF_MS));
            return Ok(None);
        }
        Ok(Some(Reply::CallKilled(answer)))
    }

    fn status(&self, now: Now) -> ServerStatus {
        ServerStatus {
            daemon: String::new(),
            pid: 0,
            spawner_pid: None,
            uid: 0,
            embedded: false,
            uptime_ms: now.mono_us / 1000,
            epoch: 0,
            containment: self.around.containment,
            containment_reason: None,
            idle_workers: 0,
            spawner_restarts: 0,
            connections: 0,
            sessions: u32::try_from(self.sessions.len()).unwrap_or(u32::MAX),
            running: u32::try_from(self.queue.running()).unwrap_or(u32::MAX),
            queued: u32::try_from(self.queue.waiting()).unwrap_or(u32::MAX),
            ended: self.ended.iter().map(|(status, count)| (*status, *count)).collect(),
            broken_manifests: Vec::new(),
        }
    }

    fn find_session(&self, from: &Asker, session: &SessionRef) -> Result<SessionId, Refusal> {
        let uid = session.uid.unwrap_or(from.peer.uid);
        let visible = from.peer.admin || uid == from.peer.uid;
        match self.by_name.get(&(uid, session.name.clone())) {
            Some(id) if visible => Ok(*id),
            _ => refuse(
                RefusalCode::UnknownSession,
                format!(
                    "uid {uid} has no session {:?} that you may see; open it with session.open",
                    session.name.0
                ),
            ),
        }
    }

    fn find_call(&self, from: &Asker, uid: CallUid) -> Result<CallUid, Refusal> {
        let visible = self
            .calls
            .get(&uid)
            .and_then(|call| self.sessions.get(&call.session))
            .is_some_and(|session| from.peer.admin || session.owner.uid == from.peer.uid);
        if visible {
            Ok(uid)
        } else {
            refuse(
                RefusalCode::UnknownCall,
                format!("there is no call {uid} that you may see; call.list with finished = true lists them"),
            )
        }
    }
}

/// Rows in one list; keeps an answer inside a frame.
const MAX_LISTED: usize = 10_000;

fn check_path(what: &str, path: &str) -> Result<(), Refusal> {
    if !path.starts_with('/') || path.len() > 4096 || path.contains('\0') {
        return refuse(
            RefusalCode::BadRequest,
            format!("{what} is {path:?}; it must be an absolute path of at most 4096 bytes"),
        );
    }
    Ok(())
}

fn check_env(env: &[(String, String)]) -> Result<(), Refusal> {
    let bytes: usize = env.iter().map(|(name, value)| name.len() + value.len()).sum();
    if env.len() > MAX_ENV_VARS || bytes > MAX_ENV_BYTES {
        return refuse(
            RefusalCode::BadRequest,
            format!(
                "session.open env has {} variables and {bytes} bytes; at most {MAX_ENV_VARS} and {MAX_ENV_BYTES} are allowed",
                env.len()
            ),
        );
    }
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return refuse(
                RefusalCode::BadRequest,
                format!(
                    "session.open env: {name:?} is not a variable (no empty name, no '=' in it, no NUL byte)"
                ),
            );
        }
    }
    Ok(())
}

fn check_batch(batch: &BatchExecute) -> Result<(), Refusal> {
    if batch.calls.len() > MAX_CALLS_PER_BATCH {
        return refuse(
            RefusalCode::BadRequest,
            format!("the batch has {} calls, at most {MAX_CALLS_PER_BATCH} are allowed", batch.calls.len()),
        );
    }
    if batch.key.is_some() {
        return refuse(
            RefusalCode::BadRequest,
            "batch.execute key is not supported by this daemon yet; leave it out",
        );
    }
    let mut seen = BTreeSet::new();
    for (index, call) in batch.calls.iter().enumerate() {
        call.call_id
            .check()
            .or_else(|error| refuse(RefusalCode::BadRequest, format!("calls[{index}].{error}")))?;
        if !seen.insert(&call.call_id) {
            return refuse(
                RefusalCode::DuplicateCallId,
                format!(
                    "calls[{index}].call_id {:?} is there twice; each call of a batch needs its own",
                    call.call_id.0
                ),
            );
        }
        if call.args.len() > MAX_ARGS_BYTES || call.tool.len() > MAX_TEXT_BYTES {
            return refuse(
                RefusalCode::BadRequest,
                format!(
                    "calls[{index}].args has {} bytes, at most {MAX_ARGS_BYTES} are allowed",
                    call.args.len()
                ),
            );
        }
        if let Some(cwd) = &call.cwd
            && (cwd.len() > 4096 || cwd.contains('\0') || cwd.is_empty())
        {
            return refuse(
                RefusalCode::BadRequest,
                format!("calls[{index}].cwd is {cwd:?}; it must be a path"),
            );
        }
        if call.timeout_ms == Some(0) {
            return refuse(
                RefusalCode::BadRequest,
                format!("calls[{index}].timeout_ms is 0; leave it out or give more"),
            );
        }
    }
    Ok(())
}
