//! One message of every variant of the client conversation, every field filled with something that shows.
//!
//! [`variants!`] makes an exhaustive `match` and the list of its names from one table: a new variant does not
//! compile until it has a name, and a name without a sample fails `golden`.

use std::sync::Arc;

use toolcell_protocol::call::{
    BatchResult, Blob, CallResult, Containment, Details, KillInfo, Layer, LayerState, Layers, Leftover,
    LimitName, SpoolInfo, Status, StatusDetail, Stream, Verdict,
};
use toolcell_protocol::client_api::{
    BatchExecute, CallInfo, CallPhase, CallRecord, CallRequest, ClientHello, ClientMessage, DaemonHello,
    DaemonMessage, Event, EventBody, ExecuteAnswer, KillAnswer, OnDisconnect, OutputPage, OutputPiece,
    Refusal, RefusalCode, Reply, Request, ServerStatus, SessionInfo, SessionOpen, SessionRef, ToolInfo,
};
use toolcell_protocol::codec::encode;
use toolcell_protocol::id::{BatchId, CallId, CallUid, SessionId, SessionName};
use toolcell_protocol::version::VersionRange;
use uuid::Uuid;

/// A message's name and bytes.
pub type Sample = (&'static str, Vec<u8>);

macro_rules! variants {
    ($names:ident, $name_of:ident, $message:ty, { $($pattern:pat => $name:literal),* $(,)? }) => {
        /// The name of every variant.
        pub const $names: &[&str] = &[$($name),*];

        /// The name of this message's variant.
        pub fn $name_of(message: &$message) -> &'static str {
            match message { $($pattern => $name),* }
        }
    };
}
pub(crate) use variants;

variants!(CLIENT_NAMES, client_name, ClientMessage, {
    ClientMessage::Hello(_) => "client_hello",
    ClientMessage::Request { request: Request::ToolsList, .. } => "request_tools_list",
    ClientMessage::Request { request: Request::SessionOpen(_), .. } => "request_session_open",
    ClientMessage::Request { request: Request::SessionGet { .. }, .. } => "request_session_get",
    ClientMessage::Request { request: Request::SessionClose { .. }, .. } => "request_session_close",
    ClientMessage::Request { request: Request::SessionList, .. } => "request_session_list",
    ClientMessage::Request { request: Request::BatchExecute(_), .. } => "request_batch_execute",
    ClientMessage::Request { request: Request::CallList { .. }, .. } => "request_call_list",
    ClientMessage::Request { request: Request::CallGet { .. }, .. } => "request_call_get",
    ClientMessage::Request { request: Request::CallOutput { .. }, .. } => "request_call_output",
    ClientMessage::Request { request: Request::CallWait { .. }, .. } => "request_call_wait",
    ClientMessage::Request { request: Request::CallKill { .. }, .. } => "request_call_kill",
    ClientMessage::Request { request: Request::ServerStatus, .. } => "request_server_status",
});

variants!(DAEMON_NAMES, daemon_name, DaemonMessage, {
    DaemonMessage::Hello(DaemonHello::Accepted { .. }) => "daemon_hello_accepted",
    DaemonMessage::Hello(DaemonHello::Refused { .. }) => "daemon_hello_refused",
    DaemonMessage::Reply { reply: Ok(Reply::Tools(_)), .. } => "reply_tools",
    DaemonMessage::Reply { reply: Ok(Reply::SessionOpened { .. }), .. } => "reply_session_opened",
    DaemonMessage::Reply { reply: Ok(Reply::Session(_)), .. } => "reply_session",
    DaemonMessage::Reply { reply: Ok(Reply::SessionClosed { .. }), .. } => "reply_session_closed",
    DaemonMessage::Reply { reply: Ok(Reply::Sessions(_)), .. } => "reply_sessions",
    DaemonMessage::Reply { reply: Ok(Reply::BatchAccepted { .. }), .. } => "reply_batch_accepted",
    DaemonMessage::Reply { reply: Ok(Reply::Calls(_)), .. } => "reply_calls",
    DaemonMessage::Reply { reply: Ok(Reply::Call(_)), .. } => "reply_call",
    DaemonMessage::Reply { reply: Ok(Reply::Output(_)), .. } => "reply_output",
    DaemonMessage::Reply { reply: Ok(Reply::CallEnd(Some(_))), .. } => "reply_call_end",
    DaemonMessage::Reply { reply: Ok(Reply::CallEnd(None)), .. } => "reply_call_runs_on",
    DaemonMessage::Reply { reply: Ok(Reply::CallKilled(_)), .. } => "reply_call_killed",
    DaemonMessage::Reply { reply: Ok(Reply::Status(_)), .. } => "reply_status",
    DaemonMessage::Reply { reply: Err(_), .. } => "reply_refusal",
    DaemonMessage::Event(Event { body: EventBody::BatchStarted { .. }, .. }) => "event_batch_started",
    DaemonMessage::Event(Event { body: EventBody::ToolStarted { .. }, .. }) => "event_tool_started",
    DaemonMessage::Event(Event { body: EventBody::ToolKilled { .. }, .. }) => "event_tool_killed",
    DaemonMessage::Event(Event { body: EventBody::ToolFinished { .. }, .. }) => "event_tool_finished",
    DaemonMessage::Event(Event { body: EventBody::BatchFinished(_), .. }) => "event_batch_finished",
    DaemonMessage::Output { .. } => "output",
    DaemonMessage::Closing { .. } => "closing",
});

