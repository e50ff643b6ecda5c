//! The `toolcell` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use toolcell_cli::replay::{self, ReplayArgs};

/// Runs the tool calls of LLM agents in cells.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replays recorded runs through loop detection.
    Replay(ReplayArgs),
}

#[allow(clippy::print_stderr)]
fn main() -> ExitCode {
    let Command::Replay(args) = Cli::parse().command;
    match replay::run(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("toolcell replay: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
