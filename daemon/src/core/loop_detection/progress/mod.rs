//! The `progress` strategy: a repeat counts only if it brings nothing new and nothing was changed in between.
//!
//! State of one session, bounded, with constant cost per call. What a rule has to say after an outcome is decided in
//! `rules_after`, what it forbids before a call in `rules_before`; both give [`Finding`]s, which the session makes into
//! decisions with texts.
//!
//! ```text
//!                      count < warn        warn ≤ count < block             count ≥ block
//!  a key's series   ── runs, silent ────── runs, warned ─────────────────── blocked ──┐
//!        ▲                                                                     │      │ cool-down over, or probing:
//!        │ different result, a change, fresh results, a user turn              │      │ one call runs
//!        └─────────────────────────────────────────────────────────────────────┴──────┘
//!
//!  the session      three blocks and not three fresh results since the first ──▶ abort
//! ```

mod cycle;
mod errors;
mod files;
mod rules_after;
mod rules_before;
mod series;

use serde::{Deserialize, Serialize};

use super::bounded::Recent;
use super::decision::{Detector, Level};
use super::digest::Fingerprint;
use super::facts::CallFacts;

use cycle::Cycles;
use errors::{Errors, FRESH_ENDS};
use files::Files;
use series::Streak;
pub(crate) use series::{CallIds, Calls};

/// Calls whose series are remembered. (These numbers fill the tables of two generations without growing them.)
const MAX_CALLS: usize = 112;
/// Checks whose laps are remembered.
const MAX_CHECKS: usize = 56;
/// Pairs of call and result that are known not to be new.
const MAX_KNOWN: usize = 896;

/// What a rule found.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    pub(crate) detector: Detector,
    pub(crate) level: Level,
    pub(crate) count: u32,
    pub(crate) emitted: bool,
    pub(crate) key: Fingerprint,
    pub(crate) calls: Calls,
    /// Period of a cycle, number of tools, index of an edit: what the text needs besides.
    pub(crate) extra: u32,
    /// The count with which the call will be blocked, if it will.
    pub(crate) block_at: Option<u32>,
}

/// One call with one result, again and again.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Repeat {
    result: Fingerprint,
    count: u32,
    failed: bool,
    broken: bool,
    /// New things (results and errors) when it last ran, itself included.
    novel: u32,
    /// Between two of them something else was tried.
    apart: bool,
    /// The change that was the newest when it last ran.
    epoch: u32,
    /// Fresh results when it last ran.
    fresh: u32,
    blocked_at: Option<u32>,
    calls: Calls,
}

impl Repeat {
    /// Whether another one counts on. A change in between starts over, except for a poller, which waits for the world to
    /// change, and for a structured call that fails as before: that one takes three fresh results. (To run a command or a
    /// check again after a change is what one should do.)
    const fn goes_on(&self, facts: &CallFacts, epoch: u32, fresh: u32) -> bool {
        let structured = self.failed && !facts.shell && !facts.check;
        self.epoch == epoch || facts.poll || (structured && fresh.wrapping_sub(self.fresh) < FRESH_ENDS)
    }
}

/// A failing call that is tried again after each edit.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Check {
    result: Fingerprint,
    laps: u32,
    edits: u32,
    blocked_at: Option<u32>,
    calls: Calls,
}

/// State of one session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ProgressState {
    repeats: Recent<Repeat>,
    /// With the number of compactions when it was last seen.
    known: Recent<u32>,
    errors: Errors,
    checks: Recent<Check>,
    cycles: Cycles,
    files: Files,
    unknown: Streak,
    /// The newest names of tools that do not exist.
    unknown_tools: [Fingerprint; 4],
    malformed: Streak,
    /// The newest tools of malformed calls.
    malformed_tools: [Fingerprint; 4],
    /// Fresh results since the newest malformed call.
    malformed_fresh: u32,
    failures: Streak,
    rewrites: Streak,
    /// Calls in a row with one key and no outcome yet.
    unanswered: Streak,
    /// Calls in a row that brought nothing new, and how many of them failed.
    stale: Streak,
    stale_failures: u32,
    blocks: Streak,
    /// Fresh results when the first of the blocks was made.
    blocks_fresh: u32,
    /// Compactions so far: what was read before one may be read again.
    compactions: u32,
    /// Changes so far.
    epoch: u32,
    /// Successful edits so far.
    edits: u32,
    /// Fresh results so far.
    fresh: u32,
    /// Results and errors so far that were seen for the first time.
    novel: u32,
}

impl Default for ProgressState {
    fn default() -> Self {
        Self {
            repeats: Recent::new(MAX_CALLS),
            known: Recent::new(MAX_KNOWN),
            errors: Errors::default(),
            checks: Recent::new(MAX_CHECKS),
            cycles: Cycles::default(),
            files: Files::default(),
            unknown: Streak::default(),
            unknown_tools: [Fingerprint::default(); 4],
            malformed: Streak::default(),
            malformed_tools: [Fingerprint::default(); 4],
            malformed_fresh: 0,
            failures: Streak::default(),
            rewrites: Streak::default(),
            unanswered: Streak::default(),
            stale: Streak::default(),
            stale_failures: 0,
            blocks: Streak::default(),
            blocks_fresh: 0,
            compactions: 0,
            epoch: 0,
            edits: 0,
            fresh: 0,
            novel: 0,
        }
    }
}

impl ProgressState {
    pub(crate) fn bytes(&self) -> usize {
        self.repeats.bytes()
            + self.known.bytes()
            + self.errors.bytes()
            + self.checks.bytes()
            + self.cycles.bytes()
            + self.files.bytes()
            + size_of::<Self>()
    }

    /// The user spoke, or the run is a new one: counting starts anew.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The context was compacted. Counters go on, but reading again what was read before is no standstill.
    pub(crate) fn compacted(&mut self) {
        self.compactions = self.compactions.wrapping_add(1);
        self.stale.end();
    }

    /// Three blocks and fewer than three fresh results in between lead to the end of the run.
    fn blocked(&mut self, ordinal: u32) -> u32 {
        if self.fresh.wrapping_sub(self.blocks_fresh) >= FRESH_ENDS {
            self.blocks.end();
        }
        self.blocks_fresh = self.fresh;
        self.blocks.add(Fingerprint(1), ordinal);
        self.blocks.count
    }
}
