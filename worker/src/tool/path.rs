//! Paths as models write them, and the kernel's errors about them in words.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use nix::libc;

use super::Failure;

/// The absolute path that is meant.
pub(super) fn resolve(path: &str, cwd: &Path) -> Result<PathBuf, Failure> {
    if path.is_empty() {
        return Err(Failure("The path is empty. Give the path of a file or directory.".to_owned()));
    }
    if path.contains('\0') {
        return Err(Failure("The path has a NUL byte, which no path can hold. Send it without.".to_owned()));
    }
    if path == "~" || path.starts_with("~/") {
        return Err(Failure(format!(
            "{path}: ~ is not expanded here. Give an absolute path; `echo ~` in bash prints the home directory."
        )));
    }
    Ok(cwd.join(path))
}

/// An error of the kernel, with what to do.
pub(super) fn io_failure(step: &str, path: &Path, error: &io::Error) -> Failure {
    let shown = path.display();
    let advice = match error.raw_os_error() {
        Some(libc::ENOENT) => {
            let existing = path.ancestors().skip(1).find(|ancestor| ancestor.is_dir());
            return Failure(match existing {
                Some(dir) => format!(
                    "{shown} does not exist. The nearest directory that does is {}; list_dir shows what is in it.",
                    dir.display()
                ),
                None => format!("{shown} does not exist."),
            });
        }
        Some(libc::ENOTDIR) => {
            "A part of the path before its end is a file and not a directory. Check the path."
        }
        Some(libc::EISDIR) => "It is a directory. Give the path of a file; list_dir shows what is in it.",
        Some(libc::EACCES | libc::EPERM) => {
            "The user as whom tools run may not do this. Choose another path, or ask for the permission."
        }
        Some(libc::EROFS) => "The file system is read-only. Choose another path.",
        Some(libc::ENOSPC | libc::EDQUOT) => "There is no space left. Free some, or choose another path.",
        Some(libc::ELOOP) => {
            "Its symbolic links lead in a circle. Correct the links, or choose another path."
        }
        Some(libc::ENAMETOOLONG) => "The name is too long for the file system. Choose a shorter one.",
        Some(libc::EFBIG) => "The file would be larger than is allowed. Write less.",
        _ => "",
    };
    let space = if advice.is_empty() { "" } else { " " };
    Failure(format!("Cannot {step} {shown}: {error}.{space}{advice}"))
}

/// Refuses everything but regular files.
pub(super) fn must_be_regular(path: &Path, metadata: &Metadata) -> Result<(), Failure> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let shown = path.display();
    if kind.is_dir() {
        return Err(Failure(format!("{shown} is a directory. Use list_dir to see what is in it.")));
    }
    let what = if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(Failure(format!(
        "{shown} is {what} and not a regular file. Only regular files can be read or written here."
    )))
}
