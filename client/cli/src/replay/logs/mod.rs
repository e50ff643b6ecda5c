//! Session logs that people really have, brought into the form of recorded runs.
//!
//! Each reader takes the entries of one file in order and says whether it knows an entry; the first that knows one keeps
//! the file. Which fields are used stands at the head of each reader. An entry that none knows is counted and named.

mod claude;
mod codex;
mod mini_swe;
mod openhands;

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};

use super::input::Unknown;
use super::record::{Item, Run};

/// What a reader made of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Known {
    /// Taken in, or known to say nothing about calls.
    Yes,
    /// Not of this reader's kind.
    No,
    /// Of this kind, but not understood: its name.
    Odd(String),
}

/// One file of entries.
#[derive(Debug)]
pub(super) struct Logs {
    name: String,
    claude: claude::Claude,
    codex: codex::Codex,
    openhands: openhands::OpenHands,
}

impl Logs {
    pub(super) fn new(path: &Path) -> Self {
        let name =
            path.file_name().map_or_else(|| "-".to_owned(), |name| name.to_string_lossy().into_owned());
        let name = [".gz", ".jsonl", ".json", ".traj"]
            .iter()
            .fold(name, |name, end| name.strip_suffix(end).unwrap_or(&name).to_owned());
        Self {
            name,
            claude: claude::Claude::default(),
            codex: codex::Codex::default(),
            openhands: openhands::OpenHands::default(),
        }
    }

    pub(super) fn entry(
        &mut self,
        value: &Value,
        place: &dyn Fn() -> String,
        unknown: &mut Unknown,
        each: &mut dyn FnMut(Run),
    ) {
        if let Some(run) =
            mini_swe::document(value, &self.name).or_else(|| openhands::document(value, &self.name))
        {
            return each(run);
        }
        // A list may be a whole log, or a log whose lines were wrapped.
        if let Value::Array(entries) = value {
            for entry in entries {
                self.entry(entry, place, unknown, each);
            }
            return;
        }
        let known = [self.claude.entry(value), self.codex.entry(value), self.openhands.entry(value)];
        if known.contains(&Known::Yes) {
            return;
        }
        let odd = known.into_iter().find_map(|known| match known {
            Known::Odd(name) => Some(name),
            _ => None,
        });
        unknown.add(odd.unwrap_or_else(|| describe(value)), place);
    }

    pub(super) fn finish(self, each: &mut dyn FnMut(Run)) {
        for run in self.claude.finish() {
            each(run);
        }
        for (log, calls) in [self.codex.finish(), self.openhands.finish()].into_iter().flatten() {
            each(Run { run_id: log.unwrap_or_else(|| self.name.clone()), calls, ..Run::default() });
        }
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Object(map) => match map.get("type").and_then(Value::as_str) {
            Some(kind) => format!("an entry of type {kind}"),
            None => {
                let keys: Vec<&str> = map.keys().take(4).map(String::as_str).collect();
                format!(
                    "an object with {}",
                    if keys.is_empty() { "nothing in it".to_owned() } else { keys.join(", ") }
                )
            }
        },
        Value::Array(_) => "a list".to_owned(),
        other => format!("{other}").chars().take(40).collect(),
    }
}

/// Calls in the order in which they were made, each waiting for its result.
#[derive(Debug, Default)]
struct Calls {
    items: Vec<Item>,
    waiting: HashMap<String, usize>,
}

impl Calls {
    fn call(&mut self, id: &str, tool: &str, args: Value) {
        self.waiting.insert(id.to_owned(), self.items.len());
        self.items.push(Item {
            tool: tool.to_owned(),
            args,
            call_id: Some(id.to_owned()),
            ..Item::default()
        });
    }

    fn result(&mut self, id: &str, result: Value, failed: bool, exit: Option<i64>) {
        let Some(index) = self.waiting.remove(id) else { return };
        let item = &mut self.items[index];
        item.result = Some(result);
        item.error = Some(failed.into());
        item.exit = exit.map(Value::from);
    }

    fn event(&mut self, name: &str) {
        // Two of the same in a row say no more than one.
        if self.items.last().and_then(|item| item.event.as_deref()) != Some(name) {
            self.items.push(Item::event(name));
        }
    }

    fn has_calls(&self) -> bool {
        self.items.iter().any(|item| item.event.is_none())
    }
}

/// The text of a string or of text blocks.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks
                .iter()
                .filter_map(|block| block.as_str().or_else(|| block.get("text")?.as_str()))
                .collect();
            texts.join("\n")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Arguments that are JSON inside a string; what is no JSON stays a string, which makes the call malformed.
fn arguments(value: Option<&Value>) -> Value {
    match value {
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        Some(Value::String(text)) => {
            serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()))
        }
        Some(other) => other.clone(),
        None => json!({}),
    }
}
