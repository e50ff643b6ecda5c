//! OpenHands trajectories: a list of events, or lines `{instance_id, history: [events]}` of an evaluation.
//!
//! Used: `action` and `args` (with `id`), `observation`, `content`, `cause`, `extras.exit_code` or
//! `extras.metadata.exit_code`, `source` `user`; of the newer events `kind` (`ActionEvent`, `ObservationEvent`,
//! `AgentErrorEvent`, `MessageEvent`, `Condensation`), `tool_name`, `tool_call_id`, `action`, `observation`, `error`.

use serde_json::{Value, json};

use super::super::record::{Item, Run};
use super::{Calls, Known, text_of};

#[derive(Debug, Default)]
pub(super) struct OpenHands {
    calls: Calls,
}

/// Actions that call no tool.
const SILENT: &[&str] = &[
    "message",
    "system",
    "change_agent_state",
    "recall",
    "null",
    "condensation_request",
    "loop_recovery",
    "task_tracking",
];

/// A line of an evaluation.
pub(super) fn document(value: &Value, name: &str) -> Option<Run> {
    let history = value.get("history")?.as_array()?;
    let mut log = OpenHands::default();
    for event in history {
        // Older histories hold pairs of action and observation.
        match event {
            Value::Array(pair) => pair.iter().for_each(|event| drop(log.entry(event))),
            event => drop(log.entry(event)),
        }
    }
    let field = |key: &str| value.get(key).and_then(Value::as_str);
    let resolved =
        value.pointer("/report/resolved").or_else(|| value.pointer("/test_result/report/resolved"));
    Some(Run {
        run_id: field("instance_id").unwrap_or(name).to_owned(),
        calls: log.calls.items,
        outcome: resolved
            .and_then(Value::as_bool)
            .map(|resolved| if resolved { "resolved" } else { "failed" }.to_owned()),
        ..Run::default()
    })
}

impl OpenHands {
    pub(super) fn entry(&mut self, event: &Value) -> Known {
        if let Some(kind) = event.get("kind").and_then(Value::as_str) {
            return self.newer(kind, event);
        }
        let field = |key: &str| event.get(key).and_then(Value::as_str);
        let id = |key: &str| event.get(key).filter(|id| id.is_u64() || id.is_string()).map(Value::to_string);
        if let Some(action) = field("action") {
            let Some(args) = event.get("args") else { return Known::No };
            if action == "condensation" {
                self.calls.event("compaction");
            } else if field("source") == Some("user") && action == "message" {
                self.calls.event("user_turn");
            } else if !SILENT.contains(&action) {
                let Some(id) = id("id") else {
                    return Known::Odd("an OpenHands action without id".to_owned());
                };
                let (tool, args) = call(action, args);
                self.calls.call(&id, tool, args);
            }
            return Known::Yes;
        }
        let Some(observation) = field("observation") else { return Known::No };
        let Some(content) = event.get("content") else { return Known::No };
        if let Some(cause) = id("cause") {
            let exit = ["/extras/metadata/exit_code", "/extras/exit_code"]
                .iter()
                .find_map(|at| event.pointer(at)?.as_i64());
            let failed = observation == "error" || exit.is_some_and(|code| code != 0);
            self.calls.result(&cause, text_of(content).into(), failed, exit);
        }
        Known::Yes
    }

    fn newer(&mut self, kind: &str, event: &Value) -> Known {
        let field = |key: &str| event.get(key).and_then(Value::as_str);
        let id = field("tool_call_id").or_else(|| field("action_id"));
        match (kind, id) {
            ("ActionEvent", Some(id)) => {
                let mut args = event.get("action").cloned().unwrap_or_else(|| json!({}));
                if let Value::Object(map) = &mut args {
                    map.remove("kind");
                }
                self.calls.call(id, field("tool_name").unwrap_or("tool"), args);
            }
            ("ObservationEvent", Some(id)) => {
                let observation = event.get("observation").unwrap_or(&Value::Null);
                let exit = ["/metadata/exit_code", "/exit_code"]
                    .iter()
                    .find_map(|at| observation.pointer(at)?.as_i64());
                let said = |key: &str| {
                    observation.get(key) == Some(&Value::Bool(true))
                        || observation.get(key).is_some_and(Value::is_string)
                };
                let failed = said("is_error") || said("error") || exit.is_some_and(|code| code != 0);
                let text =
                    ["content", "output", "error"].iter().find_map(|key| observation.get(key)).map(text_of);
                self.calls.result(id, text.unwrap_or_else(|| observation.to_string()).into(), failed, exit);
            }
            ("AgentErrorEvent", Some(id)) => {
                self.calls.result(id, field("error").unwrap_or_default().into(), true, None)
            }
            ("MessageEvent", _) if field("source") == Some("user") => self.calls.event("user_turn"),
            ("Condensation", _) => self.calls.event("compaction"),
            (kind, _) if kind.ends_with("Event") || kind.ends_with("Request") => {}
            _ => return Known::No,
        }
        Known::Yes
    }

    /// Nothing if no call was seen.
    pub(super) fn finish(self) -> Option<(Option<String>, Vec<Item>)> {
        self.calls.has_calls().then_some((None, self.calls.items))
    }
}

/// Tool and arguments of an action; the agent's thoughts beside them ask for nothing.
fn call<'a>(action: &'a str, args: &Value) -> (&'a str, Value) {
    const BESIDE: &[&str] = &[
        "thought",
        "is_input",
        "blocking",
        "is_static",
        "cwd",
        "hidden",
        "confirmation_state",
        "security_risk",
        "impl_source",
        "include_extra",
    ];
    let mut args = args.clone();
    if let Value::Object(map) = &mut args {
        map.retain(|key, value| !BESIDE.contains(&key.as_str()) && !value.is_null());
    }
    (if action == "run" { "bash" } else { action }, args)
}
