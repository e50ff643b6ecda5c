//! One file per command.

pub(crate) mod batch;
pub(crate) mod doctor;
pub(crate) mod kill;
pub(crate) mod output;
pub(crate) mod ps;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod tools;
pub(crate) mod validate;
pub(crate) mod wait;

use std::fmt::Write as _;
use toolcell_client::protocol::call::{CallResult, Status};

use crate::table::Tone;
use crate::text::one_line;

/// How a status is shown.
pub(crate) const fn tone(status: Status) -> Tone {
    match status {
        Status::Ok => Tone::Good,
        Status::Cancelled | Status::Blocked | Status::ToolDisabled | Status::Detached => Tone::Odd,
        Status::Error
        | Status::Crashed
        | Status::TimedOut
        | Status::OomKilled
        | Status::LimitExceeded
        | Status::Killed
        | Status::InvalidArgs
        | Status::UnknownTool
        | Status::SpawnFailed
        | Status::WorkerFailed
        | Status::Unknown => Tone::Bad,
    }
}

/// What happened to a call that is not `ok`, for a person; `None` where the tool itself has said it.
pub(crate) fn explanation(result: &CallResult) -> Option<String> {
    let detail = &result.status_detail;
    match result.status {
        Status::Ok => return None,
        // A program that fails says so itself; a built-in tool has only its text.
        Status::Error if detail.exit_code.is_some() => return None,
        _ => {}
    }
    let what = detail.message.as_deref().unwrap_or(&result.for_model);
    let what = one_line(what);
    let mut text = format!("{}: {}", one_line(&result.tool), result.status);
    if let Some(field) = detail.field.as_deref().filter(|field| !what.contains(field)) {
        let _ = write!(text, " at {field}");
    }
    if !what.is_empty() {
        text.push_str(": ");
        text.push_str(&what);
    }
    if !detail.nearest.is_empty() && !detail.nearest.iter().any(|name| what.contains(name.as_str())) {
        let _ = write!(text, "; did you mean {}?", detail.nearest.join(", "));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use toolcell_client::protocol::call::{Details, StatusDetail};
    use toolcell_client::protocol::id::{CallId, CallUid};

    use super::*;

    fn result(status: Status, status_detail: StatusDetail, for_model: &str) -> CallResult {
        CallResult {
            call_id: CallId::from("c"),
            call_uid: "019ade3c-5f01-7000-8000-000000000000".parse::<CallUid>().expect("a uid"),
            tool: "grep".to_owned(),
            status,
            status_detail,
            for_model: for_model.to_owned(),
            details: Details::default(),
        }
    }

    #[test]
    fn a_program_that_failed_has_spoken_for_itself() {
        let detail = StatusDetail { exit_code: Some(2), ..StatusDetail::default() };
        assert_eq!(explanation(&result(Status::Error, detail, "usage: …")), None);
        assert_eq!(explanation(&result(Status::Ok, StatusDetail::default(), "x")), None);
    }

    #[test]
    fn everything_else_says_what_happened_and_where() {
        let text = explanation(&result(Status::Error, StatusDetail::default(), "no such\nfile"));
        assert_eq!(text.as_deref(), Some("grep: error: no such file"));
        let detail = StatusDetail {
            message: Some("3 is not a string".to_owned()),
            field: Some("/pattern".to_owned()),
            ..StatusDetail::default()
        };
        let text = explanation(&result(Status::InvalidArgs, detail, ""));
        assert_eq!(text.as_deref(), Some("grep: invalid_args at /pattern: 3 is not a string"));
        let detail = StatusDetail { nearest: vec!["grep".to_owned()], ..StatusDetail::default() };
        let text = explanation(&result(Status::UnknownTool, detail, ""));
        assert_eq!(text.as_deref(), Some("grep: unknown_tool; did you mean grep?"));
    }
}
