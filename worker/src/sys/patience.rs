//! Spawner and workers run as batch work: when one of them is woken it does not push aside who runs just now.
//!
//! On a busy host each of their steps would otherwise cost a running tool a switch there and back. Tools get the
//! ordinary policy back, and the daemon keeps it: the output that it passes on must not wait. Where a processor is idle
//! nothing waits for anybody.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

/// This process was made patient by us, and not by who runs the host.
static PATIENT: AtomicBool = AtomicBool::new(false);

/// Makes the calling thread, and what it forks, patient, if it runs under the ordinary policy. Never fails: at worst it
/// stays as it is.
pub(crate) fn be_patient() {
    // SAFETY: asks a number about the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if policy == libc::SCHED_OTHER && set(libc::SCHED_BATCH) {
        PATIENT.store(true, Ordering::Relaxed);
    }
}

/// Undoes it for a process that becomes a tool. Allocates nothing and takes no lock.
pub(crate) fn be_ordinary() {
    if PATIENT.load(Ordering::Relaxed) {
        set(libc::SCHED_OTHER);
    }
}

fn set(policy: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is valid for the call; the calling thread alone is changed.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
}
