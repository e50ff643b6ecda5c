//! A complete agent turn: connect, open a session, run three calls at once, watch them, read the results.
//!
//! ```text
//! cargo run --example agent -- /run/toolcell/toolcell.sock
//! ```
//!
//! Without a path it looks for the daemon as every client does. It uses the built-in tool `bash` only.

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;

use toolcell_client::address::Search;
use toolcell_client::protocol::call::Verdict;
use toolcell_client::protocol::client_api::{CallRequest, EventBody};
use toolcell_client::{BatchEvent, Client, Options, call, session};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let search = match std::env::args_os().nth(1) {
        Some(path) => Search::only(PathBuf::from(path)),
        None => Search::from_environment(),
    };
    run(&search, &mut io::stdout()).await
}

/// One turn, told to `out`.
pub async fn run(search: &Search, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let options = Options { client: "example-agent/1".to_owned(), ..Options::default() };
    let client = Client::connect_with(search, options).await?;
    writeln!(out, "connected to {} as uid {}", client.server().daemon, client.server().uid)?;

    // A session keeps working directory, environment and history of one agent run.
    let cwd = std::env::current_dir()?;
    let cwd = cwd.to_str().ok_or("the working directory is not UTF-8")?;
    let session = client.session_open(session("example-agent", cwd)).await?;

    // What the model asked for in one turn. All of it runs at once; results come in this order.
    let calls = vec![
        call("toolu_1", "bash", r#"{"command":"echo hello"}"#),
        CallRequest {
            stream: true,
            ..call("toolu_2", "bash", r#"{"command":"echo live; echo bad news >&2; exit 3"}"#)
        },
        CallRequest { timeout_ms: Some(200), ..call("toolu_3", "bash", r#"{"command":"sleep 60"}"#) },
    ];
    let mut batch = session.execute(calls).await?;
    while let Some(event) = batch.next_event().await? {
        match event {
            BatchEvent::Output(output) => {
                writeln!(
                    out,
                    "live {:?}: {}",
                    output.stream,
                    String::from_utf8_lossy(&output.bytes).trim_end()
                )?;
            }
            BatchEvent::Event(event) => match event.body {
                EventBody::ToolStarted { call_id, name, pid, .. } => {
                    writeln!(out, "started {call_id} ({name}, pid {pid})")?;
                }
                EventBody::ToolFinished { call_id, status, .. } => {
                    writeln!(out, "finished {call_id}: {status}")?
                }
                _ => {}
            },
        }
    }

    // A tool's failure is data: give `for_model` to the model, whatever the status is.
    let result = batch.finish().await?;
    for one in &result.results {
        writeln!(out, "result {}: {}: {}", one.call_id, one.status, one.for_model.trim_end())?;
    }
    match result.verdict {
        Verdict::NextTurn => writeln!(out, "verdict: next turn")?,
        Verdict::Intervene => {
            writeln!(out, "verdict: next turn, and tell the model: {}", result.messages.join(" "))?
        }
        Verdict::Abort => writeln!(out, "verdict: stop: {}", result.reason.unwrap_or_default())?,
    }
    session.close().await?;
    Ok(())
}
