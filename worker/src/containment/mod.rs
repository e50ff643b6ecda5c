//! What holds a tool's process tree together, kills it, and proves that it is gone.
//!
//! ```text
//! cgroup         the tool is born in a leaf of its own; cgroup.kill reaches all of it, forking or not
//! pid_namespace  an init of ours is PID 1 there; the kernel kills the rest with it
//! weak           stop, walk, kill, as subreaper                                           (always there as well)
//! ```
//!
//! The proof is the same for all: this worker is the subreaper of everything it starts, so "no child" (`ECHILD`)
//! means that no descendant is left. What could have left the tree is outside every containment but the cgroup,
//! so there the leaf must be empty too when it had to be killed.

mod init;
pub(crate) mod namespace;
pub(crate) mod probe;
pub(crate) mod process;
pub(crate) mod walk;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::resource::UsageWho;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, SysconfVar, sysconf};
use toolcell_protocol::call::{Containment, Leftover};
use toolcell_protocol::worker_api::{Usage, WaitStatus};

use self::namespace::Namespace;
use crate::cgroup::Cgroup;
use crate::sys::process::{Children, reap, wait_for_sigchld};
use crate::usage::usage;

/// Longest wait for a child between two rounds of killing.
const FIRST_ROUND: Duration = Duration::from_millis(5);
/// Time for a namespace's init to kill, reap and tell, so that the tree's CPU time and its main process's status
/// are not lost with it. It takes a millisecond on a host that is not busy.
const POLITE_ROUND: Duration = Duration::from_millis(100);
const LONGEST_ROUND: Duration = Duration::from_millis(100);

/// A tool's tree.
#[derive(Debug)]
pub(crate) struct Tree {
    me: i32,
    main: i32,
    status: Option<WaitStatus>,
    /// No child is left.
    empty: bool,
    leaf: Option<Cgroup>,
    namespace: Option<Namespace>,
}

impl Tree {
    /// `main` is the tool's main process, started as our child or by the namespace's init.
    pub(crate) const fn new(me: i32, main: i32, leaf: Option<Cgroup>, namespace: Option<Namespace>) -> Self {
        Self { me, main, status: None, empty: false, leaf, namespace }
    }

    pub(crate) const fn main(&self) -> i32 {
        self.main
    }

    /// How the main process ended, once it has.
    pub(crate) const fn status(&self) -> Option<WaitStatus> {
        self.status
    }

    pub(crate) const fn containment(&self) -> Containment {
        match (&self.leaf, &self.namespace) {
            (Some(_), _) => Containment::Cgroup,
            (None, Some(_)) => Containment::PidNamespace,
            (None, None) => Containment::Weak,
        }
    }

    pub(crate) const fn leaf(&self) -> Option<&Cgroup> {
        self.leaf.as_ref()
    }

