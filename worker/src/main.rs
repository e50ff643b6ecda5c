//! The worker crate's own binary: the smallest spawner. `toolcelld` and `toolcell` start it instead of themselves
//! where it lies beside them and is of the same build; nobody types its name.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    toolcell_worker::run_if_spawner();
    if std::env::args_os().nth(1).is_some_and(|argument| argument == toolcell_worker::BUILD_ID_ARGUMENT) {
        let said = writeln!(std::io::stdout(), "{}", toolcell_worker::BUILD_ID);
        return if said.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let _ = writeln!(
        std::io::stderr(),
        "toolcell-worker is not a command: toolcelld starts its spawner by itself. To run a tool, use `toolcell run`."
    );
    ExitCode::from(64)
}
