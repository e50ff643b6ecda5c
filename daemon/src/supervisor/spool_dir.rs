//! The directory of spool files: ours alone while we live, empty when we end.
//!
//! Workers write the files (as the daemon's user, mode 0600) and [`super::output`] reads them. Two daemons in one
//! directory would remove each other's, so a lock file says whose it is; the kernel drops the lock with the process.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;
use thiserror::Error;

/// Name of the lock file in it.
const LOCK: &str = "lock";

/// What the name of a spool file ends with.
const EXTENSION: &str = "spool";

/// Why a directory cannot be used.
#[derive(Debug, Error)]
pub enum SpoolError {
    /// A step failed.
    #[error(
        "cannot {step} the spool directory {path}: {source}; set output.spool_dir elsewhere, or spool_bytes = 0"
    )]
    Io {
        /// What was tried.
        step: &'static str,
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others could read or replace what is in it.
    #[error(
        "the spool directory {path} belongs to uid {uid} and has mode {mode:04o}; it must be ours and 0700 (chown, chmod)"
    )]
    NotPrivate {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its mode.
        mode: u32,
    },
    /// Another daemon uses it.
    #[error("the spool directory {path} is another daemon's; set output.spool_dir elsewhere")]
    InUse {
        /// The directory.
        path: PathBuf,
    },
}

/// The directory, until dropped.
#[derive(Debug)]
pub struct SpoolDir {
    path: PathBuf,
    /// `None`: a private directory that somebody else removes.
    lock: Option<Flock<File>>,
}

impl SpoolDir {
    /// A directory that nobody else knows.
    #[must_use]
    pub const fn of_our_own(path: PathBuf) -> Self {
        Self { path, lock: None }
    }

    /// Makes the directory if need be, takes it, and removes what a dead daemon has left in it.
    ///
    /// # Errors
    /// [`SpoolError`].
    pub fn take(path: PathBuf) -> Result<Self, SpoolError> {
        let failed = |step| {
            let path = path.clone();
            move |source| SpoolError::Io { step, path, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed("make"))?;
        let found = std::fs::symlink_metadata(&path).map_err(failed("look at"))?;
        let mode = found.mode() & 0o7777;
        if found.uid() != Uid::effective().as_raw() || mode & 0o077 != 0 || !found.is_dir() {
            return Err(SpoolError::NotPrivate { path, uid: found.uid(), mode });
        }
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path.join(LOCK))
            .map_err(failed("lock"))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|_| SpoolError::InUse { path: path.clone() })?;
        remove_files(&path);
        Ok(Self { path, lock: Some(lock) })
    }

    /// Where files go.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SpoolDir {
    fn drop(&mut self) {
        if self.lock.is_some() {
            remove_files(&self.path);
            let _ = std::fs::remove_file(self.path.join(LOCK));
            // Stays if there is anything else in it.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// Spool files belong to calls that only their daemon knows.
fn remove_files(path: &Path) {
    let Ok(entries) = std::fs::read_dir(path) else { return };
    for entry in entries.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == EXTENSION) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_has_one_owner_and_is_gone_with_it() {
        let base = tempfile::tempdir().expect("a directory");
        let path = base.path().join("a/spool");
        let first = SpoolDir::take(path.clone()).expect("free");
        assert!(matches!(SpoolDir::take(path.clone()), Err(SpoolError::InUse { .. })));
        std::fs::write(path.join("1.spool"), "x").expect("written");
        drop(first);
        assert!(!path.exists());
        std::fs::create_dir(&path).expect("made");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("set");
        std::fs::write(path.join("2.spool"), "left by a dead daemon").expect("written");
        let second = SpoolDir::take(path.clone()).expect("free again");
        assert!(!path.join("2.spool").exists());
        drop(second);
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let base = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(base.path(), std::fs::Permissions::from_mode(0o755)).expect("set");
        let error = SpoolDir::take(base.path().to_owned()).expect_err("others can enter").to_string();
        assert!(error.contains("0755") && error.contains("0700"), "{error}");
    }
}
