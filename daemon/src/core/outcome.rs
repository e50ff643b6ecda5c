//! What a call ended as: the recorded cause, the worker's report and the wait status, read together.
//!
//! Order of truth: a limit for which the worker itself killed the tool; then the daemon's cause, if its signal
//! came before the tool's own end; then the tool's own end. An exit status is never invented: a worker that is
//! lost without a cause is `worker_failed`.

use nix::errno::Errno;
use nix::sys::signal::Signal;
use toolcell_protocol::call::{LimitName, Status, StatusDetail};
use toolcell_protocol::worker_api::{AttemptEnd, Finished, Rlimits, WaitStatus};

use super::call::Cause;
use super::event::AttemptEnding;

/// The kernel's number of the signal that ends a process over its CPU rlimit.
const SIGXCPU: i32 = Signal::SIGXCPU as i32;
/// The same for a file over its size limit.
const SIGXFSZ: i32 = Signal::SIGXFSZ as i32;
const SIGKILL: i32 = Signal::SIGKILL as i32;
const SIGTERM: i32 = Signal::SIGTERM as i32;

/// A status with its parameters. `detail.message` is what the model reads under the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub status: Status,
    /// Parameters.
    pub detail: StatusDetail,
}

impl Outcome {
    fn new(status: Status, message: String, detail: StatusDetail) -> Self {
        Self { status, detail: StatusDetail { message: Some(message), ..detail } }
    }
}

/// The name of a signal, like `SIGSEGV`.
#[must_use]
pub fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}

/// The name of an error number, like `ENOENT`.
#[must_use]
pub fn errno_name(number: i32) -> String {
    match Errno::from_raw(number) {
        Errno::UnknownErrno => format!("errno {number}"),
        known => format!("{known:?}"),
    }
}

/// Decides how an attempt ended.
#[must_use]
pub fn classify(cause: Option<&Cause>, ending: &AttemptEnding, rlimits: &Rlimits) -> Outcome {
    match ending {
        AttemptEnding::NotStarted { .. } | AttemptEnding::WorkerLost { .. } if cause.is_some() => {
            cause.map_or_else(|| lost(ending), killed_by)
        }
        AttemptEnding::NotStarted { stage, errno, what } => spawn_failed(stage.name(), *errno, what),
        AttemptEnding::WorkerLost { .. } => lost(ending),
        AttemptEnding::Finished(finished) => finished_as(cause, finished, rlimits),
    }
}

fn finished_as(cause: Option<&Cause>, finished: &Finished, rlimits: &Rlimits) -> Outcome {
    if let Some((limit, value)) = finished.killed_for {
        return limit_exceeded(limit, value);
    }
    match (&finished.end, cause) {
        (AttemptEnd::Ended(WaitStatus::Signaled(SIGKILL | SIGTERM)), Some(cause)) => killed_by(cause),
        (AttemptEnd::Ended(_) | AttemptEnd::Builtin { .. }, Some(cause)) if finished.signalled => {
            let mut outcome = killed_by(cause);
            if let AttemptEnd::Ended(WaitStatus::Exited(code)) = finished.end {
                outcome.detail.exit_code = Some(code);
            }
            outcome
        }
        (AttemptEnd::SpawnFailed { .. }, Some(cause)) if finished.signalled => killed_by(cause),
        (AttemptEnd::SpawnFailed { stage, errno, what }, _) => spawn_failed(stage.name(), *errno, what),
        (AttemptEnd::Builtin { ok: true } | AttemptEnd::Ended(WaitStatus::Exited(0)), _) => Outcome {
            status: Status::Ok,
            detail: StatusDetail {
                exit_code: matches!(finished.end, AttemptEnd::Ended(_)).then_some(0),
                ..StatusDetail::default()
            },
        },
        (AttemptEnd::Builtin { ok: false }, _) => {
            Outcome { status: Status::Error, detail: StatusDetail::default() }
        }
        (AttemptEnd::Ended(WaitStatus::Exited(code)), _) => Outcome::new(
            Status::Error,
            format!("exit code {code}"),
            StatusDetail { exit_code: Some(*code), ..StatusDetail::default() },
        ),
        (AttemptEnd::Ended(WaitStatus::Signaled(SIGXCPU)), _) => {
            limit_exceeded(LimitName::Cpu, rlimits.cpu_seconds.unwrap_or(0) * 1000)
        }
        // The hard CPU limit ends a tool that ignores SIGXCPU with SIGKILL, with nothing else to tell it by.
        (AttemptEnd::Ended(WaitStatus::Signaled(SIGKILL)), None)
            if rlimits.cpu_seconds.is_some_and(|limit| {
                finished.usage.user_cpu_us + finished.usage.system_cpu_us >= limit * 1_000_000
            }) =>
        {
            limit_exceeded(LimitName::Cpu, rlimits.cpu_seconds.unwrap_or(0) * 1000)
        }
        (AttemptEnd::Ended(WaitStatus::Signaled(SIGXFSZ)), _) => {
            limit_exceeded(LimitName::Fsize, rlimits.fsize_bytes.unwrap_or(0))
        }
        (AttemptEnd::Ended(WaitStatus::Signaled(signal)), _) => {
            let name = signal_name(*signal);
            Outcome::new(
                Status::Crashed,
                format!("crashed: ended by signal {signal} ({name})"),
                StatusDetail { signal: Some(*signal), signal_name: Some(name), ..StatusDetail::default() },
            )
        }
    }
}

