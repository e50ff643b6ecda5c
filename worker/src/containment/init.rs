//! PID 1 of a tool's namespace: a copy of the worker that starts the tool, reaps, reports and kills.
//!
//! It is not the tool: a tool as PID 1 would ignore signals that it has no handler for, and would have to reap
//! strangers.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll, ppoll};
use nix::sys::prctl::{set_dumpable, set_pdeathsig};
use nix::sys::resource::UsageWho;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SigSet, SignalFd};
use nix::unistd::{Pid, getegid, geteuid, getpid};
use toolcell_protocol::worker_api::Stage;

use super::namespace::{Ended, FAILED, HEARD, KILL_OTHERS, RUNNING, TERMINATE};
use crate::confine::{TowardsExec, become_tool};
use crate::sys::clone::{Placement, spawn};
use crate::sys::fds::close_all_but;
use crate::sys::process::{Children, pidfd_open, reap};
use crate::sys::{recv_packet, send_packet};
use crate::usage::usage;

/// The ids to keep in a user namespace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ids {
    uid: u32,
    gid: u32,
}

impl Ids {
    pub(super) fn of_this_process() -> Self {
        Self { uid: geteuid().as_raw(), gid: getegid().as_raw() }
    }

    pub(super) const fn is_root(self) -> bool {
        self.uid == 0
    }
}

/// Runs the init; the result is its exit code.
pub(super) fn run(plan: &TowardsExec<'_>, control: &OwnedFd, ids: Ids, must_join: bool) -> i32 {
    let tool = match start(plan, control, ids, must_join) {
        Ok(tool) => tool,
        Err((stage, errno)) => {
            plan.report.fail(stage, errno, 0);
            0
        }
    };
    if plan.report.failure().is_some() {
        let _ = send_packet(control, &[FAILED], &[]);
        return 1;
    }
    serve(tool, control).map_or(1, |()| 0)
}

fn start(
    plan: &TowardsExec<'_>,
    control: &OwnedFd,
    ids: Ids,
    must_join: bool,
) -> Result<i32, (Stage, Errno)> {
    let at = |stage| move |errno| (stage, errno);
    if must_join && let Some(directory) = plan.cgroup {
        crate::cgroup::join(directory).map_err(|_| (Stage::Cgroup, Errno::last()))?;
    }
    set_pdeathsig(Signal::SIGKILL).map_err(at(Stage::ParentDeath))?;
    // The parent is outside this namespace and has no number here; its socket tells whether it still lives.
    let mut fds = [PollFd::new(control.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).map_err(at(Stage::ParentDeath))?;
    if fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP)) {
        return Err((Stage::ParentDeath, Errno::ESRCH));
    }
    arrange(ids)?;
    let plan = TowardsExec { parent: getpid().as_raw(), ..*plan };
    // Already born, or moved, into the leaf.
    spawn(Placement::default(), become_tool, &plan).map_err(at(Stage::Fork))
}

/// Makes the namespace fit to live in: ids as outside, and a /proc of its own.
pub(super) fn arrange(ids: Ids) -> Result<(), (Stage, Errno)> {
    let at = |stage| move |errno| (stage, errno);
    if !ids.is_root() {
        map_ids(ids).map_err(at(Stage::IdMaps))?;
    }
    let none: Option<&str> = None;
    // Mounts of the host still appear here; ours do not appear there.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none).map_err(at(Stage::Mounts))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, none).map_err(at(Stage::Mounts))
}

/// Every id stays what it is outside.
fn map_ids(ids: Ids) -> Result<(), Errno> {
    // The files belong to root while we are not dumpable.
    set_dumpable(true)?;
    let write = |file: &str, text: String| {
        std::fs::write(file, text).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
    };
    write("/proc/self/uid_map", format!("{0} {0} 1", ids.uid))?;
    write("/proc/self/setgroups", "deny".to_owned())?;
    write("/proc/self/gid_map", format!("{0} {0} 1", ids.gid))?;
    set_dumpable(false)
}

/// From the tool's start to the end of everything in the namespace.
fn serve(tool: i32, control: &OwnedFd) -> Result<(), Errno> {
    let pidfd = pidfd_open(tool)?;
    send_packet(control, &[RUNNING], &[pidfd.as_fd()]).map_err(|_| Errno::EPIPE)?;
    // Once reaped it would have no number that the worker could look up.
    match recv_packet(control) {
        Ok(Some(packet)) if packet.bytes == [HEARD] => drop(pidfd),
        _ => return Err(Errno::EPIPE),
    }
    // Else we would hold the tool's pipes and the daemon's socket open.
    close_all_but(&[control.as_fd()]);
    let mut child = SigSet::empty();
    child.add(Signal::SIGCHLD);
    let children = SignalFd::with_flags(&child, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut ended = false;
    loop {
        loop {
            match reap(-1) {
                Children::Ended(pid, status) if pid == tool => {
                    ended = true;
                    let alone = matches!(reap_orphans(), Children::None);
                    let message = Ended { status, alone, usage: usage(UsageWho::RUSAGE_CHILDREN) };
                    send_packet(control, &message.encode(), &[]).map_err(|_| Errno::EPIPE)?;
                }
                Children::Ended(..) => {}
                Children::Alive => break,
                Children::None => return Ok(()),
            }
        }
        let mut fds = [
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
            PollFd::new(control.as_fd(), PollFlags::POLLIN),
        ];
        match ppoll(&mut fds, None, None) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        let ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let (child, order) = (ready(&fds[0]), ready(&fds[1]));
        if child {
            // Before the reaping above: a child that ends later raises it again.
            let _ = children.read_signal();
        }
        if order {
            match recv_packet(control).ok().flatten().and_then(|packet| packet.bytes.first().copied()) {
                Some(TERMINATE) if !ended => {
                    let _ = killpg(Pid::from_raw(tool), Signal::SIGTERM);
                    let _ = killpg(Pid::from_raw(tool), Signal::SIGCONT);
                }
                // Everybody here but PID 1.
                Some(KILL_OTHERS) => drop(kill(Pid::from_raw(-1), Signal::SIGKILL)),
                Some(_) => {}
                // The worker is gone; so shall be all that is here.
                None => return Ok(()),
            }
        }
    }
}

/// Reaps until nobody else has ended.
fn reap_orphans() -> Children {
    loop {
        match reap(-1) {
            Children::Ended(..) => {}
            other => return other,
        }
    }
}
