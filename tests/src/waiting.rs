//! Waiting for a condition, with a deadline and without guessing how long it takes.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

/// Asks again and again until the condition holds; panics with what was seen last when it does not in time.
///
/// # Panics
/// When the deadline passes.
pub fn wait_until<T: Debug>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Result<(), T>,
) -> Duration {
    let started = Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        match look() {
            Ok(()) => return started.elapsed(),
            Err(seen) if started.elapsed() > limit => {
                panic!("{what}: not within {limit:?}; seen last: {seen:?}")
            }
            Err(_) => thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// The same for something that must hold of an empty list.
///
/// # Panics
/// When the deadline passes.
pub fn wait_until_none<T: Debug>(what: &str, limit: Duration, mut look: impl FnMut() -> Vec<T>) -> Duration {
    wait_until(what, limit, || {
        let left = look();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
}
