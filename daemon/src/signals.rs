//! Signals as a stream of bytes: signal-hook's handler writes to a socketpair, nothing more.

use std::io;
use std::os::unix::net::UnixStream;

use nix::libc::{SIGINT, SIGTERM};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

use crate::dispatcher::Event;

/// SIGTERM and SIGINT as shutdown events, each time one comes: the first drains, a second one kills at once.
///
/// # Errors
/// When the handlers cannot be set.
pub fn forward(events: mpsc::Sender<Event>) -> io::Result<()> {
    let (read, write) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    read.set_nonblocking(true)?;
    let mut read = tokio::net::UnixStream::from_std(read)?;
    tokio::spawn(async move {
        let mut byte = [0_u8; 1];
        while read.read_exact(&mut byte).await.is_ok() {
            if events.send(Event::Shutdown).await.is_err() {
                return;
            }
        }
    });
    Ok(())
}
