//! Recorded runs: the one form that all inputs are brought into.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use toolcell_daemon::core::loop_detection::{ToolKind, ToolTraits};

/// One recorded run.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Run {
    /// Its name.
    #[serde(default)]
    pub run_id: String,
    /// A `loop_detection` block, or `{global, agent}`.
    #[serde(default)]
    pub config: Option<Value>,
    /// What is declared about the tools.
    #[serde(default)]
    pub tools: BTreeMap<String, Tool>,
    /// Calls and events, in order.
    pub calls: Vec<Item>,
    /// Where the run comes from, if it says so.
    #[serde(default)]
    pub source: Option<String>,
    /// `resolved`, `failed` or `unknown`, if it says so.
    #[serde(default)]
    pub outcome: Option<String>,
}

/// What a run declares about a tool.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Tool {
    #[serde(default)]
    edits: Value,
    #[serde(default)]
    poll: Option<bool>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    volatile: Vec<String>,
}

impl Tool {
    /// The same, as the detectors take it.
    #[must_use]
    pub fn traits(&self) -> ToolTraits {
        let mut edits: Vec<String> = match &self.edits {
            Value::String(name) => vec![name.clone()],
            Value::Array(names) => names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect(),
            _ => Vec::new(),
        };
        let mut kind = self.kind.as_deref().and_then(ToolKind::from_name);
        if self.edits == Value::Bool(true) {
            edits.clear();
            kind = kind.or(Some(ToolKind::Edit));
        }
        ToolTraits { kind, poll: self.poll, edits, volatile: self.volatile.clone() }
    }
}

/// One item of a run.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Item {
    /// `compaction`, `user_turn`, `new_run`; absent for a call.
    #[serde(default)]
    pub event: Option<String>,
    /// The tool.
    #[serde(default)]
    pub tool: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Value,
    /// The caller's id.
    #[serde(default)]
    pub call_id: Option<String>,
    /// What came back; absent is not the same as null.
    #[serde(default, deserialize_with = "present")]
    pub result: Option<Value>,
    /// True, or a message.
    #[serde(default)]
    pub error: Option<Value>,
    /// Exit code.
    #[serde(default)]
    pub exit: Option<Value>,
    /// Hash of the whole raw result.
    #[serde(default)]
    pub result_sha: Option<String>,
    /// The same after masking.
    #[serde(default)]
    pub result_norm_sha: Option<String>,
    /// Run inside the session; null is none, absent is the current one.
    #[serde(default, deserialize_with = "present")]
    pub run: Option<Value>,
    /// The outcome never arrives.
    #[serde(default)]
    pub pending: bool,
}

impl Item {
    /// An event.
    #[must_use]
    pub fn event(name: &str) -> Self {
        Self { event: Some(name.to_owned()), ..Self::default() }
    }
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}
