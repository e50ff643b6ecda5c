//! `toolcell wait`: the end of a call.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use toolcell_client::Client;
use toolcell_client::protocol::call::CallResult;
use toolcell_client::protocol::id::CallUid;

use super::tone;
use crate::args::{CallArg, Common};
use crate::backend::Backend;
use crate::console::Console;
use crate::error::CliError;
use crate::exit;
use crate::reference::resolve;
use crate::text::{duration_us, harmless};

/// How long one question is held open.
const LONG_POLL: Duration = Duration::from_secs(60);

pub async fn wait(common: &Common, call: &CallArg, console: &mut Console) -> Result<u8, CliError> {
    let backend = Backend::reach(common).await?;
    let call_uid = resolve(&backend.client, &call.call).await?;
    let limit = common.timeout_ms.map(Duration::from_millis);
    let end = end_of(&backend.client, call_uid, limit).await?;
    if common.json {
        console.json(&end)?;
    } else if let Some(result) = &end {
        let text = render(result, console.colour);
        console.out(&text)?;
    } else {
        console.note(&format!("call {call_uid} still runs"));
    }
    Ok(end.map_or(exit::NOT_YET, |result| exit::of_call(&result)))
}

async fn end_of(
    client: &Client,
    call_uid: CallUid,
    limit: Option<Duration>,
) -> Result<Option<Arc<CallResult>>, CliError> {
    let since = Instant::now();
    loop {
        let left = limit.map_or(LONG_POLL, |limit| limit.saturating_sub(since.elapsed()).min(LONG_POLL));
        let end = client.call_wait(call_uid, left).await?;
        if end.is_some() || limit.is_some_and(|limit| since.elapsed() >= limit) {
            return Ok(end);
        }
    }
}

fn render(result: &CallResult, colour: bool) -> String {
    let mut text = format!(
        "{} {} {}",
        result.call_uid,
        harmless(&result.tool),
        tone(result.status).paint(result.status.name(), colour)
    );
    if let Some(us) = result.details.duration_us {
        let _ = write!(text, " in {}", duration_us(us));
    }
    text.push('\n');
    if let Some(message) = &result.status_detail.message {
        let _ = writeln!(text, "{}", harmless(message));
    }
    let shown = harmless(&result.for_model);
    text.push_str(&shown);
    if !shown.is_empty() && !shown.ends_with('\n') {
        text.push('\n');
    }
    text
}
