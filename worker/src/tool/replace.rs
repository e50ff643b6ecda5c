//! Puts new content into a file, whole or not at all.
//!
//! ```text
//! open, lock ─▶ temporary file in the same directory ─▶ owner and mode of the old one ─▶ rename over it
//!                          └──── where that would lose something (owner, hard links, a mount) or is not
//!                                allowed (directory): written into the old file, which is not atomic
//! ```
//!
//! A symbolic link is followed to the file that it names, and stays. The lock (`flock`, advisory) keeps two calls of
//! one batch that edit one file from losing each other's edit. Nothing is synced to the disk: what is promised is
//! that no reader sees half a file, not that a power cut leaves the new one.

use std::fs::{self, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;

use super::Failure;
use super::path::{io_failure, must_be_regular};

/// How long to wait for another edit of the file.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// Pause between two looks at a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Symbolic links that are followed, as many as the kernel follows.
const MAX_LINKS: usize = 40;

/// Names that are tried for the temporary file.
const MAX_TEMPORARY_NAMES: u32 = 100;

/// What is to be written.
#[derive(Debug)]
pub(super) struct Target {
    /// Where: no symbolic link any more.
    pub(super) path: PathBuf,
    /// The file that is there, opened for writing and locked.
    pub(super) existing: Option<Existing>,
}

/// A file that is to be replaced.
#[derive(Debug)]
pub(super) struct Existing {
    /// Open and locked; also for reading, if that was asked for.
    pub(super) file: File,
    /// When it was opened.
    pub(super) metadata: Metadata,
    /// Open for writing too. A program that runs is not, and can only be replaced as a whole.
    is_writable: bool,
}

impl Target {
    /// Follows links, opens and locks what is there. With `read` the file can be read as well.
    pub(super) fn open(path: &Path, read: bool) -> Result<Self, Failure> {
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            // The kernel follows the links first: it refuses those that others planted in a directory like /tmp.
            let meant = match fs::metadata(path) {
                Ok(metadata) => Some(metadata),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(io_failure("look at", path, &error)),
            };
            let real = follow_links(path)?;
            let Some(meant) = meant else { return Ok(Self { path: real, existing: None }) };
            // Before it is opened: to open a device can do something.
            must_be_regular(&real, &meant)?;
            let existing = open_existing(&real, read)?;
            lock(&existing.file, &real, deadline)?;
            // Another edit may have put a new file in its place while we waited.
            let opened = &existing.metadata;
            if fs::metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (opened.dev(), opened.ino())) {
                return Ok(Self { path: real, existing: Some(existing) });
            }
            if Instant::now() > deadline {
                return Err(Failure(format!(
                    "{} is replaced again and again by another program. Try again later.",
                    path.display()
                )));
            }
        }
    }

    /// Writes the new content.
    pub(super) fn write(self, content: &[u8]) -> Result<(), Failure> {
        let Some(existing) = self.existing else {
            if let Some(parent) = self.path.parent() {
                fs::create_dir_all(parent)
                    .map_err(|error| io_failure("create the directory", parent, &error))?;
            }
            let temporary = Temporary::create(&self.path, 0o666)
                .map_err(|error| io_failure("create", &self.path, &error))?;
            return temporary
                .fill(content)
                .and_then(|temporary| temporary.rename(&self.path))
                .map_err(|error| io_failure("write", &self.path, &error));
        };
        match existing.replace(&self.path, content) {
            Ok(()) => Ok(()),
            Err(error) if !existing.is_writable || is_final(&error) => {
                Err(io_failure("write", &self.path, &error))
            }
            Err(_) => existing.overwrite(content).map_err(|error| {
                let Failure(text) = io_failure("write", &self.path, &error);
                Failure(format!("{text} The file may now hold only a part of its content: read it."))
            }),
        }
    }
}

/// Whether writing into the old file would fail as well; then it is better left alone.
fn is_final(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::EIO))
}

impl Existing {
    /// Puts a new file in its place.
    fn replace(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let old = &self.metadata;
        if old.nlink() > 1 {
            return Err(io::Error::other("it has several names, which must go on naming one file"));
        }
        let temporary = Temporary::create(path, 0o600)?;
        let new = temporary.file.metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            std::os::unix::fs::fchown(&temporary.file, Some(old.uid()), Some(old.gid()))?;
        }
        let temporary = temporary.fill(content)?;
        // Not set-uid and set-gid: the kernel takes them away as well when a file is written.
        temporary.file.set_permissions(Permissions::from_mode(old.mode() & 0o1777))?;
        temporary.rename(path)
    }

    /// Writes into the file itself.
    fn overwrite(&self, content: &[u8]) -> io::Result<()> {
        let mut file = &self.file;
        file.rewind()?;
        file.write_all(content)?;
        file.set_len(content.len() as u64)
    }
}

fn follow_links(path: &Path) -> Result<PathBuf, Failure> {
    if path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err(Failure(format!("{} names a directory. Give the path of a file.", path.display())));
    }
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            // A relative target is taken from the link's directory; an absolute one replaces it.
            Ok(target) => path = path.parent().unwrap_or_else(|| Path::new("/")).join(target),
            // EINVAL: not a link. Other errors come again, and are told, when it is opened.
            Err(_) => return Ok(path),
        }
    }
    Err(io_failure("follow", &path, &io::Error::from_raw_os_error(libc::ELOOP)))
}

fn open_existing(path: &Path, read: bool) -> Result<Existing, Failure> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
    let opened = OpenOptions::new().read(read).write(true).custom_flags(flags).open(path);
    let (file, is_writable) = match opened {
        Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => {
            (OpenOptions::new().read(true).custom_flags(flags).open(path), false)
        }
        opened => (opened, true),
    };
    let file = file.map_err(|error| io_failure("open for writing", path, &error))?;
    let metadata = file.metadata().map_err(|error| io_failure("look at", path, &error))?;
    must_be_regular(path, &metadata)?;
    Ok(Existing { file, metadata, is_writable })
}

fn lock(file: &File, path: &Path, deadline: Instant) -> Result<(), Failure> {
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::WouldBlock) => {
                return Err(Failure(format!(
                    "{} is locked by another program, for more than {} s now. Try again later.",
                    path.display(),
                    LOCK_PATIENCE.as_secs()
                )));
            }
            // A file system without locks: go on without one.
            Err(TryLockError::Error(_)) => return Ok(()),
        }
    }
}

/// A file next to the one to write, removed unless it was renamed.
struct Temporary {
    path: PathBuf,
    file: File,
    is_renamed: bool,
}

impl Temporary {
    fn create(beside: &Path, mode: u32) -> io::Result<Self> {
        let dir = beside.parent().unwrap_or_else(|| Path::new("/"));
        let pid = std::process::id();
        let mut number = 0;
        loop {
            // Process ids repeat between PID namespaces, so the name may be taken.
            let path = dir.join(format!(".toolcell-{pid}-{number}.tmp"));
            match OpenOptions::new().write(true).create_new(true).mode(mode).open(&path) {
                Ok(file) => return Ok(Self { path, file, is_renamed: false }),
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists && number < MAX_TEMPORARY_NAMES =>
                {
                    number += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn fill(mut self, content: &[u8]) -> io::Result<Self> {
        self.file.write_all(content)?;
        Ok(self)
    }

    fn rename(mut self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_renamed {
            // Nothing can be done about a failure here, and the caller has an error to tell already.
            let _ = fs::remove_file(&self.path);
        }
    }
}
