//! The hash of a result, by the documented list of rules: the first that applies wins.

use serde_json::{Map, Value, json};

use super::super::args;
use super::super::digest::Fingerprint;
use super::calls;

/// Keys that a delivery puts into the details of a sent message.
const DELIVERY_KEYS: &[&str] = &[
    "messageId",
    "message_id",
    "messageIds",
    "platformMessageId",
    "platformMessageIds",
    "fileId",
    "file_id",
    "fileKey",
    "pollId",
    "poll_id",
    "receipt",
    "runId",
    "idempotencyKey",
    "ts",
    "timestamp",
    "sentAt",
    "deliveredAt",
    "createdAt",
];
const SEND_ACTIONS: &[&str] = &[
    "send",
    "broadcast",
    "reply",
    "thread-reply",
    "sendWithEffect",
    "sendAttachment",
    "upload-file",
    "sticker",
    "poll",
];

/// The hash of a thrown error: its whole message, in a namespace of its own.
pub(crate) fn of_error(message: &str) -> Fingerprint {
    Fingerprint::of("error:").with(Fingerprint::of(message))
}

/// The hash of a result of the tool with this normalised name; None is no outcome at all.
pub(crate) fn of_result(name: &str, call: &Value, result: &Value) -> Option<Fingerprint> {
    if result.is_string() {
        return of_object(name, call, &Value::Null, trimmed(result).unwrap_or_default());
    }
    let Some(map) = result.as_object() else { return Some(args::value(result)) };
    let details = map.get("details").filter(|details| details.is_object()).unwrap_or(&Value::Null);
    of_object(name, call, details, &text_of(map))
}

fn trimmed(value: &Value) -> Option<&str> {
    value.as_str().map(str::trim)
}

/// All text blocks, joined; other blocks are ignored.
fn text_of(result: &Map<String, Value>) -> String {
    if let Some(Value::String(text)) = result.get("text") {
        return text.trim().to_owned();
    }
    match result.get("content") {
        Some(Value::String(text)) => text.trim().to_owned(),
        Some(Value::Array(blocks)) => {
            let texts = blocks.iter().filter(|block| block.get("type").is_some_and(Value::is_string));
            let texts: Vec<&str> = texts.filter_map(|block| block.get("text")?.as_str()).collect();
            texts.join("\n").trim().to_owned()
        }
        _ => String::new(),
    }
}

fn of_object(name: &str, call: &Value, details: &Value, text: &str) -> Option<Fingerprint> {
    let status = details.get("status").and_then(Value::as_str);
    if status == Some("blocked") && details.get("deniedReason").and_then(Value::as_str) == Some("tool-loop") {
        return None;
    }
    let pick = |key: &str| details.get(key).cloned().unwrap_or(Value::Null);
    let picked = |keys: &[&str]| keys.iter().map(|key| pick(key)).collect::<Vec<_>>();
    let action = calls::action(call);
    let parts = match (name, status, action) {
        ("exec", Some("running"), _) => {
            let tail = details.get("tail").and_then(Value::as_str).unwrap_or_default();
            json!(["exec", "running", tail])
        }
        ("exec", Some(status @ ("completed" | "failed")), _) => {
            let aggregated = details.get("aggregated").and_then(trimmed).filter(|text| !text.is_empty());
            let code =
                details.get("exitCode").filter(|code| code.is_number()).cloned().unwrap_or(Value::Null);
            let timed_out = details.get("timedOut") == Some(&Value::Bool(true));
            json!(["exec", status, code, timed_out, aggregated.unwrap_or(text)])
        }
        ("exec", Some(status @ ("approval-pending" | "approval-unavailable")), _) => {
            json!(["exec", status, picked(&["reason", "host", "command", "warningText"])])
        }
        ("process", _, Some("poll")) => {
            json!(["poll", picked(&["status", "exitCode", "exitSignal", "aggregated"]), text])
        }
        ("process", _, Some("log")) => {
            json!([
                "log",
                picked(&["status", "totalLines", "totalChars", "truncated", "exitCode", "exitSignal"]),
                text
            ])
        }
        _ if is_send(name, action) => json!(["send", delivered(details)]),
        _ => {
            let details = if details.is_null() { json!({}) } else { details.clone() };
            json!(["result", details, text])
        }
    };
    Some(args::value(&parts))
}

pub(crate) fn is_send(name: &str, action: Option<&str>) -> bool {
    name == "sessions_send"
        || (name == "message" && action.is_some_and(|action| SEND_ACTIONS.contains(&action)))
}

/// The details of a send without what only this delivery has.
pub(crate) fn delivered(details: &Value) -> Value {
    match details {
        Value::Object(map) => {
            let message = is_delivered_message(map);
            map.iter()
                .filter(|(key, _)| !(DELIVERY_KEYS.contains(&key.as_str()) || message && *key == "id"))
                .map(|(key, value)| (key.clone(), delivered(value)))
                .collect::<Map<_, _>>()
                .into()
        }
        Value::Array(items) => items.iter().map(delivered).collect(),
        other => other.clone(),
    }
}

fn is_delivered_message(map: &Map<String, Value>) -> bool {
    let text = |key: &str| map.get(key).is_some_and(Value::is_string);
    text("id")
        && text("text")
        && (["direction", "senderId", "accountId"].iter().any(|key| map.contains_key(*key))
            || map.get("conversation").is_some_and(Value::is_object))
}

/// The tool name that an error text calls unknown: `unknown tool X`, `tool X not found`, `tool X is not available`.
pub(crate) fn unknown_tool_name(message: &str) -> Option<Fingerprint> {
    let lower = message.to_lowercase();
    let mut from = 0;
    while let Some(at) = lower[from..].find("tool").map(|at| from + at) {
        from = at + 4;
        let starts_word = !lower[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if !starts_word {
            continue;
        }
        let Some((name, rest)) = quoted_name(&lower[from..]) else { continue };
        let rest = rest.trim_start();
        if lower[..at].trim_end().ends_with("unknown")
            || rest.starts_with("not found")
            || rest.starts_with("is not available")
        {
            return Some(Fingerprint::of(name));
        }
    }
    None
}

/// A name behind blanks, a colon and an optional quote.
fn quoted_name(text: &str) -> Option<(&str, &str)> {
    let quotes = ['"', '\'', '`'];
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == ':').trim_start_matches(quotes);
    let end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')))
        .unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    (!name.is_empty()).then(|| (name, rest.trim_start_matches(quotes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wordings_of_an_unknown_tool_join() {
        let name = |text| unknown_tool_name(text);
        let foo = Some(Fingerprint::of("foo"));
        assert_eq!(name("Unknown tool: \"Foo\""), foo);
        assert_eq!(name("tool 'foo' is not available"), foo);
        assert_eq!(name("Error: Tool foo not found"), foo);
        assert_eq!(name("the toolbox foo not found"), None);
        assert_eq!(name("tool foo failed"), None);
        assert_eq!(name("İ tool"), None);
    }

    #[test]
    fn a_send_is_compared_without_what_its_delivery_adds() {
        let call = json!({"action": "send"});
        let hash = |details: Value| of_result("message", &call, &json!({"text": "x", "details": details}));
        assert_eq!(hash(json!({"ok": true, "messageId": "1"})), hash(json!({"ok": true, "messageId": "2"})));
        assert_ne!(hash(json!({"route": {"id": "1"}})), hash(json!({"route": {"id": "2"}})));
        let message = |id: &str| hash(json!({"m": {"id": id, "text": "t", "senderId": "s"}}));
        assert_eq!(message("1"), message("2"));
    }
}
