//! `toolcell kill`: ends a call with everything that it has started.

use serde::Serialize;
use toolcell_client::protocol::client_api::KillAnswer;
use toolcell_client::protocol::id::CallUid;

use crate::args::{Common, KillArgs};
use crate::backend::Backend;
use crate::console::Console;
use crate::error::CliError;
use crate::exit;
use crate::reference::resolve;

#[derive(Debug, Serialize)]
struct KillJson {
    call_uid: CallUid,
    answer: KillAnswer,
}

pub async fn kill(common: &Common, kill: &KillArgs, console: &mut Console) -> Result<u8, CliError> {
    let backend = Backend::reach(common).await?;
    let call_uid = resolve(&backend.client, &kill.call.call).await?;
    let answer = backend.client.call_kill(call_uid, &kill.reason).await?;
    if common.json {
        console.json(&KillJson { call_uid, answer })?;
    } else {
        let what = match answer {
            KillAnswer::Killed => "killed; nothing of it is left",
            KillAnswer::Cancelled => "cancelled before it started",
            KillAnswer::AlreadyEnded => "had ended already",
            KillAnswer::KillPending => "is not proven gone yet; the daemon keeps trying",
        };
        console.out(&format!("{call_uid} {what}\n"))?;
    }
    Ok(if answer == KillAnswer::KillPending { exit::NOT_YET } else { exit::OK })
}
