//! The few things about time that the loops need.

use std::io;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::time::TimeSpec;

/// The time from now to `then`, as `ppoll` wants it; zero if it has passed.
pub(crate) fn until(then: Instant) -> TimeSpec {
    TimeSpec::from_duration(then.saturating_duration_since(Instant::now()))
}

/// An interrupted wait is not a failure.
pub(crate) fn not_interrupted(error: Errno) -> io::Result<()> {
    if error == Errno::EINTR { Ok(()) } else { Err(error.into()) }
}
