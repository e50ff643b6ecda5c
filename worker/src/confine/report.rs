//! How a process between clone and exec says what failed: a few words in a page that it shares with its parent.

use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;
use toolcell_protocol::worker_api::Stage;

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

/// The shared words: stage (0 is "nothing failed"), errno, candidate.
#[derive(Debug)]
pub(crate) struct Report(SharedWords);

impl Report {
    pub(crate) fn new() -> Result<Self, Errno> {
        SharedWords::new().map(Self)
    }

    /// Called by the new process.
    pub(crate) fn fail(&self, stage: Stage, errno: Errno, candidate: usize) {
        self.0[1].store(errno as i32, Relaxed);
        self.0[2].store(i32::try_from(candidate).unwrap_or(0), Relaxed);
        self.0[0].store(stage as i32 + 1, Relaxed);
    }

    /// Called by its parent once it has exec'ed or exited, or has said that it will not exec.
    pub(crate) fn failure(&self) -> Option<Failed> {
        let number = self.0[0].load(Relaxed) - 1;
        let stage = STAGES.into_iter().find(|&stage| stage as i32 == number)?;
        Some(Failed {
            stage,
            errno: Errno::from_raw(self.0[1].load(Relaxed)),
            candidate: usize::try_from(self.0[2].load(Relaxed)).unwrap_or(0),
        })
    }

    /// Before another try.
    pub(crate) fn clear(&self) {
        self.0[0].store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_comes_back_as_itself() {
        let report = Report::new().expect("a page");
        assert_eq!(report.failure(), None);
        for stage in STAGES {
            report.fail(stage, Errno::ENOENT, 3);
            assert_eq!(report.failure(), Some(Failed { stage, errno: Errno::ENOENT, candidate: 3 }));
        }
        report.clear();
        assert_eq!(report.failure(), None);
    }
}
