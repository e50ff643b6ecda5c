//! The CPU budget of a tree: looked at now and then, more often near its end.

use std::time::{Duration, Instant};

use crate::containment::Tree;

/// The CPU budget of the tree.
#[derive(Debug)]
pub(super) struct CpuBudget {
    pub(super) budget_ms: u64,
    pub(super) next_look: Instant,
}

impl CpuBudget {
    const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
    const LONGEST_PAUSE: Duration = Duration::from_millis(250);

    pub(super) fn new(budget_ms: u64, now: Instant) -> Self {
        Self { budget_ms, next_look: now + Self::pause(budget_ms) }
    }

    /// Even four busy CPUs cannot use up what is left before the next look.
    fn pause(left_ms: u64) -> Duration {
        Duration::from_millis(left_ms / 4).clamp(Self::SHORTEST_PAUSE, Self::LONGEST_PAUSE)
    }

    /// Whether the budget is used up; looks only when it is time.
    pub(super) fn is_exceeded(&mut self, now: Instant, tree: &Tree) -> bool {
        if now < self.next_look {
            return false;
        }
        let used_ms = tree.cpu_us() / 1000;
        self.next_look = now + Self::pause(self.budget_ms.saturating_sub(used_ms));
        used_ms >= self.budget_ms
    }
}