    /// Where the namespace's init speaks, if there is one.
    pub(crate) fn control(&self) -> Option<BorrowedFd<'_>> {
        self.namespace.as_ref().map(AsFd::as_fd)
    }

    /// Reaps all that has ended.
    pub(crate) fn reap(&mut self) {
        // Where there is nobody, nobody comes any more.
        while !self.empty {
            match reap(-1) {
                Children::None => {
                    self.empty = true;
                    return;
                }
                Children::Alive => return,
                Children::Ended(pid, status) if pid == self.main && self.namespace.is_none() => {
                    self.status = Some(status);
                }
                Children::Ended(..) => {}
            }
        }
    }

    /// Hears what the namespace's init has to say.
    pub(crate) fn hear_init(&mut self) {
        if let Some(namespace) = &mut self.namespace {
            let heard = namespace.hear();
            self.status = self.status.or(heard);
        }
        self.reap();
        // Without its init the namespace is gone, and the kernel has killed whoever was in it.
        if self.empty && self.namespace.is_some() && self.status.is_none() {
            self.status = Some(WaitStatus::Signaled(Signal::SIGKILL as i32));
        }
    }

    /// TERM, then CONT so that a stopped one hears it, to the main process's group.
    pub(crate) fn terminate(&self) {
        match &self.namespace {
            Some(namespace) => namespace.terminate(),
            // Until it is reaped nobody else can have its number.
            None if self.status.is_none() => {
                let group = Pid::from_raw(self.main);
                let _ = killpg(group, Signal::SIGTERM);
                let _ = killpg(group, Signal::SIGCONT);
            }
            None => {}
        }
    }

    /// Who is left, after the main process.
    pub(crate) fn leftovers(&self) -> Vec<Leftover> {
        let pids = match &self.leaf {
            Some(leaf) => leaf.processes().unwrap_or_default(),
            None => walk::descendants(self.me),
        };
        let init = self.namespace.as_ref().map(Namespace::init);
        pids.into_iter()
            .filter(|&pid| Some(pid) != init && pid != self.me)
            .filter_map(process::leftover)
            .collect()
    }

    /// No child is left, not even the namespace's init.
    pub(crate) const fn is_reaped(&self) -> bool {
        self.empty
    }

    /// Whether it is proven that nothing of the tool's is left; the namespace's init may still be.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.reap();
        self.empty || self.namespace.as_ref().is_some_and(Namespace::is_alone)
    }

    /// Kills all of it and waits, at most until the deadline, for the proof that it is gone.
    pub(crate) fn kill(&mut self, deadline: Instant) -> bool {
        let mut pause = if self.namespace.is_some() { POLITE_ROUND } else { FIRST_ROUND };
        for round in 0_u32.. {
            self.reap();
            if self.is_proven_gone() {
                break;
            }
            if round > 0 && Instant::now() >= deadline {
                return false;
            }
            self.signal_all(round);
            let until = Instant::now() + pause;
            loop {
                self.reap();
                let left = until.saturating_duration_since(Instant::now());
                if self.empty || left.is_zero() {
                    break;
                }
                wait_for_sigchld(left);
            }
            if self.empty && !self.is_proven_gone() {
                // Not our children: there is no signal to wait for.
                std::thread::sleep(Duration::from_millis(1));
            }
            pause = (pause * 2).min(LONGEST_ROUND);
        }
        self.hear_init();
        true
    }

    fn is_proven_gone(&self) -> bool {
        self.empty && self.leaf.as_ref().is_none_or(|leaf| !leaf.is_populated().unwrap_or(false))
    }

    fn signal_all(&self, round: u32) {
        if let Some(namespace) = &self.namespace {
            // First politely: its init kills everybody else and tells the main process's true status.
            if round == 0 {
                namespace.kill_others();
                return;
            }
            let _ = kill(Pid::from_raw(namespace.init()), Signal::SIGKILL);
        }
        let leaf_killed = self.leaf.as_ref().is_some_and(|leaf| leaf.kill().is_ok());
        // A process that left its leaf or that is just being born is found by the walk.
        let walk = match (leaf_killed, self.namespace.is_some()) {
            (true, false) => round > 0,
            (_, true) => round > 1,
            (false, false) => true,
        };
        if walk {
            walk::stop_and_kill(self.me, &|_| false, &mut Vec::new());
        }
    }

    /// CPU and memory of what has been reaped, by us or by the namespace's init.
    pub(crate) fn usage(&self) -> Usage {
        let told = self.namespace.as_ref().and_then(Namespace::usage);
        // Once the init is reaped too, its account is in ours, with what it did itself.
        told.filter(|_| !self.empty).unwrap_or_else(|| usage(UsageWho::RUSAGE_CHILDREN))
    }

    /// CPU time of the whole tree so far.
    pub(crate) fn cpu_us(&self) -> u64 {
        if let Some(leaf) = &self.leaf
            && let Ok(usage) = leaf.cpu_usage_us()
        {
            return usage;
        }
        let reaped = usage(UsageWho::RUSAGE_CHILDREN);
        let ticks: u64 =
            walk::descendants(self.me).into_iter().filter_map(process::stat).map(|stat| stat.cpu_ticks).sum();
        let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100).unsigned_abs().max(1);
        reaped.user_cpu_us + reaped.system_cpu_us + ticks * 1_000_000 / per_second
    }
}
