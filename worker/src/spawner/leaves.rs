//! The leaves below the cgroup base: made before a cell, removed after it, however long that takes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use toolcell_protocol::call::Leftover;

use crate::cgroup::{self, Cgroup, Removal};
use crate::containment::process;

/// First pause before a busy leaf is tried again; doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A leaf that could not be removed yet.
#[derive(Debug)]
struct Busy {
    name: String,
    next: Instant,
    pause: Duration,
}

/// The base and the leaves that wait for their removal.
#[derive(Debug)]
pub(super) struct Leaves {
    base: Option<(PathBuf, Cgroup)>,
    busy: Vec<Busy>,
}

impl Leaves {
    /// Opens the base. Without one, or when it cannot be opened, leaves cannot be made.
    pub(super) fn new(base: Option<&Path>) -> Self {
        let base = base.and_then(|path| Some((path.to_owned(), Cgroup::open(path).ok()?)));
        Self { base, busy: Vec::new() }
    }

    pub(super) fn has_controller(&self, name: &str) -> bool {
        self.base
            .as_ref()
            .and_then(|(_, base)| base.read("cgroup.subtree_control").ok())
            .is_some_and(|list| list.split_whitespace().any(|controller| controller == name))
    }

    pub(super) fn create(&self, name: &str) -> Result<Cgroup, Errno> {
        let (_, base) = self.base.as_ref().ok_or(Errno::ENOENT)?;
        base.create_child(name)
    }

    /// Kills what is in a leaf, and lists it.
    pub(super) fn kill(&self, name: &str) -> Vec<Leftover> {
        let Some(leaf) = self.base.as_ref().and_then(|(_, base)| base.open_child(name).ok()) else {
            return Vec::new();
        };
        let found = leaf.processes().unwrap_or_default();
        let found = found.into_iter().filter_map(process::leftover).collect();
        let _ = leaf.kill();
        found
    }

    /// Removes a leaf, now or as soon as it can be.
    pub(super) fn remove(&mut self, name: &str) {
        if !self.try_remove(name) {
            self.busy.push(Busy {
                name: name.to_owned(),
                next: Instant::now() + FIRST_PAUSE,
                pause: FIRST_PAUSE,
            });
        }
    }

    /// When the next busy leaf is to be tried.
    pub(super) fn next_try(&self) -> Option<Instant> {
        self.busy.iter().map(|busy| busy.next).min()
    }

    /// Tries those whose time has come.
    pub(super) fn retry(&mut self, now: Instant) {
        let mut waiting = std::mem::take(&mut self.busy);
        waiting.retain_mut(|busy| {
            if busy.next > now {
                return true;
            }
            if self.try_remove(&busy.name) {
                return false;
            }
            busy.pause = (busy.pause * 2).min(LONGEST_PAUSE);
            busy.next = now + busy.pause;
            true
        });
        waiting.append(&mut self.busy);
        self.busy = waiting;
    }

    /// Removes all that is left, and the base. By now no worker lives.
    pub(super) fn close(&mut self, deadline: Instant) {
        let Some((path, base)) = self.base.take() else { return };
        let _ = base.kill();
        loop {
            let leaves = std::fs::read_dir(&path).into_iter().flatten().flatten();
            for leaf in leaves.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
                let _ = cgroup::remove(&leaf.path());
            }
            if matches!(cgroup::remove(&path), Ok(Removal::Removed)) || Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(FIRST_PAUSE);
        }
    }

    /// True when it is gone. A populated one is killed on the way.
    fn try_remove(&self, name: &str) -> bool {
        let Some((_, base)) = &self.base else { return true };
        match base.remove_child(name) {
            Ok(Removal::Removed) => true,
            Ok(Removal::Busy) => {
                if let Ok(leaf) = base.open_child(name) {
                    let _ = leaf.kill();
                }
                false
            }
            // Nothing that trying again would change.
            Err(_) => true,
        }
    }
}