/// Every value of the enums without fields, so that a reordering shows.
pub fn plain_enums() -> Vec<Sample> {
    fn bytes<T: serde::Serialize>(values: &[T]) -> Vec<u8> {
        encode(&values).expect("plain values have an encoding")
    }
    vec![
        ("enum_status", bytes(&Status::ALL)),
        ("enum_stream", bytes(&STREAMS)),
        ("enum_limit_name", bytes(&LIMITS)),
        ("enum_containment", bytes(&CONTAINMENTS)),
        ("enum_layer_state", bytes(&[LayerState::Enforced, LayerState::Unavailable])),
        ("enum_verdict", bytes(&VERDICTS)),
        ("enum_on_disconnect", bytes(&[OnDisconnect::Linger, OnDisconnect::Abort])),
        ("enum_execute_answer", bytes(&ANSWERS)),
        ("enum_kill_answer", bytes(&KILL_ANSWERS)),
        ("enum_refusal_code", bytes(&REFUSALS)),
        ("enum_call_phase", bytes(&PHASES)),
    ]
}

pub const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];
pub const LIMITS: [LimitName; 6] = [
    LimitName::Cpu,
    LimitName::Fsize,
    LimitName::Nofile,
    LimitName::Memory,
    LimitName::Pids,
    LimitName::Output,
];
pub const CONTAINMENTS: [Containment; 3] =
    [Containment::Cgroup, Containment::PidNamespace, Containment::Weak];
pub const VERDICTS: [Verdict; 3] = [Verdict::NextTurn, Verdict::Intervene, Verdict::Abort];
pub const ANSWERS: [ExecuteAnswer; 3] =
    [ExecuteAnswer::ExecutingTools, ExecuteAnswer::NextTurn, ExecuteAnswer::Abort];
pub const KILL_ANSWERS: [KillAnswer; 4] =
    [KillAnswer::Killed, KillAnswer::Cancelled, KillAnswer::AlreadyEnded, KillAnswer::KillPending];
pub const REFUSALS: [RefusalCode; 12] = [
    RefusalCode::BadRequest,
    RefusalCode::Handshake,
    RefusalCode::BatchInProgress,
    RefusalCode::DuplicateCallId,
    RefusalCode::UnknownSession,
    RefusalCode::UnknownCall,
    RefusalCode::NotPermitted,
    RefusalCode::Overloaded,
    RefusalCode::ShuttingDown,
    RefusalCode::OutputExpired,
    RefusalCode::UnknownAgent,
    RefusalCode::Internal,
];
pub const PHASES: [CallPhase; 5] =
    [CallPhase::Queued, CallPhase::Starting, CallPhase::Running, CallPhase::Terminating, CallPhase::Finished];

pub const fn call_uid() -> CallUid {
    CallUid(Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_00ca))
}

const fn batch_id() -> BatchId {
    BatchId(Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_00ba))
}

const fn session_id() -> SessionId {
    SessionId(Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_005e))
}

fn call_id() -> CallId {
    CallId::from("toolu_01")
}

fn session() -> SessionRef {
    SessionRef { uid: Some(1000), name: SessionName::from("agent-7") }
}

pub fn layers() -> Layers {
    Layers {
        containment: Containment::Cgroup,
        layers: vec![
            Layer { name: "rlimit_cpu".into(), state: LayerState::Enforced, detail: Some("60".into()) },
            Layer { name: "landlock".into(), state: LayerState::Unavailable, detail: None },
        ],
    }
}

