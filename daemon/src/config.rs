//! The daemon's configuration: one TOML file, every key with a default, every unit in the key.
//!
//! A file that cannot be read or has an unknown key is refused whole, naming file, line and key; there is no
//! half-applied configuration.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

/// Why a configuration was refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration {path}: {source}; give another file with --config")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not valid.
    #[error("{path}: {reason}")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Line, column, key and what was expected, as the TOML reader says it.
        reason: String,
    },
    /// A value is out of its bounds.
    #[error("{path}: {key} is {value}, it must be {expected}")]
    Value {
        /// Which file.
        path: PathBuf,
        /// Full name of the key.
        key: &'static str,
        /// The value found.
        value: String,
        /// The bounds, in words.
        expected: &'static str,
    },
}

/// The whole configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Directories of tool manifests; a later one wins over an earlier one.
    pub tools_dirs: Vec<PathBuf>,
    /// The socket and who may connect.
    pub server: ServerConfig,
    /// How much at once.
    pub limits: LimitsConfig,
    /// How calls are held.
    pub cells: CellsConfig,
    /// What is kept of their output.
    pub output: OutputConfig,
}

/// The socket and who may connect.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Path of the Unix socket. Default: `/run/toolcell/toolcell.sock` for root, else
    /// `$XDG_RUNTIME_DIR/toolcell/toolcell.sock`.
    pub socket: Option<PathBuf>,
    /// Mode of the socket, octal text. Default `0600`; a root daemon that serves other users needs `0660` or
    /// `0666`.
    pub socket_mode: String,
    /// Members of this group see and touch every session, like root.
    pub admin_group: String,
    /// Connections at once.
    pub max_connections: usize,
    /// Connections of one uid at once.
    pub max_connections_per_uid: usize,
    /// Requests of one connection that are not yet answered.
    pub max_pending_requests: usize,
    /// Messages that wait for a connection that does not read; beyond that it is closed.
    pub max_queued_messages: usize,
    /// Time for the first message.
    pub handshake_timeout_ms: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            socket: None,
            socket_mode: "0600".to_owned(),
            admin_group: "toolcell-admin".to_owned(),
            max_connections: 1024,
            max_connections_per_uid: 512,
            max_pending_requests: 256,
            max_queued_messages: 8192,
            handshake_timeout_ms: 5_000,
        }
    }
}

/// How much at once.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Sessions of one uid.
    pub max_sessions_per_uid: usize,
    /// Calls that run, of all.
    pub max_running: usize,
    /// Calls that run, of one uid.
    pub max_running_per_uid: usize,
    /// Calls that run, of one session.
    pub max_running_per_session: usize,
    /// Calls that wait, of one uid.
    pub max_queued_per_uid: usize,
    /// Finished calls that stay known, of one session.
    pub kept_calls_per_session: usize,
    /// Longest wall-clock timeout that a manifest or a call may ask for.
    pub max_timeout_ms: u64,
    /// Time that calls of a session without a connection go on (`on_disconnect = "linger"`).
    pub session_linger_ms: u64,
    /// After SIGTERM: time for running calls to end by themselves before they are killed.
    pub drain_ms: u64,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            max_sessions_per_uid: 16_384,
            max_running: 512,
            max_running_per_uid: 256,
            max_running_per_session: 128,
            max_queued_per_uid: 16_384,
            kept_calls_per_session: 128,
            max_timeout_ms: 24 * 60 * 60 * 1000,
            session_linger_ms: 60_000,
            drain_ms: 5_000,
        }
    }
}

/// How to hold the process trees of calls together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainmentChoice {
    /// The best that the host offers.
    Auto,
    /// A cgroup v2 leaf, or refuse to start.
    Cgroup,
    /// A PID namespace, or refuse to start.
    PidNamespace,
    /// Stop, walk and kill.
    Weak,
}

/// How calls are held.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CellsConfig {
    /// `auto`, `cgroup`, `pid_namespace` or `weak`.
    pub containment: ContainmentChoice,
    /// Idle workers kept for calls that run a program.
    pub idle_workers: usize,
    /// Idle workers kept for built-in tools.
    pub idle_builtin_workers: usize,
    /// Names of the daemon's own variables that tools get. Nothing else of its environment reaches a tool.
    pub env_inherit: Vec<String>,
}

impl Default for CellsConfig {
    fn default() -> Self {
        let inherit =
            ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"];
        Self {
            containment: ContainmentChoice::Auto,
            idle_workers: 8,
            idle_builtin_workers: 8,
            env_inherit: inherit.iter().map(|name| (*name).to_owned()).collect(),
        }
    }
}

/// What is kept of the output of calls.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputConfig {
    /// Output of a call that the daemon keeps in memory; beyond it the spool file takes all of it.
    pub inline_bytes: u64,
    /// Bytes of the end of the output that are kept for `for_model`.
    pub tail_bytes: u64,
    /// Largest `for_model` text.
    pub for_model_bytes: usize,
    /// Output of finished calls that stays in memory, of all sessions together.
    pub kept_bytes: usize,
    /// Directory of spool files. Default: a private directory beside the socket.
    pub spool_dir: Option<PathBuf>,
    /// Largest spool file of one call; 0 keeps no spool.
    pub spool_bytes: u64,
}

