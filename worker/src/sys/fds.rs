//! Closing everything but a few descriptors.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

/// Standard input. Not `std::io::stdin()`, which makes a buffer.
// SAFETY: descriptor 0 is open for the whole life of every process that uses this: it is only ever replaced.
pub(crate) const STDIN: BorrowedFd<'static> = unsafe { BorrowedFd::borrow_raw(0) };

/// Standard output. Not `std::io::stdout()`, which makes a buffer.
// SAFETY: as above.
pub(crate) const STDOUT: BorrowedFd<'static> = unsafe { BorrowedFd::borrow_raw(1) };

/// Closes the descriptors 3 and up that are not kept.
///
/// One `close_range` per gap; where the kernel or a filter refuses that, the open ones are looked up in
/// `/proc`, never counted up to a limit that may be a billion.
pub(crate) fn close_all_but(keep: &[BorrowedFd<'_>]) {
    let mut kept = [0_u32; 8];
    let mut count = 0;
    for fd in keep.iter().take(kept.len()) {
        if let Ok(number) = u32::try_from(fd.as_raw_fd()) {
            kept[count] = number;
            count += 1;
        }
    }
    let kept = &mut kept[..count];
    kept.sort_unstable();
    let mut from = 3;
    let mut refused = false;
    for &number in kept.iter() {
        if number > from {
            refused |= close_range(from, number - 1).is_err();
        }
        from = from.max(number + 1);
    }
    refused |= close_range(from, u32::MAX).is_err();
    if refused {
        close_listed(kept);
    }
}

/// `close_range` alone, for the moment between clone and exec. Everything of ours is close-on-exec anyway; this
/// is the second lock on the door, so a kernel without it is no failure.
pub(crate) fn close_from_3() -> Result<(), Errno> {
    match close_range(3, u32::MAX) {
        Err(Errno::ENOSYS | Errno::EPERM | Errno::EACCES) => Ok(()),
        other => other,
    }
}

fn close_range(first: u32, last: u32) -> Result<(), Errno> {
    // SAFETY: every owner of a descriptor in the range is a value of this process image that is never used
    // again: callers are fresh copies of the spawner which keep what they name, or about to exec.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

fn close_listed(kept: &[u32]) {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<u32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for number in open {
        if number >= 3 && !kept.contains(&number) {
            // SAFETY: as in `close_range`. The directory's own descriptor is closed already: that is EBADF.
            unsafe { libc::close(number.cast_signed()) };
        }
    }
}
