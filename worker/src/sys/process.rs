//! Waiting, signals, the end.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::SigSet;
use toolcell_protocol::worker_api::WaitStatus;

/// What a look at one's children found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Children {
    /// There are none: for a subreaper the proof that no descendant is left.
    None,
    /// There are some, and none has ended.
    Alive,
    /// This one has ended and is reaped.
    Ended(i32, WaitStatus),
}

/// Reaps one child that has ended, without waiting. `pid` is one child, or -1 for any.
///
/// nix's `waitpid` fails on a child that a real-time signal ended, and its status would be lost.
pub(crate) fn reap(pid: i32) -> Children {
    loop {
        let mut status = 0;
        // SAFETY: `status` is valid for the call.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 => return Children::Alive,
            -1 if Errno::last() == Errno::EINTR => {}
            -1 => return Children::None,
            ended => return Children::Ended(ended, wait_status(status)),
        }
    }
}

/// Reads the kernel's status word.
pub(crate) fn wait_status(word: i32) -> WaitStatus {
    if libc::WIFSIGNALED(word) {
        WaitStatus::Signaled(libc::WTERMSIG(word))
    } else {
        WaitStatus::Exited(libc::WEXITSTATUS(word))
    }
}

/// Waits until a SIGCHLD is pending and takes it, or the time is over. SIGCHLD must be blocked.
pub(crate) fn wait_for_sigchld(timeout: Duration) {
    let mut set = SigSet::empty();
    set.add(nix::sys::signal::Signal::SIGCHLD);
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    };
    // SAFETY: set and timeout are valid for the call; a null `siginfo_t` is allowed.
    unsafe { libc::sigtimedwait(set.as_ref(), std::ptr::null_mut(), &raw const timeout) };
}

/// Every signal back to its default. With all of them blocked in the spawner and its workers nothing is ever
/// delivered there, and what they start needs no reset of its own.
pub(crate) fn default_dispositions() {
    // What the kernel calls a sigaction, all zeros: SIG_DFL, no flag, empty mask. Not through libc, which keeps
    // two signals to itself that whoever started the daemon may have left ignored.
    let default = [0_u64; 8];
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: the array is larger than any architecture's sigaction, 8 is the size of the kernel's mask.
        // SIG_DFL runs no code of ours; KILL and STOP are refused, which is fine. The Rust runtime's handlers only
        // serve a message on stack overflow.
        unsafe {
            let old = std::ptr::null_mut::<u64>();
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), old, 8_usize);
        }
    }
}

/// Lets everybody else go first. What is left to do is to give memory back, and those who wait for what this process
/// has just said, up to the agent's next call, must not wait for that too.
pub(crate) fn step_back() {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: 300_000 };
    // SAFETY: the pointer is valid for the call; nothing is told of an interrupted sleep.
    unsafe { libc::nanosleep(&raw const pause, std::ptr::null_mut()) };
}

/// Ends this process at once: no destructor, no exit handler, no flush.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: never returns; nothing is run.
    unsafe { libc::_exit(code) }
}

/// Sends a signal to the process behind a pidfd, which can never be another process of the same number.
///
/// # Errors
/// Those of `pidfd_send_signal`: `ESRCH` when it was reaped.
pub fn pidfd_send_signal(pidfd: impl AsFd, signal: i32) -> io::Result<()> {
    // SAFETY: plain numbers and a null pointer, which the kernel takes as "no details".
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_fd().as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A pidfd of a process, close-on-exec.
pub(crate) fn pidfd_open(pid: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: plain numbers.
    let result = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let number = i32::try_from(result).map_err(|_| Errno::EOVERFLOW)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_word_of_the_kernel_is_read() {
        assert_eq!(wait_status(0), WaitStatus::Exited(0));
        assert_eq!(wait_status(0x0300), WaitStatus::Exited(3));
        assert_eq!(wait_status(0xff00), WaitStatus::Exited(255));
        assert_eq!(wait_status(9), WaitStatus::Signaled(9));
        // With a core dump, and a real-time signal.
        assert_eq!(wait_status(0x80 | 11), WaitStatus::Signaled(11));
        assert_eq!(wait_status(34), WaitStatus::Signaled(34));
    }

    #[test]
    fn a_pidfd_takes_signals_for_its_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pidfd = pidfd_open(i32::try_from(child.id()).expect("a pid")).expect("a pidfd");
        pidfd_send_signal(&pidfd, libc::SIGTERM).expect("sent");
        let status = child.wait().expect("reaped");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGTERM));
        assert_eq!(pidfd_send_signal(&pidfd, 0).expect_err("it is gone").raw_os_error(), Some(libc::ESRCH));
    }
}
