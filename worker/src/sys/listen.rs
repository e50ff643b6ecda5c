//! Sockets that the service manager hands over (`LISTEN_FDS`).

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

/// Number of the first descriptor that is handed over.
const FIRST_FD: i32 = 3;

/// More than anybody hands over; a larger number is no number of descriptors.
const MAX_FDS: i32 = 64;

/// Takes the descriptors that are meant for this process, the first time; later, and where none are meant for it,
/// there are none. They become close-on-exec.
#[must_use]
pub fn take_listen_fds() -> Vec<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
    let meant_for_us = number("LISTEN_PID").is_some_and(|pid| pid == nix::unistd::getpid().as_raw());
    let count = number("LISTEN_FDS").unwrap_or(0);
    if !meant_for_us || !(1..=MAX_FDS).contains(&count) || TAKEN.swap(true, Ordering::SeqCst) {
        return Vec::new();
    }
    (FIRST_FD..FIRST_FD + count)
        .filter_map(|fd| {
            // SAFETY: setting a flag on a number that is no descriptor fails and does nothing else.
            let known = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
            // SAFETY: it is open, the protocol gives it to the process that LISTEN_PID names, which nobody else in
            // it knows of, and `TAKEN` lets it be taken once.
            known.then(|| unsafe { OwnedFd::from_raw_fd(fd) })
        })
        .collect()
}
