//! Names of tools, and which calls are known polls.

use std::borrow::Cow;

use serde_json::Value;

/// Trimmed, lower case, aliases resolved; an empty name becomes `tool`.
pub(crate) fn normal_name(tool: &str) -> Cow<'_, str> {
    let trimmed = tool.trim();
    let lower: Cow<'_, str> =
        if trimmed.chars().any(char::is_uppercase) { trimmed.to_lowercase().into() } else { trimmed.into() };
    match &*lower {
        "" => "tool".into(),
        "bash" => "exec".into(),
        "apply-patch" => "apply_patch".into(),
        _ => lower,
    }
}

pub(crate) fn action(args: &Value) -> Option<&str> {
    args.get("action")?.as_str()
}

/// `command_status` with any arguments, `process` with action poll or log; nothing else.
pub(crate) fn is_known_poll(name: &str, args: &Value) -> bool {
    name == "command_status" || (name == "process" && matches!(action(args), Some("poll" | "log")))
}
