//! The post-compaction guard: armed by a compaction, it ends the run if the next calls are all one call with one result.
//!
//! ```text
//!             compaction                 window_size observations
//!  dormant ──────────────▶ armed(left) ───────────────────────────▶ dormant
//!                            │    ▲                │ all equal
//!                            └────┘ compaction     ▼
//!                            starts over         abort, once
//! ```

use serde::{Deserialize, Serialize};

use super::digest::Fingerprint;

/// Runs whose guard is remembered at the same time.
const MAX_RUNS: usize = 8;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Armed {
    run: Option<Fingerprint>,
    left: u32,
    /// The only thing that can still lead to an abort: the first observation, as long as all others were equal to it.
    first: Option<Fingerprint>,
    equal: u32,
}

/// State of one session.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Guard {
    armed: Vec<Armed>,
}

impl Guard {
    /// The context of this run was compacted.
    pub(crate) fn arm(&mut self, run: Option<Fingerprint>, window: u32) {
        self.armed.retain(|armed| armed.run != run);
        if self.armed.len() == MAX_RUNS {
            self.armed.remove(0);
        }
        self.armed.push(Armed { run, left: window, first: None, equal: 0 });
    }

    /// An outcome was recorded. Says how many equal ones there were if that ends the run.
    pub(crate) fn observe(
        &mut self,
        run: Option<Fingerprint>,
        observation: Fingerprint,
        window: u32,
    ) -> Option<u32> {
        let index = self.armed.iter().position(|armed| armed.run == run)?;
        let armed = &mut self.armed[index];
        armed.left = armed.left.saturating_sub(1);
        if *armed.first.get_or_insert(observation) == observation {
            armed.equal += 1;
        } else {
            armed.equal = 0;
            armed.left = 0;
        }
        let (left, equal) = (armed.left, armed.equal);
        if left == 0 {
            self.armed.remove(index);
        }
        (equal >= window).then_some(equal)
    }

    pub(crate) fn clear(&mut self) {
        self.armed.clear();
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.armed.capacity() * size_of::<Armed>()
    }
}
