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
use toolcell_protocol::worker_api::{Stage, Usage, WaitStatus};

use super::init;
use crate::confine::TowardsExec;
use crate::sys::clone::{Forked, Placement, fork};
use crate::sys::process::exit_now;
use crate::sys::{recv_packet, send_packet};

/// What init and worker tell each other, one byte each; `ENDED` starts an [`Ended`].
pub(super) const RUNNING: u8 = b'r';
pub(super) const FAILED: u8 = b'f';
pub(super) const ENDED: u8 = b'e';
pub(super) const HEARD: u8 = b'h';
pub(super) const TERMINATE: u8 = b't';
pub(super) const KILL_OTHERS: u8 = b'k';

/// The init's last message: the tool has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) status: WaitStatus,
    /// The init has no other child.
    pub(super) alone: bool,
    /// Of what the init has reaped.
    pub(super) usage: Usage,
}

impl Ended {
    pub(super) const BYTES: usize = 31;

    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        let (kind, number) = match self.status {
            WaitStatus::Exited(code) => (0, code),
            WaitStatus::Signaled(signal) => (1, signal),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[0] = ENDED;
        bytes[1] = kind;
        bytes[2..6].copy_from_slice(&number.to_le_bytes());
        bytes[6] = u8::from(self.alone);
        let Usage { user_cpu_us, system_cpu_us, peak_memory_bytes } = self.usage;
        for (at, value) in [user_cpu_us, system_cpu_us, peak_memory_bytes].into_iter().enumerate() {
            bytes[7 + at * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok().filter(|bytes: &&[u8; _]| bytes[0] == ENDED)?;
        let number = i32::from_le_bytes(*bytes[2..].first_chunk()?);
        let word = |at: usize| bytes[7 + at * 8..].first_chunk().copied().map(u64::from_le_bytes);
        Some(Self {
            status: if bytes[1] == 0 { WaitStatus::Exited(number) } else { WaitStatus::Signaled(number) },
            alone: bytes[6] != 0,
            usage: Usage { user_cpu_us: word(0)?, system_cpu_us: word(1)?, peak_memory_bytes: word(2)? },
        })
    }
}

/// A running namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    control: OwnedFd,
    init: i32,
    ended: Option<Ended>,
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
                Ok((Self { control, init, ended: None }, tool))
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
    pub(crate) fn is_alone(&self) -> bool {
        self.ended.is_some_and(|ended| ended.alone)
    }

    /// CPU and memory of what ended inside, as the init told it.
    pub(crate) fn usage(&self) -> Option<Usage> {
        self.ended.map(|ended| ended.usage)
    }

    /// Takes a message of the init: the tool's end, if that is what it is.
    pub(super) fn hear(&mut self) -> Option<WaitStatus> {
        let mut message = [0; Ended::BYTES];
        let flags = nix::sys::socket::MsgFlags::MSG_DONTWAIT;
        let control = std::os::fd::AsRawFd::as_raw_fd(&self.control);
        let count = nix::sys::socket::recv(control, &mut message, flags).unwrap_or(0);
        self.ended = Ended::decode(&message[..count]).or(self.ended);
        self.ended.map(|ended| ended.status)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_comes_back_as_it_was() {
        let usage = Usage { user_cpu_us: 1, system_cpu_us: u64::MAX, peak_memory_bytes: 1 << 40 };
        for status in [WaitStatus::Exited(255), WaitStatus::Signaled(64)] {
            for alone in [false, true] {
                let ended = Ended { status, alone, usage };
                assert_eq!(Ended::decode(&ended.encode()), Some(ended));
            }
        }
        assert_eq!(Ended::decode(&[ENDED; Ended::BYTES - 1]), None);
        assert_eq!(Ended::decode(&[RUNNING; Ended::BYTES]), None);
    }
}
