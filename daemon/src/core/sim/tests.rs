//! What the core must hold, whatever clients and workers do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use toolcell_protocol::call::{BatchResult, Status};
use toolcell_protocol::client_api::{
    BatchExecute, KillAnswer, OnDisconnect, RefusalCode, Reply, Request, SessionRef,
};
use toolcell_protocol::id::{BatchId, CallUid, SessionId};
use uuid::Uuid;

use super::super::event::{ConnId, Input};
use super::{LIMITS, MS, Sim, call, peer, session};

#[test]
fn one_result_per_call_in_call_order_whatever_happens() {
    let mut sim = Sim::new();
    sim.open(1, 1, "s", OnDisconnect::Linger);
    sim.execute(
        1,
        1,
        "s",
        &["9 ok", "1 exit3", "unknown", "5 segv", "invalid", "2 lost", "0 hang", "0 polite", "0 nofork"],
    );
    sim.drive();
    assert_eq!(
        sim.statuses(),
        [
            Status::Ok,
            Status::Error,
            Status::UnknownTool,
            Status::Crashed,
            Status::InvalidArgs,
            Status::WorkerFailed,
            Status::TimedOut,
            Status::TimedOut,
            Status::SpawnFailed,
        ]
    );
    let ids: Vec<&str> = sim.ended[0].results.iter().map(|result| result.call_id.0.as_str()).collect();
    assert_eq!(ids, (0..9).map(|n| format!("call-{n}")).collect::<Vec<_>>());
}

#[test]
fn a_batch_in_which_nothing_can_run_ends_at_once() {
    let mut sim = Sim::new();
    sim.open(1, 1, "s", OnDisconnect::Linger);
    sim.execute(1, 1, "s", &["unknown", "invalid"]);
    assert_eq!(sim.statuses(), [Status::UnknownTool, Status::InvalidArgs]);
    let unknown = &sim.ended[0].results[0];
    assert_eq!(unknown.status_detail.nearest.first().map(String::as_str), Some("bash"));
    assert!(unknown.for_model.contains("did you mean bash"), "{}", unknown.for_model);
    sim.execute(1, 1, "s", &[]);
    assert_eq!(sim.ended.len(), 2);
}

#[test]
fn a_second_batch_is_refused_while_one_is_in_flight() {
    let mut sim = Sim::new();
    sim.open(1, 1, "s", OnDisconnect::Linger);
    sim.execute(1, 1, "s", &["5 ok"]);
    let second = sim.execute(1, 1, "s", &["5 ok"]);
    assert!(matches!(&sim.replies[&second], Err(refusal) if refusal.code == RefusalCode::BatchInProgress));
    sim.drive();
    sim.execute(1, 1, "s", &["5 ok"]);
    sim.drive();
    assert_eq!(sim.ended.len(), 2);
}

#[test]
fn a_duplicate_call_id_is_refused_by_name() {
    let mut sim = Sim::new();
    sim.open(1, 1, "s", OnDisconnect::Linger);
    let calls = vec![call(1, "1 ok"), call(1, "1 ok")];
    let request =
        sim.request(1, 1, Request::BatchExecute(BatchExecute { session: session("s"), calls, key: None }));
    let Err(refusal) = &sim.replies[&request] else { panic!("accepted") };
    assert_eq!(refusal.code, RefusalCode::DuplicateCallId);
    assert!(refusal.message.contains("call-1"), "{}", refusal.message);
}

#[test]
fn another_uid_sees_and_touches_nothing() {
    let mut sim = Sim::new();
    sim.open(1, 1, "s", OnDisconnect::Linger);
    let accepted = sim.execute(1, 1, "s", &["5 ok"]);
    let uid = sim.call_uids(accepted)[0];
    for request in [
        Request::SessionGet { session: SessionRef { uid: Some(1), name: "s".into() } },
        Request::SessionClose { session: SessionRef { uid: Some(1), name: "s".into() } },
        Request::CallGet { call_uid: uid },
        Request::CallKill { call_uid: uid, reason: "mine".to_owned() },
        Request::CallWait { call_uid: uid, timeout_ms: 10 },
        Request::CallOutput { call_uid: uid, cursor: 0, max_bytes: 10, wait_ms: 0 },
    ] {
        let id = sim.request(2, 2, request.clone());
        assert!(sim.replies[&id].is_err(), "{request:?}");
    }
    let list = sim.request(2, 2, Request::CallList { session: None, finished: true });
    assert_eq!(sim.replies[&list], Ok(Reply::Calls(Vec::new())));
    let list = sim.request(0, 3, Request::SessionList);
    assert!(matches!(&sim.replies[&list], Ok(Reply::Sessions(sessions)) if sessions.len() == 1));
    sim.drive();
    assert_eq!(sim.statuses(), [Status::Ok]);
}

