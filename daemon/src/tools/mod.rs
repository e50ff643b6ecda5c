//! The tools that a daemon offers: what a manifest says, checked and ready to be used.
//!
//! ```text
//! tools.d/*.toml ── load ──▶ manifest ──▶ ToolDef ─┐
//!                     │          ├─ schema          ├─▶ ToolSet ──▶ core (admission), client API (tools.list)
//!                     │          └─ template        │
//!                  builtin ─────────────────────────┘
//! ```
//!
//! Only [`load`] touches the file system; every other file here takes text or values and gives values, so that
//! the core may use them: [`ToolSet::get`], then [`ToolDef::validate`], then [`ToolDef::action`].
//! Whatever a model sends wrong is an [`ArgsProblem`], which is a result for the model and never an error of ours.

pub mod builtin;
mod explain;
pub mod load;
pub mod manifest;
pub mod nearest;
pub mod schema;
pub mod template;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;
use toolcell_protocol::client_api::ToolInfo;
use toolcell_protocol::worker_api::{Action, Rlimits, WorkerKind};

use schema::Schema;
use template::CommandTemplate;

/// Wall-clock timeout of a tool whose manifest sets none.
pub const DEFAULT_TIMEOUT_MS: u64 = 120_000;

/// Arguments that a tool cannot take. The text is for the model: what is wrong and what to send instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ArgsProblem {
    /// JSON pointer to the field, like `/path`; `None` when the arguments as a whole are wrong.
    pub field: Option<String>,
    /// At most [`schema::MAX_PROBLEM_BYTES`].
    pub message: String,
}

/// What a tool does, in the words of the Agent Client Protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// Reads files or data.
    Read,
    /// Changes files or data.
    Edit,
    /// Removes files or data.
    Delete,
    /// Moves or renames files.
    Move,
    /// Searches.
    Search,
    /// Runs commands or code.
    Execute,
    /// Thinks or plans.
    Think,
    /// Gets something from elsewhere.
    Fetch,
    /// Anything else.
    #[default]
    Other,
}

impl ToolKind {
    /// The kind that manifests call `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "read" => Self::Read,
            "edit" => Self::Edit,
            "delete" => Self::Delete,
            "move" => Self::Move,
            "search" => Self::Search,
            "execute" => Self::Execute,
            "think" => Self::Think,
            "fetch" => Self::Fetch,
            "other" => Self::Other,
            _ => return None,
        })
    }

    /// The name used in manifests, JSON and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Edit => "edit",
            Self::Delete => "delete",
            Self::Move => "move",
            Self::Search => "search",
            Self::Execute => "execute",
            Self::Think => "think",
            Self::Fetch => "fetch",
            Self::Other => "other",
        }
    }
}

/// What a tool's standard output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputKind {
    /// Text for the model.
    #[default]
    Text,
    /// One JSON value; checked, and also put into `details.structured`.
    Json,
}

/// What is told about a tool's effects. Hints: nothing is enforced because of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hints {
    /// Does not change anything.
    pub read_only: bool,
    /// May destroy something.
    pub destructive: bool,
    /// Twice is as good as once.
    pub idempotent: bool,
    /// Reaches beyond this host.
    pub open_world: bool,
}

/// Limits of a tool; `None` leaves the daemon's default, or what is inherited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// CPU time of the whole tree.
    pub cpu_ms: Option<u64>,
    /// Largest file that may be written.
    pub fsize_bytes: Option<u64>,
    /// Open files of one process.
    pub nofile: Option<u64>,
    /// Core file size; 0 unless set.
    pub core_bytes: Option<u64>,
    /// Stack of the main thread.
    pub stack_bytes: Option<u64>,
    /// Locked memory of one process.
    pub memlock_bytes: Option<u64>,
    /// Address space of one process.
    pub as_bytes: Option<u64>,
    /// Processes of the user.
    pub nproc: Option<u64>,
    /// Bytes of output after which the tool is killed.
    pub output_bytes: Option<u64>,
}

/// What a tool gets besides the environment that every tool gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolEnv {
    /// Variables and their values; they win over everything else.
    pub set: Vec<(String, String)>,
    /// Names of variables to take from the session's, else from the daemon's environment, if they are there.
    pub inherit: Vec<String>,
}

