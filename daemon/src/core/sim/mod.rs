//! The core under a simulated clock, with scripted workers: what a host would do, in microseconds.
//!
//! A call of `bash` with the command `N end` stands for a tool that runs N ms and then ends as `ok`, `exit3`,
//! `segv` or `lost` (its worker is gone), or `hang`s until it is killed, or `polite` (hangs, ends on TERM), or
//! `nofork` (no worker could be had).

mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use toolcell_protocol::call::{BatchResult, Containment, Layers, Status};
use toolcell_protocol::client_api::{
    BatchExecute, CallRequest, EventBody, OnDisconnect, Refusal, Reply, Request, SessionOpen, SessionRef,
};
use toolcell_protocol::id::{CallId, CallUid, SessionId, SessionName};
use toolcell_protocol::worker_api::{Action, AttemptEnd, Finished, Stage, WaitStatus};
use uuid::Uuid;

use super::admission::Surroundings;
use super::event::{
    Asker, AttemptEnding, AttemptReport, ConnId, Effect, FreshIds, Input, Now, Peer, StartAttempt,
};
use super::for_model::Rendered;
use super::machine::{Core, Settings};
use super::queue::RunLimits;
use crate::tools::ToolSet;

const MS: u64 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Script {
    Ok,
    Exit3,
    Segv,
    Lost,
    Hang,
    Polite,
    NoFork,
}

#[derive(Debug)]
struct Worker {
    script: Script,
    ends_at: Option<u64>,
    started: bool,
    killed: bool,
}

struct Sim {
    core: Core,
    now_us: u64,
    next_id: u128,
    next_request: u64,
    workers: BTreeMap<CallUid, Worker>,
    most_running: usize,
    replies: BTreeMap<u64, Result<Reply, Refusal>>,
    events: BTreeMap<SessionId, Vec<EventBody>>,
    ended: Vec<Arc<BatchResult>>,
    finished_calls: BTreeMap<CallUid, usize>,
    stopped: bool,
    text: String,
}

fn peer(uid: u32) -> Arc<Peer> {
    Arc::new(Peer { uid, gid: uid, groups: Vec::new(), admin: uid == 0, home_env: Vec::new() })
}

const LIMITS: RunLimits = RunLimits { total: 8, per_uid: 6, per_session: 4 };

impl Sim {
    fn new() -> Self {
        let settings = Settings {
            run: LIMITS,
            max_sessions_per_uid: 4,
            max_queued_per_uid: 64,
            kept_calls_per_session: 4,
            session_linger_ms: 1_000,
            drain_ms: 500,
        };
        let around = Surroundings {
            root: false,
            embedded: false,
            daemon_env: vec![("PATH".to_owned(), "/bin".to_owned()), ("SECRET".to_owned(), "x".to_owned())],
            env_inherit: vec!["PATH".to_owned()],
            containment: Containment::Weak,
            spool_dir: None,
            spool_bytes: 0,
            inline_bytes: 1024,
            tail_bytes: 1024,
            for_model_bytes: 1024,
            max_timeout_ms: 60_000,
            run_as: Vec::new(),
        };
        Self {
            core: Core::new(settings, around, Arc::new(ToolSet::builtin())),
            now_us: 1,
            next_id: 1,
            next_request: 0,
            workers: BTreeMap::new(),
            most_running: 0,
            replies: BTreeMap::new(),
            events: BTreeMap::new(),
            ended: Vec::new(),
            finished_calls: BTreeMap::new(),
            stopped: false,
            text: String::new(),
        }
    }

    const fn now(&self) -> Now {
        Now { mono_us: self.now_us, wall_ms: self.now_us / MS }
    }

    fn input(&mut self, input: Input) {
        self.core.handle(self.now(), input);
        self.perform();
    }

    fn request(&mut self, uid: u32, conn: u64, request: Request) -> u64 {
        self.next_request += 1;
        let request_id = self.next_request;
        let fresh = FreshIds::for_request(&request, || {
            self.next_id += 1;
            Uuid::from_u128(self.next_id)
        });
        let from = Asker { conn: ConnId(conn), request_id, peer: peer(uid) };
        self.input(Input::Request { from, request, fresh });
        request_id
    }

