//! `toolcell doctor`: what this host offers, why something is missing and how to get it.
//!
//! [`facts`] looks, [`mod@judge`] says what it means (and does no I/O), and then a call is really run in a daemon of
//! our own: what that says was in force is the proof.

mod facts;
mod judge;

use std::time::Instant;

use serde::Serialize;
use toolcell_client::address::Search;
use toolcell_client::protocol::call::{LayerState, Layers, Status};
use toolcell_client::protocol::client_api::ServerStatus;
use toolcell_client::{Client, ClientError, call};

use crate::args::Common;
use crate::backend::{self, Backend};
use crate::console::Console;
use crate::error::CliError;
use crate::exit;
use crate::table::Tone;
use crate::text::{duration_ms, duration_us, harmless, wrap};
use facts::Facts;
use judge::{Check, State, judge};

/// Where text begins, after state and name.
const INDENT: usize = 26;

/// Everything that is told.
#[derive(Debug, Serialize)]
struct Report {
    checks: Vec<Check>,
    /// Where a daemon was looked for.
    sockets: Vec<Socket>,
    /// The daemon that a command would use.
    daemon: Option<ServerStatus>,
    /// A call that was run in a daemon of our own.
    trial: Trial,
}

#[derive(Debug, Serialize)]
struct Socket {
    path: String,
    reachable: bool,
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct Trial {
    ok: bool,
    /// How the daemon of our own holds trees together, and why not better.
    containment: Option<&'static str>,
    containment_reason: Option<String>,
    /// From the start of that daemon to its first answer.
    start_us: Option<u64>,
    /// One call of a program that does nothing.
    call_us: Option<u64>,
    layers: Option<Layers>,
    error: Option<String>,
}

pub async fn doctor(common: &Common, console: &mut Console) -> Result<u8, CliError> {
    let checks = judge(&Facts::gather());
    let (sockets, daemon) = look_for_daemon(&backend::search(common)).await;
    let trial = match try_one(common, console).await {
        Ok(trial) => trial,
        Err(error) => Trial {
            ok: false,
            containment: None,
            containment_reason: None,
            start_us: None,
            call_us: None,
            layers: None,
            error: Some(error.to_string()),
        },
    };
    let report = Report { checks, sockets, daemon, trial };
    if common.json {
        console.json(&report)?;
    } else {
        let text = render(&report, console.width, console.colour);
        console.out(&text)?;
    }
    Ok(if report.trial.ok { exit::OK } else { exit::REFUSED })
}

async fn look_for_daemon(search: &Search) -> (Vec<Socket>, Option<ServerStatus>) {
    let mut sockets = Vec::new();
    let mut daemon = None;
    for path in &search.paths {
        let outcome = async { Client::connect(path).await?.server_status().await }.await;
        let reason = match &outcome {
            Ok(_) => None,
            Err(ClientError::Connect { tried, .. }) => tried.first().map(|one| one.reason.clone()),
            Err(error) => Some(error.to_string()),
        };
        sockets.push(Socket { path: path.display().to_string(), reachable: reason.is_none(), reason });
        // A command uses the first one, and only that one is asked for its state.
        if daemon.is_none() {
            daemon = outcome.ok();
        }
    }
    (sockets, daemon)
}

async fn try_one(common: &Common, console: &mut Console) -> Result<Trial, CliError> {
    // Whatever the options say: this is about the host.
    let common = Common { session: None, env: Vec::new(), ..common.clone() };
    let since = Instant::now();
    let backend = Backend::own(&common, console).await?;
    let status = backend.client.server_status().await?;
    let start_us = elapsed_us(since);
    let session = backend.session(&common).await?;
    let since = Instant::now();
    let batch = session.execute(vec![call("doctor", "bash", r#"{"command":"true"}"#)]).await?;
    let result = batch.finish().await?;
    let call_us = elapsed_us(since);
    let one = result.results.into_iter().next();
    let ok = one.as_ref().is_some_and(|one| one.status == Status::Ok);
    let error = match &one {
        Some(one) if !ok => super::explanation(one).or_else(|| Some(one.for_model.clone())),
        Some(_) => None,
        None => Some("the daemon gave no result".to_owned()),
    };
    Ok(Trial {
        ok,
        containment: Some(status.containment.name()),
        containment_reason: status.containment_reason,
        start_us: Some(start_us),
        call_us: Some(call_us),
        layers: one.and_then(|one| one.details.layers),
        error,
    })
}

fn elapsed_us(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

fn render(report: &Report, width: usize, colour: bool) -> String {
    let mut page = Page { text: String::new(), width, colour };
    for check in &report.checks {
        page.entry(check.state, check.name, &check.found);
        page.more("why", check.why.as_deref());
        page.more("how", check.how.as_deref());
    }
    for socket in &report.sockets {
        let state = if socket.reachable { State::Ok } else { State::Note };
        let reason = socket.reason.as_deref().unwrap_or("a daemon answers");
        page.entry(state, "socket", &format!("{}: {reason}", socket.path));
    }
    match &report.daemon {
        Some(daemon) => {
            page.entry(State::Ok, "daemon", &daemon_line(daemon));
            page.more("why", daemon.containment_reason.as_deref());
            for broken in &daemon.broken_manifests {
                page.entry(State::Missing, "manifest", broken);
            }
        }
        None => {
            page.entry(
                State::Note,
                "daemon",
                "none is reachable; run, batch and tools start one of their own",
            );
        }
    }
    page.trial(&report.trial);
    page.text
}

fn daemon_line(daemon: &ServerStatus) -> String {
    format!(
        "{}, pid {}, uid {}, up {}; containment {}; {} running, {} queued, {} sessions; spawner restarted {} times",
        daemon.daemon,
        daemon.pid,
        daemon.uid,
        duration_ms(daemon.uptime_ms),
        daemon.containment.name(),
        daemon.running,
        daemon.queued,
        daemon.sessions,
        daemon.spawner_restarts
    )
}

struct Page {
    text: String,
    width: usize,
    colour: bool,
}

impl Page {
    fn entry(&mut self, state: State, name: &str, found: &str) {
        let (word, tone) = match state {
            State::Ok => ("ok", Tone::Good),
            State::Missing => ("missing", Tone::Bad),
            State::Note => ("note", Tone::Odd),
        };
        let painted = tone.paint(word, self.colour);
        let pad = " ".repeat(9 - word.len());
        let head = format!("{painted}{pad}{name:<width$}", width = INDENT - 9);
        self.lines(&head, found);
    }

    fn more(&mut self, label: &str, text: Option<&str>) {
        if let Some(text) = text {
            let blank = " ".repeat(INDENT);
            self.lines(&blank, &format!("{label}: {text}"));
        }
    }

    fn lines(&mut self, head: &str, text: &str) {
        for (at, line) in wrap(&harmless(text), self.width - INDENT).iter().enumerate() {
            let blank = " ".repeat(INDENT);
            let head = if at == 0 { head } else { &blank };
            self.text.push_str(format!("{head}{line}").trim_end());
            self.text.push('\n');
        }
    }

    fn trial(&mut self, trial: &Trial) {
        let state = if trial.ok { State::Ok } else { State::Missing };
        let found = match (&trial.error, trial.call_us, trial.start_us) {
            (Some(error), ..) => format!("a call in a daemon of our own failed: {error}"),
            (None, Some(call), Some(start)) => format!(
                "a call in a daemon of our own took {} (the daemon's start {})",
                duration_us(call),
                duration_us(start)
            ),
            (None, ..) => "a call in a daemon of our own was run".to_owned(),
        };
        self.entry(state, "trial call", &found);
        if let Some(containment) = trial.containment {
            let state = if trial.containment_reason.is_none() { State::Ok } else { State::Note };
            self.entry(state, "containment", containment);
            self.more("why", trial.containment_reason.as_deref());
        }
        let Some(layers) = &trial.layers else { return };
        let (enforced, missing): (Vec<_>, Vec<_>) =
            layers.layers.iter().partition(|layer| layer.state == LayerState::Enforced);
        let names = enforced.iter().map(|layer| layer.name.as_str()).collect::<Vec<_>>().join(", ");
        if !names.is_empty() {
            self.entry(State::Ok, "layers in force", &names);
        }
        for layer in missing {
            let why = layer.detail.as_deref().unwrap_or("not to be had");
            self.entry(State::Note, "layer", &format!("{}: {why}", layer.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use toolcell_client::protocol::call::{Containment, Layer};

    use super::*;

    fn report() -> Report {
        let check = Check {
            name: "cgroup v2",
            state: State::Missing,
            found: "no cgroup2 file system is mounted".to_owned(),
            why: Some("trees are held together by PID namespaces instead".to_owned()),
            how: Some("boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2 yourself ".repeat(3)),
        };
        let layer = |name: &str, state| Layer { name: name.to_owned(), state, detail: None };
        Report {
            checks: vec![check],
            sockets: vec![Socket {
                path: "/run/toolcell/toolcell.sock".to_owned(),
                reachable: false,
                reason: Some("No such file or directory (os error 2)".to_owned()),
            }],
            daemon: None,
            trial: Trial {
                ok: true,
                containment: Some(Containment::Weak.name()),
                containment_reason: Some("asked for".to_owned()),
                start_us: Some(12_000),
                call_us: Some(2_000),
                layers: Some(Layers {
                    containment: Containment::Weak,
                    layers: vec![
                        layer("no_new_privileges", LayerState::Enforced),
                        layer("rlimit_core", LayerState::Unavailable),
                    ],
                }),
                error: None,
            },
        }
    }

    #[test]
    fn the_page_fits_a_terminal_and_says_why_and_how() {
        let text = render(&report(), 80, false);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for part in [
            "missing  cgroup v2        no cgroup2 file system",
            "                          how: boot with",
            "note     socket           /run/toolcell/toolcell.sock: No such file",
            "took 2.0ms",
            "note     layer            rlimit_core",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }

    #[test]
    fn the_json_has_the_documented_parts() {
        let value = serde_json::to_value(report()).expect("JSON");
        assert_eq!(value["checks"][0]["state"], "missing");
        assert_eq!(value["sockets"][0]["reachable"], false);
        assert!(value["daemon"].is_null());
        assert_eq!(value["trial"]["containment"], "weak");
    }
}
