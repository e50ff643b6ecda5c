//! The birth of an idle worker.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use toolcell_protocol::worker_api::{Stage, WorkerKind};

use super::Facts;
use super::leaves::Leaves;
use crate::cgroup::Cgroup;
use crate::sys::clone::{Forked, Placement, fork};
use crate::sys::process::{exit_now, step_back};
use crate::{cgroup, worker};

/// A worker that was born.
#[derive(Debug)]
pub(super) struct Born {
    pub(super) pid: i32,
    /// The daemon's end.
    pub(super) socket: OwnedFd,
    pub(super) pidfd: OwnedFd,
}

/// Why none was.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) stage: Stage,
    pub(super) errno: Errno,
}

/// Makes the leaf and the socket and forks. The new process never returns from here.
pub(super) fn worker(
    facts: &Facts,
    leaves: &Leaves,
    kind: WorkerKind,
    leaf: Option<&str>,
    hurry: bool,
) -> Result<Born, Failure> {
    let failed = |stage| move |errno| Failure { stage, errno };
    let leaf = leaf.map(|name| leaves.create(name)).transpose().map_err(failed(Stage::Cgroup))?;
    let (theirs, ours) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
        .map_err(failed(Stage::Pipes))?;
    // A worker that execs must survive the kill of the leaf, to tell what happened; a built-in has no other
    // process than the worker itself, and its limits are the leaf's.
    let placement = match kind {
        WorkerKind::Exec => Placement::default(),
        WorkerKind::Builtin => Placement { cgroup: leaf.as_ref().map(AsFd::as_fd), namespaces: 0 },
    };
    match fork(placement).map_err(failed(Stage::Fork))? {
        Forked::Parent { pid, pidfd } => Ok(Born { pid, socket: theirs, pidfd }),
        Forked::Child { must_join } => {
            // Unwinding must not get out of here: above are the spawner's frames.
            let code = std::panic::catch_unwind(|| live(facts, kind, ours, leaf, must_join, hurry));
            step_back();
            exit_now(code.unwrap_or(worker::EXIT_PANICKED))
        }
    }
}

fn live(
    facts: &Facts,
    kind: WorkerKind,
    socket: OwnedFd,
    leaf: Option<Cgroup>,
    must_join: bool,
    hurry: bool,
) -> i32 {
    if must_join
        && let Some(leaf) = &leaf
        && cgroup::join(leaf.as_fd()).is_err()
    {
        return worker::EXIT_NO_CELL;
    }
    worker::run(facts, kind, socket, leaf, hurry)
}
