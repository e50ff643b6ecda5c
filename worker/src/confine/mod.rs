//! From clone to exec: the steps that turn a fresh process into a tool's, in their order.
//!
//! ```text
//! (cgroup) → session → stdio → rlimits → identity → parent death → cwd → umask → no new privileges
//!          → close descriptors → empty signal mask → exec
//! ```
//!
//! Parent death comes after the identity, because the kernel clears it when the uid changes; the look at the
//! parent after it closes the gap. Everything that needs memory was prepared before the clone: here nothing is
//! allocated, nothing panics, and a failure leaves as `{stage, errno}` through the [`Report`].
//!
//! Signals: the spawner set every disposition to its default and blocked everything; so a tool only needs its
//! mask emptied, and nothing is delivered before that.

mod identity;
mod report;
mod rlimits;

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::sys::prctl::{set_no_new_privs, set_pdeathsig};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{chdir, dup2_stderr, dup2_stdin, dup2_stdout, getppid, setsid};
use toolcell_protocol::worker_api::Stage;

pub(crate) use self::identity::IdentityPlan;
pub(crate) use self::report::Report;
pub(crate) use self::rlimits::{InheritedLimits, RlimitPlan};
use crate::exec::Program;
use crate::sys::fds::close_from_3;
use crate::sys::patience::be_ordinary;

/// Exit code of a process that could not become the tool; nobody looks at it.
const NOT_BECOME: i32 = 127;

/// Everything that the new process needs, in memory that it shares with its parent or has a copy of.
#[derive(Debug)]
pub(crate) struct TowardsExec<'a> {
    pub(crate) program: &'a Program,
    /// `None`: standard input is `/dev/null` already.
    pub(crate) stdin: Option<BorrowedFd<'a>>,
    pub(crate) stdout: BorrowedFd<'a>,
    pub(crate) stderr: BorrowedFd<'a>,
    pub(crate) rlimits: &'a RlimitPlan,
    pub(crate) identity: Option<&'a IdentityPlan>,
    pub(crate) cwd: &'a CStr,
    pub(crate) umask: u32,
    /// The parent's pid as the new process sees it.
    pub(crate) parent: i32,
    /// The group that it has to move itself into if it was not born there.
    pub(crate) cgroup: Option<BorrowedFd<'a>>,
    pub(crate) report: &'a Report,
}

/// What the new process runs. Returns only if it could not become the tool.
pub(crate) fn become_tool(plan: &TowardsExec<'_>, must_join: bool) -> i32 {
    if let Err((stage, errno)) = confine(plan, must_join) {
        plan.report.fail(stage, errno, 0);
        return NOT_BECOME;
    }
    let failure = plan.program.exec();
    plan.report.fail(failure.stage, failure.errno, failure.candidate);
    NOT_BECOME
}

fn confine(plan: &TowardsExec<'_>, must_join: bool) -> Result<(), (Stage, Errno)> {
    let at = |stage| move |errno| (stage, errno);
    if must_join && let Some(directory) = plan.cgroup {
        crate::cgroup::join(directory)
            .map_err(|error| (Stage::Cgroup, Errno::from_raw(error.raw_os_error().unwrap_or(0))))?;
    }
    be_ordinary();
    setsid().map_err(at(Stage::Session))?;
    if let Some(stdin) = plan.stdin {
        dup2_stdin(stdin).map_err(at(Stage::Stdio))?;
    }
    dup2_stdout(plan.stdout).map_err(at(Stage::Stdio))?;
    dup2_stderr(plan.stderr).map_err(at(Stage::Stdio))?;
    plan.rlimits.apply().map_err(at(Stage::Rlimits))?;
    if let Some(identity) = plan.identity {
        identity.assume().map_err(at(Stage::Identity))?;
    }
    set_pdeathsig(Signal::SIGKILL).map_err(at(Stage::ParentDeath))?;
    if getppid().as_raw() != plan.parent {
        return Err((Stage::ParentDeath, Errno::ESRCH));
    }
    chdir(plan.cwd).map_err(at(Stage::Cwd))?;
    set_umask(plan.umask);
    set_no_new_privs().map_err(at(Stage::NoNewPrivileges))?;
    close_from_3().map_err(at(Stage::CloseFds))?;
    SigSet::empty().thread_set_mask().map_err(at(Stage::Exec))
}

/// The same for a worker that runs a built-in tool itself: before any path of the job is opened.
pub(crate) fn confine_self(
    rlimits: &RlimitPlan,
    identity: Option<&IdentityPlan>,
    cwd: &CStr,
    mask: u32,
) -> Result<(), (Stage, Errno)> {
    let at = |stage| move |errno| (stage, errno);
    rlimits.apply().map_err(at(Stage::Rlimits))?;
    if let Some(identity) = identity {
        identity.assume().map_err(at(Stage::Identity))?;
    }
    chdir(cwd).map_err(at(Stage::Cwd))?;
    set_umask(mask);
    set_no_new_privs().map_err(at(Stage::NoNewPrivileges))?;
    // A CPU limit must end a built-in like any tool. SIGXFSZ stays blocked: the write fails instead, and the
    // tool can say which file was too large.
    let mut deadly = SigSet::empty();
    deadly.add(Signal::SIGXCPU);
    deadly.thread_unblock().map_err(at(Stage::Rlimits))
}

fn set_umask(mask: u32) {
    umask(Mode::from_bits_truncate(mask & 0o777));
}
