//! SIGINT and SIGTERM of a command that runs tools: the first one kills the calls, the second one ends at once.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::CliError;
use crate::exit;

/// What interrupted the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// SIGINT.
    Int,
    /// SIGTERM.
    Term,
}

impl Interrupt {
    /// What the command ends with then.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        exit::by_signal(match self {
            Self::Int => 2,
            Self::Term => 15,
        })
    }

    /// For the record of the calls that it kills.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Int => "interrupted (SIGINT)",
            Self::Term => "interrupted (SIGTERM)",
        }
    }
}

/// The signals that are awaited.
#[derive(Debug)]
pub struct Signals {
    int: Signal,
    term: Signal,
}

impl Signals {
    /// From now on these signals do not end the process by themselves.
    pub fn catch() -> Result<Self, CliError> {
        let catch = |kind| signal(kind).map_err(CliError::Runtime);
        Ok(Self { int: catch(SignalKind::interrupt())?, term: catch(SignalKind::terminate())? })
    }

    /// The next one.
    pub async fn next(&mut self) -> Interrupt {
        tokio::select! {
            _ = self.int.recv() => Interrupt::Int,
            _ = self.term.recv() => Interrupt::Term,
        }
    }
}
