//! How a process between clone and exec says what failed: a few words in memory that it shares with
//! its parent.

use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;
use toolcell_protocol::worker_api::Stage;

use crate::sys::clone::spawn_shares_memory;
use crate::sys::memory::SharedWords;

/// Every stage, to find one by its number.
const STAGES: [Stage; 16] = [
    Stage::Cgroup,
    Stage::Pipes,
    Stage::Fork,
    Stage::Namespaces,
    Stage::Mounts,
    Stage::IdMaps,
    Stage::Session,
    Stage::ParentDeath,
    Stage::Stdio,
    Stage::Rlimits,
    Stage::Identity,
    Stage::Cwd,
    Stage::NoNewPrivileges,
    Stage::CloseFds,
    Stage::Lookup,
    Stage::Exec,
];

/// What failed between clone and exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) stage: Stage,
    pub(crate) errno: Errno,
    /// Which path, for the stages that try several.
    pub(crate) candidate: usize,
}

/// The words: stage (0 is "nothing failed"), errno, candidate.
#[derive(Debug)]
pub(crate) enum Report {
    /// The new process runs in our memory.
    Here([AtomicI32; 3]),
    /// It runs in a copy: on other architectures, without clone3, and behind a namespace's init.
    Shared(SharedWords),
}

impl Report {
    /// `copied`: the new process will run in a copy of this one.
    pub(crate) fn new(copied: bool) -> Result<Self, Errno> {
        if copied || !spawn_shares_memory() {
            return SharedWords::new().map(Self::Shared);
        }
        Ok(Self::Here([const { AtomicI32::new(0) }; 3]))
    }

    fn words(&self) -> &[AtomicI32; 3] {
        match self {
            Self::Here(words) => words,
            Self::Shared(words) => words,
        }
    }

    /// Called by the new process.
    pub(crate) fn fail(&self, stage: Stage, errno: Errno, candidate: usize) {
        self.words()[1].store(errno as i32, Relaxed);
        self.words()[2].store(i32::try_from(candidate).unwrap_or(0), Relaxed);
        self.words()[0].store(stage as i32 + 1, Relaxed);
    }

    /// Called by its parent once it has exec'ed or exited, or has said that it will not exec.
    pub(crate) fn failure(&self) -> Option<Failed> {
        let number = self.words()[0].load(Relaxed) - 1;
        let stage = STAGES.into_iter().find(|&stage| stage as i32 == number)?;
        Some(Failed {
            stage,
            errno: Errno::from_raw(self.words()[1].load(Relaxed)),
            candidate: usize::try_from(self.words()[2].load(Relaxed)).unwrap_or(0),
        })
    }

    /// Before another try.
    pub(crate) fn clear(&self) {
        self.words()[0].store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_comes_back_as_itself() {
        for report in [Report::new(false), Report::new(true)] {
            let report = report.expect("a page");
            assert_eq!(report.failure(), None);
            for stage in STAGES {
                report.fail(stage, Errno::ENOENT, 3);
                assert_eq!(report.failure(), Some(Failed { stage, errno: Errno::ENOENT, candidate: 3 }));
            }
            report.clear();
            assert_eq!(report.failure(), None);
        }
    }
}