/// As whom a tool asks to be run. [`load`] refuses it in a manifest that root does not own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAs {
    /// Name or number of the user.
    pub user: String,
    /// Name or number of the group; `None` is the user's own.
    pub group: Option<String>,
}

/// Where a tool comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Part of toolcell.
    Builtin,
    /// A manifest.
    Manifest(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin => f.write_str("builtin"),
            Self::Manifest(path) => path.display().fmt(f),
        }
    }
}

/// How a tool is run.
#[derive(Debug, Clone, PartialEq)]
pub enum Runner {
    /// A native program.
    Command(CommandTemplate),
    /// Inside the worker, without exec.
    InWorker,
}

/// One tool, checked.
#[derive(Debug)]
pub struct ToolDef {
    /// `[A-Za-z0-9_-]{1,64}`.
    pub name: String,
    /// For the model.
    pub description: String,
    /// What its arguments must look like.
    pub schema: Schema,
    /// How it is run.
    pub runner: Runner,
    /// What its standard output is.
    pub output: OutputKind,
    /// What it does.
    pub kind: ToolKind,
    /// What is told about its effects.
    pub hints: Hints,
    /// Steering and `killable` aborts spare it.
    pub immune: bool,
    /// Runs alone in its session.
    pub exclusive: bool,
    /// Is called again and again to see whether something has changed.
    pub poll: bool,
    /// Names of the arguments that name edited files.
    pub edits: Vec<String>,
    /// Wall-clock timeout; see [`ToolDef::timeout_ms_for`].
    pub timeout_ms: u64,
    /// Name of the argument with which the model may choose another timeout (only `bash` has one).
    pub timeout_arg: Option<String>,
    /// Longest silence; `None` is no such limit.
    pub idle_timeout_ms: Option<u64>,
    /// Time between TERM and KILL; `None` is the default of what kills it.
    pub kill_grace_ms: Option<u64>,
    /// Its limits.
    pub limits: Limits,
    /// What it gets besides the environment that every tool gets.
    pub env: ToolEnv,
    /// Working directory, absolute or relative to the session's; see [`ToolDef::working_dir`].
    pub cwd: Option<String>,
    /// File mode creation mask; `None` is the daemon's default.
    pub umask: Option<u32>,
    /// Most bytes of output that the model is shown; `None` is the daemon's default.
    pub for_model_bytes: Option<u64>,
    /// Most bytes of output that are kept; `None` is the daemon's default.
    pub spool_bytes: Option<u64>,
    /// As whom it asks to be run.
    pub run_as: Option<RunAs>,
    /// Where it comes from.
    pub source: Source,
}

impl ToolDef {
    /// Reads and checks the JSON text of a call's arguments.
    ///
    /// # Errors
    /// [`ArgsProblem`] when they are empty, not JSON, cut off, not an object, or do not fit the schema.
    pub fn validate(&self, args: &str) -> Result<Value, ArgsProblem> {
        self.schema.read_args(args)
    }

    /// What a worker has to run for these (valid) arguments.
    ///
    /// # Errors
    /// [`ArgsProblem`] when a value cannot be an argument of a program (a NUL byte, too long).
    pub fn action(&self, args: &Value) -> Result<Action, ArgsProblem> {
        match &self.runner {
            Runner::Command(template) => template.fill(args),
            Runner::InWorker => Ok(Action::Builtin { name: self.name.clone(), args: args.to_string() }),
        }
    }

    /// The kind of worker that it needs.
    #[must_use]
    pub const fn worker_kind(&self) -> WorkerKind {
        match self.runner {
            Runner::Command(_) => WorkerKind::Exec,
            Runner::InWorker => WorkerKind::Builtin,
        }
    }

    /// Its resource limits. `cpu_seconds` is a back-stop behind the tree's budget (`limits.cpu_ms`): whole
    /// seconds, rounded up, and one more, so that the budget, which knows the exact value, acts first.
    #[must_use]
    pub fn rlimits(&self) -> Rlimits {
        let limits = &self.limits;
        Rlimits {
            cpu_seconds: limits.cpu_ms.map(|ms| ms.div_ceil(1000).saturating_add(1)),
            fsize_bytes: limits.fsize_bytes,
            nofile_soft: limits.nofile,
            nofile_hard: limits.nofile,
            core_bytes: Some(limits.core_bytes.unwrap_or(0)),
            stack_bytes: limits.stack_bytes,
            memlock_bytes: limits.memlock_bytes,
            as_bytes: limits.as_bytes,
            nproc: limits.nproc,
        }
    }

