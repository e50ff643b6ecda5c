//! Logs: structured records to the journal where there is one, else lines on standard error.
//!
//! One record per call at its end, with the fields `SESSION`, `CALL_ID`, `CALL_UID`, `TOOL` and `STATUS`.
//! Output of tools is never logged.

use toolcell_protocol::call::{CallResult, Status};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Sets the log up. `level` is a filter like `info` or `toolcell_daemon=debug`; `TOOLCELL_LOG` wins over it.
pub fn set_up(level: &str) {
    let filter = EnvFilter::try_from_env("TOOLCELL_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let registry = tracing_subscriber::registry().with(filter);
    // Set by systemd when standard error is the journal: then the native protocol keeps the fields.
    let journal = std::env::var_os("JOURNAL_STREAM").and_then(|_| tracing_journald::layer().ok());
    let done = match journal {
        Some(journal) => registry.with(journal.with_field_prefix(Some("TOOLCELL".to_owned()))).try_init(),
        None => registry
            .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false))
            .try_init(),
    };
    // A second daemon in one process (tests) goes on with the first one's log.
    let _ = done;
}

/// The record of a call's end.
pub fn call_ended(session: &str, uid: u32, result: &CallResult) {
    macro_rules! record {
        ($level:ident) => {
            tracing::$level!(
                session,
                uid,
                call_id = %result.call_id,
                call_uid = %result.call_uid,
                tool = result.tool,
                status = result.status.name(),
                duration_us = result.details.duration_us.unwrap_or(0),
                "call ended"
            )
        };
    }
    match result.status {
        Status::WorkerFailed | Status::Unknown => record!(error),
        _ => record!(info),
    }
}
