//! `toolcell ps`: calls that run and wait.

use toolcell_client::protocol::client_api::{CallInfo, CallPhase};

use super::tone;
use crate::args::{Common, PsArgs};
use crate::backend::{Backend, session_ref};
use crate::console::Console;
use crate::error::CliError;
use crate::exit;
use crate::reference::shortened;
use crate::table::{Align, Table, Tone};
use crate::text::{bytes, duration_ms};

pub async fn ps(common: &Common, ps: &PsArgs, console: &mut Console) -> Result<u8, CliError> {
    let session = session_ref(common)?;
    let backend = Backend::reach(common).await?;
    let calls = backend.client.call_list(session, ps.all).await?;
    if common.json {
        console.json(&calls)?;
    } else {
        let text = render(&calls, console.width, console.colour);
        console.out(&text)?;
    }
    Ok(exit::OK)
}

fn render(calls: &[CallInfo], width: usize, colour: bool) -> String {
    let mut table = Table::new(&[
        ("CALL", Align::Left, 38),
        ("STATE", Align::Left, 14),
        ("PID", Align::Right, 7),
        ("TIME", Align::Right, 6),
        ("OUTPUT", Align::Right, 6),
        ("TOOL", Align::Left, 14),
        ("SESSION", Align::Left, usize::MAX),
    ]);
    for (call, uid) in calls.iter().zip(shortened(calls)) {
        let plain = |text: String| (text, Tone::Plain);
        let state = call.status.map_or_else(
            || (phase(call.phase).to_owned(), Tone::Odd),
            |status| (status.to_string(), tone(status)),
        );
        table.row([
            plain(uid),
            state,
            plain(call.pid.map(|pid| pid.to_string()).unwrap_or_default()),
            plain(duration_ms(call.running_ms.unwrap_or(call.age_ms))),
            plain(bytes(call.output_bytes)),
            plain(call.tool.clone()),
            plain(call.session.to_string()),
        ]);
    }
    table.render(width, colour)
}

const fn phase(phase: CallPhase) -> &'static str {
    match phase {
        CallPhase::Queued => "queued",
        CallPhase::Starting => "starting",
        CallPhase::Running => "running",
        CallPhase::Terminating => "terminating",
        CallPhase::Finished => "finished",
    }
}

#[cfg(test)]
mod tests {
    use toolcell_client::protocol::call::Status;
    use toolcell_client::protocol::id::{CallId, SessionName};

    use super::*;

    #[test]
    fn running_and_ended_calls_are_told_apart() {
        let call = |uid: &str, phase, status| CallInfo {
            call_uid: uid.parse().expect("a uid"),
            call_id: CallId::from("c"),
            session: SessionName::from("agent-7"),
            uid: 0,
            tool: "bash".to_owned(),
            phase,
            status,
            pid: (phase == CallPhase::Running).then_some(4242),
            age_ms: 90_000,
            running_ms: (phase == CallPhase::Running).then_some(1_500),
            output_bytes: 10_240,
            immune: false,
        };
        let calls = [
            call("019ade3c-5f01-7aaa-8000-000000000001", CallPhase::Running, None),
            call("019ade3c-5f01-7aab-8000-000000000002", CallPhase::Finished, Some(Status::SpawnFailed)),
        ];
        let expected = "\
CALL                STATE          PID   TIME  OUTPUT  TOOL  SESSION
019ade3c-5f01-7aaa  running       4242   1.5s     10K  bash  agent-7
019ade3c-5f01-7aab  spawn_failed        1m30s     10K  bash  agent-7
";
        assert_eq!(render(&calls, 80, false), expected);
        assert_eq!(render(&[], 80, false).lines().count(), 1);
    }
}
