//! From a reply to the value that its request promises; shared by both faces.

use std::sync::Arc;
use std::time::Duration;

use toolcell_protocol::call::CallResult;
use toolcell_protocol::client_api::{
    CallInfo, CallRecord, ExecuteAnswer, KillAnswer, OutputPage, Refusal, RefusalCode, Reply, Request,
    ServerStatus, SessionInfo, ToolInfo,
};
use toolcell_protocol::id::{BatchId, CallUid, SessionId};

use crate::error::ClientError;

/// `KillPending` comes after 2 s; this is what the daemon may take beyond the usual time for an answer.
const KILL_MS: u64 = 2_000;

/// Most kills of one batch that are unanswered at a time. A daemon closes a connection with too many unanswered
/// requests (256 if not configured otherwise), and others of the same connection have theirs.
pub const KILLS_IN_FLIGHT: usize = 64;

/// Kills are sent in groups, so that not each of them costs a write of its own.
pub const KILLS_TOGETHER: usize = KILLS_IN_FLIGHT / 2;

macro_rules! answers {
    ($($(#[$doc:meta])* $function:ident: $what:literal, $pattern:pat => $value:expr, $type:ty;)*) => {$(
        $(#[$doc])*
        pub fn $function(answer: Result<Reply, Refusal>) -> Result<$type, ClientError> {
            match answer {
                Ok($pattern) => Ok($value),
                Ok(other) => Err(unexpected($what, &other)),
                Err(refusal) => Err(ClientError::Refused(refusal)),
            }
        }
    )*};
}

answers! {
    tools: "tools.list", Reply::Tools(tools) => tools, Vec<ToolInfo>;
    session_opened: "session.open",
        Reply::SessionOpened { session_id, created, last_seq } => (session_id, created, last_seq),
        (SessionId, bool, u64);
    session: "session.get", Reply::Session(info) => *info, SessionInfo;
    session_closed: "session.close",
        Reply::SessionClosed { killed, cancelled } => (killed, cancelled), (u32, u32);
    sessions: "session.list", Reply::Sessions(sessions) => sessions, Vec<SessionInfo>;
    batch_accepted: "batch.execute",
        Reply::BatchAccepted { batch_id, answer, call_uids } => (batch_id, answer, call_uids),
        (BatchId, ExecuteAnswer, Vec<CallUid>);
    calls: "call.list", Reply::Calls(calls) => calls, Vec<CallInfo>;
    call: "call.get", Reply::Call(record) => *record, CallRecord;
    output: "call.output", Reply::Output(page) => page, OutputPage;
    call_end: "call.wait", Reply::CallEnd(result) => result, Option<Arc<CallResult>>;
    killed: "call.kill", Reply::CallKilled(answer) => answer, KillAnswer;
    status: "server.status", Reply::Status(status) => *status, ServerStatus;
}

/// A kill's answer among those of a whole batch. A refusal is kept in `refused`, if it is the first, and does not
/// stop the others.
pub fn one_of_many_killed(
    answer: Result<Reply, Refusal>,
    refused: &mut Option<Refusal>,
) -> Result<(), ClientError> {
    match killed(answer) {
        Ok(_) => Ok(()),
        // It ended so long ago that it is forgotten.
        Err(ClientError::Refused(refusal)) if refusal.code == RefusalCode::UnknownCall => Ok(()),
        Err(ClientError::Refused(refusal)) => {
            refused.get_or_insert(refusal);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn unexpected(what: &str, reply: &Reply) -> ClientError {
    let kind = match reply {
        Reply::Tools(_) => "tools",
        Reply::SessionOpened { .. } => "session_opened",
        Reply::Session(_) => "session",
        Reply::SessionClosed { .. } => "session_closed",
        Reply::Sessions(_) => "sessions",
        Reply::BatchAccepted { .. } => "batch_accepted",
        Reply::Calls(_) => "calls",
        Reply::Call(_) => "call",
        Reply::Output(_) => "output",
        Reply::CallEnd(_) => "call_end",
        Reply::CallKilled(_) => "call_killed",
        Reply::Status(_) => "status",
    };
    ClientError::protocol(format!("{what} was answered with {kind}"))
}

/// The request's name in messages.
pub const fn name(request: &Request) -> &'static str {
    match request {
        Request::ToolsList => "tools.list",
        Request::SessionOpen(_) => "session.open",
        Request::SessionGet { .. } => "session.get",
        Request::SessionClose { .. } => "session.close",
        Request::SessionList => "session.list",
        Request::BatchExecute(_) => "batch.execute",
        Request::CallList { .. } => "call.list",
        Request::CallGet { .. } => "call.get",
        Request::CallOutput { .. } => "call.output",
        Request::CallWait { .. } => "call.wait",
        Request::CallKill { .. } => "call.kill",
        Request::ServerStatus => "server.status",
    }
}

/// How long the daemon may hold a request on purpose.
pub const fn held_by_daemon(request: &Request) -> Duration {
    match request {
        Request::CallOutput { wait_ms, .. } => Duration::from_millis(*wait_ms),
        Request::CallWait { timeout_ms, .. } => Duration::from_millis(*timeout_ms),
        // Both prove that what they kill is gone.
        Request::CallKill { .. } | Request::SessionClose { .. } => Duration::from_millis(KILL_MS),
        _ => Duration::ZERO,
    }
}

/// Whether a request ends output, so that its answer must be reachable however much output waits before it.
pub const fn is_urgent(request: &Request) -> bool {
    matches!(request, Request::CallKill { .. } | Request::SessionClose { .. })
}