pub fn leftover() -> Leftover {
    Leftover { pid: 4242, comm: "sleep".into() }
}

pub fn spool() -> SpoolInfo {
    SpoolInfo { bytes: 70_000, complete: false, error: Some("ENOSPC".into()) }
}

/// A result with every field set.
pub fn call_result() -> CallResult {
    CallResult {
        call_id: call_id(),
        call_uid: call_uid(),
        tool: "bash".into(),
        status: Status::LimitExceeded,
        status_detail: StatusDetail {
            message: Some("m".into()),
            exit_code: Some(3),
            signal: Some(11),
            signal_name: Some("SIGSEGV".into()),
            reason: Some("client_gone".into()),
            limit: Some(LimitName::Output),
            limit_value: Some(1 << 40),
            timeout_kind: Some("idle".into()),
            timeout_ms: Some(1500),
            stage: Some("exec".into()),
            errno: Some(2),
            errno_name: Some("ENOENT".into()),
            by: Some("policy".into()),
            field: Some("/path".into()),
            nearest: vec!["read_file".into()],
        },
        for_model: "héllo".into(),
        details: Details {
            exit_code: Some(-1),
            signal: Some(9),
            started_at_ms: Some(1_700_000_000_000),
            queued_us: Some(10),
            duration_us: Some(20),
            user_cpu_us: Some(30),
            system_cpu_us: Some(40),
            peak_memory_bytes: Some(50),
            stdout_bytes: 60,
            stderr_bytes: 70,
            omitted_bytes: 80,
            truncated: true,
            stdout_open_after_exit: true,
            stdin_unread_bytes: 90,
            structured: Some("{}".into()),
            spool: Some(spool()),
            attempts: 1,
            layers: Some(layers()),
            leftovers: vec![leftover()],
            limits_hit: vec![LimitName::Nofile],
            kill: Some(KillInfo { cause: "wall".into(), took_us: 100, proven_gone: true }),
        },
    }
}

pub fn batch_result() -> BatchResult {
    BatchResult {
        batch_id: batch_id(),
        session_id: session_id(),
        verdict: Verdict::Intervene,
        messages: vec!["m".into()],
        reason: Some("r".into()),
        steering: vec!["s".into()],
        results: vec![call_result()],
    }
}

fn call_info() -> CallInfo {
    CallInfo {
        call_uid: call_uid(),
        call_id: call_id(),
        session: SessionName::from("agent-7"),
        uid: 1000,
        tool: "bash".into(),
        phase: CallPhase::Running,
        status: Some(Status::Ok),
        pid: Some(4242),
        age_ms: 1,
        running_ms: Some(2),
        output_bytes: 3,
        immune: true,
    }
}

fn tool_info() -> ToolInfo {
    ToolInfo {
        name: "bash".into(),
        description: "d".into(),
        input_schema: "{\"type\":\"object\"}".into(),
        kind: "execute".into(),
        read_only: true,
        destructive: false,
        idempotent: true,
        open_world: false,
        immune: true,
        exclusive: false,
        timeout_ms: 120_000,
        source: "builtin".into(),
        command: vec!["bash".into(), "-c".into(), "{command}".into()],
    }
}

fn session_info() -> SessionInfo {
    SessionInfo {
        session_id: session_id(),
        name: SessionName::from("agent-7"),
        uid: 1000,
        agent: Some("coder".into()),
        cwd: "/srv".into(),
        on_disconnect: OnDisconnect::Abort,
        attached: 1,
        active_tools: vec!["bash".into()],
        batch: Some(batch_id()),
        calls: vec![call_info()],
        last_seq: 7,
    }
}

fn status() -> ServerStatus {
    ServerStatus {
        daemon: "toolcelld 0.1.0".into(),
        pid: 1,
        spawner_pid: Some(2),
        uid: 0,
        embedded: true,
        uptime_ms: 3,
        epoch: 4,
        containment: Containment::Weak,
        containment_reason: Some("no cgroup2 mount".into()),
        idle_workers: 5,
        spawner_restarts: 6,
        connections: 7,
        sessions: 8,
        running: 9,
        queued: 10,
        ended: vec![(Status::Ok, 11)],
        broken_manifests: vec!["x.toml: line 3".into()],
    }
}

