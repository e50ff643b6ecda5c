//! Batch files: a JSON array, or JSON lines, of calls. Every problem says the line, the call and the field.

use std::collections::{BTreeMap, HashMap};

use serde_json::value::RawValue;
use thiserror::Error;
use toolcell_client::protocol::client_api::CallRequest;
use toolcell_client::protocol::id::CallId;
use toolcell_client::protocol::limits::MAX_CALLS_PER_BATCH;

use crate::input::{kind_of, object};

const FIELDS: &str = "call_id, tool, args, cwd, timeout_ms, immune";

/// What is wrong with a batch file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BatchFileError {
    /// The text is not JSON.
    #[error("line {line}: not JSON: {reason}")]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// What the parser said.
        reason: String,
    },
    /// A call is wrong as a whole.
    #[error("line {line}, call {index}: {reason}")]
    Call {
        /// Counted from 1.
        line: usize,
        /// Counted from 0, as in the results.
        index: usize,
        /// What is wrong.
        reason: String,
    },
    /// A field of a call is wrong.
    #[error("line {line}, call {index}, field {field:?}: {reason}")]
    Field {
        /// Counted from 1.
        line: usize,
        /// Counted from 0, as in the results.
        index: usize,
        /// Its name.
        field: String,
        /// What is wrong.
        reason: String,
    },
    /// More calls than a batch takes.
    #[error("{count} calls, at most {MAX_CALLS_PER_BATCH} make a batch; split it")]
    TooMany {
        /// How many.
        count: usize,
    },
}

/// Reads a batch file's text.
///
/// # Errors
/// [`BatchFileError`], for the first problem.
pub fn parse(text: &str) -> Result<Vec<CallRequest>, BatchFileError> {
    let items = if text.trim_start().starts_with('[') { array_items(text)? } else { line_items(text)? };
    if items.len() > MAX_CALLS_PER_BATCH {
        return Err(BatchFileError::TooMany { count: items.len() });
    }
    let mut calls = Vec::with_capacity(items.len());
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (index, (line, item)) in items.into_iter().enumerate() {
        let call = Item { line, index }.read(item)?;
        if let Some(first) = seen.insert(call.call_id.0.clone(), index) {
            return Err(BatchFileError::Field {
                line,
                index,
                field: "call_id".to_owned(),
                reason: format!("{:?} is that of call {first} already", call.call_id.0),
            });
        }
        calls.push(call);
    }
    Ok(calls)
}

fn array_items(text: &str) -> Result<Vec<(usize, &RawValue)>, BatchFileError> {
    let items: Vec<&RawValue> = serde_json::from_str(text)
        .map_err(|error| BatchFileError::Syntax { line: error.line(), reason: error.to_string() })?;
    let mut located = Vec::with_capacity(items.len());
    let (mut line, mut counted) = (1, 0);
    for item in items {
        // An item is a part of the text, so where it begins says on which line.
        let at = item.get().as_ptr() as usize - text.as_ptr() as usize;
        line += text[counted..at].matches('\n').count();
        counted = at;
        located.push((line, item));
    }
    Ok(located)
}

fn line_items(text: &str) -> Result<Vec<(usize, &RawValue)>, BatchFileError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| {
            let item = serde_json::from_str(line).map_err(|error| BatchFileError::Syntax {
                line: at + 1,
                reason: format!("{error} (one call a line, or one array)"),
            })?;
            Ok((at + 1, item))
        })
        .collect()
}

/// Where a call stands, for messages.
struct Item {
    line: usize,
    index: usize,
}

impl Item {
    fn read(&self, item: &RawValue) -> Result<CallRequest, BatchFileError> {
        let fields: BTreeMap<String, &RawValue> = serde_json::from_str(item.get())
            .map_err(|_| self.wrong(format!("an object with {FIELDS} is needed, not {}", kind_of(item))))?;
        let mut call_id = None;
        let mut tool = None;
        let mut call = CallRequest {
            call_id: CallId(String::new()),
            tool: String::new(),
            args: "{}".to_owned(),
            cwd: None,
            timeout_ms: None,
            immune: None,
            stream: false,
        };
        for (name, value) in &fields {
            match name.as_str() {
                "call_id" => call_id = Some(self.typed(name, value, "a string")?),
                "tool" => tool = Some(self.typed(name, value, "a string")?),
                "args" => {
                    object(value.get()).map_err(|reason| self.field(name, reason))?;
                    call.args = value.get().to_owned();
                }
                "cwd" => call.cwd = self.typed(name, value, "a path or null")?,
                "timeout_ms" => {
                    call.timeout_ms = self.typed(name, value, "a whole number of milliseconds or null")?;
                }
                "immune" => call.immune = self.typed(name, value, "true, false or null")?,
                _ => return Err(self.field(name, format!("there is no such field; there are {FIELDS}"))),
            }
        }
        call.tool = tool.ok_or_else(|| self.field("tool", "is missing".to_owned()))?;
        call.call_id = CallId(call_id.ok_or_else(|| self.field("call_id", "is missing".to_owned()))?);
        call.call_id.check().map_err(|error| self.field("call_id", error.to_string()))?;
        Ok(call)
    }

