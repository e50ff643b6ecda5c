//! Why a command could not do what was asked; each message says what to do next.

use std::io;
use std::path::PathBuf;

use thiserror::Error;
use toolcell_client::ClientError;

use crate::exit;

/// Why a command could not do what was asked.
#[derive(Debug, Error)]
pub enum CliError {
    /// It was asked for wrongly.
    #[error("{0}")]
    Usage(String),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file; `-` is standard input.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The configuration of the embedded daemon is wrong.
    #[error("{0}")]
    Configuration(String),
    /// The conversation with the daemon failed.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The embedded daemon cannot be started.
    #[error("cannot start a daemon of our own: {0}")]
    Embedded(String),
    /// No call, or more than one, is meant.
    #[error("{0}")]
    Reference(String),
    /// No runtime.
    #[error("cannot set the runtime up: {0}")]
    Runtime(#[source] io::Error),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Write(#[source] io::Error),
    /// Nobody reads our standard output.
    #[error("nobody reads standard output")]
    BrokenPipe,
    /// A value has no JSON form.
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl CliError {
    /// The error of a write to standard output.
    #[must_use]
    pub fn of_write(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::BrokenPipe } else { Self::Write(error) }
    }

    /// What the command ends with; `in_run`: it runs tools.
    #[must_use]
    pub fn exit_code(&self, in_run: bool) -> u8 {
        match self {
            Self::Usage(_) | Self::Read { .. } => exit::USAGE,
            Self::Configuration(_) => exit::BAD_CONFIGURATION,
            Self::Client(error) => of_client(error, in_run),
            Self::Reference(_) => exit::REFUSED,
            Self::BrokenPipe => exit::BROKEN_PIPE,
            Self::Embedded(_) | Self::Runtime(_) | Self::Write(_) | Self::Json(_) => exit::FAILED,
        }
    }
}

fn of_client(error: &ClientError, in_run: bool) -> u8 {
    match error {
        ClientError::Connect { tried, .. } => {
            if tried.iter().any(|one| one.kind == io::ErrorKind::PermissionDenied) {
                exit::NOT_ALLOWED
            } else {
                exit::UNAVAILABLE
            }
        }
        ClientError::Handshake { .. } => exit::UNAVAILABLE,
        ClientError::Refused(refusal) => exit::of_refusal(refusal.code, in_run),
        ClientError::BadRequest { .. } => exit::USAGE,
        _ => exit::FAILED,
    }
}

#[cfg(test)]
mod tests {
    use toolcell_client::Tried;

    use super::*;

    #[test]
    fn no_daemon_no_permission_and_a_broken_daemon_are_told_apart() {
        let connect = |kind| {
            let tried = vec![Tried { path: PathBuf::from("/s"), reason: String::new(), kind }];
            CliError::Client(ClientError::Connect { tried, explicit: true }).exit_code(true)
        };
        assert_eq!(connect(io::ErrorKind::NotFound), 69);
        assert_eq!(connect(io::ErrorKind::PermissionDenied), 77);
        let lost = CliError::Client(ClientError::ConnectionLost { reason: "cut".to_owned() });
        assert_eq!(lost.exit_code(true), 125);
        assert_eq!(CliError::Configuration("x".to_owned()).exit_code(true), 78);
        assert_eq!(CliError::of_write(io::Error::from(io::ErrorKind::BrokenPipe)).exit_code(false), 141);
    }
}
