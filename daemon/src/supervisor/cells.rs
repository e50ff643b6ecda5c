//! How this host holds process trees together: chosen once at start, best first, and said why not better.
//!
//! ```text
//! <own cgroup>/toolcell-<daemon's pid>-<start time>/     the base; removed by the spawner at its end
//!     c1, c2, …                                          one leaf a cell, made and removed by the spawner
//! ```
//!
//! The base's name says which process owns it, so that the next daemon can tell a dead one's leftovers and
//! remove them ([`remove_stale`]).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;
use toolcell_protocol::call::Containment;
use toolcell_worker::cgroup::{self, Cgroup, CgroupError};

use crate::config::ContainmentChoice;

/// What the name of a base begins with.
const BASE_PREFIX: &str = "toolcell-";

/// Why the containment that was asked for cannot be had.
#[derive(Debug, Error)]
pub enum CellsError {
    /// No usable cgroup.
    #[error(
        "cells.containment = \"cgroup\" cannot be had: {0}; start the daemon as root or in a delegated cgroup (Delegate=yes), or set \"auto\""
    )]
    Cgroup(#[source] CgroupError),
    /// No PID namespaces.
    #[error("cells.containment = \"pid_namespace\" cannot be had: {0}; set \"auto\"")]
    PidNamespace(String),
}

/// The choice, and what it needs.
#[derive(Debug)]
pub struct Cells {
    containment: Containment,
    reason: Option<String>,
    base: Option<PathBuf>,
    remove_at_exit: Option<PathBuf>,
    next_leaf: AtomicU64,
}

impl Cells {
    /// Chooses, and makes the base where cgroups are chosen.
    ///
    /// # Errors
    /// [`CellsError`] when a containment was asked for by name and cannot be had.
    pub fn choose(choice: ContainmentChoice, remove_at_exit: Option<PathBuf>) -> Result<Self, CellsError> {
        let cells = |containment, reason, base| Self {
            containment,
            reason,
            base,
            remove_at_exit: remove_at_exit.clone(),
            next_leaf: AtomicU64::new(0),
        };
        let try_cgroup = || {
            let own = cgroup::own_directory()?;
            remove_stale(&own);
            make_base(&own)
        };
        match choice {
            ContainmentChoice::Cgroup => {
                let base = try_cgroup().map_err(CellsError::Cgroup)?;
                Ok(cells(Containment::Cgroup, None, Some(base)))
            }
            ContainmentChoice::PidNamespace => {
                pid_namespaces().map_err(CellsError::PidNamespace)?;
                Ok(cells(Containment::PidNamespace, Some("asked for by cells.containment".to_owned()), None))
            }
            ContainmentChoice::Weak => {
                Ok(cells(Containment::Weak, Some("asked for by cells.containment".to_owned()), None))
            }
            ContainmentChoice::Auto => match try_cgroup() {
                Ok(base) => Ok(cells(Containment::Cgroup, None, Some(base))),
                Err(error) => Ok(match pid_namespaces() {
                    Ok(()) => {
                        cells(Containment::PidNamespace, Some(format!("no cgroup of our own: {error}")), None)
                    }
                    Err(why) => cells(
                        Containment::Weak,
                        Some(format!("no cgroup of our own: {error}; no PID namespace: {why}")),
                        None,
                    ),
                }),
            },
        }
    }

    /// How trees are held together.
    #[must_use]
    pub const fn containment(&self) -> Containment {
        self.containment
    }

    /// Why not better.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// The directory below which leaves are made.
    #[must_use]
    pub fn cgroup_base(&self) -> Option<&Path> {
        self.base.as_deref()
    }

    /// Private directory that the spawner removes when the daemon is gone.
    #[must_use]
    pub fn remove_at_exit(&self) -> Option<&Path> {
        self.remove_at_exit.as_deref()
    }

    /// A leaf's name that was never used before.
    pub fn next_leaf(&self) -> Option<String> {
        self.base.as_ref().map(|_| format!("c{}", self.next_leaf.fetch_add(1, Ordering::Relaxed) + 1))
    }

    /// Removes the leaf of a worker whose spawner is gone, as soon as it is empty.
    pub async fn remove_leaf(self: std::sync::Arc<Self>, leaf: String) {
        let Some(path) = self.base.as_ref().map(|base| base.join(&leaf)) else { return };
        for _ in 0..100 {
            match cgroup::remove(&path) {
                Ok(cgroup::Removal::Busy) => {
                    let _ = Cgroup::open(&path).and_then(|group| {
                        group.kill().map_err(|source| CgroupError {
                            step: "kill",
                            path: path.clone(),
                            source,
                        })
                    });
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
                Ok(cgroup::Removal::Removed) => return,
                Err(error) => return tracing::warn!(%error, "cannot remove a cell's cgroup"),
            }
        }
        tracing::warn!(leaf, "a cell's cgroup stays busy; it goes when the daemon ends");
    }

    /// Opens a leaf; `None` when it is gone already.
    #[must_use]
    pub fn open_leaf(&self, leaf: &str) -> Option<Cgroup> {
        Cgroup::open(&self.base.as_ref()?.join(leaf)).ok()
    }
}

/// A base can be used if groups can be made in it and killed.
fn make_base(own: &Path) -> Result<PathBuf, CgroupError> {
    let pid = std::process::id();
    let base = own.join(format!("{BASE_PREFIX}{pid}-{}", start_time(pid).unwrap_or(0)));
    // A base of this very process is a leftover of an earlier daemon in it (an embedded one).
    remove_tree(&base);
    cgroup::create(&base)?;
    let probe = Cgroup::open(&base).and_then(|group| {
        group.kill().map_err(|source| CgroupError { step: "kill", path: base.clone(), source })
    });
    if let Err(error) = probe {
        let _ = cgroup::remove(&base);
        return Err(error);
    }
    Ok(base)
}

/// Kills and removes what daemons that are dead have left.
fn remove_stale(own: &Path) {
    let Ok(entries) = std::fs::read_dir(own) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(BASE_PREFIX)).and_then(|rest| {
            let (pid, started) = rest.split_once('-')?;
            Some((pid.parse::<u32>().ok()?, started.parse::<u64>().ok()?))
        });
        if let Some((pid, started)) = owner
            && start_time(pid) != Some(started)
        {
            tracing::info!(path = %entry.path().display(), "removing the cells of a dead daemon");
            remove_tree(&entry.path());
        }
    }
}

/// Kills everything below and removes it, as far as it goes at once; what stays is the next start's.
fn remove_tree(base: &Path) {
    let Ok(group) = Cgroup::open(base) else { return };
    let _ = group.kill();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(2);
    while group.is_populated().unwrap_or(false) && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    if let Ok(entries) = std::fs::read_dir(base) {
        for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
            let _ = cgroup::remove(&entry.path());
        }
    }
    let _ = cgroup::remove(base);
}

/// When a process was started, in the kernel's ticks since boot: with the pid, a name that is never used twice.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold blanks and brackets; fields are counted after its last bracket.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// Whether a tool can be given a PID namespace of its own.
fn pid_namespaces() -> Result<(), String> {
    toolcell_worker::probe_pid_namespace()
}
