//! A PID namespace around a tool, seen from the worker: the worker clones an init, the init clones the tool.
//!
//! ```text
//! worker ── SEQPACKET ── init (PID 1, a copy of the worker) ── tool and all that comes of it
//!
//!   init ─▶ worker   Running + pidfd of the tool | Failed (see the report page) | Ended{status, alone}
//!   worker ─▶ init   Heard (it may reap now: the worker has looked up the tool's number)
//!                    Terminate | KillOthers;  end-of-file: the worker is gone
//! ```
//!
//! The kernel kills everything in the namespace when its init dies, and the init dies with the worker, with its
//! socket, and by the worker's SIGKILL. It reaps whoever is orphaned inside, so the worker sees one child only.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use toolcell_protocol::worker_api::{Stage, WaitStatus};

use super::init;
use crate::confine::TowardsExec;
use crate::sys::clone::{Forked, Placement, fork};
use crate::sys::process::{exit_now, wait_status};
use crate::sys::{recv_packet, send_packet};

/// What init and worker tell each other, one byte each; `ENDED` is followed by the status and by [`Namespace::is_alone`].
pub(super) const RUNNING: u8 = b'r';
pub(super) const FAILED: u8 = b'f';
pub(super) const ENDED: u8 = b'e';
pub(super) const HEARD: u8 = b'h';
pub(super) const TERMINATE: u8 = b't';
pub(super) const KILL_OTHERS: u8 = b'k';

/// A running namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    control: OwnedFd,
    init: i32,
    alone: bool,
}

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoNamespace {
    /// Not to be had on this host.
    Unavailable(Stage, Errno),
    /// The tool could not be started in it: the report says why.
    ToolFailed,
}

impl Namespace {
    /// Starts the init, which starts the tool; returns with the tool's pid once it runs.
    pub(crate) fn start(plan: &TowardsExec<'_>) -> Result<(Self, i32), NoNamespace> {
        let unavailable = |errno| NoNamespace::Unavailable(Stage::Namespaces, errno);
        let (control, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .map_err(unavailable)?;
        // Root can do without a user namespace, in which it could not take other identities.
        let ids = init::Ids::of_this_process();
        let user = if ids.is_root() { 0 } else { libc::CLONE_NEWUSER };
        let placement =
            Placement { cgroup: plan.cgroup, namespaces: libc::CLONE_NEWPID | libc::CLONE_NEWNS | user };
        let init = match fork(placement).map_err(unavailable)? {
            Forked::Parent { pid, .. } => pid,
            Forked::Child { must_join } => {
                drop(control);
                let run = std::panic::AssertUnwindSafe(|| init::run(plan, &theirs, ids, must_join));
                exit_now(std::panic::catch_unwind(run).unwrap_or(1));
            }
        };
        drop(theirs);
        let lost = |_| {
            let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(init), None);
            unavailable(Errno::EIO)
        };
        let packet = recv_packet(&control).map_err(lost)?;
        match packet.as_ref().map(|packet| (packet.bytes.first(), packet.fds.first())) {
            Some((Some(&RUNNING), Some(pidfd))) => {
                let tool = pid_behind(pidfd).map_err(lost)?;
                send_packet(&control, &[HEARD], &[]).map_err(lost)?;
                Ok((Self { control, init, alone: false }, tool))
            }
            Some((Some(&FAILED), _)) => {
                let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(init), None);
                match plan.report.failure() {
                    Some(failed)
                        if matches!(failed.stage, Stage::Namespaces | Stage::Mounts | Stage::IdMaps) =>
                    {
                        plan.report.clear();
                        Err(NoNamespace::Unavailable(failed.stage, failed.errno))
                    }
                    _ => Err(NoNamespace::ToolFailed),
                }
            }
            _ => Err(lost(io::Error::from(io::ErrorKind::UnexpectedEof))),
        }
    }

    pub(crate) const fn init(&self) -> i32 {
        self.init
    }

    /// The init has said that the tool has ended and that it has no other child.
    pub(crate) const fn is_alone(&self) -> bool {
        self.alone
    }

    /// Takes a message of the init: the tool's end, if that is what it is.
    pub(super) fn hear(&mut self) -> Option<WaitStatus> {
        let mut message = [0; 8];
        let flags = nix::sys::socket::MsgFlags::MSG_DONTWAIT;
        let control = std::os::fd::AsRawFd::as_raw_fd(&self.control);
        let count = nix::sys::socket::recv(control, &mut message, flags).unwrap_or(0);
        match &message[..count] {
            [ENDED, a, b, c, d, alone] => {
                self.alone = *alone != 0;
                Some(wait_status(i32::from_le_bytes([*a, *b, *c, *d])))
            }
            _ => None,
        }
    }

    pub(super) fn terminate(&self) {
        let _ = send_packet(&self.control, &[TERMINATE], &[]);
    }

    pub(super) fn kill_others(&self) {
        let _ = send_packet(&self.control, &[KILL_OTHERS], &[]);
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

/// The number of a pidfd's process in our own namespace.
fn pid_behind(pidfd: &OwnedFd) -> io::Result<i32> {
    let number = std::os::fd::AsRawFd::as_raw_fd(pidfd);
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    text.lines()
        .find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}
