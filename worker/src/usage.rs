//! CPU and memory of what was reaped.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use toolcell_protocol::worker_api::Usage;

/// CPU time and largest resident size, of our reaped descendants or of ourselves.
pub(crate) fn usage(who: UsageWho) -> Usage {
    getrusage(who).map_or_else(
        |_| Usage::default(),
        |usage| Usage {
            user_cpu_us: usage.user_time().num_microseconds().unsigned_abs(),
            system_cpu_us: usage.system_time().num_microseconds().unsigned_abs(),
            // The kernel counts in KiB.
            peak_memory_bytes: usage.max_rss().unsigned_abs().saturating_mul(1024),
        },
    )
}
