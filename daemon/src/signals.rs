//! Signals as a stream of bytes: signal-hook's handler writes to a socketpair, nothing more.
//!
//! SIGTERM and SIGINT end the daemon: the first drains, a second one kills at once. SIGHUP, which asks a daemon to read
//! its configuration again, must not end it: it is taken and answered in the log.

use std::io;
use std::os::unix::net::UnixStream;

use nix::libc::{SIGHUP, SIGINT, SIGTERM};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

use crate::dispatcher::Event;

/// Takes the signals over; shutdown events go into the loop's queue.
///
/// # Errors
/// When the handlers cannot be set.
pub fn forward(events: mpsc::Sender<Event>) -> io::Result<()> {
    let mut ends = signal_stream(&[SIGTERM, SIGINT])?;
    tokio::spawn(async move {
        let mut byte = [0_u8; 1];
        while ends.read_exact(&mut byte).await.is_ok() {
            if events.send(Event::Shutdown).await.is_err() {
                return;
            }
        }
    });
    let mut hangups = signal_stream(&[SIGHUP])?;
    tokio::spawn(async move {
        let mut byte = [0_u8; 1];
        while hangups.read_exact(&mut byte).await.is_ok() {
            tracing::warn!(
                "SIGHUP: the configuration is read at the start only; restart the daemon to change it"
            );
        }
    });
    Ok(())
}

/// One byte for each of these signals.
fn signal_stream(signals: &[i32]) -> io::Result<tokio::net::UnixStream> {
    let (read, write) = UnixStream::pair()?;
    for signal in signals {
        signal_hook::low_level::pipe::register(*signal, write.try_clone()?)?;
    }
    read.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(read)
}
