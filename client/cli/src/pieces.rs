//! Live output, byte by byte, to standard output and standard error.
//!
//! A thread of its own writes it: whoever reads us may stop reading at any time, and signals must be answered
//! all the same. The queue is short, so a reader that does not read holds the tool.

use std::io::{self, Write as _};

use tokio::sync::{mpsc, oneshot};
use toolcell_client::LiveOutput;
use toolcell_client::protocol::call::Stream;

use crate::error::CliError;

/// Pieces that may wait for the thread.
const QUEUE: usize = 8;

/// The way to standard output and standard error.
#[derive(Debug)]
pub struct Pieces {
    queue: mpsc::Sender<LiveOutput>,
    end: oneshot::Receiver<io::Result<()>>,
}

impl Pieces {
    /// Starts the thread.
    pub fn start() -> Result<Self, CliError> {
        let (queue, mut pieces) = mpsc::channel::<LiveOutput>(QUEUE);
        let (ended, end) = oneshot::channel();
        std::thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || {
                let mut outcome = Ok(());
                while let Some(piece) = pieces.blocking_recv() {
                    outcome = write(&piece);
                    if outcome.is_err() {
                        break;
                    }
                }
                // Nobody waits for it after a second interrupt.
                let _ = ended.send(outcome);
            })
            .map_err(CliError::Runtime)?;
        Ok(Self { queue, end })
    }

    /// Hands a piece over, as soon as there is room; false: nobody reads any more.
    pub async fn write(&self, piece: LiveOutput) -> bool {
        self.queue.send(piece).await.is_ok()
    }

    /// The same if there is room now.
    pub fn write_if_room(&self, piece: LiveOutput) {
        // Dropped otherwise: after an interrupt nothing may wait for a reader.
        let _ = self.queue.try_send(piece);
    }

    /// Waits until everything is written.
    pub async fn finish(self) -> Result<(), CliError> {
        drop(self.queue);
        match self.end.await {
            Ok(outcome) => outcome.map_err(CliError::of_write),
            Err(_) => Err(CliError::Write(io::Error::other("the thread that writes is gone"))),
        }
    }
}

/// Writes one piece; a standard error that nobody reads harms nothing.
pub fn write(piece: &LiveOutput) -> io::Result<()> {
    match piece.stream {
        Stream::Stdout => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&piece.bytes)?;
            stdout.flush()
        }
        Stream::Stderr => {
            let _ = io::stderr().lock().write_all(&piece.bytes);
            Ok(())
        }
    }
}
