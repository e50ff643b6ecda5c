//! Can a tool be given a PID namespace of its own on this host? Tried in a process of its own, since the answer
//! depends on kernel settings, on security modules and on what the host is itself contained in.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::init::{self, Ids};
use crate::sys::clone::{Forked, Placement, fork};
use crate::sys::process::exit_now;

/// `argv[0]` of the process that tries it.
pub(crate) const PROBE_ARGV0: &str = "toolcell-namespace-probe";

/// Tries it by starting this binary again.
///
/// # Errors
/// What failed, in words.
pub fn probe_pid_namespace() -> Result<(), String> {
    let output = Command::new("/proc/self/exe")
        .arg0(PROBE_ARGV0)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("the probe could not be started: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// The process that tries it: says what failed on standard output.
pub(crate) fn run() -> ! {
    let failed = attempt();
    if let Err(reason) = &failed {
        let _ = std::io::Write::write_all(&mut std::io::stdout(), reason.as_bytes());
    }
    exit_now(i32::from(failed.is_err()))
}

fn attempt() -> Result<(), String> {
    let ids = Ids::of_this_process();
    let user = if ids.is_root() { 0 } else { libc::CLONE_NEWUSER };
    let placement = Placement { cgroup: None, namespaces: libc::CLONE_NEWPID | libc::CLONE_NEWNS | user };
    match fork(placement) {
        Err(errno) => Err(format!("a PID namespace cannot be made: {errno}")),
        Ok(Forked::Child { .. }) => {
            let reason = match init::arrange(ids) {
                Ok(()) => exit_now(0),
                Err((stage, errno)) => format!("{} in a PID namespace: {errno}", stage.name()),
            };
            let _ = std::io::Write::write_all(&mut std::io::stdout(), reason.as_bytes());
            exit_now(1)
        }
        Ok(Forked::Parent { pid, .. }) => match waitpid(Pid::from_raw(pid), None) {
            Ok(WaitStatus::Exited(_, 0)) => Ok(()),
            Ok(WaitStatus::Exited(..)) => Err(String::new()),
            Ok(other) => Err(format!("the probe ended with {other:?}")),
            Err(errno) => Err(format!("the probe was lost: {errno}")),
        },
    }
}
