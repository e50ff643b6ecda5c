//! Errors that come back: of one tool with ever new arguments, and of several tools at once.

use serde::{Deserialize, Serialize};

use super::super::bounded::Recent;
use super::super::digest::Fingerprint;
use super::super::facts::CallFacts;
use super::series::Calls;

const MAX_SERIES: usize = 28;
const MAX_TOOLS: usize = 4;

/// Fresh results that end a series of errors.
pub(crate) const FRESH_ENDS: u32 = 3;
/// What a fresh result of the same tool takes off its count.
const FRESH_TAKES_OFF: u32 = 2;

/// One error again and again.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) error: Fingerprint,
    pub(crate) count: u32,
    /// Only checks so far: their failure is an answer, so more of it is fine.
    pub(crate) checks_only: bool,
    /// The newest call of it would have changed something.
    pub(crate) changes: bool,
    pub(crate) calls: Calls,
    tools: [Fingerprint; MAX_TOOLS],
    pub(crate) tool_count: u8,
    /// Value of the session's counter of fresh results when the series was last extended.
    fresh: u32,
    /// A call was blocked; the next one is let through to see whether things changed.
    pub(crate) probing: bool,
}

impl Series {
    fn extend(&mut self, tool: Fingerprint, check: bool, changes: bool, ordinal: u32, fresh: u32) {
        self.count = self.count.saturating_add(1);
        self.checks_only &= check;
        self.changes = changes;
        self.calls.push(ordinal);
        self.fresh = fresh;
        self.probing = false;
        let known = usize::from(self.tool_count);
        if !self.tools[..known].contains(&tool) && known < MAX_TOOLS {
            self.tools[known] = tool;
            self.tool_count += 1;
        }
    }

    pub(crate) const fn alive(&self, fresh: u32) -> bool {
        self.count > 0 && fresh.wrapping_sub(self.fresh) < FRESH_ENDS
    }

    pub(crate) fn of_tool(&self, tool: Fingerprint) -> bool {
        self.tools[..usize::from(self.tool_count)].contains(&tool)
    }
}

/// The series of a session: by tool, and by error over all tools.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Errors {
    by_tool: Recent<Series>,
    by_error: Recent<Series>,
}

impl Default for Errors {
    fn default() -> Self {
        Self { by_tool: Recent::new(MAX_SERIES), by_error: Recent::new(MAX_SERIES) }
    }
}

impl Errors {
    /// A call failed with this error. Gives the series of its tool and that of the error over all tools.
    pub(crate) fn failed(
        &mut self,
        facts: &CallFacts,
        error: Fingerprint,
        check: bool,
        ordinal: u32,
        fresh: u32,
    ) -> (Series, Series) {
        let tool = facts.tool_key;
        let series = self.by_tool.entry(tool, Series::default);
        if series.error != error || !series.alive(fresh) {
            *series = Series { error, checks_only: true, ..Series::default() };
        }
        series.extend(tool, check, facts.changes, ordinal, fresh);
        let family = *series;
        let series = self.by_error.entry(error, Series::default);
        if !series.alive(fresh) {
            *series = Series { error, checks_only: true, ..Series::default() };
        }
        series.extend(tool, check, facts.changes, ordinal, fresh);
        (family, *series)
    }

    /// A call of this tool brought something new: two off its series, so that trying and looking in turn is fine while a
    /// look now and then does not hide a row of failures.
    pub(crate) fn fresh(&mut self, tool: Fingerprint) {
        if let Some(series) = self.by_tool.get_mut(tool) {
            series.count = series.count.saturating_sub(FRESH_TAKES_OFF);
            series.probing = false;
        }
    }

    pub(crate) fn of_tool(&mut self, tool: Fingerprint) -> Option<&mut Series> {
        self.by_tool.get_mut(tool)
    }

    pub(crate) fn of_error(&mut self, error: Fingerprint) -> Option<&mut Series> {
        self.by_error.get_mut(error)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.by_tool.bytes() + self.by_error.bytes()
    }
}
