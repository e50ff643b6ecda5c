//! Finds out when an agent runs in circles. Pure: facts in, decisions out.
//!
//! Who talks to it: the session of the daemon asks [`LoopDetection::before_call`] at admission (the answer may forbid the
//! call) and tells [`LoopDetection::after_call`] how the call ended (the answer may warn or end the run); `toolcell
//! replay` does the same with recorded runs. What a call and its output are is made into fingerprints first
//! ([`CallFacts`], [`OutcomeBuilder`]); arguments and results never get in here.
//!
//! ```text
//!               arguments                       output, as it streams
//!                   │ facts, args, shell, edits      │ mask, outcome, error_line
//!                   ▼                                ▼
//!  before_call(CallFacts)                   after_call(CallFacts, Outcome)
//!       │                                            │
//!       ├─ classic:  rolling detectors               ├─ runner paths, post-compaction guard
//!       └─ progress: blocks of the rules             └─ progress: warnings of the rules
//! ```
//!
//! State belongs to one session, lives across batches, is bounded, and can be stored and read back ([`LoopState`]).

mod args;
mod bounded;
mod classic;
mod config;
mod config_parse;
mod decision;
mod digest;
mod edits;
mod error_line;
mod facts;
mod guard;
mod mask;
mod mask_patterns;
mod message;
mod outcome;
mod progress;
mod recorded;
mod runner;
mod shell;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use config::{LoopBlock, LoopConfig, Rolling, RuleBlock, Rules, RunnerLimits, Steps, Strategy};
pub use config_parse::{LoopConfigError, Reading};
pub use decision::{Decision, Decisions, Detector, Level};
pub use digest::Fingerprint;
pub use edits::{Edit, EditBody, path_fingerprint};
pub use facts::{CallFacts, Malformed, ToolKind, ToolTraits};
pub use outcome::{Ended, Outcome, OutcomeBuilder, Output};
pub use recorded::Recorded;

use classic::rolling::RollingState;
use guard::Guard;
use message::About;
use progress::{CallIds, Calls, Finding, ProgressState};
use runner::{Hit, RunnerState};

/// Everything that is remembered of a session. Opaque; store it with any serde format.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LoopState {
    ids: CallIds,
    rolling: RollingState,
    runner: RunnerState,
    guard: Guard,
    progress: ProgressState,
    calls: u32,
    budget_told: bool,
}

impl LoopState {
    /// An upper estimate of the bytes it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.ids.bytes()
            + self.rolling.bytes()
            + self.runner.bytes()
            + self.guard.bytes()
            + self.progress.bytes()
    }
}

/// Loop detection of one session.
#[derive(Debug, Clone)]
pub struct LoopDetection {
    config: Arc<LoopConfig>,
    state: LoopState,
    findings: Vec<Finding>,
    hits: Vec<Hit>,
}

impl LoopDetection {
    /// Starts with nothing seen.
    #[must_use]
    pub fn new(config: Arc<LoopConfig>) -> Self {
        Self::restore(config, LoopState::default())
    }

    /// Goes on with a stored state.
    #[must_use]
    pub const fn restore(config: Arc<LoopConfig>, state: LoopState) -> Self {
        Self { config, state, findings: Vec::new(), hits: Vec::new() }
    }