fn limit_exceeded(limit: LimitName, value: u64) -> Outcome {
    let unit = match limit {
        LimitName::Cpu => "ms of CPU time",
        LimitName::Fsize => "bytes in one file",
        LimitName::Output => "bytes of output",
        LimitName::Memory => "bytes of memory",
        LimitName::Nofile => "open files",
        LimitName::Pids => "processes",
    };
    Outcome::new(
        Status::LimitExceeded,
        format!("stopped: over its limit of {value} {unit}"),
        StatusDetail { limit: Some(limit), limit_value: Some(value), ..StatusDetail::default() },
    )
}

fn spawn_failed(stage: &str, errno: i32, what: &str) -> Outcome {
    let name = errno_name(errno);
    let hint = match (stage, Errno::from_raw(errno)) {
        ("lookup", _) => "; install the program or give its path in the manifest",
        ("exec", Errno::ENOENT) => {
            "; the program, or the interpreter that its first line names, does not exist"
        }
        ("exec", Errno::EACCES) => "; it is not an executable file",
        ("exec", Errno::ENOEXEC) => "; it is no program for this machine, or a script without a #! line",
        ("exec", Errno::E2BIG) => "; the arguments are too long, give them by stdin",
        ("cwd", _) => "; give a working directory that exists and may be entered",
        _ => "",
    };
    Outcome::new(
        Status::SpawnFailed,
        format!("could not be started: {stage} of {what} failed with {name}{hint}"),
        StatusDetail {
            stage: Some(stage.to_owned()),
            errno: Some(errno),
            errno_name: Some(name),
            ..StatusDetail::default()
        },
    )
}

fn lost(ending: &AttemptEnding) -> Outcome {
    let what = match ending {
        AttemptEnding::WorkerLost { wait: Some(WaitStatus::Signaled(signal)), reason, .. } => {
            format!("{reason}; the worker was ended by {}", signal_name(*signal))
        }
        AttemptEnding::WorkerLost { wait: Some(WaitStatus::Exited(code)), reason, .. } => {
            format!("{reason}; the worker exited with {code}")
        }
        AttemptEnding::WorkerLost { reason, .. } => reason.clone(),
        _ => String::new(),
    };
    Outcome::new(
        Status::WorkerFailed,
        format!("the worker failed and the tool's own end is not known: {what}"),
        StatusDetail::default(),
    )
}