    fn typed<'a, T: serde::Deserialize<'a>>(
        &self,
        field: &str,
        value: &'a RawValue,
        wanted: &str,
    ) -> Result<T, BatchFileError> {
        serde_json::from_str(value.get()).map_err(|_| {
            let shown: String = value.get().chars().take(40).collect();
            self.field(field, format!("{wanted} is needed, not {shown}"))
        })
    }

    const fn wrong(&self, reason: String) -> BatchFileError {
        BatchFileError::Call { line: self.line, index: self.index, reason }
    }

    fn field(&self, field: &str, reason: String) -> BatchFileError {
        BatchFileError::Field { line: self.line, index: self.index, field: field.to_owned(), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: &str = r#"[
  {"call_id": "1", "tool": "bash", "args": {"command": "date", "n": 1.0}},

  {"call_id": "2", "tool": "read_file", "cwd": "/srv", "timeout_ms": 500, "immune": true}
]"#;

    #[test]
    fn an_array_and_lines_say_the_same() {
        let lines = "{\"call_id\": \"1\", \"tool\": \"bash\", \"args\": {\"command\": \"date\", \"n\": 1.0}}\n\n  \
                     {\"call_id\": \"2\", \"tool\": \"read_file\", \"cwd\": \"/srv\", \"timeout_ms\": 500, \"immune\": true}\n";
        let calls = parse(ARRAY).expect("good");
        assert_eq!(calls, parse(lines).expect("good"));
        assert_eq!(calls[0].args, r#"{"command": "date", "n": 1.0}"#, "arguments are passed on as written");
        assert_eq!(
            (calls[1].args.as_str(), calls[1].timeout_ms, calls[1].immune),
            ("{}", Some(500), Some(true))
        );
    }

    #[test]
    fn nothing_is_a_batch_without_calls() {
        assert_eq!(parse("[]"), Ok(Vec::new()));
        assert_eq!(parse(" \n"), Ok(Vec::new()));
    }

    #[test]
    fn a_problem_names_line_call_and_field() {
        for (text, expected) in [
            ("[{\"call_id\": \"1\"},\n{]", "line 2: not JSON"),
            ("{\"call_id\": \"1\", \"tool\": \"t\"}\n{oops}\n", "line 2: not JSON"),
            ("[{\"call_id\": \"1\", \"tool\": \"t\"},\n\n 7]", "line 3, call 1: an object with call_id"),
            ("[{\"tool\": \"t\"}]", "line 1, call 0, field \"call_id\": is missing"),
            ("[{\"call_id\": \"\", \"tool\": \"t\"}]", "field \"call_id\": call_id is empty"),
            ("[{\"call_id\": \"1\"}]", "field \"tool\": is missing"),
            ("[{\"call_id\": 1, \"tool\": \"t\"}]", "field \"call_id\": a string is needed, not 1"),
            (
                "[{\"call_id\": \"1\", \"tool\": \"t\", \"args\": \"{}\"}]",
                "field \"args\": a JSON object is needed",
            ),
            (
                "[{\"call_id\": \"1\", \"tool\": \"t\", \"timeout_ms\": \"2s\"}]",
                "whole number of milliseconds",
            ),
            (
                "[{\"call_id\": \"1\", \"tool\": \"t\", \"timeout\": 2}]",
                "field \"timeout\": there is no such field",
            ),
            (
                "{\"call_id\": \"1\", \"tool\": \"t\"}\n{\"call_id\": \"1\", \"tool\": \"u\"}",
                "line 2, call 1, field \"call_id\": \"1\" is that of call 0 already",
            ),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}\ngave:   {error}\nwanted: {expected}");
        }
    }

    #[test]
    fn more_calls_than_a_batch_takes_are_counted() {
        let lines: String = (0..=MAX_CALLS_PER_BATCH)
            .map(|at| format!("{{\"call_id\": \"{at}\", \"tool\": \"t\"}}\n"))
            .collect();
        assert_eq!(parse(&lines), Err(BatchFileError::TooMany { count: MAX_CALLS_PER_BATCH + 1 }));
    }
}