impl Default for OutputConfig {
    fn default() -> Self {
        Self {
            inline_bytes: 64 * 1024,
            tail_bytes: 16 * 1024,
            for_model_bytes: 16 * 1024,
            kept_bytes: 8 * 1024 * 1024,
            spool_dir: None,
            spool_bytes: 64 * 1024 * 1024,
        }
    }
}

impl Config {
    /// Reads one file.
    ///
    /// # Errors
    /// [`ConfigError`]; each names the file and, where there is one, the line and the key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |source| ConfigError::Read { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        // Workers have another working directory, so nothing in it may stay relative.
        Self::parse(&std::path::absolute(path).map_err(unreadable)?, &text)
    }

    /// Reads a file's text; `path` is for messages, and the base of relative paths in it.
    ///
    /// # Errors
    /// [`ConfigError::Parse`] and [`ConfigError::Value`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut config: Self = toml::from_str(text).map_err(|error| ConfigError::Parse {
            path: path.to_owned(),
            reason: error.to_string().trim_end().to_owned(),
        })?;
        config.check(path)?;
        if let Some(base) = path.parent() {
            for dir in &mut config.tools_dirs {
                *dir = base.join(&*dir);
            }
            for file in [&mut config.server.socket, &mut config.output.spool_dir].into_iter().flatten() {
                *file = base.join(&*file);
            }
        }
        Ok(config)
    }

    /// The mode of the socket as a number.
    #[must_use]
    pub fn socket_mode(&self) -> u32 {
        // Checked by `check`; the default is valid.
        u32::from_str_radix(&self.server.socket_mode, 8).unwrap_or(0o600)
    }

    fn check(&self, path: &Path) -> Result<(), ConfigError> {
        let refuse = |key: &'static str, value: String, expected: &'static str| {
            Err(ConfigError::Value { path: path.to_owned(), key, value, expected })
        };
        match u32::from_str_radix(&self.server.socket_mode, 8) {
            Ok(mode) if mode <= 0o777 => {}
            _ => {
                return refuse(
                    "server.socket_mode",
                    format!("{:?}", self.server.socket_mode),
                    "an octal mode in quotes, like \"0660\"",
                );
            }
        }
        let at_least_one: [(&'static str, usize); 9] = [
            ("server.max_connections", self.server.max_connections),
            ("server.max_connections_per_uid", self.server.max_connections_per_uid),
            ("server.max_pending_requests", self.server.max_pending_requests),
            ("server.max_queued_messages", self.server.max_queued_messages),
            ("limits.max_sessions_per_uid", self.limits.max_sessions_per_uid),
            ("limits.max_running", self.limits.max_running),
            ("limits.max_running_per_uid", self.limits.max_running_per_uid),
            ("limits.max_running_per_session", self.limits.max_running_per_session),
            ("limits.max_queued_per_uid", self.limits.max_queued_per_uid),
        ];
        for (key, value) in at_least_one {
            if value == 0 {
                return refuse(key, "0".to_owned(), "at least 1");
            }
        }
        if self.cells.idle_workers > 256 {
            return refuse("cells.idle_workers", self.cells.idle_workers.to_string(), "at most 256");
        }
        if self.cells.idle_builtin_workers > 256 {
            return refuse(
                "cells.idle_builtin_workers",
                self.cells.idle_builtin_workers.to_string(),
                "at most 256",
            );
        }
        if self.server.handshake_timeout_ms == 0 {
            return refuse("server.handshake_timeout_ms", "0".to_owned(), "at least 1");
        }
        if self.limits.max_timeout_ms == 0 {
            return refuse("limits.max_timeout_ms", "0".to_owned(), "at least 1");
        }
        if !(256..=1024 * 1024).contains(&self.output.for_model_bytes) {
            return refuse(
                "output.for_model_bytes",
                self.output.for_model_bytes.to_string(),
                "from 256 to 1048576",
            );
        }
        if self.output.inline_bytes > 4 * 1024 * 1024 {
            return refuse("output.inline_bytes", self.output.inline_bytes.to_string(), "at most 4194304");
        }
        if self.output.tail_bytes > 4 * 1024 * 1024 {
            return refuse("output.tail_bytes", self.output.tail_bytes.to_string(), "at most 4194304");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(Path::new("/etc/toolcell/toolcelld.toml"), text)
    }

    #[test]
    fn an_empty_file_is_the_default() {
        let config = parse("").expect("every key has a default");
        assert_eq!(config, Config::default());
        assert_eq!(config.socket_mode(), 0o600);
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let error = parse("[limits]\nmax_runing = 3\n").expect_err("misspelt").to_string();
        assert!(
            error.contains("toolcelld.toml") && error.contains("line 2") && error.contains("max_runing"),
            "{error}"
        );
    }

    #[test]
    fn a_value_out_of_bounds_names_the_key_and_the_bound() {
        let error = parse("[server]\nsocket_mode = \"rw\"\n").expect_err("not octal").to_string();
        assert!(error.contains("server.socket_mode") && error.contains("octal"), "{error}");
        assert!(parse("[limits]\nmax_running = 0\n").is_err());
        assert!(parse("[output]\nfor_model_bytes = 10\n").is_err());
    }

    #[test]
    fn relative_paths_are_relative_to_the_file() {
        let config = parse("tools_dirs = [\"tools.d\", \"/opt/tools\"]\n").expect("good");
        assert_eq!(config.tools_dirs, [PathBuf::from("/etc/toolcell/tools.d"), PathBuf::from("/opt/tools")]);
    }
}
