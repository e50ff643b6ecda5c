//! Standard output and standard error, and what they can show.

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;

use crate::error::CliError;
use crate::table::DEFAULT_WIDTH;

/// Where a command writes.
#[derive(Debug)]
pub struct Console {
    quiet: bool,
    /// Standard output shows colours.
    pub colour: bool,
    /// Standard error is a terminal that can redraw a line.
    pub redraws: bool,
    /// Characters in a line.
    pub width: usize,
    /// A status line is drawn and must be wiped before anything else.
    drawn: bool,
}

impl Console {
    /// The console of this process.
    pub fn new(quiet: bool) -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        let columns = set("COLUMNS").and_then(|columns| columns.to_str()?.parse().ok());
        Self {
            quiet,
            colour: set("NO_COLOR").is_none() && !dumb && io::stdout().is_terminal(),
            redraws: !quiet && !dumb && io::stderr().is_terminal(),
            width: columns.filter(|columns| *columns >= 40).unwrap_or(DEFAULT_WIDTH),
            drawn: false,
        }
    }

    /// What was asked for, to standard output.
    pub fn out(&mut self, text: &str) -> Result<(), CliError> {
        self.wipe();
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(CliError::of_write)
    }

    /// A value as one line of JSON, to standard output.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), CliError> {
        let mut text = serde_json::to_string(value)?;
        text.push('\n');
        self.out(&text)
    }

    /// What is good to know, to standard error, unless --quiet.
    pub fn note(&mut self, text: &str) {
        if !self.quiet {
            self.problem(text);
        }
    }

    /// What went wrong, to standard error.
    pub fn problem(&mut self, text: &str) {
        self.wipe();
        // Where nobody reads standard error, nobody can be told of it.
        let _ = writeln!(io::stderr().lock(), "toolcell: {text}");
    }

    /// Draws the status line anew.
    pub fn draw(&mut self, text: &str) {
        if self.redraws {
            self.drawn = true;
            let mut stderr = io::stderr().lock();
            let _ = write!(stderr, "\r\u{1b}[K{text}").and_then(|()| stderr.flush());
        }
    }

    fn wipe(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(io::stderr().lock(), "\r\u{1b}[K");
        }
    }
}