    /// What is to be stored.
    #[must_use]
    pub const fn state(&self) -> &LoopState {
        &self.state
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &LoopConfig {
        &self.config
    }

    /// Takes a new configuration into force; what was counted stays.
    pub fn set_config(&mut self, config: Arc<LoopConfig>) {
        self.config = config;
    }

    /// Judges a call before it runs. If an answer is a block or an abort, the call must not be run and there is no
    /// [`Self::after_call`] for it.
    pub fn before_call(&mut self, facts: &CallFacts) -> Decisions {
        if !self.config.on {
            return Decisions::none();
        }
        let ordinal = self.state.ids.add(&facts.call_id);
        let mut decisions = Decisions::none();
        if self.budget(facts, &mut decisions) {
            return decisions;
        }
        match self.config.strategy {
            Strategy::Classic => {
                let rolling = self.config.rolling;
                if let Some(found) = self.state.rolling.before(facts, &rolling, rolling.on) {
                    let mut calls = Calls::default();
                    calls.push(ordinal);
                    let finding = Finding {
                        detector: found.detector,
                        level: found.level,
                        count: found.count,
                        emitted: found.emitted,
                        key: found.key,
                        calls,
                        extra: 0,
                        block_at: None,
                    };
                    let decision = self.decision(&finding, facts, None);
                    decisions.0.push(decision);
                }
            }
            Strategy::Progress => {
                let mut findings = std::mem::take(&mut self.findings);
                self.state.progress.before(facts, ordinal, &self.config, &mut findings);
                decisions.0.extend(findings.iter().map(|finding| self.decision(finding, facts, None)));
                findings.clear();
                self.findings = findings;
            }
        }
        decisions
    }

    /// Takes in how a call ended that was not blocked.
    pub fn after_call(&mut self, facts: &CallFacts, outcome: &Outcome) -> Decisions {
        if !self.config.on {
            return Decisions::none();
        }
        let mut decisions = Decisions::none();
        let progress = self.config.strategy == Strategy::Progress;
        if progress {
            let ordinal = self.state.ids.ordinal(&facts.call_id);
            let mut findings = std::mem::take(&mut self.findings);
            self.state.progress.after(facts, outcome, ordinal, &self.config.rules, &mut findings);
            decisions.0.extend(findings.iter().map(|finding| self.decision(finding, facts, Some(outcome))));
            findings.clear();
            self.findings = findings;
        } else {
            let rolling = self.config.rolling;
            self.state.rolling.after(facts, outcome, &rolling);
        }
        self.runner_paths(facts, outcome, &mut decisions);
        let observation = if progress {
            // In the default strategy a quiet poller has rules of its own.
            (outcome.ended != Ended::NotCounted && !facts.poll).then(|| facts.key.with(outcome.digest))
        } else {
            outcome.classic.map(|hash| facts.signature.with(hash))
        };
        if let Some(observation) = observation
            && let Some(count) = self.state.guard.observe(facts.run, observation, self.config.guard_window)
        {
            let finding = simple(Detector::CompactionLoopPersisted, Level::Abort, count, observation);
            let decision = self.decision(&finding, facts, Some(outcome));
            decisions.0.push(decision);
        }
        decisions
    }

    /// The user spoke: all counting starts anew.
    pub fn note_user_turn(&mut self) {
        self.state.rolling.clear();
        self.state.runner.clear();
        self.state.guard.clear();
        self.state.progress.clear();
    }

    /// The context of the session was compacted: counters go on, the guard is armed.
    pub fn note_compaction(&mut self) {
        self.note_compaction_of(None);
    }

    /// The context of one run of the session was compacted.
    pub fn note_compaction_of(&mut self, run: Option<Fingerprint>) {
        if self.config.on {
            self.state.guard.arm(run, self.config.guard_window);
            self.state.progress.compacted();
        }
    }

    fn runner_paths(&mut self, facts: &CallFacts, outcome: &Outcome, decisions: &mut Decisions) {
        let mut hits = std::mem::take(&mut self.hits);
        self.state.runner.after(facts, outcome, &self.config.runner, &mut hits);
        for hit in &hits {
            let mut finding = simple(hit.detector, hit.level, hit.count, hit.key);
            finding.extra = hit.edit.and_then(|index| u32::try_from(index).ok()).unwrap_or(0);
            decisions.0.push(self.decision(&finding, facts, Some(outcome)));
        }
        hits.clear();
        self.hits = hits;
    }

    /// Whether the budget is used up.
    fn budget(&mut self, facts: &CallFacts, decisions: &mut Decisions) -> bool {
        self.state.calls = self.state.calls.saturating_add(1);
        let calls = self.state.calls;
        let seconds = u32::try_from(facts.elapsed_ms.unwrap_or(0) / 1000).unwrap_or(u32::MAX);
        let mut used_up = false;
        if let Some(most) = self.config.max_calls {
            if calls > most {
                used_up = true;
                let finding = simple(Detector::BudgetCalls, Level::Abort, calls - 1, self.config.version);
                decisions.0.push(self.decision(&finding, facts, None));
            } else if !self.state.budget_told && u64::from(calls) * 10 > u64::from(most) * 9 {
                self.state.budget_told = true;
                let finding = simple(Detector::BudgetCalls, Level::Note, calls, self.config.version);
                decisions.0.push(self.decision(&finding, facts, None));
            }
        }
        if let (Some(most), Some(elapsed)) = (self.config.max_time_ms, facts.elapsed_ms)
            && elapsed > most
        {
            used_up = true;
            let finding = simple(Detector::BudgetTime, Level::Abort, seconds, self.config.version);
            decisions.0.push(self.decision(&finding, facts, None));
        }
        used_up
    }

    fn decision(&self, finding: &Finding, facts: &CallFacts, outcome: Option<&Outcome>) -> Decision {
        let edit = facts.edits.get(finding.extra as usize).or_else(|| facts.edits.first());
        let about = About {
            detector: finding.detector,
            level: finding.level,
            count: finding.count,
            call: &facts.shown,
            tool: &facts.tool,
            file: edit.map_or("a file", |edit| &edit.shown),
            came_back: outcome.map(|outcome| &*outcome.shown),
            extra: finding.extra,
            block_at: finding.block_at,
        };
        let mut call_ids = self.state.ids.names(&finding.calls);
        if call_ids.is_empty() {
            call_ids.push(facts.call_id.to_string());
        }
        Decision {
            detector: finding.detector,
            level: finding.level,
            count: finding.count,
            emitted: finding.emitted,
            tool: facts.tool.to_string(),
            call_ids,
            key: finding.key,
            config_version: self.config.version,
            message: message::text(&about),
        }
    }
}

fn simple(detector: Detector, level: Level, count: u32, key: Fingerprint) -> Finding {
    Finding { detector, level, count, emitted: true, key, calls: Calls::default(), extra: 0, block_at: None }
}
