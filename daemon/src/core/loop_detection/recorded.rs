//! Makes an [`Outcome`] from a recorded result: a text, or an object with a text or content blocks and details.

use serde_json::Value;

use super::args;
use super::classic::{calls, result_hash};
use super::digest::Fingerprint;
use super::facts::CallFacts;
use super::outcome::{Ended, Outcome, OutcomeBuilder, Output};

/// A result as a recorded run has it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Recorded<'a> {
    /// `result`; None is absent, which is not the same as null.
    pub result: Option<&'a Value>,
    /// Whether the call failed, if the record says so.
    pub failed: Option<bool>,
    /// The message of an error that was thrown instead of a result.
    pub message: Option<&'a str>,
    /// Exit code of a shell command.
    pub exit: Option<i32>,
    /// Hash of the whole raw result, where the record cut the text.
    pub raw_sha: Option<&'a str>,
    /// The same after masking.
    pub masked_sha: Option<&'a str>,
}

impl Recorded<'_> {
    /// The outcome, or None if the record has none.
    #[must_use]
    pub fn outcome(&self, facts: &CallFacts, call: &Value) -> Option<Outcome> {
        let object = self.result.and_then(Value::as_object);
        let details = object.and_then(|map| map.get("details")).filter(|details| details.is_object());
        let failed = self.failed.unwrap_or_else(|| {
            self.message.is_some() || says_failed(details) || self.exit.is_some_and(|code| code != 0)
        });
        if self.result.is_none() && !failed {
            return None;
        }
        let name = calls::normal_name(&facts.tool);
        let thrown = self
            .message
            .or_else(|| self.result.and_then(Value::as_str))
            .filter(|_| failed && self.says_error());
        let classic = match thrown {
            Some(message) => Some(result_hash::of_error(message)),
            None => self.result.and_then(|result| result_hash::of_result(&name, call, result)),
        };
        let ended = if is_veto(details) {
            Ended::NotCounted
        } else if failed {
            Ended::Failed
        } else {
            Ended::Ok
        };
        let mut builder = OutcomeBuilder::new();
        self.push(facts, call, &mut builder, details);
        let exit = self.exit.or_else(|| i32::try_from(details?.get("exitCode")?.as_i64()?).ok());
        let mut outcome = builder.finish(facts, ended, exit);
        outcome.classic = match self.raw_sha {
            Some(sha) if classic.is_some() => Some(Fingerprint::of(sha).with(Fingerprint(u64::from(failed)))),
            _ => classic,
        };
        if let Some(sha) = self.masked_sha {
            let status = Fingerprint(u64::from(failed) << 32 | u64::from(exit.unwrap_or(-1).unsigned_abs()));
            outcome.digest = status.with(Fingerprint::of(sha));
            if outcome.error.is_some() && outcome.shown.is_empty() {
                outcome.error = Some(outcome.digest);
            }
        }
        outcome.unknown_name = thrown.and_then(result_hash::unknown_tool_name);
        Some(outcome)
    }

    const fn says_error(&self) -> bool {
        self.message.is_some() || matches!(self.failed, Some(true))
    }

    /// What is compared: for commands status, exit code and output; else the text, the other blocks and the details.
    fn push(&self, facts: &CallFacts, call: &Value, builder: &mut OutcomeBuilder, details: Option<&Value>) {
        let name = calls::normal_name(&facts.tool);
        let starts_commands = name == "exec";
        let send = result_hash::is_send(&name, calls::action(call));
        if let Some(message) = self.message {
            builder.push(Output::Stdout, message.as_bytes());
        }
        let Some(result) = self.result else { return };
        let Some(map) = result.as_object() else {
            match result {
                Value::String(text) => builder.push(Output::Stdout, text.as_bytes()),
                other => builder.push(Output::Stdout, other.to_string().as_bytes()),
            }
            return;
        };
        let field = |key: &str| details.and_then(|details| details.get(key));
        let status = field("status").and_then(Value::as_str);
        if status == Some("running") && starts_commands {
            // Started once more while it still runs: a new process and a tail that moves are no progress.
            return builder.push(Output::Stdout, b"running");
        }
        if let Some(status @ ("running" | "completed" | "failed")) = status {
            let output = ["aggregated", "tail"]
                .iter()
                .find_map(|key| field(key)?.as_str())
                .filter(|text| !text.trim().is_empty());
            if let Some(output) = output {
                builder.push(Output::Stdout, output.as_bytes());
                builder.push(Output::Stdout, format!("\n{status}").as_bytes());
                return;
            }
        }
        match map.get("text").or_else(|| map.get("content")).filter(|_| !(send && details.is_some())) {
            Some(Value::String(text)) => builder.push(Output::Stdout, text.as_bytes()),
            Some(Value::Array(blocks)) => {
                for block in blocks {
                    match block.get("text").and_then(Value::as_str) {
                        Some(text) => builder.push(Output::Stdout, text.as_bytes()),
                        // An image that changed is progress.
                        None => builder.push(Output::Stdout, args::value(block).to_hex().as_bytes()),
                    }
                    builder.push(Output::Stdout, b"\n");
                }
            }
            Some(other) => builder.push(Output::Stdout, other.to_string().as_bytes()),
            None if details.is_none() => builder.push(Output::Stdout, result.to_string().as_bytes()),
            None => {}
        }
        if let Some(details) = details {
            builder.push(Output::Stdout, b"\n");
            builder.push(Output::Stdout, result_hash::delivered(details).to_string().as_bytes());
        }
    }
}

fn is_veto(details: Option<&Value>) -> bool {
    let is = |key: &str, value: &str| {
        details.and_then(|details| details.get(key)).and_then(Value::as_str) == Some(value)
    };
    is("status", "blocked") && is("deniedReason", "tool-loop")
}

fn says_failed(details: Option<&Value>) -> bool {
    let Some(details) = details else { return false };
    details.get("exitCode").and_then(Value::as_i64).is_some_and(|code| code != 0)
        || matches!(details.get("status").and_then(Value::as_str), Some("failed" | "error" | "timeout"))
        || details.get("isError") == Some(&Value::Bool(true))
}
