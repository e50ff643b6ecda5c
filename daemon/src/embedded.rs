//! A daemon inside another program, for that program's lifetime: the same code, no socket file.
//!
//! The spawner is started first, on the caller's thread; then the daemon runs on a thread of its own. Nothing
//! is left behind when it ends, and the spawner cleans up even if the program is killed.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::mpsc;

use crate::config::Config;
use crate::dispatcher::Event;
use crate::start::{Prepared, Queue, StartError};
use crate::tools::ToolSet;

/// A daemon that lives in this process.
#[derive(Debug)]
pub struct Embedded {
    events: mpsc::Sender<Event>,
    thread: Option<JoinHandle<Result<(), StartError>>>,
    tools: Arc<ToolSet>,
}

/// Starts one. Call it before other threads are started, so that the spawner is forked from a small process.
///
/// # Errors
/// [`StartError`].
pub fn start(config: Config) -> Result<Embedded, StartError> {
    let prepared = Prepared::new(config, true)?;
    let tools = Arc::clone(prepared.tools());
    let queue = Queue::new();
    let events = queue.sender.clone();
    let thread = std::thread::Builder::new()
        .name("toolcelld".to_owned())
        .spawn(move || prepared.serve(None, queue, false, || ()))
        .map_err(StartError::Runtime)?;
    Ok(Embedded { events, thread: Some(thread), tools })
}

impl Embedded {
    /// The tools that were loaded.
    #[must_use]
    pub fn tools(&self) -> &Arc<ToolSet> {
        &self.tools
    }

    /// A new connection to it.
    ///
    /// # Errors
    /// When no socketpair can be made, or the daemon has ended.
    pub fn connect(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        self.events
            .try_send(Event::Adopt(theirs.into()))
            .map_err(|_| io::Error::new(io::ErrorKind::NotConnected, "the embedded daemon has ended"))?;
        Ok(ours)
    }

    /// Asks it to end: running calls get `limits.drain_ms`; a second time, none. Does not wait.
    pub fn request_shutdown(&self) {
        let _ = self.events.try_send(Event::Shutdown);
    }

    /// Ends it and waits until everything of it is gone. Close the connections first.
    ///
    /// # Errors
    /// What ended it early, if something did.
    pub fn shutdown(mut self) -> Result<(), StartError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), StartError> {
        self.request_shutdown();
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(error),
            Some(Err(_)) => Err(StartError::Runtime(io::Error::other("the embedded daemon panicked"))),
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // Errors were for `shutdown` to tell.
        let _ = self.end();
    }
}
