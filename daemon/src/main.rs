//! `toolcelld`: arguments, configuration, exit codes. Everything else is in the library.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use toolcell_daemon::config::Config;
use toolcell_daemon::server::listener::Bound;
use toolcell_daemon::start::{Prepared, Queue, StartError, socket_path};
use toolcell_daemon::telemetry;

/// The daemon that runs each tool call of an LLM agent in a worker process of its own.
///
/// Example: toolcelld --config /etc/toolcell/toolcelld.toml
#[derive(Debug, Parser)]
#[command(
    name = "toolcelld",
    version,
    after_help = "Exit codes: 0 stopped, 69 the socket is in use, 71 the system would not, 78 bad configuration."
)]
struct Args {
    /// Configuration file; without it, /etc/toolcell/toolcelld.toml is read if it exists.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of tool manifests, in addition to the configured ones; may be given more than once.
    #[arg(long = "tools", value_name = "DIR")]
    tools_dirs: Vec<PathBuf>,
    /// Path of the Unix socket; wins over server.socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// What to log: error, warn, info, debug, or a filter. TOOLCELL_LOG wins over it.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

/// Where the configuration is looked for when none is named.
const DEFAULT_CONFIG: &str = "/etc/toolcell/toolcelld.toml";

/// Exit codes, as sysexits.h has them.
const UNAVAILABLE: u8 = 69;
const OS_ERROR: u8 = 71;
const BAD_CONFIGURATION: u8 = 78;

fn main() -> ExitCode {
    toolcell_worker::run_if_spawner();
    let args = Args::parse();
    telemetry::set_up(&args.log);
    let default = PathBuf::from(DEFAULT_CONFIG);
    let file = args.config.clone().or_else(|| default.exists().then_some(default));
    let config = match file.as_deref().map(Config::read).transpose() {
        Ok(config) => config.unwrap_or_default(),
        Err(error) => {
            tracing::error!("{error}");
            return ExitCode::from(BAD_CONFIGURATION);
        }
    };
    match run(args, config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::from(match error {
                StartError::Cells(_) | StartError::NoSocketPath => BAD_CONFIGURATION,
                StartError::Listen(_) => UNAVAILABLE,
                StartError::Spool(_) => BAD_CONFIGURATION,
                StartError::Spawner(_) | StartError::Directory { .. } | StartError::Runtime(_) => OS_ERROR,
            })
        }
    }
}

fn run(args: Args, mut config: Config) -> Result<(), StartError> {
    config.tools_dirs.extend(args.tools_dirs);
    if let Some(socket) = args.socket {
        config.server.socket = Some(std::path::absolute(socket).map_err(StartError::Runtime)?);
    }
    let bound = match Bound::inherited()? {
        Some(bound) => bound,
        None => Bound::bind(&socket_path(&config)?, config.socket_mode())?,
    };
    let socket_file = bound.path.clone();
    let prepared = match Prepared::new(config, false) {
        Ok(prepared) => prepared,
        Err(error) => {
            if let Some(path) = &socket_file {
                Bound::remove(path);
            }
            return Err(error);
        }
    };
    prepared.serve(Some(bound), Queue::new(), true, || {
        // Outside systemd there is nobody to notify, which is no error.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        tracing::info!("ready");
    })
}
