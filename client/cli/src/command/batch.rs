//! `toolcell batch`: the tool calls of one model turn.

use std::fmt::Write as _;
use std::path::Path;

use toolcell_client::BatchEvent;
use toolcell_client::protocol::call::{BatchResult, Status, Verdict};
use toolcell_client::protocol::client_api::CallRequest;

use super::tone;
use crate::args::{BatchArgs, Common};
use crate::backend::Backend;
use crate::batch_file;
use crate::console::Console;
use crate::error::CliError;
use crate::exit;
use crate::follow::{Flow, follow};
use crate::input::text_file;
use crate::signals::Signals;
use crate::table::{Align, Table, Tone};
use crate::text::{bytes, duration_us, harmless};

mod progress;

use progress::Progress;

pub async fn batch(common: &Common, args: &BatchArgs, console: &mut Console) -> Result<u8, CliError> {
    let calls = read(&args.file, common.timeout_ms)?;
    let backend = Backend::open(common, console).await?;
    let mut signals = Signals::catch()?;
    let session = backend.session(common).await?;
    let mut progress = Progress::of(&calls);
    let batch = session.execute(calls).await?;
    let followed = follow(batch, &mut signals, async |event, _killing| {
        if let BatchEvent::Event(event) = event {
            progress.show(&event.body, console);
        }
        Flow::On
    })
    .await?;
    if common.json {
        console.json(&followed.result)?;
    } else {
        let text = render(&followed.result, console.width, console.colour);
        console.out(&text)?;
    }
    Ok(followed
        .interrupt
        .map_or_else(|| exit::of_verdict(followed.result.verdict), |interrupt| interrupt.exit_code()))
}

fn read(file: &Path, timeout_ms: Option<u64>) -> Result<Vec<CallRequest>, CliError> {
    let name = if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() };
    let mut calls =
        batch_file::parse(&text_file(file)?).map_err(|error| CliError::Usage(format!("{name}: {error}")))?;
    for call in &mut calls {
        call.timeout_ms = call.timeout_ms.or(timeout_ms);
    }
    Ok(calls)
}

fn render(result: &BatchResult, width: usize, colour: bool) -> String {
    let mut table = Table::new(&[
        ("CALL", Align::Left, 16),
        ("TOOL", Align::Left, 16),
        ("STATUS", Align::Left, 14),
        ("TIME", Align::Right, 7),
        ("OUTPUT", Align::Right, 7),
        ("TEXT", Align::Left, usize::MAX),
    ]);
    for one in &result.results {
        let plain = |text: String| (text, Tone::Plain);
        let output = one.details.stdout_bytes.saturating_add(one.details.stderr_bytes);
        let text = one.status_detail.message.as_ref().unwrap_or(&one.for_model);
        let cells = [
            plain(one.call_id.to_string()),
            plain(one.tool.clone()),
            (one.status.to_string(), tone(one.status)),
            plain(one.details.duration_us.map(duration_us).unwrap_or_default()),
            plain(bytes(output)),
            plain(text.chars().take(width * 4).collect()),
        ];
        // The beginning of a result is enough; why there is none must be read whole.
        if one.status == Status::Ok {
            table.row(cells);
        } else {
            table.overflowing_row(cells);
        }
    }
    let mut text = if result.results.is_empty() { String::new() } else { table.render(width, colour) };
    let verdict = match result.verdict {
        Verdict::NextTurn => "next_turn",
        Verdict::Intervene => "intervene",
        Verdict::Abort => "abort",
    };
    let _ = writeln!(text, "verdict: {verdict}");
    for (what, lines) in
        [("reason", result.reason.as_slice()), ("message", &result.messages), ("steering", &result.steering)]
    {
        for line in lines {
            let _ = writeln!(text, "{what}: {}", harmless(line));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use toolcell_client::protocol::call::{CallResult, Details, StatusDetail};
    use toolcell_client::protocol::id::{BatchId, CallId, CallUid, SessionId};

    use super::*;

    const UID: &str = "019ade3c-5f01-7000-8000-000000000000";

    fn result() -> BatchResult {
        let one = |id: &str, status, for_model: &str| CallResult {
            call_id: CallId::from(id),
            call_uid: UID.parse::<CallUid>().expect("a uid"),
            tool: "bash".to_owned(),
            status,
            status_detail: StatusDetail::default(),
            for_model: for_model.to_owned(),
            details: Details { duration_us: Some(12_000), stdout_bytes: 2048, ..Details::default() },
        };
        BatchResult {
            batch_id: UID.parse::<BatchId>().expect("a uid"),
            session_id: UID.parse::<SessionId>().expect("a uid"),
            verdict: Verdict::Abort,
            messages: vec!["slow down".to_owned()],
            reason: Some("three blocks".to_owned()),
            steering: Vec::new(),
            results: vec![one("a", Status::Ok, "first\nsecond"), one("b", Status::TimedOut, "\u{1b}[2Jx")],
        }
    }

    #[test]
    fn results_are_a_table_and_the_verdict_stands_below() {
        let expected = "\
CALL  TOOL  STATUS     TIME  OUTPUT  TEXT
a     bash  ok         12ms    2.0K  first second
b     bash  timed_out  12ms    2.0K  ·[2Jx
verdict: abort
reason: three blocks
message: slow down
";
        assert_eq!(render(&result(), 80, false), expected);
    }

    #[test]
    fn why_a_call_failed_is_told_whole_and_a_long_result_is_cut() {
        let mut result = result();
        let sentence = "there is no tool \"Read\"; did you mean read_file or one of the other tools?";
        result.results[0].for_model = sentence.to_owned();
        result.results[1].status_detail.message = Some(sentence.to_owned());
        let expected = "\
CALL  TOOL  STATUS     TIME  OUTPUT  TEXT
a     bash  ok         12ms    2.0K  there is no tool \"Read\"; did you mean read…
b     bash  timed_out  12ms    2.0K
    there is no tool \"Read\"; did you mean read_file or one of the other tools?
";
        let text = render(&result, 80, false);
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn the_json_has_the_documented_fields_in_order() {
        let text = serde_json::to_string(&result()).expect("JSON");
        let mut at = 0;
        for key in ["batch_id", "session_id", "verdict", "messages", "reason", "steering", "results"] {
            at += text[at..].find(&format!("\"{key}\":")).expect(key);
        }
        assert!(text.contains("\"verdict\":\"abort\"") && text.contains("\"status\":\"timed_out\""));
        for key in ["call_id", "call_uid", "tool", "status", "status_detail", "for_model", "details"] {
            assert!(text[at..].contains(&format!("\"{key}\":")), "{key}");
        }
    }

    #[test]
    fn a_common_timeout_is_for_calls_without_their_own() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("calls.jsonl");
        let text = "{\"call_id\": \"1\", \"tool\": \"t\"}\n{\"call_id\": \"2\", \"tool\": \"t\", \"timeout_ms\": 7}\n";
        std::fs::write(&file, text).expect("written");
        let calls = read(&file, Some(5)).expect("good");
        assert_eq!(calls.iter().map(|call| call.timeout_ms).collect::<Vec<_>>(), [Some(5), Some(7)]);
        std::fs::write(&file, "{\"call_id\": \"1\"}").expect("written");
        let error = read(&file, None).expect_err("no tool");
        assert_eq!(error.exit_code(true), 2);
        assert!(error.to_string().contains("calls.jsonl: line 1, call 0, field \"tool\""), "{error}");
    }
}
