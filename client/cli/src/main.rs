//! `toolcell`: the command people type. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    // This program is also the spawner of its embedded daemon; that must be known before anything else happens.
    toolcell_worker::run_if_spawner();
    toolcell_cli::main(std::env::args_os())
}
