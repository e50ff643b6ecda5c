//! The `toolcell` command.
//!
//! ```text
//! args ─▶ input (files, JSON) ─▶ backend (a daemon, or one of our own) ─▶ command/* ─▶ console
//! ```
//!
//! * [`args`]: what can be typed.
//! * [`exit`]: what the command ends with.
//! * `input`, [`batch_file`]: what is read before anything is run.
//! * `backend`: the daemon that is reached, or embedded for this command's lifetime.
//! * `follow`: drives a running batch, signals included.
//! * [`command`]: one file per command.
//! * `console`, [`table`], [`text`]: what is printed.
//!
//! Standard output carries what was asked for and nothing else; all else goes to standard error. `docs/CLI.md`
//! has the JSON of each command.
#![forbid(unsafe_code)]

pub mod args;
mod backend;
pub mod batch_file;
pub mod command;
mod console;
mod error;
pub mod exit;
mod follow;
mod input;
mod pieces;
mod reference;
pub mod replay;
mod signals;
pub mod table;
pub mod text;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;

use args::{Args, Command};
use console::Console;
pub use error::CliError;

/// Runs the command with these arguments, the program's name first.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => {
            // Help and version are no errors, and come this way too.
            let code = if error.use_stderr() { exit::USAGE } else { exit::OK };
            return match error.print() {
                Ok(()) => ExitCode::from(code),
                Err(_) => ExitCode::from(exit::BROKEN_PIPE),
            };
        }
    };
    let mut console = Console::new(args.common.quiet);
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::Runtime)
        .and_then(|runtime| runtime.block_on(dispatch(&args, &mut console)));
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let in_run = matches!(args.command, Command::Run(_) | Command::Batch(_));
            if !matches!(error, CliError::BrokenPipe) {
                console.problem(&error.to_string());
            }
            ExitCode::from(error.exit_code(in_run))
        }
    }
}

async fn dispatch(args: &Args, console: &mut Console) -> Result<u8, CliError> {
    let common = &args.common;
    match &args.command {
        Command::Run(run) => command::run::run(common, run, console).await,
        Command::Batch(batch) => command::batch::batch(common, batch, console).await,
        Command::Tools => command::tools::tools(common, console).await,
        Command::Ps(ps) => command::ps::ps(common, ps, console).await,
        Command::Output(output) => command::output::output(common, output, console).await,
        Command::Wait(wait) => command::wait::wait(common, wait, console).await,
        Command::Kill(kill) => command::kill::kill(common, kill, console).await,
        Command::Validate(validate) => command::validate::validate(common, validate, console),
        Command::Replay(replay) => command::replay::replay(common, replay, console),
        Command::Doctor => command::doctor::doctor(common, console).await,
    }
}