fn killed_by(cause: &Cause) -> Outcome {
    match cause {
        Cause::WallTimeout { timeout_ms } | Cause::IdleTimeout { timeout_ms } => {
            let idle = matches!(cause, Cause::IdleTimeout { .. });
            Outcome::new(
                Status::TimedOut,
                if idle {
                    format!("timed out: no output for {timeout_ms} ms, so it was ended")
                } else {
                    format!("timed out after {timeout_ms} ms and was ended")
                },
                StatusDetail {
                    timeout_kind: Some(if idle { "idle" } else { "wall" }.to_owned()),
                    timeout_ms: Some(*timeout_ms),
                    ..StatusDetail::default()
                },
            )
        }
        Cause::Requested { reason } => Outcome::new(
            Status::Killed,
            format!("killed on request: {reason}"),
            StatusDetail { reason: Some(cause.name().to_owned()), ..StatusDetail::default() },
        ),
        Cause::ClientGone | Cause::SessionClosed | Cause::Shutdown => Outcome::new(
            Status::Killed,
            match cause {
                Cause::ClientGone => "killed: its client went away",
                Cause::SessionClosed => "killed: its session was closed",
                _ => "killed: the daemon is ending",
            }
            .to_owned(),
            StatusDetail { reason: Some(cause.name().to_owned()), ..StatusDetail::default() },
        ),
    }
}

/// The result of a call that never started because of this cause.
#[must_use]
pub fn cancelled_by(cause: &Cause) -> Outcome {
    Outcome::new(
        Status::Cancelled,
        match cause {
            Cause::Requested { reason } => format!("cancelled before it started: {reason}"),
            other => format!("cancelled before it started: {}", other.name()),
        },
        StatusDetail { reason: Some(cause.name().to_owned()), ..StatusDetail::default() },
    )
}

#[cfg(test)]
mod tests {
    use toolcell_protocol::worker_api::Stage;

    use super::*;

    fn finished(end: AttemptEnd, signalled: bool) -> AttemptEnding {
        AttemptEnding::Finished(Box::new(Finished { signalled, duration_us: 1, ..Finished::new(end, None) }))
    }

    const fn exited(code: i32) -> AttemptEnd {
        AttemptEnd::Ended(WaitStatus::Exited(code))
    }

    const fn signaled(signal: i32) -> AttemptEnd {
        AttemptEnd::Ended(WaitStatus::Signaled(signal))
    }

    fn status(cause: Option<&Cause>, ending: &AttemptEnding) -> Status {
        classify(cause, ending, &Rlimits { cpu_seconds: Some(1), ..Rlimits::default() }).status
    }

    #[test]
    fn a_tool_that_ended_in_the_same_instant_keeps_its_own_end() {
        let timeout = Cause::WallTimeout { timeout_ms: 5 };
        assert_eq!(status(Some(&timeout), &finished(exited(0), false)), Status::Ok);
        assert_eq!(status(Some(&timeout), &finished(exited(3), false)), Status::Error);
        assert_eq!(status(Some(&timeout), &finished(exited(0), true)), Status::TimedOut);
        assert_eq!(status(Some(&timeout), &finished(signaled(9), false)), Status::TimedOut);
        assert_eq!(status(Some(&timeout), &finished(signaled(11), false)), Status::Crashed);
    }

    #[test]
    fn a_bare_sigkill_is_never_all_that_is_said() {
        assert_eq!(status(None, &finished(signaled(9), false)), Status::Crashed);
        assert_eq!(status(Some(&Cause::ClientGone), &finished(signaled(9), true)), Status::Killed);
        assert_eq!(status(None, &finished(signaled(24), false)), Status::LimitExceeded);
        assert_eq!(status(None, &finished(signaled(25), false)), Status::LimitExceeded);
    }

    #[test]
    fn a_lost_worker_has_the_recorded_cause_or_is_worker_failed() {
        let lost = AttemptEnding::WorkerLost {
            wait: Some(WaitStatus::Signaled(9)),
            reason: "end-of-file without a last frame".to_owned(),
            layers: None,
            output_bytes: (0, 0),
        };
        assert_eq!(status(None, &lost), Status::WorkerFailed);
        assert_eq!(status(Some(&Cause::SessionClosed), &lost), Status::Killed);
    }

    #[test]
    fn a_failed_start_names_stage_error_and_what_to_do() {
        let ending =
            AttemptEnding::NotStarted { stage: Stage::Exec, errno: 8, what: "/tmp/script".to_owned() };
        let outcome = classify(None, &ending, &Rlimits::default());
        assert_eq!(outcome.status, Status::SpawnFailed);
        assert_eq!(outcome.detail.errno_name.as_deref(), Some("ENOEXEC"));
        assert!(outcome.detail.message.expect("a message").contains("#!"));
    }
}
