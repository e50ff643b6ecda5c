//! Children that the spawner did not fork: what a dead cell left behind. The kernel hands them to us because we
//! are their nearest subreaper.

use std::time::{Duration, Instant};

use nix::unistd::getpid;
use toolcell_protocol::call::Leftover;

use crate::containment::walk;
use crate::sys::process::{Children, reap, wait_for_sigchld};

/// Longest wait for one child between two looks.
const TICK: Duration = Duration::from_millis(5);

/// What a sweep did.
#[derive(Debug)]
pub(super) struct Sweep {
    /// What it killed.
    pub(super) found: Vec<Leftover>,
    /// Zombies that it reaped without having seen them alive.
    reaped: u32,
    /// No stranger is left.
    pub(super) clean: bool,
}

impl Sweep {
    pub(super) fn killed(&self) -> u32 {
        u32::try_from(self.found.len()).unwrap_or(u32::MAX).max(self.reaped)
    }
}

/// Kills and reaps strangers, with all their descendants, until there is none or the time is over.
///
/// A SIGCHLD that is taken here may have been a worker's: the caller looks at its workers afterwards.
pub(super) fn sweep(is_worker: &dyn Fn(i32) -> bool, time: Duration) -> Sweep {
    let deadline = Instant::now() + time;
    let me = getpid().as_raw();
    let mut sweep = Sweep { found: Vec::new(), reaped: 0, clean: false };
    loop {
        let strangers: Vec<i32> = walk::children(me).into_iter().filter(|&pid| !is_worker(pid)).collect();
        let mut left = false;
        for pid in strangers {
            match reap(pid) {
                Children::Ended(..) => sweep.reaped += 1,
                Children::Alive | Children::None => left = true,
            }
        }
        if !left {
            // Reaped ones may have had children, which are ours now.
            if walk::children(me).into_iter().all(is_worker) {
                sweep.clean = true;
                return sweep;
            }
            continue;
        }
        walk::stop_and_kill(me, is_worker, &mut sweep.found);
        if Instant::now() >= deadline {
            return sweep;
        }
        wait_for_sigchld(TICK);
    }
}
