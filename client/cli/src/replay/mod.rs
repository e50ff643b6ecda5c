//! `toolcell replay`: runs recorded runs through the detectors, exactly as the daemon would.
//!
//! `input` reads files (`logs` the session logs of known agents), `record` is the form that all of them are brought into,
//! `play` asks the detectors, `labels`, `planted` and `compare` measure, `report` prints.

mod compare;
mod input;
mod labels;
mod logs;
mod planted;
mod play;
mod record;
mod report;

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use toolcell_daemon::core::loop_detection::{LoopBlock, LoopConfig, LoopConfigError, Reading};

pub use compare::{Change, Comparison};
pub use input::{InputError, Unknown, read_runs};
pub use labels::{Figures, LabelError, Labels, Measure, Row, Share, SourceRow};
pub use planted::PlantedRow;
pub use play::{Phase, Said, config_of, play};
pub use record::{Item, Run, Tool};

/// Arguments of `toolcell replay`.
#[derive(Debug, Clone, clap::Args)]
pub struct ReplayArgs {
    /// Files of recorded runs, plain or gzip; `-` is standard input. JSON lines, Claude Code transcripts, Codex rollouts,
    /// OpenHands or mini-swe-agent trajectories.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Print JSON: one line a run, or one object for --labels, --planted and --compare. From the common `--json`.
    #[arg(skip)]
    pub json: bool,
    /// Configuration to replay with (TOML; a `[loop_detection]` table or its keys). A run's own block is laid over it.
    /// From the common `--config`.
    #[arg(skip)]
    pub config: Option<PathBuf>,
    /// Lay this agent's block of the configuration over the global one.
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// Measure against hand labels: recall, in time, look-alikes, resolved.
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
    /// Plant loops and honest repetitions into the resolved runs and measure.
    #[arg(long)]
    pub planted: bool,
    /// Show which runs would be judged differently under this configuration.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["labels", "planted"])]
    pub compare: Option<PathBuf>,
}

/// Why a replay could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A file of runs.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The labels.
    #[error("labels: {0}")]
    Labels(#[from] LabelError),
    /// A configuration file could not be read.
    #[error("read {path}: {source}", path = path.display())]
    ConfigRead {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A configuration file is not TOML, or has no such agent.
    #[error("configuration {path}: {problem}", path = path.display())]
    ConfigSyntax {
        /// Which file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// A configuration file has a wrong value.
    #[error("configuration {path}: {source}", path = path.display())]
    Config {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: LoopConfigError,
    },
    /// Standard output.
    #[error("write: {0}")]
    Write(#[from] io::Error),
}

impl ReplayError {
    /// Exit code of the command: 78 for a bad configuration, else 2 for what the command line named wrongly.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::ConfigRead { .. } | Self::ConfigSyntax { .. } | Self::Config { .. } => 78,
            Self::Input(_) | Self::Labels(_) => 2,
            Self::Write(_) => 125,
        }
    }
}

/// Does what the arguments say. A reader that goes away early is no error.
///
/// # Errors
/// Files that cannot be read, labels or configuration that are wrong. Lines that are not understood are counted and named.
pub fn run(args: &ReplayArgs) -> Result<(), ReplayError> {
    match replay(args, &mut io::BufWriter::new(io::stdout().lock())) {
        Err(ReplayError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// The same, to any writer.
///
/// # Errors
/// As [`run`].
pub fn replay(args: &ReplayArgs, out: &mut dyn Write) -> Result<(), ReplayError> {
    let base = match &args.config {
        Some(path) => read_config(path, args.agent.as_deref())?,
        None => LoopBlock::default(),
    };
    let mut unknown = Unknown::default();
    if let Some(path) = &args.compare {
        let other = read_config(path, args.agent.as_deref())?;
        let mut comparison = Comparison::default();
        each_run(args, &mut unknown, |run| {
            comparison.add(&run, &base, &other);
            Ok(())
        })?;
        report::comparison(out, &comparison, args.json)?;
    } else if args.labels.is_some() || args.planted {
        let labels = args.labels.as_deref().map(Labels::read).transpose()?;
        let mut measure = labels.map(Measure::new);
        let mut pool = Vec::new();
        each_run(args, &mut unknown, |run| {
            if let Some(measure) = &mut measure {
                let said = play(&run, Arc::new(config_of(&run, &base)));
                measure.add(&run.run_id, run.source.as_deref(), run.outcome.as_deref(), &said);
            }
            if args.planted && planted::fits(&run) {
                pool.push(run);
            }
            Ok(())
        })?;
        let rows = args.planted.then(|| planted::measure(&pool, &base));
        report::measured(out, measure.as_ref(), rows.as_deref(), args.json)?;
    } else {
        let mut totals = report::Totals::default();
        let plain = Arc::new(LoopConfig::resolve(&base));
        each_run(args, &mut unknown, |run| {
            let config =
                if run.config.is_some() { Arc::new(config_of(&run, &base)) } else { Arc::clone(&plain) };
            let said = play(&run, config);
            totals.add(&run, &said);
            report::run(out, &run, &said, args.json)
        })?;
        if !args.json {
            report::totals(out, &totals)?;
        }
    }
    out.flush()?;
    report::unknown(&unknown);
    Ok(())
}

/// Reads every file and shows on a terminal how far it has come.
fn each_run(
    args: &ReplayArgs,
    unknown: &mut Unknown,
    mut each: impl FnMut(Run) -> io::Result<()>,
) -> Result<(), ReplayError> {
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |meta| meta.len());
    let total: u64 = args.files.iter().map(size).sum();
    let bytes = Cell::new(0);
    let mut progress = report::Progress::new(total, io::stderr().is_terminal());
    let mut failed = None;
    for path in &args.files {
        read_runs(path, &bytes, unknown, &mut |run| {
            progress.step(bytes.get(), run.calls.len());
            if failed.is_none() {
                failed = each(run).err();
            }
        })?;
    }
    progress.end();
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// A `loop_detection` block from a TOML file: the table of that name (an agent's laid over it), or the whole file.
fn read_config(path: &PathBuf, agent: Option<&str>) -> Result<LoopBlock, ReplayError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ReplayError::ConfigRead { path: path.clone(), source })?;
    let syntax = |problem: String| ReplayError::ConfigSyntax { path: path.clone(), problem };
    let file: serde_json::Value = toml::from_str(&text).map_err(|error| syntax(error.to_string()))?;
    let parse = |value: &serde_json::Value| {
        LoopBlock::parse(value, Reading::Strict)
            .map_err(|source| ReplayError::Config { path: path.clone(), source })
    };
    let table = |value: &serde_json::Value| {
        value.get("loop_detection").or_else(|| value.get("loopDetection")).cloned()
    };
    let block = match table(&file) {
        Some(block) => parse(&block)?,
        None if file.get("agents").is_some() => LoopBlock::default(),
        None => parse(&file)?,
    };
    let Some(name) = agent else { return Ok(block) };
    let agent = file
        .get("agents")
        .and_then(|agents| agents.get(name))
        .ok_or_else(|| syntax(format!("there is no agent {name}")))?;
    match table(agent) {
        Some(over) => Ok(block.overlaid(&parse(&over)?)),
        None => Ok(block),
    }
}
