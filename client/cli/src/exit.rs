//! What the command ends with.
//!
//! | code | meaning |
//! |---|---|
//! | the tool's own | `run` and `wait`: the tool exited with it |
//! | 1 | refused by the daemon: no such call, and the like |
//! | 2 | usage; a bad batch file; arguments that the tool does not take |
//! | 3 | `batch`: the verdict is `abort` |
//! | 69 | no daemon can be reached, or it is ending |
//! | 75 | `wait`: it still runs; `kill`: not yet proven gone |
//! | 77 | not allowed |
//! | 78 | bad configuration; `validate`: a file is wrong |
//! | 124 | timed out |
//! | 125 | toolcell failed |
//! | 126 | could not be executed: its program cannot be started, it is switched off, or it was blocked |
//! | 127 | unknown tool |
//! | 128+n | ended by signal n (killed by us: 137); 130, 143: this command was interrupted; 141: nobody reads |

use toolcell_client::protocol::call::{CallResult, Status, Verdict};
use toolcell_client::protocol::client_api::RefusalCode;

/// All went well.
pub const OK: u8 = 0;
/// Refused by the daemon.
pub const REFUSED: u8 = 1;
/// Wrong usage, or wrong arguments for a tool.
pub const USAGE: u8 = 2;
/// The verdict of a batch is `abort`.
pub const ABORT: u8 = 3;
/// No daemon.
pub const UNAVAILABLE: u8 = 69;
/// Not yet.
pub const NOT_YET: u8 = 75;
/// Not allowed.
pub const NOT_ALLOWED: u8 = 77;
/// Bad configuration.
pub const BAD_CONFIGURATION: u8 = 78;
/// The tool timed out.
pub const TIMED_OUT: u8 = 124;
/// toolcell itself failed.
pub const FAILED: u8 = 125;
/// The tool could not be executed.
pub const NOT_EXECUTED: u8 = 126;
/// There is no such tool.
pub const UNKNOWN_TOOL: u8 = 127;
/// Nobody reads our standard output (128 + SIGPIPE).
pub const BROKEN_PIPE: u8 = 141;

const SIGKILL: i32 = 9;

/// 128 + n, as shells do.
#[must_use]
pub fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal.clamp(1, 64)).unwrap_or(u8::MAX)
}

/// What `run` ends with after this result.
#[must_use]
pub fn of_call(result: &CallResult) -> u8 {
    let detail = &result.status_detail;
    let ended_by = || by_signal(detail.signal.or(result.details.signal).unwrap_or(SIGKILL));
    match result.status {
        Status::Ok => OK,
        // A tool can say that it failed and exit with 0, and a built-in has no exit code.
        Status::Error => match detail.exit_code.or(result.details.exit_code) {
            Some(code @ 1..=255) => u8::try_from(code).unwrap_or(REFUSED),
            Some(_) | None => 1,
        },
        Status::Crashed | Status::OomKilled | Status::LimitExceeded | Status::Killed => ended_by(),
        Status::TimedOut => TIMED_OUT,
        Status::InvalidArgs => USAGE,
        Status::UnknownTool => UNKNOWN_TOOL,
        Status::SpawnFailed | Status::ToolDisabled | Status::Blocked => NOT_EXECUTED,
        Status::Cancelled | Status::WorkerFailed | Status::Detached | Status::Unknown => FAILED,
    }
}

/// What `batch` ends with after this verdict.
#[must_use]
pub const fn of_verdict(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::NextTurn | Verdict::Intervene => OK,
        Verdict::Abort => ABORT,
    }
}

/// What a refusal ends a command with; `in_run`: it runs tools, and 1 would be taken for a tool's.
#[must_use]
pub const fn of_refusal(code: RefusalCode, in_run: bool) -> u8 {
    match code {
        RefusalCode::NotPermitted => NOT_ALLOWED,
        RefusalCode::BadRequest | RefusalCode::DuplicateCallId | RefusalCode::UnknownAgent => USAGE,
        RefusalCode::ShuttingDown => UNAVAILABLE,
        RefusalCode::Handshake | RefusalCode::Internal => FAILED,
        RefusalCode::BatchInProgress
        | RefusalCode::UnknownSession
        | RefusalCode::UnknownCall
        | RefusalCode::Overloaded
        | RefusalCode::OutputExpired => {
            if in_run {
                FAILED
            } else {
                REFUSED
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use toolcell_client::protocol::call::{Details, StatusDetail};
    use toolcell_client::protocol::id::{CallId, CallUid};

    use super::*;

    fn result(status: Status, exit_code: Option<i32>, signal: Option<i32>) -> CallResult {
        CallResult {
            call_id: CallId::from("c"),
            call_uid: "019ade3c-5f01-7000-8000-000000000000".parse::<CallUid>().expect("a uid"),
            tool: "t".to_owned(),
            status,
            status_detail: StatusDetail { exit_code, signal, ..StatusDetail::default() },
            for_model: String::new(),
            details: Details { exit_code, signal, ..Details::default() },
        }
    }

    #[test]
    fn every_status_has_the_documented_code() {
        let expected = |status| match status {
            Status::Ok => 0,
            Status::Error => 7,
            Status::Crashed => 139,
            Status::TimedOut => 124,
            Status::OomKilled | Status::LimitExceeded | Status::Killed => 137,
            Status::InvalidArgs => 2,
            Status::UnknownTool => 127,
            Status::SpawnFailed | Status::ToolDisabled | Status::Blocked => 126,
            Status::Cancelled | Status::WorkerFailed | Status::Detached | Status::Unknown => 125,
        };
        for status in Status::ALL {
            let exit_code = (status == Status::Error).then_some(7);
            let signal = match status {
                Status::Crashed => Some(11),
                Status::OomKilled => Some(9),
                _ => None,
            };
            assert_eq!(of_call(&result(status, exit_code, signal)), expected(status), "{status}");
        }
    }

    #[test]
    fn a_failed_tool_never_ends_with_success() {
        for exit_code in [None, Some(0), Some(256), Some(-1)] {
            assert_eq!(of_call(&result(Status::Error, exit_code, None)), 1);
        }
        assert_eq!(of_call(&result(Status::Error, Some(255), None)), 255);
    }

    #[test]
    fn a_limits_own_signal_is_kept() {
        assert_eq!(of_call(&result(Status::LimitExceeded, None, Some(24))), 152);
    }

    #[test]
    fn refusals_are_not_taken_for_a_tools_exit_code() {
        assert_eq!(of_refusal(RefusalCode::UnknownCall, false), 1);
        assert_eq!(of_refusal(RefusalCode::BatchInProgress, true), 125);
        assert_eq!(of_refusal(RefusalCode::NotPermitted, true), 77);
    }
}
