//! `toolcell run`: one tool, its output as it comes, its exit code.

use std::time::Duration;

use toolcell_client::BatchEvent;
use toolcell_client::protocol::call::Status;
use toolcell_client::protocol::client_api::CallRequest;
use toolcell_client::protocol::id::{CallId, check_tool_name};

use super::explanation;
use crate::args::{Common, RunArgs};
use crate::backend::Backend;
use crate::console::Console;
use crate::error::CliError;
use crate::exit;
use crate::follow::{Flow, follow};
use crate::input::tool_args;
use crate::pieces::Pieces;
use crate::signals::Signals;

/// How long an interrupted command waits for whoever reads its output.
const LAST_WRITE: Duration = Duration::from_secs(1);

pub async fn run(common: &Common, run: &RunArgs, console: &mut Console) -> Result<u8, CliError> {
    check_tool_name(&run.tool).map_err(|error| CliError::Usage(error.to_string()))?;
    let call = CallRequest {
        call_id: CallId::from("run"),
        tool: run.tool.clone(),
        args: tool_args(run.args.as_deref())?,
        cwd: None,
        timeout_ms: common.timeout_ms,
        immune: None,
        stream: !common.json,
    };
    let backend = Backend::open(common, console).await?;
    let mut signals = Signals::catch()?;
    let session = backend.session(common).await?;
    let batch = session.execute(vec![call]).await?;
    let pieces = Pieces::start()?;
    let mut has_spoken = false;
    let followed = follow(batch, &mut signals, async |event, killing| match event {
        BatchEvent::Output(piece) if killing => {
            pieces.write_if_room(piece);
            Flow::On
        }
        BatchEvent::Output(piece) => {
            has_spoken = true;
            if pieces.write(piece).await { Flow::On } else { Flow::Unread }
        }
        BatchEvent::Event(_) => Flow::On,
    })
    .await?;
    let Some(result) = followed.result.results.first() else {
        return Err(CliError::Embedded("the daemon gave no result".to_owned()));
    };
    if let Some(interrupt) = followed.interrupt {
        // Whoever reads may never do so again.
        let _ = tokio::time::timeout(LAST_WRITE, pieces.finish()).await;
        if common.json {
            console.json(result)?;
        }
        return Ok(interrupt.exit_code());
    }
    tokio::select! {
        written = pieces.finish() => written?,
        signal = signals.next() => return Ok(signal.exit_code()),
    }
    if common.json {
        console.json(result)?;
    } else if !(has_spoken && result.status == Status::Error)
        && let Some(text) = explanation(result)
    {
        console.problem(&text);
    }
    Ok(exit::of_call(result))
}
