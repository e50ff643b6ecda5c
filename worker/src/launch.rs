//! How a spawner comes to life: the daemon starts its own binary again, with a socket as standard input and a
//! name that says what to be. One build, no helper binary to find.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

/// `argv[0]` of a spawner.
pub const SPAWNER_ARGV0: &str = "toolcell-spawner";

/// Must be the first thing in `main` of every binary that can be a spawner: becomes one if it was started as
/// one, and never returns then.
pub fn run_if_spawner() {
    let name = std::env::args_os().next();
    if name.as_deref() == Some(OsStr::new(SPAWNER_ARGV0)) {
        crate::spawner::run();
    }
    if name.as_deref() == Some(OsStr::new(crate::containment::probe::PROBE_ARGV0)) {
        crate::containment::probe::run();
    }
}

/// The socket between daemon and spawner: the daemon's end, the spawner's end. Both are close-on-exec and
/// blocking; a daemon with a runtime makes its own end non-blocking.
///
/// # Errors
/// Those of `socketpair`.
pub fn spawner_socketpair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

/// The command that starts this very binary as a spawner on its end of the socket. Standard error is inherited.
#[must_use]
pub fn spawner_command(spawner_end: OwnedFd) -> Command {
    spawner_command_of(Path::new("/proc/self/exe"), spawner_end)
}

/// The same with another binary, which must call [`run_if_spawner`] in its `main`.
///
/// Nothing here makes `Command` fork: no `pre_exec`, no uid, so it costs the same however large the caller is.
#[must_use]
pub fn spawner_command_of(binary: &Path, spawner_end: OwnedFd) -> Command {
    let mut command = Command::new(binary);
    command.arg0(SPAWNER_ARGV0).env_clear().current_dir("/");
    command.stdin(Stdio::from(spawner_end)).stdout(Stdio::null()).stderr(Stdio::inherit());
    command
}
