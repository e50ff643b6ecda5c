//! How far a batch is: lines on standard error, or one status line that is redrawn where that is a terminal.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use toolcell_client::protocol::call::Status;
use toolcell_client::protocol::client_api::{CallRequest, EventBody};
use toolcell_client::protocol::id::CallUid;

use crate::console::Console;
use crate::text::{cut, duration_us, one_line};

/// How far a batch is.
#[derive(Debug)]
pub struct Progress {
    total: usize,
    ended: usize,
    failed: usize,
    /// Calls that run, by the daemon's id, with the names that people know.
    running: BTreeMap<CallUid, String>,
}

impl Progress {
    pub const fn of(calls: &[CallRequest]) -> Self {
        Self { total: calls.len(), ended: 0, failed: 0, running: BTreeMap::new() }
    }

    /// Takes an event in, and shows it.
    pub fn show(&mut self, event: &EventBody, console: &mut Console) {
        let line = self.take(event);
        if console.redraws {
            console.draw(&self.status_line(console.width));
        } else if let Some(line) = line {
            console.note(&line);
        }
    }

    fn take(&mut self, event: &EventBody) -> Option<String> {
        let name = |call_id: &dyn std::fmt::Display, name: &str| {
            format!("{} ({})", cut(&one_line(&call_id.to_string()), 24), one_line(name))
        };
        match event {
            EventBody::BatchStarted { .. } | EventBody::BatchFinished(_) => None,
            EventBody::ToolStarted { call_uid, call_id, name: tool, pid, .. } => {
                let name = name(call_id, tool);
                let line = format!("{name} started, pid {pid}");
                self.running.insert(*call_uid, name);
                Some(line)
            }
            EventBody::ToolKilled { call_id, name: tool, reason, .. } => {
                Some(format!("{} killed: {}", name(call_id, tool), one_line(reason)))
            }
            EventBody::ToolFinished { call_uid, call_id, name: tool, status, duration_us: took } => {
                self.running.remove(call_uid);
                self.ended += 1;
                self.failed += usize::from(*status != Status::Ok);
                let took = took.map(|us| format!(" in {}", duration_us(us))).unwrap_or_default();
                Some(format!("{} {status}{took} [{}/{}]", name(call_id, tool), self.ended, self.total))
            }
        }
    }

    fn status_line(&self, width: usize) -> String {
        let mut line = format!("[{}/{}]", self.ended, self.total);
        if self.failed > 0 {
            let _ = write!(line, " {} not ok", self.failed);
        }
        if !self.running.is_empty() {
            let names: Vec<_> = self.running.values().map(String::as_str).collect();
            let _ = write!(line, " running: {}", names.join(", "));
        }
        // A line as wide as the terminal would wrap, and could not be redrawn.
        cut(&line, width - 1)
    }
}

#[cfg(test)]
mod tests {
    use toolcell_client::protocol::id::CallId;

    use super::*;

    fn started(number: u128) -> EventBody {
        EventBody::ToolStarted {
            call_uid: uid(number),
            call_id: CallId::from("c\u{1b}1"),
            name: "bash".to_owned(),
            pid: 42,
            args: "{}".to_owned(),
        }
    }

    fn uid(number: u128) -> CallUid {
        format!("{number:032x}").parse().expect("a uid")
    }

    #[test]
    fn starts_and_ends_are_told_and_counted() {
        let mut progress = Progress { total: 2, ended: 0, failed: 0, running: BTreeMap::new() };
        assert_eq!(progress.take(&started(1)).expect("told"), "c·1 (bash) started, pid 42");
        progress.take(&started(2));
        assert_eq!(progress.status_line(80), "[0/2] running: c·1 (bash), c·1 (bash)");
        let finished = EventBody::ToolFinished {
            call_uid: uid(1),
            call_id: CallId::from("c1"),
            name: "bash".to_owned(),
            status: Status::Crashed,
            duration_us: Some(3_000_000),
        };
        assert_eq!(progress.take(&finished).expect("told"), "c1 (bash) crashed in 3.0s [1/2]");
        assert_eq!(progress.status_line(80), "[1/2] 1 not ok running: c·1 (bash)");
        assert!(progress.status_line(20).chars().count() < 20);
    }
}
