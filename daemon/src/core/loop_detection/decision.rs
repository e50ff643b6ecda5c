//! What the detectors answer.

use serde::{Deserialize, Serialize};

use super::digest::Fingerprint;

/// How far a decision goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Advice in the event stream only; no verdict changes.
    Note,
    /// The call runs; the message is for the model.
    Warning,
    /// This call is not run; its result is the message.
    Block,
    /// The run should end.
    Abort,
}

impl Level {
    /// The name used in JSON, events and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Block => "block",
            Self::Abort => "abort",
        }
    }
}

macro_rules! detectors {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Which detector or rule decided.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Detector {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl Detector {
            /// Every detector.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name used in JSON, events, metrics and configuration.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

detectors! {
    /// Runner path: many edits of one file.
    EditFrequency = "edit_frequency",
    /// Runner path: identical consecutive calls.
    RepeatPattern = "repeat_pattern",
    /// Runner path: consecutive failures.
    ConsecutiveFailures = "consecutive_failures",
    /// Rolling: the same call again and again in the window.
    GenericRepeat = "generic_repeat",
    /// Rolling: a known poll call whose answer does not change.
    KnownPollNoProgress = "known_poll_no_progress",
    /// Rolling: two calls in turn.
    PingPong = "ping_pong",
    /// Rolling: a tool that does not exist, again and again.
    UnknownToolRepeat = "unknown_tool_repeat",
    /// Rolling: one call without progress fills the window.
    GlobalCircuitBreaker = "global_circuit_breaker",
    /// The run went on in circles after its context was compacted.
    CompactionLoopPersisted = "compaction_loop_persisted",
    /// Progress: the same call failed in the same way.
    SameError = "same_error",
    /// Progress: the same call gave the same result and nothing was changed in between.
    SameResult = "same_result",
    /// Progress: ever new arguments, always the same error of the same tool.
    ErrorFamily = "error_family",
    /// Progress: the same error from several tools; the cause lies outside the calls.
    Infrastructure = "infrastructure",
    /// Progress: a cycle of two to six calls with equal results.
    Cycle = "cycle",
    /// Progress: whatever is called, every result was seen before.
    NoNews = "no_news",
    /// Progress: an edit put in again after it was taken out.
    Oscillation = "oscillation",
    /// Progress: edit, run the check, same failure.
    FailingCheck = "failing_check",
    /// Progress: calls of tools that do not exist.
    UnknownTool = "unknown_tool",
    /// Progress: calls whose arguments are empty, cut off or not readable.
    MalformedCall = "malformed_call",
    /// Progress: a declared poller whose answer does not change.
    PollNoChange = "poll_no_change",
    /// Progress: the same call again and again, and no outcome ever arrives.
    NoAnswer = "no_answer",
    /// Progress: one file written anew again and again with nothing read, run or checked in between.
    Rewrite = "rewrite",
    /// Progress: several blocks in a row and nothing new in between.
    BlocksWithoutProgress = "blocks_without_progress",
    /// Budget, no loop: the session made as many calls as it may.
    BudgetCalls = "budget_calls",
    /// Budget, no loop: the session took as long as it may.
    BudgetTime = "budget_time",
}

impl Detector {
    /// The detector of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|detector| detector.name() == name)
    }
}

/// One answer of one detector, with all that is needed to explain and to replay it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Who decided.
    pub detector: Detector,
    /// What follows.
    pub level: Level,
    /// How often it was seen.
    pub count: u32,
    /// Whether this is to be shown. A warning that was shown a moment ago is decided again and not shown again.
    pub emitted: bool,
    /// The tool of the call that was judged.
    pub tool: String,
    /// Ids of the calls that make up the series, oldest first; the last eight at most.
    pub call_ids: Vec<String>,
    /// What the series is about: the fingerprint that the counter is kept under.
    pub key: Fingerprint,
    /// Version of the configuration that was in force.
    pub config_version: Fingerprint,
    /// For the model: what was repeated, how often, what came back, two ways on.
    pub message: String,
}

/// The answers to one question, in the order in which the detectors stand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decisions(pub Vec<Decision>);

impl Decisions {
    /// Nothing to say.
    #[must_use]
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// The answer that forbids the call, if one does: it is not to be run.
    #[must_use]
    pub fn refusal(&self) -> Option<&Decision> {
        self.0.iter().filter(|d| d.level >= Level::Block).max_by_key(|d| d.level)
    }

    /// The answer that ends the run, if one does.
    #[must_use]
    pub fn abort(&self) -> Option<&Decision> {
        self.0.iter().find(|d| d.level == Level::Abort)
    }

    /// Warnings that are to be shown to the model.
    pub fn warnings(&self) -> impl Iterator<Item = &Decision> {
        self.0.iter().filter(|d| d.level == Level::Warning && d.emitted)
    }

    /// Whether there is nothing to say.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
