//! The texts for the model: what was repeated, how often, what came back, and two concrete ways on.

use std::fmt::Write as _;

use super::decision::{Detector, Level};

/// What a text is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) detector: Detector,
    pub(crate) level: Level,
    pub(crate) count: u32,
    /// The call, shortened.
    pub(crate) call: &'a str,
    pub(crate) tool: &'a str,
    /// The edited file, if it is about one.
    pub(crate) file: &'a str,
    /// One line of what came back; unknown before a call.
    pub(crate) came_back: Option<&'a str>,
    /// Period of a cycle, number of tools.
    pub(crate) extra: u32,
    /// The count with which the call will be blocked.
    pub(crate) block_at: Option<u32>,
}

/// What was repeated and how often.
fn what(about: &About<'_>, out: &mut String) {
    let About { count, call, tool, file, extra, .. } = *about;
    let _ = match about.detector {
        Detector::SameError => write!(out, "{call} failed {count} times in the same way."),
        Detector::SameResult => {
            write!(out, "{call} gave the same result {count} times and nothing was changed in between.")
        }
        Detector::ErrorFamily => write!(
            out,
            "{tool} failed {count} times with the same kind of error, whatever the arguments were."
        ),
        Detector::Infrastructure => {
            write!(
                out,
                "Infrastructure: {extra} different tools failed {count} times with the same error. The cause lies outside these calls."
            )
        }
        Detector::Cycle => write!(
            out,
            "The same {extra} calls were made {count} times in turn, each with the same result as before."
        ),
        Detector::NoNews => write!(
            out,
            "The last {count} calls, whichever they were, brought only results that were there before."
        ),
        Detector::Oscillation => {
            write!(out, "An edit of {file} was put in again {count} times after it had been taken out.")
        }
        Detector::FailingCheck => {
            write!(out, "{call} failed in the same way in {count} rounds of editing and trying again.")
        }
        Detector::UnknownTool => {
            write!(out, "{count} calls in a row named a tool that does not exist, the last one {tool}.")
        }
        Detector::MalformedCall if tool.starts_with('<') => {
            write!(out, "No call could be read from {count} messages, the last one included.")
        }
        Detector::MalformedCall => write!(
            out,
            "{count} calls could not be used, the last one of {tool}: the arguments arrived empty, cut off, or in a form that does not fit."
        ),
        Detector::PollNoChange => write!(out, "{call} was asked {count} times and nothing had changed."),
        Detector::NoAnswer => {
            write!(out, "{call} was made {count} times in a row, and no outcome of it has arrived.")
        }
        Detector::Rewrite => write!(
            out,
            "{file} was written anew {count} times in a row with nothing read, run or checked in between."
        ),
        Detector::ConsecutiveFailures => write!(out, "{count} calls in a row failed."),
        Detector::EditFrequency => write!(out, "{file} was edited {count} times."),
        Detector::RepeatPattern => write!(out, "{call} was made {count} times in a row."),
        Detector::GenericRepeat => write!(out, "{call} was made {count} times."),
        Detector::KnownPollNoProgress => {
            write!(out, "{call} was asked {count} times and the answer did not change.")
        }
        Detector::PingPong => write!(out, "Two calls were made in turn {count} times, the last one {call}."),
        Detector::UnknownToolRepeat => {
            write!(out, "{tool} was called {count} times in a row although it does not exist.")
        }
        Detector::GlobalCircuitBreaker => write!(out, "{call} gave the same result {count} times."),
        Detector::CompactionLoopPersisted => {
            write!(
                out,
                "compaction_loop_persisted: after the context was compacted, {tool} was called {count} times with the same arguments and the same result."
            )
        }
        Detector::BlocksWithoutProgress => {
            write!(
                out,
                "{count} calls were refused as repetitions and nothing new was found in between. The run is going in circles."
            )
        }
        Detector::BudgetCalls => {
            write!(out, "This is no loop: the session has made {count} calls, and its budget is used up.")
        }
        Detector::BudgetTime => write!(
            out,
            "This is no loop: the session has taken {count} seconds, and its budget of time is used up."
        ),
    };
}