    /// The timeout of a call with these arguments: the one that the model chose where the tool lets it choose,
    /// else the tool's own.
    #[must_use]
    pub fn timeout_ms_for(&self, args: &Value) -> u64 {
        self.timeout_arg
            .as_ref()
            .and_then(|name| args.get(name))
            // JSON Schema takes 5000.0 for an integer, so it must be one here too.
            .and_then(|value| value.as_u64().or_else(|| value.as_f64().map(|ms| ms as u64)))
            .filter(|ms| *ms > 0)
            .unwrap_or(self.timeout_ms)
    }

    /// The working directory of a call: the call's own, else the manifest's, else the session's; a relative
    /// one is taken from the session's.
    #[must_use]
    pub fn working_dir(&self, session: &Path, call: Option<&str>) -> PathBuf {
        match call.or(self.cwd.as_deref()) {
            Some(path) => session.join(path),
            None => session.to_owned(),
        }
    }

    /// The files that a call with these arguments edits, as the arguments name them.
    #[must_use]
    pub fn edited_files(&self, args: &Value) -> Vec<String> {
        let mut files = Vec::new();
        for value in self.edits.iter().filter_map(|name| args.get(name)) {
            match value {
                Value::String(path) => files.push(path.clone()),
                Value::Array(items) => {
                    files.extend(items.iter().filter_map(|item| item.as_str().map(str::to_owned)));
                }
                _ => {}
            }
        }
        files
    }

    /// The tool as clients see it.
    #[must_use]
    pub fn to_info(&self) -> ToolInfo {
        ToolInfo {
            name: self.name.clone(),
            description: self.description.clone(),
            input_schema: self.schema.text().to_owned(),
            kind: self.kind.name().to_owned(),
            read_only: self.hints.read_only,
            destructive: self.hints.destructive,
            idempotent: self.hints.idempotent,
            open_world: self.hints.open_world,
            immune: self.immune,
            exclusive: self.exclusive,
            timeout_ms: self.timeout_ms,
            source: self.source.to_string(),
            command: match &self.runner {
                Runner::Command(template) => template.source().to_vec(),
                Runner::InWorker => Vec::new(),
            },
        }
    }
}

/// All tools of a daemon, by name. Its order is that of the names, always.
#[derive(Debug, Clone, Default)]
pub struct ToolSet {
    tools: BTreeMap<String, Arc<ToolDef>>,
}

impl ToolSet {
    /// No tool at all.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The built-in tools.
    #[must_use]
    pub fn builtin() -> Self {
        let mut set = Self::new();
        for tool in builtin::tools() {
            set.insert(tool);
        }
        set
    }

    /// Adds a tool; gives back the one that had its name before.
    pub fn insert(&mut self, tool: ToolDef) -> Option<Arc<ToolDef>> {
        self.tools.insert(tool.name.clone(), Arc::new(tool))
    }

    /// Takes a tool out; whether it was there.
    pub fn remove(&mut self, name: &str) -> bool {
        self.tools.remove(name).is_some()
    }

    /// The tool of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<ToolDef>> {
        self.tools.get(name)
    }

    /// The names of existing tools that a model most likely meant, best first, at most three.
    #[must_use]
    pub fn nearest(&self, name: &str) -> Vec<String> {
        nearest::nearest(name, self.names())
    }

    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(String::as_str)
    }

    /// All tools, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ToolDef>> {
        self.tools.values()
    }

    /// All tools as clients see them, in the order of their names.
    #[must_use]
    pub fn to_info(&self) -> Vec<ToolInfo> {
        self.iter().map(|tool| tool.to_info()).collect()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }
}

/// Cuts a text at a character boundary so that it has at most `limit_bytes`, an ellipsis included.
pub(crate) fn cut(text: &str, limit_bytes: usize) -> Cow<'_, str> {
    if text.len() <= limit_bytes {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(limit_bytes.saturating_sub('…'.len_utf8()));
    Cow::Owned(format!("{}…", &text[..end]))
}

#[cfg(test)]
mod tests;
