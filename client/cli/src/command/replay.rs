//! `toolcell replay`: loop detection over recorded runs. Needs no daemon.

use crate::args::Common;
use crate::console::Console;
use crate::error::CliError;
use crate::exit;
use crate::replay::{ReplayArgs, run};

/// Replays; what is wrong is told here, since replay has exit codes of its own.
pub(crate) fn replay(common: &Common, args: &ReplayArgs, console: &mut Console) -> Result<u8, CliError> {
    let args = ReplayArgs { json: common.json, config: common.config.clone(), ..args.clone() };
    match run(&args) {
        Ok(()) => Ok(exit::OK),
        Err(error) => {
            console.problem(&error.to_string());
            Ok(error.exit_code())
        }
    }
}