#[test]
fn a_kill_is_answered_when_it_is_proven_and_the_siblings_go_on() {
    let mut sim = Sim::new();
    sim.open(1, 1, "s", OnDisconnect::Linger);
    let accepted = sim.execute(1, 1, "s", &["0 hang", "9 ok"]);
    let uid = sim.call_uids(accepted)[0];
    sim.step();
    let kill = sim.request(1, 1, Request::CallKill { call_uid: uid, reason: "enough".to_owned() });
    assert!(!sim.replies.contains_key(&kill));
    sim.drive();
    assert_eq!(sim.replies[&kill], Ok(Reply::CallKilled(KillAnswer::Killed)));
    assert_eq!(sim.statuses(), [Status::Killed, Status::Ok]);
    assert!(sim.ended[0].results[0].for_model.contains("enough"));
    let late = sim.request(1, 1, Request::CallKill { call_uid: uid, reason: String::new() });
    assert_eq!(sim.replies[&late], Ok(Reply::CallKilled(KillAnswer::AlreadyEnded)));
}

#[test]
fn a_wait_ends_with_the_result_or_with_its_own_timeout() {
    let mut sim = Sim::new();
    sim.open(1, 1, "s", OnDisconnect::Linger);
    let accepted = sim.execute(1, 1, "s", &["20 ok"]);
    let uid = sim.call_uids(accepted)[0];
    let short = sim.request(1, 1, Request::CallWait { call_uid: uid, timeout_ms: 5 });
    let long = sim.request(1, 1, Request::CallWait { call_uid: uid, timeout_ms: 5_000 });
    sim.drive();
    assert_eq!(sim.replies[&short], Ok(Reply::CallEnd(None)));
    assert!(matches!(&sim.replies[&long], Ok(Reply::CallEnd(Some(result))) if result.status == Status::Ok));
    assert!(sim.core.next_deadline().is_none(), "the waiter's timer is gone");
}

#[test]
fn a_session_without_its_client_lingers_and_then_its_calls_die() {
    for (on_disconnect, after_us) in [(OnDisconnect::Abort, 0), (OnDisconnect::Linger, 1_000 * MS)] {
        let mut sim = Sim::new();
        sim.open(1, 1, "s", on_disconnect);
        let mut hang = call(0, "0 hang");
        hang.timeout_ms = Some(60_000);
        let calls = vec![hang];
        let batch = BatchExecute { session: session("s"), calls, key: None };
        let accepted = sim.request(1, 1, Request::BatchExecute(batch));
        let uid = sim.call_uids(accepted)[0];
        sim.step();
        let gone_at = sim.now_us;
        sim.input(Input::Disconnected { conn: ConnId(1) });
        let wait = sim.request(1, 2, Request::CallWait { call_uid: uid, timeout_ms: 60_000 });
        while !sim.replies.contains_key(&wait) {
            assert!(sim.step());
        }
        let Ok(Reply::CallEnd(Some(result))) = &sim.replies[&wait] else { panic!("no result") };
        assert_eq!(result.status, Status::Killed);
        assert_eq!(result.status_detail.reason.as_deref(), Some("client_gone"));
        assert!((after_us..after_us + 10 * MS).contains(&(sim.now_us - gone_at)));
        let get = sim.request(1, 2, Request::SessionGet { session: session("s") });
        assert!(sim.replies[&get].is_err(), "the session is gone with its last call");
    }
}

#[test]
fn a_client_that_comes_back_in_time_finds_its_calls_running() {
    let mut sim = Sim::new();
    sim.open(1, 1, "s", OnDisconnect::Linger);
    let accepted = sim.execute(1, 1, "s", &["40 ok"]);
    let uid = sim.call_uids(accepted)[0];
    sim.input(Input::Disconnected { conn: ConnId(1) });
    let again = sim.open(1, 2, "s", OnDisconnect::Linger);
    assert!(matches!(&sim.replies[&again], Ok(Reply::SessionOpened { created: false, .. })));
    let wait = sim.request(1, 2, Request::CallWait { call_uid: uid, timeout_ms: 60_000 });
    sim.drive();
    assert!(matches!(&sim.replies[&wait], Ok(Reply::CallEnd(Some(result))) if result.status == Status::Ok));
}

