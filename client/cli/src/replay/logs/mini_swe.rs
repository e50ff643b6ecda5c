//! mini-swe-agent trajectories: one JSON document a run.
//!
//! Used: `messages` (`role`, `content`, `tool_calls` or `extra.actions`, `extra.returncode`), `info.exit_status`,
//! `instance_id`. Where calls are written as fenced commands, the one in the assistant's message is the call and the next
//! message its result; a message that the harness could not read is a call of `<format_error>`.

use serde_json::{Value, json};

use super::super::record::Run;
use super::{Calls, arguments, text_of};

pub(super) fn document(value: &Value, name: &str) -> Option<Run> {
    let messages = value.get("messages")?.as_array()?;
    let ours = value.get("info").is_some() || value.get("trajectory_format").is_some();
    if !ours {
        return None;
    }
    let mut calls = Calls::default();
    let mut open: Vec<String> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        match message.get("role").and_then(Value::as_str) {
            Some("assistant") => open = assistant(&mut calls, message, at),
            Some("user" | "tool") => {
                let id = message.get("tool_call_id").and_then(Value::as_str).map(str::to_owned);
                if let Some(id) = id.or_else(|| (!open.is_empty()).then(|| open.remove(0))) {
                    observation(&mut calls, &id, message);
                } else if calls.has_calls() {
                    calls.event("user_turn");
                }
            }
            _ => {}
        }
    }
    let run_id = value.get("instance_id").and_then(Value::as_str).unwrap_or(name).to_owned();
    Some(Run { run_id, calls: calls.items, ..Run::default() })
}

/// Takes the calls of a message; gives the ids that wait for a result.
fn assistant(calls: &mut Calls, message: &Value, at: usize) -> Vec<String> {
    let mut ids = Vec::new();
    if let Some(Value::Array(tool_calls)) = message.get("tool_calls") {
        for (index, call) in tool_calls.iter().enumerate() {
            let id =
                call.get("id").and_then(Value::as_str).map_or_else(|| format!("{at}.{index}"), str::to_owned);
            let tool = call.pointer("/function/name").and_then(Value::as_str).unwrap_or("bash");
            calls.call(&id, tool, arguments(call.pointer("/function/arguments")));
            ids.push(id);
        }
        return ids;
    }
    let content = message.get("content").map(text_of).unwrap_or_default();
    let actions = message.pointer("/extra/actions").and_then(Value::as_array).cloned();
    let commands: Vec<String> = match actions {
        Some(actions) => actions
            .iter()
            .filter_map(|action| {
                action.as_str().or_else(|| action.get("command")?.as_str()).map(str::to_owned)
            })
            .collect(),
        None => fenced(&content),
    };
    let id = format!("{at}.0");
    match commands.as_slice() {
        [command] => calls.call(&id, "bash", json!({ "command": command })),
        // Exactly one is asked for; the harness answers anything else with an explanation.
        _ => calls.call(&id, "<format_error>", json!({ "text": content })),
    }
    ids.push(id);
    ids
}

fn fenced(content: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut lines = content.lines();
    while let Some(line) = lines.next() {
        if matches!(line.trim(), "```bash" | "```mswea_bash_command" | "```sh") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "```").collect();
            commands.push(body.join("\n"));
        }
    }
    commands
}

fn observation(calls: &mut Calls, id: &str, message: &Value) {
    let text = message.get("content").map(text_of).unwrap_or_default();
    let tagged = text.split_once("<returncode>").and_then(|(_, rest)| rest.split_once("</returncode>"));
    let exit = message
        .pointer("/extra/returncode")
        .and_then(Value::as_i64)
        .or_else(|| tagged.and_then(|(code, _)| code.trim().parse().ok()));
    let unreadable = calls.waiting.get(id).is_some_and(|index| calls.items[*index].tool == "<format_error>");
    let failed = unreadable || exit.is_some_and(|code| code != 0);
    let body = tagged.map_or(text.as_str(), |(_, rest)| rest.trim_start());
    calls.result(id, body.into(), failed, exit);
}
