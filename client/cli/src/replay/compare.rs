//! Which runs are judged differently under another configuration.

use std::sync::Arc;

use serde::Serialize;
use toolcell_daemon::core::loop_detection::{Level, LoopBlock};

use super::labels::first;
use super::play::{Said, config_of, play};
use super::record::Run;

/// How a run is judged: index of the first warning, block and abort that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Judged {
    /// First warning.
    pub warning: Option<usize>,
    /// First block.
    pub block: Option<usize>,
    /// First abort.
    pub abort: Option<usize>,
    /// Detector of the first of them.
    pub detector: Option<&'static str>,
}

impl Judged {
    fn of(said: &[Said]) -> Self {
        let exactly =
            |level: Level| said.iter().find(|said| said.level == level && said.emitted).map(|said| said.at);
        let detector = first(said, Level::Warning)
            .and_then(|at| {
                said.iter().find(|said| said.at == at && said.emitted && said.level >= Level::Warning)
            })
            .map(|said| said.detector);
        Self {
            warning: exactly(Level::Warning),
            block: exactly(Level::Block),
            abort: exactly(Level::Abort),
            detector,
        }
    }
}

/// A run that is judged differently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The run.
    pub run_id: String,
    /// How it ended, if the record says so.
    pub outcome: Option<String>,
    /// Under the first configuration.
    pub before: Judged,
    /// Under the other.
    pub after: Judged,
}

/// All runs that are judged differently.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Runs that were looked at.
    pub runs: u64,
    /// Those with a warning, block or abort under the first configuration.
    pub fired_before: u64,
    /// Under the other.
    pub fired_after: u64,
    /// Those that differ.
    pub changed: Vec<Change>,
}

impl Comparison {
    /// Looks at one run.
    pub fn add(&mut self, run: &Run, one: &LoopBlock, other: &LoopBlock) {
        let judged = |block: &LoopBlock| Judged::of(&play(run, Arc::new(config_of(run, block))));
        let (before, after) = (judged(one), judged(other));
        self.runs += 1;
        self.fired_before += u64::from(before != Judged::default());
        self.fired_after += u64::from(after != Judged::default());
        if before != after {
            self.changed.push(Change {
                run_id: run.run_id.clone(),
                outcome: run.outcome.clone(),
                before,
                after,
            });
        }
    }
}