#[test]
fn closing_a_session_answers_when_nothing_of_it_is_left() {
    let mut sim = Sim::new();
    sim.open(1, 1, "s", OnDisconnect::Linger);
    sim.execute(1, 1, "s", &["0 hang", "0 hang", "0 hang", "0 hang", "1 ok"]);
    sim.step();
    let close = sim.request(1, 1, Request::SessionClose { session: session("s") });
    assert!(!sim.replies.contains_key(&close));
    sim.drive();
    assert_eq!(sim.replies[&close], Ok(Reply::SessionClosed { killed: 4, cancelled: 1 }));
    assert_eq!(sim.statuses()[4], Status::Cancelled);
}

#[test]
fn shutdown_drains_then_kills_and_then_stops() {
    let mut sim = Sim::new();
    sim.open(1, 1, "s", OnDisconnect::Linger);
    let mut calls = vec![call(0, "3 ok"), call(1, "0 hang")];
    for call in &mut calls {
        call.timeout_ms = Some(60_000);
    }
    sim.request(1, 1, Request::BatchExecute(BatchExecute { session: session("s"), calls, key: None }));
    sim.input(Input::Shutdown);
    let refused = sim.execute(1, 1, "s", &["1 ok"]);
    assert!(matches!(&sim.replies[&refused], Err(refusal) if refusal.code == RefusalCode::ShuttingDown));
    while !sim.stopped {
        assert!(sim.step());
    }
    assert_eq!(sim.statuses(), [Status::Ok, Status::Killed]);
    assert!(sim.now_us >= 500 * MS);
}

#[test]
fn tools_get_what_is_on_the_lists_and_nothing_else() {
    let sim = Sim::new();
    let session = super::super::session::Session {
        id: SessionId(Uuid::from_u128(1)),
        name: "s".into(),
        owner: peer(1),
        agent: None,
        cwd: "/work".to_owned(),
        env: vec![("TOKEN".to_owned(), "given".to_owned())],
        on_disconnect: OnDisconnect::Linger,
        attached: std::collections::BTreeSet::new(),
        batch: None,
        kept: VecDeque::new(),
        last_seq: 0,
        abandoned: false,
        closing: None,
    };
    let uid = CallUid(Uuid::from_u128(2));
    let admitted = super::super::admission::admit(
        &sim.core.tools,
        &sim.core.around,
        &session,
        ConnId(1),
        uid,
        &call(0, "1 ok"),
    )
    .expect("admitted");
    let env: BTreeMap<_, _> = admitted.start.job.env.into_iter().collect();
    assert_eq!(env.get("PATH").map(String::as_str), Some("/bin"));
    assert_eq!(env.get("TOKEN").map(String::as_str), Some("given"));
    assert!(!env.contains_key("SECRET"));
}

#[derive(Debug, Clone)]
enum Op {
    Open { uid: u32, conn: u64, name: u8, abort: bool },
    Execute { uid: u32, conn: u64, name: u8, commands: Vec<usize> },
    Kill { uid: u32, nth: usize },
    Close { uid: u32, name: u8 },
    Disconnect { conn: u64 },
    Steps(u8),
    Shutdown,
}

