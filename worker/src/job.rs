//! From a job as it arrives to what can be carried out without taking memory.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Whence, lseek};
use toolcell_protocol::call::{Blob, Layer, LayerState};
use toolcell_protocol::worker_api::{Job, Stage};

use crate::confine::{IdentityPlan, InheritedLimits, RlimitPlan};
use crate::exec::{Program, Unfit};

/// A job cannot be started.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) stage: Stage,
    pub(crate) errno: Errno,
    /// What was tried.
    pub(crate) what: String,
}

impl Refusal {
    pub(crate) fn new(stage: Stage, errno: Errno, what: impl Into<String>) -> Self {
        Self { stage, errno, what: what.into() }
    }
}

/// What every kind of job is confined by.
#[derive(Debug)]
pub(crate) struct Confinement {
    pub(crate) rlimits: RlimitPlan,
    pub(crate) identity: Option<IdentityPlan>,
    pub(crate) cwd: CString,
    pub(crate) umask: u32,
    /// In the order in which they are applied.
    pub(crate) layers: Vec<Layer>,
}

impl Confinement {
    pub(crate) fn new(job: &Job, inherited: &InheritedLimits) -> Result<Self, Refusal> {
        let rlimits = RlimitPlan::new(&job.rlimits, inherited);
        let identity = job.identity.as_ref().map(IdentityPlan::new);
        let cwd = CString::new(job.cwd.as_str())
            .map_err(|_| Refusal::new(Stage::Cwd, Errno::EINVAL, "the working directory holds a NUL byte"))?;
        let mut layers = Vec::with_capacity(12);
        layers.extend(rlimits.layers());
        let mut enforced = |name: &str, detail: Option<String>| {
            layers.push(Layer { name: name.to_owned(), state: LayerState::Enforced, detail });
        };
        if let Some(identity) = &job.identity {
            enforced("identity", Some(format!("uid {}, gid {}", identity.uid, identity.gid)));
        }
        enforced("no_new_privileges", None);
        if let Some(budget) = job.tree_cpu_ms {
            enforced("tree_cpu_ms", Some(budget.to_string()));
        }
        if let Some(limit) = job.output.max_total_bytes {
            enforced("max_output_bytes", Some(limit.to_string()));
        }
        Ok(Self { rlimits, identity, cwd, umask: job.umask, layers })
    }

    /// What a failed step had tried.
    pub(crate) fn describe(&self, stage: Stage) -> String {
        match stage {
            Stage::Cwd => self.cwd.to_string_lossy().into_owned(),
            Stage::Identity => self.identity.as_ref().map_or_else(String::new, |identity| {
                let (uid, gid) = identity.owner();
                format!("uid {uid}, gid {gid}")
            }),
            other => other.name().to_owned(),
        }
    }
}

/// Lays out a program.
pub(crate) fn program(argv: &[Blob], env: &[(String, String)]) -> Result<Program, Refusal> {
    Program::new(argv, env).map_err(|unfit| match unfit {
        Unfit::NoProgram => Refusal::new(Stage::Lookup, Errno::ENOENT, "the command has no program"),
        Unfit::HoldsNul => {
            Refusal::new(Stage::Exec, Errno::EINVAL, "an argument or variable holds a NUL byte")
        }
    })
}

/// A tool's standard input, in memory: there is nothing to feed and nothing to wait for, and a tool that never
/// reads it is no error.
#[derive(Debug)]
pub(crate) struct Stdin {
    file: OwnedFd,
    bytes: u64,
}

impl Stdin {
    pub(crate) fn new(input: &Blob) -> Result<Self, Refusal> {
        let failed = |errno| Refusal::new(Stage::Pipes, errno, "standard input");
        let io_failed = |error: std::io::Error| failed(Errno::from_raw(error.raw_os_error().unwrap_or(0)));
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"stdin", flags).map_err(failed)?);
        // At an offset: the position, which the tool shares, stays at the start.
        file.write_all_at(&input.0, 0).map_err(io_failed)?;
        let seals =
            SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(failed)?;
        Ok(Self { file: file.into(), bytes: input.0.len() as u64 })
    }

    /// What the tool has not read: the position is shared with it.
    pub(crate) fn unread_bytes(&self) -> u64 {
        let position = lseek(&self.file, 0, Whence::SeekCur).unwrap_or(0);
        self.bytes.saturating_sub(u64::try_from(position).unwrap_or(0))
    }
}

impl AsFd for Stdin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn standard_input_is_read_from_its_start_and_what_is_left_is_counted() {
        let stdin = Stdin::new(&Blob(b"0123456789".to_vec())).expect("made");
        assert_eq!(stdin.unread_bytes(), 10);
        let mut shared = File::from(stdin.file.try_clone().expect("shared"));
        let mut four = [0; 4];
        shared.read_exact(&mut four).expect("read");
        assert_eq!((&four, stdin.unread_bytes()), (b"0123", 6));
        assert!(shared.write_all(b"x").is_err(), "it is sealed");
    }
}
