//! Deadlines as a table: the shell asks only for the next one.

use std::collections::{BTreeMap, BTreeSet};

use toolcell_protocol::id::{CallUid, SessionId};

/// What a deadline is for. Each can be set once at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The call's wall-clock timeout.
    Wall(CallUid),
    /// The call's idle timeout.
    Idle(CallUid),
    /// After TERM: kill the tree.
    Grace(CallUid),
    /// After a kill: tell those who wait that it is not proven yet.
    KillProof(CallUid),
    /// A `call.wait` that has waited long enough; the number is the waiter's.
    Wait(CallUid, u64),
    /// A session without a connection.
    Linger(SessionId),
    /// The daemon has drained long enough.
    Drain,
}

/// The table.
#[derive(Debug, Default)]
pub struct Timers {
    by_time: BTreeSet<(u64, Timer)>,
    by_timer: BTreeMap<Timer, u64>,
}

impl Timers {
    /// Sets a deadline, in place of an earlier one of the same timer.
    pub fn set(&mut self, timer: Timer, at_us: u64) {
        if let Some(old) = self.by_timer.insert(timer, at_us) {
            self.by_time.remove(&(old, timer));
        }
        self.by_time.insert((at_us, timer));
    }

    /// Removes a deadline, if it is set.
    pub fn clear(&mut self, timer: Timer) {
        if let Some(at) = self.by_timer.remove(&timer) {
            self.by_time.remove(&(at, timer));
        }
    }

    /// Takes the earliest deadline that has come.
    pub fn pop_due(&mut self, now_us: u64) -> Option<Timer> {
        let &(at, timer) = self.by_time.first()?;
        if at > now_us {
            return None;
        }
        self.by_time.pop_first();
        self.by_timer.remove(&timer);
        Some(timer)
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Number of deadlines set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_timer.len()
    }

    /// No deadline is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_timer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_timer_set_twice_fires_once_at_the_later_setting() {
        let call = CallUid(Uuid::from_u128(1));
        let mut timers = Timers::default();
        timers.set(Timer::Wall(call), 10);
        timers.set(Timer::Wall(call), 20);
        timers.set(Timer::Drain, 15);
        assert_eq!(timers.pop_due(12), None);
        assert_eq!(timers.next(), Some(15));
        assert_eq!(timers.pop_due(30), Some(Timer::Drain));
        assert_eq!(timers.pop_due(30), Some(Timer::Wall(call)));
        assert_eq!(timers.pop_due(30), None);
        assert!(timers.is_empty());
    }

    #[test]
    fn a_cleared_timer_never_fires() {
        let mut timers = Timers::default();
        timers.set(Timer::Drain, 1);
        timers.clear(Timer::Drain);
        timers.clear(Timer::Drain);
        assert_eq!(timers.pop_due(u64::MAX), None);
        assert_eq!(timers.len(), 0);
    }
}
