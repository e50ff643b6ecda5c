//! The built-in tools: what they do inside a worker, without exec.
//!
//! The worker calls [`run`] after it has applied limits and identity to itself, so that every path is opened as the
//! user whose call it is. The daemon has checked the arguments against the schemas in its `tools/builtin.rs`; the
//! argument structs here have the same fields. Everything is synchronous, and nothing here waits for anybody else,
//! but for a bounded time for the lock of a file that is being edited.
//!
//! A failure is text for the model: what is wrong, and what to do next.

mod edit_file;
mod edit_text;
mod list_dir;
mod path;
mod read_file;
mod replace;
mod write_file;

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Deserializer};

/// What a built-in tool gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOutcome {
    /// Whether it worked.
    pub ok: bool,
    /// For the model.
    pub text: Vec<u8>,
}

/// Why a built-in tool did not do what it was asked for, in words for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// Runs a built-in tool. `args` is JSON text, `cwd` an absolute path from which relative ones are taken.
#[must_use]
pub fn run(name: &str, args: &str, cwd: &Path) -> ToolOutcome {
    let result = match name {
        "read_file" => parse(args).and_then(|args| read_file::run(&args, cwd)),
        "write_file" => parse(args).and_then(|args| write_file::run(&args, cwd)),
        "edit_file" => parse(args).and_then(|args| edit_file::run(&args, cwd)),
        "list_dir" => parse(args).and_then(|args| list_dir::run(&args, cwd)),
        _ => Err(Failure(format!("{name} is no tool that runs inside a worker"))),
    };
    match result {
        Ok(text) => ToolOutcome { ok: true, text },
        Err(Failure(text)) => ToolOutcome { ok: false, text: text.into_bytes() },
    }
}

fn parse<'a, T: Deserialize<'a>>(args: &'a str) -> Result<T, Failure> {
    serde_json::from_str(args).map_err(|error| Failure(format!("The arguments cannot be used: {error}.")))
}

/// A whole number that is not negative; JSON Schema takes 3.0 for one as well.
fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let number = Option::<f64>::deserialize(deserializer)?;
    match number {
        Some(number) if number < 0.0 || number.fract() != 0.0 => {
            Err(serde::de::Error::custom("expected a whole number that is not negative"))
        }
        // Whole and not negative; beyond u64 the cast gives its largest value, which is what is meant.
        other => Ok(other.map(|number| number as u64)),
    }
}

#[cfg(test)]
mod tests;
