//! Drives a running batch to its end.
//!
//! ```text
//! Running ──SIGINT, SIGTERM, nobody reads──▶ Killing ──BatchFinished──▶ ended, with what results there are
//!    │                                          │ another signal
//!    └──BatchFinished──▶ ended                  ▼
//!                                            exit at once
//! ```

use toolcell_client::protocol::call::BatchResult;
use toolcell_client::{BatchEvent, ClientError, RunningBatch};

use crate::error::CliError;
use crate::signals::{Interrupt, Signals};

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    On,
    /// Nobody reads what is written: kill the calls.
    Unread,
}

/// How a batch ended.
#[derive(Debug)]
pub struct Followed {
    /// Its result.
    pub result: BatchResult,
    /// What interrupted it.
    pub interrupt: Option<Interrupt>,
}

/// Hands each event to `show`, with whether the batch is being killed.
pub async fn follow(
    mut batch: RunningBatch,
    signals: &mut Signals,
    mut show: impl AsyncFnMut(BatchEvent, bool) -> Flow,
) -> Result<Followed, CliError> {
    let mut interrupt = None;
    let mut unread = false;
    loop {
        let event = tokio::select! {
            event = batch.next_event() => event?,
            signal = signals.next() => {
                interrupted(&batch, signals, &mut interrupt, signal).await?;
                continue;
            }
        };
        let Some(event) = event else { break };
        let killing = interrupt.is_some() || unread;
        let flow = tokio::select! {
            flow = show(event, killing) => flow,
            signal = signals.next() => {
                interrupted(&batch, signals, &mut interrupt, signal).await?;
                Flow::On
            }
        };
        if flow == Flow::Unread && !killing {
            unread = true;
            kill(&batch, signals, "nobody reads the output").await?;
        }
    }
    Ok(Followed { result: batch.finish().await?, interrupt })
}

async fn interrupted(
    batch: &RunningBatch,
    signals: &mut Signals,
    interrupt: &mut Option<Interrupt>,
    signal: Interrupt,
) -> Result<(), ClientError> {
    if interrupt.is_some() {
        exit_at_once(signal);
    }
    *interrupt = Some(signal);
    kill(batch, signals, signal.reason()).await
}

async fn kill(batch: &RunningBatch, signals: &mut Signals, reason: &str) -> Result<(), ClientError> {
    tokio::select! {
        killed = batch.kill_all(reason) => killed,
        signal = signals.next() => exit_at_once(signal),
    }
}

/// The daemon sees the connection go and does what is left; an embedded one's spawner does the same.
fn exit_at_once(signal: Interrupt) -> ! {
    std::process::exit(i32::from(signal.exit_code()))
}
