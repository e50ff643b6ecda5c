//! Cycles of period 2 to 6, found by comparing each call and its result with the one a period before: constant cost.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::super::digest::Fingerprint;
use super::series::Calls;

const MAX_PERIOD: usize = 6;

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Step {
    key: Fingerprint,
    /// Call and result.
    pair: Fingerprint,
    ordinal: u32,
}

/// A cycle that is going on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cycle {
    pub(crate) period: u32,
    pub(crate) laps: u32,
    pub(crate) key: Fingerprint,
    pub(crate) calls: Calls,
}

/// The newest calls of a session.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Cycles {
    steps: VecDeque<Step>,
    /// For each period: newest steps that are equal to the step one period before.
    equal: [u32; MAX_PERIOD + 1],
}

impl Cycles {
    fn back(&self, steps: usize) -> Option<&Step> {
        self.steps.get(self.steps.len().checked_sub(steps)?)
    }

    pub(crate) fn add(&mut self, key: Fingerprint, pair: Fingerprint, ordinal: u32) {
        for period in 1..=MAX_PERIOD {
            let same = self.back(period).is_some_and(|step| step.pair == pair);
            self.equal[period] = if same { self.equal[period].saturating_add(1) } else { 0 };
        }
        if self.steps.len() == MAX_PERIOD + 2 {
            self.steps.pop_front();
        }
        self.steps.push_back(Step { key, pair, ordinal });
    }

    /// The shortest cycle with at least this many full laps. One call again and again is not a cycle.
    pub(crate) fn going(&self, least: u32) -> Option<Cycle> {
        if least == 0 || self.equal[1] > 0 {
            return None;
        }
        (2..=MAX_PERIOD).find_map(|period| {
            let p = u32::try_from(period).ok()?;
            let laps = self.equal[period].saturating_add(p) / p;
            let mut calls = Calls::default();
            let mut key = Fingerprint::default();
            (laps >= least.max(2)).then(|| {
                for back in (1..=period).rev() {
                    if let Some(step) = self.back(back) {
                        calls.push(step.ordinal);
                        // The same for every rotation of the cycle.
                        key.0 = key.0.wrapping_add(step.pair.0);
                    }
                }
                Cycle { period: p, laps, key, calls }
            })
        })
    }

    /// Whether a call with this key would go on with the cycle.
    pub(crate) fn goes_on(&self, cycle: &Cycle, key: Fingerprint) -> bool {
        self.back(cycle.period as usize).is_some_and(|step| step.key == key)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.steps.capacity() * size_of::<Step>()
    }
}
