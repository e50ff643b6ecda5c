//! The runner paths: edits of one file, identical consecutive calls, consecutive failures. Literal counting.
//!
//! Counted after the final result of a call, in call order, over all tools and batches until the next user turn. An edit
//! counts if it succeeded. A repeat or a failure warns when its count reaches the limit and again after as many more.

use serde::{Deserialize, Serialize};

use super::bounded::Recent;
use super::config::RunnerLimits;
use super::decision::{Detector, Level};
use super::digest::Fingerprint;
use super::facts::CallFacts;
use super::outcome::{Ended, Outcome};

/// Files whose edits are counted.
const MAX_FILES: usize = 224;

/// One path that fired.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hit {
    pub(crate) detector: Detector,
    pub(crate) level: Level,
    pub(crate) count: u32,
    pub(crate) key: Fingerprint,
    /// Index of the edited file in the call's facts.
    pub(crate) edit: Option<usize>,
}

/// State of one session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunnerState {
    edits: Recent<u32>,
    last: Option<Fingerprint>,
    repeats: u32,
    failures: u32,
}

impl Default for RunnerState {
    fn default() -> Self {
        Self { edits: Recent::new(MAX_FILES), last: None, repeats: 0, failures: 0 }
    }
}

impl RunnerState {
    pub(crate) fn after(
        &mut self,
        facts: &CallFacts,
        outcome: &Outcome,
        limits: &RunnerLimits,
        hits: &mut Vec<Hit>,
    ) {
        if outcome.ended == Ended::NotCounted {
            return;
        }
        if let Some(limit) = limits.max_edits_per_file
            && !outcome.failed()
        {
            for (index, edit) in facts.edits.iter().enumerate() {
                let count = self.edits.entry(edit.path, || 0);
                *count = count.saturating_add(1);
                if *count > limit {
                    let level = if *count == limit + 1 { Level::Warning } else { Level::Abort };
                    hits.push(Hit {
                        detector: Detector::EditFrequency,
                        level,
                        count: *count,
                        key: edit.path,
                        edit: Some(index),
                    });
                }
            }
        }
        if self.last == Some(facts.signature) {
            self.repeats = self.repeats.saturating_add(1);
        } else {
            self.last = Some(facts.signature);
            self.repeats = 1;
        }
        if let Some(limit) = limits.min_repeat_pattern
            && self.repeats.is_multiple_of(limit)
        {
            hits.push(warning(Detector::RepeatPattern, self.repeats, facts.signature));
        }
        if !outcome.failed() || facts.failure_expected {
            self.failures = 0;
        } else {
            self.failures = self.failures.saturating_add(1);
            if let Some(limit) = limits.max_consecutive_failures
                && self.failures.is_multiple_of(limit)
            {
                hits.push(warning(Detector::ConsecutiveFailures, self.failures, facts.classic_tool));
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn bytes(&self) -> usize {
        self.edits.bytes()
    }
}

const fn warning(detector: Detector, count: u32, key: Fingerprint) -> Hit {
    Hit { detector, level: Level::Warning, count, key, edit: None }
}