    fn perform(&mut self) {
        let mut not_forked = VecDeque::new();
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::Reply { request_id, reply, .. } => {
                    let old = self.replies.insert(request_id, reply);
                    assert!(old.is_none(), "request {request_id} was answered twice");
                }
                Effect::Event { event, .. } => {
                    if let EventBody::BatchFinished(result) = &event.body {
                        self.ended.push(Arc::clone(result));
                    }
                    if let EventBody::ToolFinished { call_uid, .. } = &event.body {
                        *self.finished_calls.entry(*call_uid).or_default() += 1;
                    }
                    self.events.entry(event.session_id).or_default().push(event.body);
                }
                Effect::StartAttempt(start) => self.start(&start, &mut not_forked),
                Effect::TerminateAttempt { call } => {
                    if let Some(worker) = self.workers.get_mut(&call) {
                        worker.killed = true;
                        if worker.script == Script::Polite {
                            worker.ends_at = Some(self.now_us + MS);
                        }
                    }
                }
                Effect::KillAttempt { call } => {
                    if let Some(worker) = self.workers.get_mut(&call) {
                        worker.killed = true;
                        worker.ends_at = Some(worker.ends_at.unwrap_or(u64::MAX).min(self.now_us + 2 * MS));
                    }
                }
                Effect::Stopped => self.stopped = true,
                Effect::ReplyStatus { .. }
                | Effect::ReadOutput { .. }
                | Effect::ForgetOutput { .. }
                | Effect::LogEnd { .. } => {}
            }
        }
        self.most_running = self.most_running.max(self.workers.len());
        for call in not_forked {
            self.end(
                call,
                AttemptEnding::NotStarted { stage: Stage::Fork, errno: 11, what: "a worker".to_owned() },
            );
        }
    }

    fn start(&mut self, start: &StartAttempt, not_forked: &mut VecDeque<CallUid>) {
        let Action::Exec { argv, .. } = &start.job.action else { panic!("only bash is scripted") };
        let command = String::from_utf8(argv.last().expect("an argument").0.clone()).expect("text");
        let (ms, script) = command.split_once(' ').expect("two words");
        let script = match script {
            "ok" => Script::Ok,
            "exit3" => Script::Exit3,
            "segv" => Script::Segv,
            "lost" => Script::Lost,
            "hang" => Script::Hang,
            "polite" => Script::Polite,
            _ => Script::NoFork,
        };
        if script == Script::NoFork {
            not_forked.push_back(start.job.call_uid);
        }
        let ends = !matches!(script, Script::Hang | Script::Polite);
        let ends_at = ends.then(|| self.now_us + ms.parse::<u64>().expect("a number") * MS);
        let old = self
            .workers
            .insert(start.job.call_uid, Worker { script, ends_at, started: false, killed: false });
        assert!(old.is_none(), "a call was started twice");
    }

    fn end(&mut self, call: CallUid, end: AttemptEnding) {
        self.workers.remove(&call).expect("an attempt");
        let report = AttemptReport {
            end,
            rendered: Rendered { text: self.text.clone(), ..Rendered::default() },
            proven_gone: true,
        };
        self.input(Input::AttemptEnded { call, report: Box::new(report) });
    }

    /// Goes to the next moment at which something happens; `false` when nothing ever will.
    fn step(&mut self) -> bool {
        let starting = self.workers.values().any(|worker| !worker.started).then_some(self.now_us);
        let ending = self.workers.values().filter_map(|worker| worker.ends_at).min();
        let Some(next) = [starting, ending, self.core.next_deadline()].into_iter().flatten().min() else {
            return false;
        };
        self.now_us = self.now_us.max(next);
        if let Some((call, worker)) = self.workers.iter_mut().find(|(_, worker)| !worker.started) {
            worker.started = true;
            let call = *call;
            let layers = Layers { containment: Containment::Weak, layers: Vec::new() };
            self.input(Input::AttemptStarted { call, pid: 7, layers });
        }
        let due = self.workers.iter().find(|(_, worker)| worker.ends_at.is_some_and(|at| at <= self.now_us));
        match due.map(|(call, worker)| (*call, worker.script, worker.killed)) {
            Some((call, script, killed)) => self.end(call, ending_of(script, killed)),
            None => self.input(Input::Deadline),
        }
        true
    }

    /// Goes on until nothing is left to happen; a core that never comes to rest fails here.
    fn drive(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the core does not come to rest");
    }

    fn open(&mut self, uid: u32, conn: u64, name: &str, on_disconnect: OnDisconnect) -> u64 {
        self.request(
            uid,
            conn,
            Request::SessionOpen(SessionOpen {
                name: name.into(),
                agent: None,
                cwd: "/".to_owned(),
                env: Vec::new(),
                on_disconnect,
            }),
        )
    }

    fn execute(&mut self, uid: u32, conn: u64, name: &str, commands: &[&str]) -> u64 {
        let calls = commands.iter().enumerate().map(|(n, command)| call(n, command)).collect();
        self.request(
            uid,
            conn,
            Request::BatchExecute(BatchExecute { session: session(name), calls, key: None }),
        )
    }

    fn statuses(&self) -> Vec<Status> {
        self.ended.last().expect("a batch").results.iter().map(|result| result.status).collect()
    }

    fn call_uids(&self, request_id: u64) -> Vec<CallUid> {
        match &self.replies[&request_id] {
            Ok(Reply::BatchAccepted { call_uids, .. }) => call_uids.clone(),
            other => panic!("not accepted: {other:?}"),
        }
    }
}

fn ending_of(script: Script, killed: bool) -> AttemptEnding {
    let end = match script {
        Script::Lost => {
            return AttemptEnding::WorkerLost {
                wait: Some(WaitStatus::Signaled(9)),
                reason: "scripted".to_owned(),
                layers: None,
                output_bytes: (0, 0),
            };
        }
        Script::Ok => WaitStatus::Exited(0),
        Script::Exit3 => WaitStatus::Exited(3),
        Script::Segv => WaitStatus::Signaled(11),
        Script::Polite => WaitStatus::Exited(0),
        Script::Hang | Script::NoFork => WaitStatus::Signaled(9),
    };
    AttemptEnding::Finished(Box::new(Finished {
        signalled: killed && matches!(script, Script::Polite | Script::Hang),
        duration_us: 1,
        ..Finished::new(AttemptEnd::Ended(end), None)
    }))
}

fn session(name: &str) -> SessionRef {
    SessionRef { uid: None, name: SessionName::from(name) }
}

fn call(n: usize, command: &str) -> CallRequest {
    let (tool, args) = match command {
        "unknown" => ("bsah".to_owned(), "{}".to_owned()),
        "invalid" => ("bash".to_owned(), "{\"comand\": 1}".to_owned()),
        command => ("bash".to_owned(), format!("{{\"command\": {command:?}}}")),
    };
    CallRequest {
        call_id: CallId(format!("call-{n}")),
        tool,
        args,
        cwd: None,
        timeout_ms: Some(50),
        immune: None,
        stream: false,
    }
}
