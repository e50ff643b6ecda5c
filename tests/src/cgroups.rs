//! What the kernel says about control groups.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the cgroup v2 tree is mounted, if it is.
#[must_use]
pub fn mount_point() -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    text.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        (right.split_ascii_whitespace().next()? == "cgroup2")
            .then(|| left.split_ascii_whitespace().nth(4).map(PathBuf::from))?
    })
}

/// The group of a process, as a directory.
#[must_use]
pub fn group_of(pid: i32) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(mount_point()?.join(path.trim_start_matches('/')))
}

/// Every group below this directory, itself not included.
#[must_use]
pub fn groups_below(directory: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut open = vec![directory.to_owned()];
    while let Some(parent) = open.pop() {
        let Ok(entries) = fs::read_dir(parent) else { continue };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
                found.insert(entry.path());
            }
        }
    }
    found
}

/// Whether this process may make groups and put processes into them at once.
#[must_use]
pub fn usable() -> bool {
    let own = i32::try_from(std::process::id()).ok().and_then(group_of);
    let Some(own) = own else { return false };
    let probe = own.join(format!("toolcell-probe-{}", std::process::id()));
    let made = fs::create_dir(&probe).is_ok();
    let kills = probe.join("cgroup.kill").exists();
    made && fs::remove_dir(&probe).is_ok() && kills
}