/// Two concrete ways on.
const fn ways(detector: Detector) -> (&'static str, &'static str) {
    match detector {
        Detector::SameError => (
            "read the error and change the one argument that it is about",
            "look at the thing itself first (list the directory, read the file, show the help of the command)",
        ),
        Detector::SameResult
        | Detector::GenericRepeat
        | Detector::RepeatPattern
        | Detector::GlobalCircuitBreaker => (
            "use the result that you already have",
            "ask a different question: another file, another query, another tool",
        ),
        Detector::ErrorFamily => (
            "stop varying the arguments and find out what the error means (read the current content or the tool's description)",
            "reach the same goal with another tool",
        ),
        Detector::Infrastructure => (
            "do the part of the task that needs none of these tools",
            "tell the user which service or credential seems to be broken, with the error text",
        ),
        Detector::Cycle | Detector::NoNews | Detector::PingPong => (
            "write down what each of these calls showed and decide on one of them",
            "take a step that changes something, or one that was not tried yet",
        ),
        Detector::Oscillation => (
            "decide which version is right by running a check on each of them once",
            "leave the passage as it is and look for the cause elsewhere",
        ),
        Detector::FailingCheck => (
            "make the failing case smaller and look at the values in it before the next edit",
            "undo the last edits and try another explanation of the failure",
        ),
        Detector::UnknownTool | Detector::UnknownToolRepeat => {
            ("use one of the tools that are listed", "do without: say in the answer what could not be done")
        }
        Detector::MalformedCall => (
            "send the call again with complete arguments, shorter if they were cut off (write long content in several calls)",
            "check the names and types of the arguments against the tool's schema",
        ),
        Detector::PollNoChange | Detector::KnownPollNoProgress => (
            "wait longer before asking again, and do something else meanwhile",
            "look into why it does not move (its log, its process)",
        ),
        Detector::NoAnswer => (
            "wait for the outcomes of the calls that were made",
            "go on without them, or ask the user whether they arrive anywhere",
        ),
        Detector::Rewrite | Detector::EditFrequency => (
            "read the file or run what uses it before the next change",
            "say what is still wrong with it and change only that",
        ),
        Detector::ConsecutiveFailures => (
            "look at what these failures have in common",
            "make one small call that is sure to work and go on from there",
        ),
        Detector::CompactionLoopPersisted | Detector::BlocksWithoutProgress => {
            ("report what is done and what stands in the way", "start again with the goal in your own words")
        }
        Detector::BudgetCalls | Detector::BudgetTime => {
            ("report what is done", "ask for more room, saying what for")
        }
    }
}

pub(crate) fn text(about: &About<'_>) -> String {
    let mut out = String::with_capacity(400);
    if about.level == Level::Block {
        out.push_str("Not run. ");
    }
    what(about, &mut out);
    match about.came_back {
        Some("") => out.push_str(" What came back was empty."),
        Some(line) => {
            let _ = write!(out, " What came back: “{line}”.");
        }
        None => {}
    }
    let (one, two) = ways(about.detector);
    let _ = write!(out, " Two ways on: (1) {one}; (2) {two}.");
    match (about.level, about.block_at) {
        (Level::Warning, Some(at)) if at > about.count => {
            let _ = write!(out, " At {at} it is not run any more.");
        }
        (Level::Warning, Some(at)) if at == about.count => out.push_str(" The next one is not run."),
        (Level::Block, _) => {
            out.push_str(" Repeating it will not run it either; several refusals in a row end the run.")
        }
        _ => {}
    }
    if about.detector == Detector::PollNoChange && about.level == Level::Warning {
        let _ = write!(out, " Suggested pause: {} s.", backoff_seconds(about.count));
    }
    out
}

/// Doubles with every ten polls, a minute at most.
pub(crate) fn backoff_seconds(count: u32) -> u32 {
    5_u32.saturating_mul(1 << (count / 10).min(6)).min(60)
}