const COMMANDS: [&str; 9] =
    ["1 ok", "7 exit3", "3 segv", "2 lost", "0 hang", "0 polite", "0 nofork", "unknown", "invalid"];

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (uid, conn, name) = (1_u32..3, 1_u64..5, 0_u8..3);
    let op = prop_oneof![
        3 => (uid.clone(), conn.clone(), name.clone(), any::<bool>())
            .prop_map(|(uid, conn, name, abort)| Op::Open { uid, conn, name, abort }),
        6 => (uid.clone(), conn.clone(), name.clone(), prop::collection::vec(0..COMMANDS.len(), 0..8))
            .prop_map(|(uid, conn, name, commands)| Op::Execute { uid, conn, name, commands }),
        2 => (uid.clone(), 0_usize..20).prop_map(|(uid, nth)| Op::Kill { uid, nth }),
        1 => (uid, name).prop_map(|(uid, name)| Op::Close { uid, name }),
        1 => conn.prop_map(|conn| Op::Disconnect { conn }),
        8 => (1_u8..12).prop_map(Op::Steps),
        1 => prop_oneof![9 => Just(Op::Steps(1)), 1 => Just(Op::Shutdown)],
    ];
    prop::collection::vec(op, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Random clients against scripted workers: every accepted call gets exactly one result and one
    /// `tool_finished`, limits hold, every request is answered once, and the core always comes to rest.
    #[test]
    fn every_accepted_call_gets_exactly_one_result(ops in ops()) {
        let mut sim = Sim::new();
        let mut accepted: Vec<(BatchId, Vec<CallUid>)> = Vec::new();
        let mut requests = 0;
        for op in ops {
            let before = sim.next_request;
            match op {
                Op::Open { uid, conn, name, abort } => {
                    let conn = conn + u64::from(uid) * 100;
                    let mode = if abort { OnDisconnect::Abort } else { OnDisconnect::Linger };
                    sim.open(uid, conn, &format!("s{name}"), mode);
                }
                Op::Execute { uid, conn, name, commands } => {
                    let commands: Vec<&str> = commands.iter().map(|n| COMMANDS[*n]).collect();
                    let id = sim.execute(uid, conn + u64::from(uid) * 100, &format!("s{name}"), &commands);
                    if let Some(Ok(Reply::BatchAccepted { batch_id, call_uids, .. })) = sim.replies.get(&id) {
                        accepted.push((*batch_id, call_uids.clone()));
                    }
                }
                Op::Kill { uid, nth } => {
                    let known: Vec<CallUid> = accepted.iter().flat_map(|(_, calls)| calls).copied().collect();
                    if !known.is_empty() {
                        let call_uid = known[nth % known.len()];
                        sim.request(uid, 900, Request::CallKill { call_uid, reason: String::new() });
                    }
                }
                Op::Close { uid, name } => {
                    sim.request(uid, 901, Request::SessionClose { session: session(&format!("s{name}")) });
                }
                Op::Disconnect { conn } => {
                    for uid in 1..3 {
                        sim.input(Input::Disconnected { conn: ConnId(conn + uid * 100) });
                    }
                }
                Op::Steps(n) => {
                    for _ in 0..n {
                        sim.step();
                    }
                }
                Op::Shutdown => sim.input(Input::Shutdown),
            }
            requests += sim.next_request - before;
        }
        sim.drive();
        prop_assert!(sim.most_running <= LIMITS.total);
        prop_assert!(sim.workers.is_empty());
        prop_assert_eq!(sim.replies.len() as u64, requests, "every request is answered");
        let ended: BTreeMap<BatchId, Arc<BatchResult>> =
            sim.ended.iter().map(|result| (result.batch_id, Arc::clone(result))).collect();
        prop_assert_eq!(ended.len(), sim.ended.len(), "a batch ends once");
        for (batch, calls) in &accepted {
            let result = ended.get(batch).expect("every accepted batch ends");
            let got: Vec<CallUid> = result.results.iter().map(|result| result.call_uid).collect();
            prop_assert_eq!(&got, calls);
            for call in calls {
                prop_assert_eq!(sim.finished_calls.get(call), Some(&1));
            }
        }
        prop_assert!(sim.core.calls.values().all(|call| call.result.is_some()));
    }
}

#[test]
fn a_timeout_that_nobody_lives_to_see_is_no_error() {
    let mut sim = Sim::new();
    sim.core.around.max_timeout_ms = u64::MAX;
    sim.core.settings.drain_ms = u64::MAX;
    sim.open(1, 1, "s", OnDisconnect::Linger);
    let mut endless = call(0, "5 ok");
    endless.timeout_ms = Some(u64::MAX);
    let calls = vec![endless];
    sim.request(1, 1, Request::BatchExecute(BatchExecute { session: session("s"), calls, key: None }));
    sim.input(Input::Shutdown);
    while !sim.stopped {
        assert!(sim.step());
    }
    assert_eq!(sim.statuses(), [Status::Ok]);
}

#[test]
fn results_with_very_long_texts_still_fit_one_frame() {
    let mut sim = Sim::new();
    sim.text = "x".repeat(1024 * 1024);
    sim.open(1, 1, "s", OnDisconnect::Linger);
    sim.execute(1, 1, "s", &["1 ok"; 30]);
    sim.drive();
    let result = sim.ended.last().expect("a batch");
    assert_eq!(result.results.len(), 30);
    let bytes = toolcell_protocol::codec::encode(&**result).expect("encodes").len();
    assert!(bytes < toolcell_protocol::limits::MAX_FRAME_BYTES, "{bytes}");
    assert!(
        result.results.iter().all(|result| result.details.truncated && result.for_model.contains("call.get"))
    );
}
