//! What each misbehaving tool must end as.
//!
//! The tests consult this table instead of repeating it: alone, beside siblings, in random mixtures.

use toolcell_protocol::call::{CallResult, Status};
use toolcell_protocol::client_api::CallRequest;

use crate::peer::habit;

/// A habit of the tool `misbehave` and its end.
#[derive(Debug, Clone, Copy)]
pub struct Habit {
    /// The words that make the tool do it.
    pub line: &'static str,
    /// With this wall-clock timeout.
    pub timeout_ms: Option<u64>,
    /// The status.
    pub status: Status,
    /// The exit code, if it exits by itself.
    pub exit_code: Option<i32>,
    /// The signal, if one that is not ours ends it.
    pub signal: Option<i32>,
    /// What the model must be shown at least.
    pub says: &'static str,
    /// Processes outlive the main process and are listed.
    pub leftovers: bool,
    /// A grandchild holds the output when the main process has ended.
    pub holds_output: bool,
}

impl Habit {
    const fn new(line: &'static str, status: Status) -> Self {
        Self {
            line,
            timeout_ms: None,
            status,
            exit_code: None,
            signal: None,
            says: "",
            leftovers: false,
            holds_output: false,
        }
    }

    const fn exits(line: &'static str, code: i32, says: &'static str) -> Self {
        let status = if code == 0 { Status::Ok } else { Status::Error };
        let habit = Self::new(line, status);
        Self { exit_code: Some(code), says, ..habit }
    }

    const fn crashes(line: &'static str, signal: i32) -> Self {
        Self { signal: Some(signal), ..Self::new(line, Status::Crashed) }
    }

    const fn hangs(line: &'static str, says: &'static str) -> Self {
        Self { timeout_ms: Some(400), says, ..Self::new(line, Status::TimedOut) }
    }

    const fn leaves(line: &'static str, says: &'static str, holds_output: bool) -> Self {
        Self { leftovers: true, holds_output, ..Self::exits(line, 0, says) }
    }

    /// The same with more time before it is ended, for where many run at once.
    #[must_use]
    pub const fn patient(mut self) -> Self {
        if self.timeout_ms.is_some() {
            self.timeout_ms = Some(3000);
        }
        self
    }

    /// A call that makes the tool do it.
    #[must_use]
    pub fn call(&self) -> CallRequest {
        CallRequest { timeout_ms: self.timeout_ms, ..habit(self.line) }
    }

    /// Checks a result against the table.
    ///
    /// # Panics
    /// When it differs; the whole result is in the message.
    pub fn check(&self, result: &CallResult) {
        let line = self.line;
        assert_eq!(result.status, self.status, "{line}: {result:#?}");
        if self.exit_code.is_some() {
            assert_eq!(result.details.exit_code, self.exit_code, "{line}: {result:#?}");
        }
        if self.signal.is_some() {
            assert_eq!(result.details.signal, self.signal, "{line}: {result:#?}");
            assert_eq!(result.status_detail.signal, self.signal, "{line}: {result:#?}");
        }
        assert!(result.for_model.contains(self.says), "{line}: the text lacks {:?}: {result:#?}", self.says);
        if self.leftovers {
            assert!(!result.details.leftovers.is_empty(), "{line}: no leftover is listed: {result:#?}");
            let own = result.details.leftovers.iter().all(|leftover| leftover.comm == "misbehave");
            assert!(own, "{line}: a leftover is a stranger: {result:#?}");
        }
        if self.status != Status::TimedOut {
            // Whether it is so of a tree that was ended depends on who of it ended first.
            assert_eq!(result.details.stdout_open_after_exit, self.holds_output, "{line}: {result:#?}");
        } else {
            let kill = result.details.kill.as_ref();
            assert!(kill.is_some_and(|kill| kill.proven_gone), "{line}: not proven gone: {result:#?}");
            assert_eq!(result.status_detail.timeout_kind.as_deref(), Some("wall"), "{line}: {result:#?}");
            assert_eq!(result.status_detail.timeout_ms, self.timeout_ms, "{line}: {result:#?}");
        }
        assert_eq!(result.details.attempts, 1, "{line}: {result:#?}");
    }
}

/// Habits that end by themselves.
pub const SHORT: [Habit; 15] = [
    Habit::exits("ok fine", 0, "fine"),
    Habit::exits("exit 3", 3, ""),
    Habit::exits("exit 255", 255, ""),
    Habit::exits("say out err 4", 4, "err"),
    Habit::exits("panic", 101, "this tool panics on purpose"),
    Habit::crashes("abort", 6),
    Habit::crashes("segv", 11),
    Habit::crashes("raise 9", 9),
    Habit::crashes("raise 15", 15),
    Habit::crashes("kill-group 15", 15),
    Habit::leaves("hidden-family exit 20", "family up", true),
    Habit::leaves("daemonize 20", "daemon up", false),
    Habit::leaves("leak-pipe 20", "before the leak", true),
    Habit::exits("flood 1000", 0, "00000000000000"),
    Habit { leftovers: true, holds_output: true, ..Habit::exits("leak-pipe 20 7", 7, "before the leak") },
];

/// Habits that go on until they are ended.
pub const ENDLESS: [Habit; 8] = [
    Habit::hangs("sleep 60", "sleeping"),
    Habit::hangs("ignore-term 60", "ignoring"),
    Habit::hangs("stop-self", "stopping"),
    Habit::hangs("kill-group 19", "signalling"),
    Habit::hangs("hidden-family stay 20", "family up"),
    Habit::hangs("tree 5 60", "family up"),
    Habit::hangs("spin 2 20", "spinning"),
    Habit::hangs("parent-exits-on-term 60", "family up"),
];
