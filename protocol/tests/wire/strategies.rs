//! Any message of the client conversation, for proptest: texts with every character, extreme numbers.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use toolcell_protocol::call::{
    BatchResult, Blob, CallResult, Details, KillInfo, Layer, LayerState, Layers, Leftover, LimitName,
    SpoolInfo, Status, StatusDetail, Stream, Verdict,
};
use toolcell_protocol::client_api::{
    BatchExecute, CallRequest, ClientHello, ClientMessage, DaemonHello, DaemonMessage, Event, EventBody,
    ExecuteAnswer, KillAnswer, OnDisconnect, OutputPage, OutputPiece, Refusal, Reply, Request, SessionOpen,
    SessionRef,
};
use toolcell_protocol::id::{BatchId, CallId, CallUid, SessionId, SessionName};
use toolcell_protocol::version::VersionRange;
use uuid::Uuid;

use crate::samples::{ANSWERS, CONTAINMENTS, KILL_ANSWERS, LIMITS, REFUSALS, STREAMS, VERDICTS};

pub fn text() -> impl Strategy<Value = String> {
    prop_oneof![4 => "\\PC{0,12}", 1 => vec(any::<char>(), 0..6).prop_map(String::from_iter)]
}

pub fn maybe_text() -> impl Strategy<Value = Option<String>> {
    option::of(text())
}

pub fn number() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), select(vec![0, 1, 250, 251, 65_535, 65_536, u64::from(u32::MAX), u64::MAX])]
}

pub fn maybe_number() -> impl Strategy<Value = Option<u64>> {
    option::of(number())
}

pub fn blob() -> impl Strategy<Value = Blob> {
    vec(any::<u8>(), 0..300).prop_map(Blob)
}

fn uuid() -> impl Strategy<Value = Uuid> {
    any::<u128>().prop_map(Uuid::from_u128)
}

pub fn call_uid() -> impl Strategy<Value = CallUid> {
    uuid().prop_map(CallUid)
}

pub fn stream() -> impl Strategy<Value = Stream> {
    select(STREAMS.to_vec())
}

pub fn limit() -> impl Strategy<Value = LimitName> {
    select(LIMITS.to_vec())
}

fn status() -> impl Strategy<Value = Status> {
    select(Status::ALL.to_vec())
}

fn session() -> impl Strategy<Value = SessionRef> {
    (option::of(any::<u32>()), text()).prop_map(|(uid, name)| SessionRef { uid, name: SessionName(name) })
}

fn versions() -> impl Strategy<Value = VersionRange> {
    any::<(u32, u32)>().prop_map(|(oldest, newest)| VersionRange { oldest, newest })
}

pub fn layers() -> BoxedStrategy<Layers> {
    let state = select(vec![LayerState::Enforced, LayerState::Unavailable]);
    let layer = (text(), state, maybe_text()).prop_map(|(name, state, detail)| Layer { name, state, detail });
    (select(CONTAINMENTS.to_vec()), vec(layer, 0..4))
        .prop_map(|(containment, layers)| Layers { containment, layers })
        .boxed()
}

pub fn leftovers() -> impl Strategy<Value = Vec<Leftover>> {
    vec((any::<i32>(), text()).prop_map(|(pid, comm)| Leftover { pid, comm }), 0..3)
}

pub fn spool() -> impl Strategy<Value = Option<SpoolInfo>> {
    option::of((number(), any::<bool>(), maybe_text()).prop_map(|(bytes, complete, error)| SpoolInfo {
        bytes,
        complete,
        error,
    }))
}

fn status_detail() -> BoxedStrategy<StatusDetail> {
    let ended =
        (maybe_text(), option::of(any::<i32>()), option::of(any::<i32>()), maybe_text(), maybe_text());
    let limited = (option::of(limit()), maybe_number(), maybe_text(), maybe_number());
    let refused =
        (maybe_text(), option::of(any::<i32>()), maybe_text(), maybe_text(), maybe_text(), vec(text(), 0..3));
    (ended, limited, refused)
        .prop_map(
            |(
                (message, exit_code, signal, signal_name, reason),
                (limit, limit_value, timeout_kind, timeout_ms),
                (stage, errno, errno_name, by, field, nearest),
            )| StatusDetail {
                message,
                exit_code,
                signal,
                signal_name,
                reason,
                limit,
                limit_value,
                timeout_kind,
                timeout_ms,
                stage,
                errno,
                errno_name,
                by,
                field,
                nearest,
            },
        )
        .boxed()
}