pub fn client_messages() -> Vec<ClientMessage> {
    let request = |request| ClientMessage::Request { id: 300, request };
    vec![
        ClientMessage::Hello(ClientHello {
            versions: VersionRange { oldest: 1, newest: 2 },
            client: "c".into(),
        }),
        request(Request::ToolsList),
        request(Request::SessionOpen(SessionOpen {
            name: SessionName::from("agent-7"),
            agent: Some("coder".into()),
            cwd: "/srv".into(),
            env: vec![("LANG".into(), "C".into())],
            on_disconnect: OnDisconnect::Linger,
        })),
        request(Request::SessionGet { session: session() }),
        request(Request::SessionClose { session: session() }),
        request(Request::SessionList),
        request(Request::BatchExecute(BatchExecute {
            session: session(),
            calls: vec![CallRequest {
                call_id: call_id(),
                tool: "bash".into(),
                args: "{\"command\":\"true\"}".into(),
                cwd: Some("sub".into()),
                timeout_ms: Some(5_000),
                immune: Some(false),
                stream: true,
            }],
            key: Some("k".into()),
        })),
        request(Request::CallList { session: Some(session()), finished: true }),
        request(Request::CallGet { call_uid: call_uid() }),
        request(Request::CallOutput { call_uid: call_uid(), cursor: 1, max_bytes: 2, wait_ms: 3 }),
        request(Request::CallWait { call_uid: call_uid(), timeout_ms: 4 }),
        request(Request::CallKill { call_uid: call_uid(), reason: "stop".into() }),
        request(Request::ServerStatus),
    ]
}

pub fn daemon_messages() -> Vec<DaemonMessage> {
    let reply = |reply| DaemonMessage::Reply { id: 300, reply: Ok(reply) };
    let event = |body| DaemonMessage::Event(Event { session_id: session_id(), seq: 9, at_ms: 10, body });
    vec![
        DaemonMessage::Hello(DaemonHello::Accepted {
            version: 1,
            daemon: "toolcelld 0.1.0".into(),
            epoch: 77,
            uid: 1000,
        }),
        DaemonMessage::Hello(DaemonHello::Refused {
            reason: "upgrade".into(),
            versions: VersionRange { oldest: 1, newest: 1 },
        }),
        reply(Reply::Tools(vec![tool_info()])),
        reply(Reply::SessionOpened { session_id: session_id(), created: true, last_seq: 5 }),
        reply(Reply::Session(Box::new(session_info()))),
        reply(Reply::SessionClosed { killed: 1, cancelled: 2 }),
        reply(Reply::Sessions(vec![session_info()])),
        reply(Reply::BatchAccepted {
            batch_id: batch_id(),
            answer: ExecuteAnswer::ExecutingTools,
            call_uids: vec![call_uid()],
        }),
        reply(Reply::Calls(vec![call_info()])),
        reply(Reply::Call(Box::new(CallRecord {
            info: call_info(),
            args: "{}".into(),
            result: Some(Arc::new(call_result())),
        }))),
        reply(Reply::Output(OutputPage {
            pieces: vec![OutputPiece { stream: Stream::Stderr, bytes: Blob(vec![0, 255]) }],
            next_cursor: 1,
            end: true,
            skipped_bytes: 2,
        })),
        reply(Reply::CallEnd(Some(Arc::new(call_result())))),
        reply(Reply::CallEnd(None)),
        reply(Reply::CallKilled(KillAnswer::KillPending)),
        reply(Reply::Status(Box::new(status()))),
        DaemonMessage::Reply {
            id: 300,
            reply: Err(Refusal { code: RefusalCode::UnknownCall, message: "m".into() }),
        },
        event(EventBody::BatchStarted { batch_id: batch_id(), count: 64 }),
        event(EventBody::ToolStarted {
            call_uid: call_uid(),
            call_id: call_id(),
            name: "bash".into(),
            pid: 4242,
            args: "{}".into(),
        }),
        event(EventBody::ToolKilled {
            call_uid: call_uid(),
            call_id: call_id(),
            name: "bash".into(),
            reason: "kill_requested".into(),
        }),
        event(EventBody::ToolFinished {
            call_uid: call_uid(),
            call_id: call_id(),
            name: "bash".into(),
            status: Status::Crashed,
            duration_us: Some(12),
        }),
        event(EventBody::BatchFinished(Arc::new(batch_result()))),
        DaemonMessage::Output {
            call_uid: call_uid(),
            seq: 3,
            stream: Stream::Stdout,
            bytes: Blob(vec![0, 1, 254, 255]),
        },
        DaemonMessage::Closing { reason: "shutting down".into() },
    ]
}
