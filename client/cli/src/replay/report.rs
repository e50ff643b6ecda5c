//! Prints what a replay found: tables for people, JSON for programs.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde_json::json;
use toolcell_daemon::core::loop_detection::Level;

use super::compare::{Comparison, Judged};
use super::input::Unknown;
use super::labels::{Figures, Measure, Share};
use super::planted::PlantedRow;
use super::play::Said;
use super::record::Run;

/// One line a run: JSON, or for people only what is shown.
pub(super) fn run(out: &mut dyn Write, run: &Run, said: &[Said], json: bool) -> io::Result<()> {
    if json {
        serde_json::to_writer(&mut *out, &json!({"run_id": run.run_id, "decisions": said}))?;
        return out.write_all(b"\n");
    }
    for said in said.iter().filter(|said| said.emitted) {
        let id = if run.run_id.is_empty() { "(run)" } else { &run.run_id };
        writeln!(
            out,
            "{id}\tcall {}\t{}\t{}\t{}×\t{}",
            said.at,
            said.level.name(),
            said.detector,
            said.count,
            said.message
        )?;
    }
    Ok(())
}

/// Counts over all runs.
#[derive(Debug, Default)]
pub(super) struct Totals {
    runs: u64,
    calls: u64,
    by_detector: BTreeMap<(&'static str, Level), u64>,
}

impl Totals {
    pub(super) fn add(&mut self, run: &Run, said: &[Said]) {
        self.runs += 1;
        self.calls += run.calls.iter().filter(|item| item.event.is_none()).count() as u64;
        let mut seen: Vec<(&'static str, Level)> =
            said.iter().filter(|s| s.emitted).map(|s| (s.detector, s.level)).collect();
        seen.sort_unstable();
        seen.dedup();
        for key in seen {
            *self.by_detector.entry(key).or_default() += 1;
        }
    }
}

pub(super) fn totals(out: &mut dyn Write, totals: &Totals) -> io::Result<()> {
    writeln!(out, "{} runs, {} calls", totals.runs, totals.calls)?;
    for ((detector, level), runs) in &totals.by_detector {
        writeln!(out, "  {detector:28} {:8} {runs} runs", level.name())?;
    }
    Ok(())
}

fn cell(share: Share) -> String {
    if share.of == 0 {
        "-".to_owned()
    } else {
        format!("{:.1}% ({}/{})", share.percent(), share.hits, share.of)
    }
}

pub(super) fn measured(
    out: &mut dyn Write,
    measure: Option<&Measure>,
    planted: Option<&[PlantedRow]>,
    json: bool,
) -> io::Result<()> {
    if json {
        let labels = measure.map(|measure| json!({"rows": measure.rows(), "sources": measure.sources()}));
        serde_json::to_writer(&mut *out, &json!({"labels": labels, "planted": planted}))?;
        return out.write_all(b"\n");
    }
    if let Some(measure) = measure {
        writeln!(
            out,
            "{:44} {:8} {:>16} {:>16} {:>16} {:>18}",
            "labelled runs", "level", "recall", "in time", "look-alikes", "resolved"
        )?;
        for row in measure.rows() {
            for (name, figures) in [("warning", row.warning), ("block", row.block)] {
                let Figures { recall, in_time, look_alikes, resolved } = figures;
                let cells = [recall, in_time, look_alikes, resolved].map(cell);
                writeln!(
                    out,
                    "{:44} {name:8} {:>16} {:>16} {:>16} {:>18}",
                    row.set, cells[0], cells[1], cells[2], cells[3]
                )?;
            }
        }
        writeln!(out)?;
        writeln!(
            out,
            "{:44} {:>20} {:>20} {:>18} {:>18} {:>18}",
            "sources", "warned: resolved", "failed", "unknown", "blocked: resolved", "failed"
        )?;
        for (source, row) in measure.sources() {
            let cells = [
                row.warning_resolved,
                row.warning_failed,
                row.warning_unknown,
                row.block_resolved,
                row.block_failed,
            ]
            .map(cell);
            writeln!(
                out,
                "{source:44} {:>20} {:>20} {:>18} {:>18} {:>18}",
                cells[0], cells[1], cells[2], cells[3], cells[4]
            )?;
        }
    }
    if let Some(rows) = planted {
        if measure.is_some() {
            writeln!(out)?;
        }
        writeln!(
            out,
            "{:28} {:16} {:>18} {:>14} {:>18}",
            "planted", "should be", "warned", "after calls", "blocked"
        )?;
        for row in rows {
            let should = if row.is_loop { "found" } else { "left alone" };
            let after = row.warning_after.map_or_else(|| "-".to_owned(), |after| after.to_string());
            writeln!(
                out,
                "{:28} {should:16} {:>18} {after:>14} {:>18}",
                row.kind,
                cell(row.warning),
                cell(row.block)
            )?;
        }
    }
    Ok(())
}

pub(super) fn comparison(out: &mut dyn Write, comparison: &Comparison, json: bool) -> io::Result<()> {
    if json {
        serde_json::to_writer(&mut *out, comparison)?;
        return out.write_all(b"\n");
    }
    let judged = |judged: &Judged| {
        let at = |name: &str, at: Option<usize>| at.map(|at| format!("{name} at call {at}"));
        let parts: Vec<String> =
            [at("warning", judged.warning), at("block", judged.block), at("abort", judged.abort)]
                .into_iter()
                .flatten()
                .collect();
        if parts.is_empty() {
            "nothing".to_owned()
        } else {
            format!("{} ({})", parts.join(", "), judged.detector.unwrap_or_default())
        }
    };
    for change in &comparison.changed {
        let outcome = change.outcome.as_deref().unwrap_or("-");
        writeln!(
            out,
            "{}\t{outcome}\t{} -> {}",
            change.run_id,
            judged(&change.before),
            judged(&change.after)
        )?;
    }
    let Comparison { runs, fired_before, fired_after, changed } = comparison;
    writeln!(
        out,
        "{runs} runs: {fired_before} fired before, {fired_after} after, {} judged differently",
        changed.len()
    )
}

/// Names on stderr what was not understood.
#[allow(clippy::print_stderr)]
pub(super) fn unknown(unknown: &Unknown) {
    if unknown.lines == 0 {
        return;
    }
    eprintln!("toolcell replay: {} lines not understood:", unknown.lines);
    for (kind, (place, count)) in &unknown.kinds {
        eprintln!("  {count} × {kind}, first at {place}");
    }
}

/// The progress line on a terminal.
#[derive(Debug)]
pub(super) struct Progress {
    total: u64,
    on: bool,
    runs: u64,
    calls: u64,
    drawn: Instant,
}

impl Progress {
    pub(super) fn new(total: u64, on: bool) -> Self {
        Self { total, on, runs: 0, calls: 0, drawn: Instant::now() }
    }

    #[allow(clippy::print_stderr)]
    pub(super) fn step(&mut self, bytes: u64, calls: usize) {
        self.runs += 1;
        self.calls += calls as u64;
        if self.on && self.drawn.elapsed() > Duration::from_millis(100) {
            self.drawn = Instant::now();
            let percent = (100 * bytes).checked_div(self.total).unwrap_or(0).min(100);
            eprint!("\r{percent:3} %  {} runs, {} calls\x1b[K", self.runs, self.calls);
        }
    }

    #[allow(clippy::print_stderr)]
    pub(super) fn end(self) {
        if self.on {
            eprint!("\r\x1b[K");
        }
    }
}
