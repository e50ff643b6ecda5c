//! Control groups, version 2 only: where they are, and the few files that a cell needs.
//!
//! Talked to by the daemon (which makes the base below which the cells live and sets limits), the spawner (which
//! makes and removes one leaf a cell) and the worker (which kills the leaf and reads its counters). Nothing
//! here assumes `/sys/fs/cgroup`: on hosts that still mount version 1 too, version 2 is elsewhere.

mod mountinfo;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use thiserror::Error;

pub use mountinfo::{Mount, find_mount, own_path};

/// A step that failed.
#[derive(Debug, Error)]
#[error("cannot {step} {path}: {source}", path = path.display())]
pub struct CgroupError {
    /// What was tried.
    pub step: &'static str,
    /// On what.
    pub path: PathBuf,
    /// What the kernel said.
    pub source: io::Error,
}

/// How a removal went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It is gone.
    Removed,
    /// Something is still in it: try again later.
    Busy,
}

/// The directory of the cgroup that this process is in.
///
/// # Errors
/// [`CgroupError`]: there is no cgroup2 mount, or it does not show our group.
pub fn own_directory() -> Result<PathBuf, CgroupError> {
    let read = |path: &str| {
        std::fs::read_to_string(path).map_err(|source| CgroupError {
            step: "read",
            path: path.into(),
            source,
        })
    };
    let missing = |path: &str, what: &str| CgroupError {
        step: "use",
        path: path.into(),
        source: io::Error::new(io::ErrorKind::NotFound, what.to_owned()),
    };
    let mount = find_mount(&read("/proc/self/mountinfo")?)
        .ok_or_else(|| missing("/proc/self/mountinfo", "no cgroup2 file system is mounted"))?;
    let own = own_path(&read("/proc/self/cgroup")?)
        .ok_or_else(|| missing("/proc/self/cgroup", "this process is in no version 2 group"))?;
    mount.directory_of(&own).ok_or_else(|| missing(&own, "the mount does not show this group"))
}

/// Makes a group; its parent must exist.
///
/// # Errors
/// [`CgroupError`] with the kernel's answer.
pub fn create(path: &Path) -> Result<(), CgroupError> {
    std::fs::create_dir(path).map_err(|source| CgroupError { step: "make", path: path.to_owned(), source })
}

/// Removes a group. One that is not there counts as removed.
///
/// # Errors
/// [`CgroupError`] with the kernel's answer, but for "busy".
pub fn remove(path: &Path) -> Result<Removal, CgroupError> {
    removal(std::fs::remove_dir(path)).map_err(|source| CgroupError {
        step: "remove",
        path: path.to_owned(),
        source,
    })
}

fn removal(result: io::Result<()>) -> io::Result<Removal> {
    match result {
        Ok(()) => Ok(Removal::Removed),
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOENT) => Ok(Removal::Removed),
            // A directory with groups below says ENOTEMPTY, one with processes EBUSY.
            Some(Errno::EBUSY | Errno::ENOTEMPTY) => Ok(Removal::Busy),
            _ => Err(error),
        },
    }
}

/// An open cgroup directory. Its files are reached through the descriptor, so a group of the same name that is
/// made later is never touched by mistake.
#[derive(Debug)]
pub struct Cgroup {
    directory: OwnedFd,
}

