//! The names that programs read in `--json` output are a contract.

use std::fmt::Debug;

use serde::Serialize;
use serde_json::{Value, json};
use toolcell_protocol::call::{BatchResult, Blob, CallResult, Status};
use toolcell_protocol::client_api::{
    CallPhase, ExecuteAnswer, KillAnswer, OnDisconnect, RefusalCode, Request, SessionRef,
};
use toolcell_protocol::worker_api::Stage;

use crate::{samples, worker_samples};

fn names<T: Serialize + Debug>(values: &[T]) -> Vec<String> {
    values
        .iter()
        .map(|value| match serde_json::to_value(value).expect("a plain value has JSON") {
            Value::String(name) => name,
            other => panic!("{value:?} is {other} in JSON, not a name"),
        })
        .collect()
}

#[test]
fn statuses_have_their_documented_names() {
    let expected = [
        "ok",
        "error",
        "crashed",
        "timed_out",
        "oom_killed",
        "limit_exceeded",
        "killed",
        "cancelled",
        "blocked",
        "invalid_args",
        "unknown_tool",
        "tool_disabled",
        "spawn_failed",
        "worker_failed",
        "detached",
        "unknown",
    ];
    assert_eq!(names(&Status::ALL), expected);
    assert_eq!(Status::ALL.map(Status::name), expected);
    assert_eq!(Status::ALL.map(|status| status.to_string()), expected);
}

#[test]
fn the_name_in_logs_is_the_name_in_json() {
    assert_eq!(names(&samples::LIMITS), samples::LIMITS.map(|limit| limit.name()));
    assert_eq!(names(&samples::CONTAINMENTS), samples::CONTAINMENTS.map(|containment| containment.name()));
    assert_eq!(names(&samples::REFUSALS), samples::REFUSALS.map(RefusalCode::name));
    assert_eq!(names(&worker_samples::STAGES), worker_samples::STAGES.map(Stage::name));
}

#[test]
fn verdicts_answers_and_phases_have_their_documented_names() {
    assert_eq!(names(&samples::VERDICTS), ["next_turn", "intervene", "abort"]);
    assert_eq!(names::<ExecuteAnswer>(&samples::ANSWERS), ["executing_tools", "next_turn", "abort"]);
    assert_eq!(
        names::<KillAnswer>(&samples::KILL_ANSWERS),
        ["killed", "cancelled", "already_ended", "kill_pending"]
    );
    assert_eq!(
        names::<CallPhase>(&samples::PHASES),
        ["queued", "starting", "running", "terminating", "finished"]
    );
    assert_eq!(names(&[OnDisconnect::Linger, OnDisconnect::Abort]), ["linger", "abort"]);
    assert_eq!(names(&samples::STREAMS), ["stdout", "stderr"]);
}

#[test]
fn an_absent_value_is_null_and_not_left_out() {
    let mut result = samples::call_result();
    result.status_detail = toolcell_protocol::call::StatusDetail::default();
    result.details = toolcell_protocol::call::Details::default();
    let value = serde_json::to_value(&result).expect("a result has JSON");
    assert_eq!(
        value["status_detail"],
        json!({
            "message": null, "exit_code": null, "signal": null, "signal_name": null, "reason": null,
            "limit": null, "limit_value": null, "timeout_kind": null, "timeout_ms": null, "stage": null,
            "errno": null, "errno_name": null, "by": null, "field": null, "nearest": [],
        })
    );
    assert_eq!(
        value["details"],
        json!({
            "exit_code": null, "signal": null, "started_at_ms": null, "queued_us": null, "duration_us": null,
            "user_cpu_us": null, "system_cpu_us": null, "peak_memory_bytes": null, "stdout_bytes": 0,
            "stderr_bytes": 0, "omitted_bytes": 0, "truncated": false, "stdout_open_after_exit": false,
            "stdin_unread_bytes": 0, "structured": null, "spool": null, "attempts": 0, "layers": null,
            "leftovers": [], "limits_hit": [], "kill": null,
        })
    );
}

#[test]
fn a_batch_result_has_the_shape_that_the_command_prints() {
    let value = serde_json::to_value(samples::batch_result()).expect("a batch result has JSON");
    let keys = |value: &Value| {
        let mut keys: Vec<String> = value.as_object().expect("an object").keys().cloned().collect();
        keys.sort();
        keys
    };
    assert_eq!(
        keys(&value),
        ["batch_id", "messages", "reason", "results", "session_id", "steering", "verdict"]
    );
    assert_eq!(
        keys(&value["results"][0]),
        ["call_id", "call_uid", "details", "for_model", "status", "status_detail", "tool"]
    );
    assert_eq!(value["verdict"], "intervene");
    assert_eq!(value["results"][0]["status"], "limit_exceeded");
    assert_eq!(value["results"][0]["call_uid"], "01920000-0000-7000-8000-0000000000ca");
    let back: BatchResult = serde_json::from_value(value).expect("and reads back");
    assert_eq!(back, samples::batch_result());
    let one: CallResult = back.results[0].clone();
    assert_eq!(one, samples::call_result());
}

#[test]
fn bytes_are_text_in_json_and_what_is_not_text_shows() {
    assert_eq!(serde_json::to_value(Blob("ü".into())).expect("JSON"), json!("ü"));
    assert_eq!(serde_json::to_value(Blob(vec![b'a', 0xff, b'b'])).expect("JSON"), json!("a\u{fffd}b"));
}

#[test]
fn a_request_reads_back_from_its_json() {
    let request = Request::SessionGet { session: SessionRef { uid: None, name: "a".into() } };
    let text = serde_json::to_string(&request).expect("JSON");
    assert_eq!(serde_json::from_str::<Request>(&text).expect("reads back"), request);
}
