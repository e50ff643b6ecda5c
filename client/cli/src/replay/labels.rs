//! Measures decisions against hand labels: how many stuck runs are found, how many of them in time, and how often runs
//! that only look repetitive, or that ended well, are disturbed.
//!
//! A label line is `{"run_id", "stuck": bool, "from"?: n}`; `from` is the first call of the loop, counted from 1. In time
//! is from one call before it to ten calls after it.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toolcell_daemon::core::loop_detection::Level;

use super::play::Said;

/// One label.
#[derive(Debug, Clone, Deserialize)]
pub struct Label {
    run_id: String,
    stuck: bool,
    #[serde(default)]
    from: Option<usize>,
}

/// All labels.
#[derive(Debug, Default)]
pub struct Labels(HashMap<String, Label>);

/// Why the labels could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LabelError {
    /// The file.
    #[error("read {path}: {source}", path = path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line of it.
    #[error("{path}:{line}: {source}", path = path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
}

impl Labels {
    /// Reads a file of labels.
    ///
    /// # Errors
    /// If it cannot be read or a line is no label.
    pub fn read(path: &Path) -> Result<Self, LabelError> {
        let text =
            fs::read_to_string(path).map_err(|source| LabelError::Read { path: path.to_owned(), source })?;
        let mut labels = HashMap::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let label: Label = serde_json::from_str(line).map_err(|source| LabelError::Line {
                path: path.to_owned(),
                line: index + 1,
                source,
            })?;
            labels.insert(label.run_id.clone(), label);
        }
        Ok(Self(labels))
    }
}

/// Index of the first call at which something of at least this level was shown.
#[must_use]
pub fn first(said: &[Said], level: Level) -> Option<usize> {
    said.iter().find(|said| said.level >= level && said.emitted).map(|said| said.at)
}

/// What is kept of a run.
#[derive(Debug)]
struct Seen {
    source: String,
    outcome: Outcome,
    label: Option<(bool, Option<usize>)>,
    warning: Option<usize>,
    block: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Resolved,
    Failed,
    Unknown,
}

/// How often something happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// Happened.
    pub hits: u32,
    /// Of so many.
    pub of: u32,
}

impl Share {
    pub(super) fn add(&mut self, hit: bool) {
        self.hits += u32::from(hit);
        self.of += 1;
    }

    /// Per cent, one decimal.
    #[must_use]
    pub fn percent(self) -> f64 {
        if self.of == 0 { 0.0 } else { (1000.0 * f64::from(self.hits) / f64::from(self.of)).round() / 10.0 }
    }
}

/// The four figures, for one level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Stuck runs that were found.
    pub recall: Share,
    /// Stuck runs that were found in time.
    pub in_time: Share,
    /// Runs that only look repetitive and were disturbed.
    pub look_alikes: Share,
    /// Other resolved runs (of sources that have labels) that were disturbed.
    pub resolved: Share,
}

/// Figures of one set of runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// `all`, `only X`, `without X`.
    pub set: String,
    /// Of the first warning (or block).
    pub warning: Figures,
    /// Of the first block or abort.
    pub block: Figures,
}

/// Runs of one source that fired, by how they ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SourceRow {
    /// Warnings on resolved runs.
    pub warning_resolved: Share,
    /// Warnings on failed runs.
    pub warning_failed: Share,
    /// Warnings on runs of which nobody knows.
    pub warning_unknown: Share,
    /// Blocks on resolved runs.
    pub block_resolved: Share,
    /// Blocks on failed runs.
    pub block_failed: Share,
}

/// Gathers runs and computes the figures.
#[derive(Debug, Default)]
pub struct Measure {
    labels: Labels,
    seen: Vec<Seen>,
}

impl Measure {
    /// Starts with these labels.
    #[must_use]
    pub const fn new(labels: Labels) -> Self {
        Self { labels, seen: Vec::new() }
    }

    /// Takes a run in.
    pub fn add(&mut self, run_id: &str, source: Option<&str>, outcome: Option<&str>, said: &[Said]) {
        let label = self.labels.0.get(run_id).map(|label| (label.stuck, label.from));
        self.seen.push(Seen {
            source: source.unwrap_or("(none)").to_owned(),
            outcome: match outcome {
                Some("resolved") => Outcome::Resolved,
                Some("failed") => Outcome::Failed,
                _ => Outcome::Unknown,
            },
            label,
            warning: first(said, Level::Warning),
            block: first(said, Level::Block),
        });
    }

    fn labelled_sources(&self) -> Vec<&str> {
        let mut sources: Vec<&str> =
            self.seen.iter().filter(|s| s.label.is_some()).map(|s| s.source.as_str()).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }

    /// All runs, each source alone, and all but each source.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let sources = self.labelled_sources();
        let row = |set: String, wanted: &dyn Fn(&str) -> bool| {
            let within = |seen: &&Seen| sources.contains(&seen.source.as_str()) && wanted(&seen.source);
            Row {
                set,
                warning: figures(self.seen.iter().filter(within), |seen| seen.warning),
                block: figures(self.seen.iter().filter(within), |seen| seen.block),
            }
        };
        let mut rows = vec![row("all".to_owned(), &|_| true)];
        if sources.len() > 1 {
            rows.extend(sources.iter().map(|source| row(format!("only {source}"), &|s| s == *source)));
            rows.extend(sources.iter().map(|source| row(format!("without {source}"), &|s| s != *source)));
        }
        rows
    }

    /// Shares by source and end of the run.
    #[must_use]
    pub fn sources(&self) -> BTreeMap<String, SourceRow> {
        let mut rows: BTreeMap<String, SourceRow> = BTreeMap::new();
        for seen in &self.seen {
            let row = rows.entry(seen.source.clone()).or_default();
            let (warned, blocked) = (seen.warning.is_some(), seen.block.is_some());
            match seen.outcome {
                Outcome::Resolved => {
                    row.warning_resolved.add(warned);
                    row.block_resolved.add(blocked);
                }
                Outcome::Failed => {
                    row.warning_failed.add(warned);
                    row.block_failed.add(blocked);
                }
                Outcome::Unknown => row.warning_unknown.add(warned),
            }
        }
        rows
    }
}

fn figures<'a>(runs: impl Iterator<Item = &'a Seen>, fired: impl Fn(&Seen) -> Option<usize>) -> Figures {
    let mut figures = Figures::default();
    for seen in runs {
        let at = fired(seen);
        match seen.label {
            Some((true, from)) => {
                figures.recall.add(at.is_some());
                let in_time =
                    |at: usize, from: usize| (from.saturating_sub(1)..=from + 10).contains(&(at + 1));
                figures.in_time.add(at.zip(from).is_some_and(|(at, from)| in_time(at, from)));
            }
            Some((false, _)) => figures.look_alikes.add(at.is_some()),
            None => {}
        }
        if seen.outcome == Outcome::Resolved && !matches!(seen.label, Some((true, _))) {
            figures.resolved.add(at.is_some());
        }
    }
    figures
}

/// Whether a run was disturbed inside its planted loop: the first shown decision of this level at or after `onset`.
#[must_use]
pub fn fired_from(said: &[Said], level: Level, onset: usize) -> Option<usize> {
    first(said, level).filter(|at| *at >= onset)
}