fn details() -> BoxedStrategy<Details> {
    let kill = (text(), number(), any::<bool>()).prop_map(|(cause, took_us, proven_gone)| KillInfo {
        cause,
        took_us,
        proven_gone,
    });
    let times = (maybe_number(), maybe_number(), maybe_number(), maybe_number(), maybe_number());
    let bytes = (number(), number(), number(), any::<bool>(), any::<bool>(), number());
    let rest = (maybe_text(), spool(), any::<u32>(), option::of(layers()), leftovers(), vec(limit(), 0..3));
    (any::<(Option<i32>, Option<i32>)>(), times, maybe_number(), bytes, rest, option::of(kill))
        .prop_map(
            |(
                (exit_code, signal),
                (started_at_ms, queued_us, duration_us, user_cpu_us, system_cpu_us),
                peak_memory_bytes,
                (
                    stdout_bytes,
                    stderr_bytes,
                    omitted_bytes,
                    truncated,
                    stdout_open_after_exit,
                    stdin_unread_bytes,
                ),
                (structured, spool, attempts, layers, leftovers, limits_hit),
                kill,
            )| Details {
                exit_code,
                signal,
                started_at_ms,
                queued_us,
                duration_us,
                user_cpu_us,
                system_cpu_us,
                peak_memory_bytes,
                stdout_bytes,
                stderr_bytes,
                omitted_bytes,
                truncated,
                stdout_open_after_exit,
                stdin_unread_bytes,
                structured,
                spool,
                attempts,
                layers,
                leftovers,
                limits_hit,
                kill,
            },
        )
        .boxed()
}

pub fn call_result() -> BoxedStrategy<CallResult> {
    (text(), call_uid(), text(), status(), status_detail(), text(), details())
        .prop_map(|(call_id, call_uid, tool, status, status_detail, for_model, details)| CallResult {
            call_id: CallId(call_id),
            call_uid,
            tool,
            status,
            status_detail,
            for_model,
            details,
        })
        .boxed()
}

pub fn batch_result() -> BoxedStrategy<BatchResult> {
    let verdict = select::<Verdict>(VERDICTS.to_vec());
    (uuid(), uuid(), verdict, vec(text(), 0..3), maybe_text(), vec(text(), 0..3), vec(call_result(), 0..4))
        .prop_map(|(batch, session, verdict, messages, reason, steering, results)| BatchResult {
            batch_id: BatchId(batch),
            session_id: SessionId(session),
            verdict,
            messages,
            reason,
            steering,
            results,
        })
        .boxed()
}

fn call_request() -> BoxedStrategy<CallRequest> {
    (text(), text(), text(), maybe_text(), maybe_number(), option::of(any::<bool>()), any::<bool>())
        .prop_map(|(call_id, tool, args, cwd, timeout_ms, immune, stream)| CallRequest {
            call_id: CallId(call_id),
            tool,
            args,
            cwd,
            timeout_ms,
            immune,
            stream,
        })
        .boxed()
}

fn request() -> BoxedStrategy<Request> {
    let environment = vec((text(), text()), 0..5);
    let on_disconnect = select(vec![OnDisconnect::Linger, OnDisconnect::Abort]);
    prop_oneof![
        Just(Request::ToolsList),
        (text(), maybe_text(), text(), environment, on_disconnect).prop_map(
            |(name, agent, cwd, env, on_disconnect)| Request::SessionOpen(SessionOpen {
                name: SessionName(name),
                agent,
                cwd,
                env,
                on_disconnect,
            })
        ),
        session().prop_map(|session| Request::SessionGet { session }),
        session().prop_map(|session| Request::SessionClose { session }),
        Just(Request::SessionList),
        (session(), vec(call_request(), 0..6), maybe_text())
            .prop_map(|(session, calls, key)| Request::BatchExecute(BatchExecute { session, calls, key })),
        (option::of(session()), any::<bool>())
            .prop_map(|(session, finished)| Request::CallList { session, finished }),
        call_uid().prop_map(|call_uid| Request::CallGet { call_uid }),
        (call_uid(), number(), any::<u32>(), number()).prop_map(|(call_uid, cursor, max_bytes, wait_ms)| {
            Request::CallOutput { call_uid, cursor, max_bytes, wait_ms }
        }),
        (call_uid(), number()).prop_map(|(call_uid, timeout_ms)| Request::CallWait { call_uid, timeout_ms }),
        (call_uid(), text()).prop_map(|(call_uid, reason)| Request::CallKill { call_uid, reason }),
        Just(Request::ServerStatus),
    ]
    .boxed()
}

