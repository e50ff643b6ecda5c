//! Does this kernel, through whatever filter we are under, take the calls that cells are built on? For
//! `toolcell doctor`; nothing else asks, it tries.

use std::io;

use nix::errno::Errno;
use nix::libc;

use super::process::pidfd_open;

/// Whether `clone3` can be called. Makes no process.
///
/// # Errors
/// `ENOSYS` from a kernel before 5.3 or from a filter, `EPERM` from a filter.
pub fn probe_clone3() -> io::Result<()> {
    // SAFETY: no arguments of size 0, which the kernel refuses (EINVAL) before it reads or does anything.
    let result = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::null::<libc::clone_args>(), 0_usize) };
    match Errno::result(result) {
        Err(Errno::EINVAL) => Ok(()),
        Err(errno) => Err(errno.into()),
        Ok(_) => Err(io::Error::other("clone3 took arguments of no size")),
    }
}

/// Whether pidfds can be had.
///
/// # Errors
/// `ENOSYS` from a kernel before 5.3 or from a filter, `EPERM` from a filter.
pub fn probe_pidfd() -> io::Result<()> {
    let pid = i32::try_from(std::process::id()).map_err(io::Error::other)?;
    pidfd_open(pid).map(drop).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_makes_no_process_and_gives_an_answer() {
        for answer in [probe_clone3(), probe_pidfd()] {
            if let Err(error) = answer {
                assert!(matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)), "{error}");
            }
        }
    }
}
