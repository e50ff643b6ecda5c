//! Codex rollouts: JSON lines `{timestamp, type, payload}`; the older form has the payloads themselves as lines.
//!
//! Used: `session_meta` (`id`), `response_item` (`function_call`: `name`, `arguments`, `call_id`; `local_shell_call`:
//! `action`; `custom_tool_call`: `name`, `input`; the three outputs: `call_id`, `output`), `compacted`, and `event_msg` of
//! type `user_message`. The exit code comes from the output's metadata, or from its `Exit code:` line.

use serde_json::{Value, json};

use super::super::record::Item;
use super::{Calls, Known, arguments, text_of};

#[derive(Debug, Default)]
pub(super) struct Codex {
    id: Option<String>,
    calls: Calls,
}

impl Codex {
    pub(super) fn entry(&mut self, value: &Value) -> Known {
        let Some(kind) = value.get("type").and_then(Value::as_str) else {
            // The first line of the older form.
            let head = value.get("instructions").is_some() && value.get("id").is_some_and(Value::is_string);
            if head {
                self.id = value["id"].as_str().map(str::to_owned);
            }
            return if head || value.get("record_type").is_some() { Known::Yes } else { Known::No };
        };
        let Some(payload) = value.get("payload") else {
            return if value.get("sessionId").is_some() { Known::No } else { self.item(kind, value) };
        };
        match kind {
            "session_meta" => {
                self.id = payload.get("id").and_then(Value::as_str).map(str::to_owned);
                Known::Yes
            }
            "response_item" => match payload.get("type").and_then(Value::as_str) {
                Some(kind) => match self.item(kind, payload) {
                    Known::No => Known::Odd(format!("a Codex item of type {kind}")),
                    known => known,
                },
                None => Known::Odd("a Codex item without type".to_owned()),
            },
            "compacted" => {
                self.calls.event("compaction");
                Known::Yes
            }
            "event_msg" => {
                if payload.get("type").and_then(Value::as_str) == Some("user_message") {
                    self.calls.event("user_turn");
                }
                Known::Yes
            }
            "turn_context" => Known::Yes,
            kind => Known::Odd(format!("a Codex entry of type {kind}")),
        }
    }

    fn item(&mut self, kind: &str, item: &Value) -> Known {
        let field = |key: &str| item.get(key).and_then(Value::as_str);
        let id = field("call_id").or_else(|| field("id"));
        match kind {
            "function_call" => {
                let (Some(id), Some(name)) = (id, field("name")) else {
                    return Known::Odd("a Codex function_call without call_id or name".to_owned());
                };
                self.calls.call(id, name, arguments(item.get("arguments")));
            }
            "custom_tool_call" => {
                let (Some(id), Some(name)) = (id, field("name")) else {
                    return Known::Odd("a Codex custom_tool_call without call_id or name".to_owned());
                };
                self.calls.call(id, name, json!({ "input": item.get("input") }));
            }
            "local_shell_call" => {
                let Some(id) = id else {
                    return Known::Odd("a Codex local_shell_call without call_id".to_owned());
                };
                let command = item.pointer("/action/command").cloned().unwrap_or(Value::Null);
                self.calls.call(id, "local_shell", json!({ "command": command }));
            }
            "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
                let Some(id) = id else { return Known::Odd(format!("a Codex {kind} without call_id")) };
                let (text, exit, failed) = output(item.get("output").unwrap_or(&Value::Null));
                self.calls.result(id, text.into(), failed, exit);
            }
            "message" | "reasoning" | "web_search_call" | "ghost_snapshot" | "compaction" => {}
            _ => return Known::No,
        }
        Known::Yes
    }

    /// Nothing if no call was seen.
    pub(super) fn finish(self) -> Option<(Option<String>, Vec<Item>)> {
        self.calls.has_calls().then_some((self.id, self.calls.items))
    }
}

/// Text, exit code and failure of an output in any of its forms.
fn output(value: &Value) -> (String, Option<i64>, bool) {
    let parsed;
    let value = match value {
        Value::String(text) if text.starts_with('{') => {
            parsed = serde_json::from_str::<Value>(text).unwrap_or_else(|_| Value::String(text.clone()));
            &parsed
        }
        other => other,
    };
    match value {
        Value::Object(map) => {
            let body = map.get("output").or_else(|| map.get("content"));
            let text = body.map_or_else(|| value.to_string(), text_of);
            let exit = value.pointer("/metadata/exit_code").and_then(Value::as_i64);
            let failed =
                exit.is_some_and(|code| code != 0) || map.get("success") == Some(&Value::Bool(false));
            (text, exit, failed)
        }
        other => {
            let text = text_of(other);
            let exit = text
                .lines()
                .take(4)
                .find_map(|line| line.strip_prefix("Exit code: ")?.trim().parse::<i64>().ok());
            let failed =
                exit.is_some_and(|code| code != 0) || text.starts_with("failed to parse function arguments");
            // Head lines tell our own timings; what the command said comes behind `Output:`.
            let body =
                text.split_once("\nOutput:\n").filter(|_| exit.is_some()).map(|(_, body)| body.to_owned());
            (body.unwrap_or(text), exit, failed)
        }
    }
}