impl Cgroup {
    /// Opens a group.
    ///
    /// # Errors
    /// [`CgroupError`] with the kernel's answer.
    pub fn open(path: &Path) -> Result<Self, CgroupError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        nix::fcntl::open(path, flags, Mode::empty())
            .map(|directory| Self { directory })
            .map_err(|error| CgroupError { step: "open", path: path.to_owned(), source: error.into() })
    }

    /// Makes a group below this one and opens it.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` for a name that is not one component.
    pub fn create_child(&self, name: &str) -> Result<Self, Errno> {
        check_name(name)?;
        mkdirat(&self.directory, name, Mode::from_bits_truncate(0o755))?;
        self.open_child(name).inspect_err(|_| {
            let _ = self.remove_child(name);
        })
    }

    /// Opens a group below this one.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` for a name that is not one component.
    pub fn open_child(&self, name: &str) -> Result<Self, Errno> {
        check_name(name)?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        openat(&self.directory, name, flags, Mode::empty()).map(|directory| Self { directory })
    }

    /// Removes a group below this one. One that is not there counts as removed.
    ///
    /// # Errors
    /// The kernel's, but for "busy".
    pub fn remove_child(&self, name: &str) -> io::Result<Removal> {
        check_name(name)?;
        removal(unlinkat(&self.directory, name, UnlinkatFlags::RemoveDir).map_err(io::Error::from))
    }

    /// Kills every process in it and below, forking ones included.
    ///
    /// # Errors
    /// The kernel's; `ENOENT` before Linux 5.14.
    pub fn kill(&self) -> io::Result<()> {
        self.write("cgroup.kill", b"1")
    }

    /// Whether a process is in it or below, zombies not counted.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_populated(&self) -> io::Result<bool> {
        Ok(counter(&self.read("cgroup.events")?, "populated").unwrap_or(0) != 0)
    }

    /// The processes in it (not below).
    ///
    /// # Errors
    /// The kernel's.
    pub fn processes(&self) -> io::Result<Vec<i32>> {
        Ok(self.read("cgroup.procs")?.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// CPU time of everything that was ever in it, in microseconds.
    ///
    /// # Errors
    /// The kernel's.
    pub fn cpu_usage_us(&self) -> io::Result<u64> {
        Ok(counter(&self.read("cpu.stat")?, "usage_usec").unwrap_or(0))
    }

    /// Processes that the out-of-memory killer ended in it; `None` without the memory controller.
    #[must_use]
    pub fn oom_kills(&self) -> Option<u64> {
        counter(&self.read("memory.events").ok()?, "oom_kill")
    }

    /// Most memory that it ever used; `None` without the memory controller.
    #[must_use]
    pub fn peak_memory_bytes(&self) -> Option<u64> {
        self.read("memory.peak").ok()?.trim().parse().ok()
    }

    /// Moves this process into it. Only for where it cannot be born there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn join(&self) -> io::Result<()> {
        self.write("cgroup.procs", b"0")
    }

    /// Reads one of its files.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read(&self, file: &str) -> io::Result<String> {
        let fd = openat(&self.directory, file, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        let mut text = String::new();
        std::fs::File::from(fd).read_to_string(&mut text)?;
        Ok(text)
    }

    /// Writes one of its files.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write(&self, file: &str, value: &[u8]) -> io::Result<()> {
        write_file(self.directory.as_fd(), file, value)
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Moves this process into the group behind a directory's descriptor. Allocates nothing.
pub(crate) fn join(directory: BorrowedFd<'_>) -> io::Result<()> {
    write_file(directory, "cgroup.procs", b"0")
}

fn write_file(directory: BorrowedFd<'_>, file: &str, value: &[u8]) -> io::Result<()> {
    let fd = openat(directory, file, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    std::fs::File::from(fd).write_all(value)
}

fn check_name(name: &str) -> Result<(), Errno> {
    if name.is_empty() || name == "." || name == ".." || name.contains('/') {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// One value of a file of `name value` lines.
fn counter(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_whole_name() {
        let text = "populated_more 7\npopulated 1\nfrozen 0\n";
        assert_eq!(counter(text, "populated"), Some(1));
        assert_eq!(counter(text, "frozen"), Some(0));
        assert_eq!(counter(text, "froze"), None);
        assert_eq!(counter("", "populated"), None);
    }

    #[test]
    fn a_leaf_name_cannot_leave_its_base() {
        let base = Cgroup::open(Path::new("/tmp")).expect("any directory will do");
        for name in ["", ".", "..", "a/b", "/etc"] {
            assert_eq!(base.create_child(name).expect_err(name), Errno::EINVAL);
            assert!(base.remove_child(name).is_err(), "{name}");
        }
    }

    #[test]
    fn what_is_not_there_counts_as_removed() {
        let missing = Path::new("/tmp/toolcell-there-is-no-such-directory");
        assert_eq!(remove(missing).expect("no failure"), Removal::Removed);
    }
}