pub fn client_message() -> BoxedStrategy<ClientMessage> {
    prop_oneof![
        1 => (versions(), text())
            .prop_map(|(versions, client)| ClientMessage::Hello(ClientHello { versions, client })),
        9 => (number(), request()).prop_map(|(id, request)| ClientMessage::Request { id, request }),
    ]
    .boxed()
}

/// Replies whose structs are not already covered sample by sample.
fn reply() -> BoxedStrategy<Reply> {
    let pieces = vec((stream(), blob()).prop_map(|(stream, bytes)| OutputPiece { stream, bytes }), 0..4);
    prop_oneof![
        (uuid(), select(ANSWERS.to_vec()), vec(call_uid(), 0..5)).prop_map(
            |(batch, answer, call_uids): (_, ExecuteAnswer, _)| Reply::BatchAccepted {
                batch_id: BatchId(batch),
                answer,
                call_uids,
            }
        ),
        (pieces, number(), any::<bool>(), number()).prop_map(|(pieces, next_cursor, end, skipped_bytes)| {
            Reply::Output(OutputPage { pieces, next_cursor, end, skipped_bytes })
        }),
        option::of(call_result()).prop_map(|result| Reply::CallEnd(result.map(Arc::new))),
        select::<KillAnswer>(KILL_ANSWERS.to_vec()).prop_map(Reply::CallKilled),
        (uuid(), any::<bool>(), number()).prop_map(|(session, created, last_seq)| Reply::SessionOpened {
            session_id: SessionId(session),
            created,
            last_seq,
        }),
    ]
    .boxed()
}

fn event_body() -> BoxedStrategy<EventBody> {
    prop_oneof![
        (uuid(), any::<u32>())
            .prop_map(|(batch, count)| EventBody::BatchStarted { batch_id: BatchId(batch), count }),
        (call_uid(), text(), text(), any::<i32>(), text()).prop_map(
            |(call_uid, call_id, name, pid, args)| {
                EventBody::ToolStarted { call_uid, call_id: CallId(call_id), name, pid, args }
            }
        ),
        (call_uid(), text(), text(), text()).prop_map(|(call_uid, call_id, name, reason)| {
            EventBody::ToolKilled { call_uid, call_id: CallId(call_id), name, reason }
        }),
        (call_uid(), text(), text(), status(), maybe_number()).prop_map(
            |(call_uid, call_id, name, status, duration_us)| EventBody::ToolFinished {
                call_uid,
                call_id: CallId(call_id),
                name,
                status,
                duration_us,
            }
        ),
        batch_result().prop_map(|result| EventBody::BatchFinished(Arc::new(result))),
    ]
    .boxed()
}

pub fn daemon_message() -> BoxedStrategy<DaemonMessage> {
    let refusal = (select(REFUSALS.to_vec()), text()).prop_map(|(code, message)| Refusal { code, message });
    let accepted = (any::<u32>(), text(), number(), any::<u32>())
        .prop_map(|(version, daemon, epoch, uid)| DaemonHello::Accepted { version, daemon, epoch, uid });
    let refused =
        (text(), versions()).prop_map(|(reason, versions)| DaemonHello::Refused { reason, versions });
    prop_oneof![
        1 => prop_oneof![accepted.boxed(), refused.boxed()].prop_map(DaemonMessage::Hello),
        3 => (number(), reply()).prop_map(|(id, reply)| DaemonMessage::Reply { id, reply: Ok(reply) }),
        1 => (number(), refusal).prop_map(|(id, refusal)| DaemonMessage::Reply { id, reply: Err(refusal) }),
        3 => (uuid(), number(), number(), event_body()).prop_map(|(session, seq, at_ms, body)| {
            DaemonMessage::Event(Event { session_id: SessionId(session), seq, at_ms, body })
        }),
        1 => (call_uid(), number(), stream(), blob()).prop_map(|(call_uid, seq, stream, bytes)| {
            DaemonMessage::Output { call_uid, seq, stream, bytes }
        }),
        1 => text().prop_map(|reason| DaemonMessage::Closing { reason }),
    ]
    .boxed()
}
