//! What the detectors know of a call after it ran: digests made while the output streams by, never the output.

use super::digest::{Digest, Fingerprint};
use super::error_line;
use super::facts::CallFacts;
use super::mask::{Kind, Masker};

/// How a call ended, as far as the detectors care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The tool said that it worked.
    Ok,
    /// The tool failed, crashed, or ran into a limit.
    Failed,
    /// There is no such tool.
    UnknownTool,
    /// The arguments did not fit.
    InvalidArgs,
    /// Killed, cancelled, blocked: says nothing about the call.
    NotCounted,
}

/// Facts about how one call ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How.
    pub ended: Ended,
    /// Classic: the result hash. None is no outcome at all.
    pub classic: Option<Fingerprint>,
    /// Classic: the name that the error says is unknown.
    pub unknown_name: Option<Fingerprint>,
    /// Progress: status, exit code and masked output.
    pub digest: Fingerprint,
    /// Progress: the line that names the error, if the call failed.
    pub error: Option<Fingerprint>,
    /// A check could not be carried out at all (a bad pattern): not an answer but a failure.
    pub broken: bool,
    /// Nothing but white space came back.
    pub empty: bool,
    /// One line of what came back, for the message.
    pub shown: Box<str>,
    /// Content of edited files after the call (path, content), where it was looked at.
    pub contents: Vec<(Fingerprint, Fingerprint)>,
}

/// Which output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Standard output, or the only text there is.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Bytes kept from each end of an output, to find the error line in.
const KEPT: usize = 2048;

struct StreamDigest {
    masked: Masker<Digest>,
    raw: Digest,
    head: Vec<u8>,
    tail: Vec<u8>,
    blank: bool,
}

impl StreamDigest {
    fn new() -> Self {
        Self {
            masked: Masker::new(Kind::Result, Digest::new()),
            raw: Digest::new(),
            head: Vec::new(),
            tail: Vec::new(),
            blank: true,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.raw.bytes(bytes);
        self.masked.push(bytes);
        self.blank = self.blank && bytes.iter().all(u8::is_ascii_whitespace);
        let head = bytes.len().min(KEPT.saturating_sub(self.head.len()));
        self.head.extend_from_slice(&bytes[..head]);
        let rest = &bytes[head..];
        let rest = &rest[rest.len().saturating_sub(KEPT)..];
        if !rest.is_empty() {
            // At most one half is thrown away at a time, so that the cost per byte stays constant.
            if self.tail.len() + rest.len() > 2 * KEPT {
                let keep = self.tail.len().saturating_sub(KEPT);
                self.tail.drain(..keep);
            }
            self.tail.extend_from_slice(rest);
        }
    }

    fn kept(&self) -> String {
        let mut text = String::from_utf8_lossy(&self.head).into_owned();
        text.push_str(&String::from_utf8_lossy(&self.tail));
        text
    }
}

/// Makes an [`Outcome`] from output that arrives in pieces; memory is bounded however much comes.
pub struct OutcomeBuilder {
    stdout: StreamDigest,
    stderr: Option<Box<StreamDigest>>,
    contents: Vec<(Fingerprint, Fingerprint)>,
}

impl std::fmt::Debug for OutcomeBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OutcomeBuilder")
    }
}

impl Default for OutcomeBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl OutcomeBuilder {
    /// Nothing came yet.
    #[must_use]
    pub fn new() -> Self {
        Self { stdout: StreamDigest::new(), stderr: None, contents: Vec::new() }
    }

    /// More output. The two outputs are kept apart, so that the order in which they arrive does not matter.
    pub fn push(&mut self, output: Output, bytes: &[u8]) {
        match output {
            Output::Stdout => self.stdout.push(bytes),
            Output::Stderr => self.stderr.get_or_insert_with(|| Box::new(StreamDigest::new())).push(bytes),
        }
    }

    /// The content of a file after the call.
    pub fn content(&mut self, path: Fingerprint, content: Fingerprint) {
        self.contents.push((path, content));
    }

    /// The call ended.
    #[must_use]
    pub fn finish(mut self, facts: &CallFacts, ended: Ended, exit: Option<i32>) -> Outcome {
        let failed = matches!(ended, Ended::Failed | Ended::UnknownTool | Ended::InvalidArgs);
        let status = Fingerprint(u64::from(failed) << 32 | u64::from(exit.unwrap_or(-1).unsigned_abs()));
        let mut masked = status.with(self.stdout.masked.finish().finish());
        let mut raw = status.with(self.stdout.raw.finish());
        let mut blank = self.stdout.blank;
        if let Some(stderr) = &mut self.stderr {
            masked = masked.with(stderr.masked.finish().finish());
            raw = raw.with(stderr.raw.finish());
            blank &= stderr.blank;
        }
        let mut shown = String::new();
        let mut error = None;
        let mut broken = false;
        if failed {
            // What a program says about its failure is on stderr; look there last, so that it wins.
            let mut text = self.stdout.kept();
            if let Some(stderr) = &self.stderr {
                text.push('\n');
                text.push_str(&stderr.kept());
            }
            let line = error_line::find(&text, facts.shell);
            broken = facts.check && line.is_some_and(error_line::is_complaint);
            error = Some(line.map_or(masked, |line| error_line::fingerprint(line, facts.shell)));
            error_line::show(line.unwrap_or(&text), &mut shown);
        } else {
            let head = String::from_utf8_lossy(&self.stdout.head[..self.stdout.head.len().min(400)]);
            error_line::show(&head, &mut shown);
        }
        Outcome {
            ended,
            classic: (ended != Ended::NotCounted).then_some(raw),
            unknown_name: (ended == Ended::UnknownTool).then_some(facts.classic_tool),
            digest: masked,
            error,
            broken,
            empty: blank,
            shown: shown.into(),
            contents: self.contents,
        }
    }
}

impl Outcome {
    /// Whether the call failed in a way that counts.
    #[must_use]
    pub const fn failed(&self) -> bool {
        matches!(self.ended, Ended::Failed | Ended::UnknownTool | Ended::InvalidArgs)
    }
}
