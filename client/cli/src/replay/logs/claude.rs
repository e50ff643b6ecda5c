//! Claude Code transcripts: JSON lines, one entry a message.
//!
//! Used: `type` (`user`, `assistant`, `system`), `sessionId`, `isSidechain` and `agentId` (a sub-agent is a run of its
//! own), `message.content` (`tool_use`: `id`, `name`, `input`; `tool_result`: `tool_use_id`, `content`, `is_error`),
//! `isMeta`, `isCompactSummary`, and `subtype` `compact_boundary`. A message of the user that is no tool result is a user
//! turn.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::record::Run;
use super::{Calls, Known, text_of};

#[derive(Debug, Default)]
pub(super) struct Claude {
    sessions: BTreeMap<String, Calls>,
}

/// Entries that say nothing about calls.
const SILENT: &[&str] = &[
    "summary",
    "file-history-snapshot",
    "queue-operation",
    "progress",
    "custom-title",
    "agent-name",
    "last-prompt",
    "attachment",
    "permission-mode",
];

impl Claude {
    pub(super) fn entry(&mut self, value: &Value) -> Known {
        let Some(kind) = value.get("type").and_then(Value::as_str) else { return Known::No };
        let Some(session) = value.get("sessionId").and_then(Value::as_str) else {
            let of_this_kind = SILENT.contains(&kind)
                && (value.get("leafUuid").is_some() || value.get("messageId").is_some());
            return if of_this_kind { Known::Yes } else { Known::No };
        };
        let mut name = session.to_owned();
        if value.get("isSidechain") == Some(&Value::Bool(true)) {
            name.push_str("/agent-");
            name.push_str(value.get("agentId").and_then(Value::as_str).unwrap_or("side"));
        }
        match kind {
            "assistant" => self.assistant(&name, value),
            "user" => self.user(&name, value),
            "system" => {
                if value.get("subtype").and_then(Value::as_str) == Some("compact_boundary") {
                    self.sessions.entry(name).or_default().event("compaction");
                }
                Known::Yes
            }
            kind if SILENT.contains(&kind) => Known::Yes,
            kind => Known::Odd(format!("a Claude Code entry of type {kind}")),
        }
    }

    fn assistant(&mut self, name: &str, value: &Value) -> Known {
        let Some(blocks) = value.pointer("/message/content").and_then(Value::as_array) else {
            return Known::Yes;
        };
        for block in
            blocks.iter().filter(|block| block.get("type").and_then(Value::as_str) == Some("tool_use"))
        {
            let field = |key: &str| block.get(key).and_then(Value::as_str);
            let (Some(id), Some(tool)) = (field("id"), field("name")) else {
                return Known::Odd("a Claude Code tool_use without id or name".to_owned());
            };
            let args = block.get("input").cloned().unwrap_or(Value::Null);
            self.sessions.entry(name.to_owned()).or_default().call(id, tool, args);
        }
        Known::Yes
    }

    fn user(&mut self, name: &str, value: &Value) -> Known {
        let calls = self.sessions.entry(name.to_owned()).or_default();
        let flag = |key: &str| value.get(key) == Some(&Value::Bool(true));
        let content = value.pointer("/message/content");
        let blocks = content.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let mut results = false;
        for block in
            blocks.iter().filter(|block| block.get("type").and_then(Value::as_str) == Some("tool_result"))
        {
            results = true;
            let Some(id) = block.get("tool_use_id").and_then(Value::as_str) else {
                return Known::Odd("a Claude Code tool_result without tool_use_id".to_owned());
            };
            let failed = block.get("is_error") == Some(&Value::Bool(true));
            let content = block.get("content").unwrap_or(&Value::Null);
            let only_text = content
                .as_array()
                .is_none_or(|blocks| blocks.iter().all(|block| block.get("text").is_some()));
            let result =
                if only_text { text_of(content).into() } else { serde_json::json!({ "content": content }) };
            calls.result(id, result, failed, None);
        }
        if flag("isCompactSummary") {
            calls.event("compaction");
        } else if !results && !flag("isMeta") && content.is_some() {
            calls.event("user_turn");
        }
        Known::Yes
    }

    pub(super) fn finish(self) -> Vec<Run> {
        let runs = self.sessions.into_iter().filter(|(_, calls)| calls.has_calls());
        runs.map(|(run_id, calls)| Run { run_id, calls: calls.items, ..Run::default() }).collect()
    }
}
