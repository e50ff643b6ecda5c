//! The worker crate's own binary: of use only as a spawner, which `toolcelld` and `toolcell` start from their own
//! file; this one serves tests and benchmarks of this crate.

use std::io::Write;

fn main() -> std::process::ExitCode {
    toolcell_worker::run_if_spawner();
    let _ = writeln!(
        std::io::stderr(),
        "toolcell-worker is not a command: toolcelld starts its spawner by itself. To run a tool, use `toolcell run`."
    );
    std::process::ExitCode::from(64)
}
