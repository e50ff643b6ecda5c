//! `toolcell output`: what a call has written, live or later.

use std::time::Duration;

use serde::Serialize;
use toolcell_client::LiveOutput;
use toolcell_client::protocol::call::{Blob, Stream};
use toolcell_client::protocol::client_api::OutputPage;
use toolcell_client::protocol::limits::MAX_OUTPUT_PAGE_BYTES;

use crate::args::{Common, OutputArgs};
use crate::backend::Backend;
use crate::console::Console;
use crate::error::CliError;
use crate::exit;
use crate::pieces;
use crate::reference::resolve;

/// How long one question is held open with `--follow`.
const LONG_POLL: Duration = Duration::from_secs(30);

pub async fn output(common: &Common, output: &OutputArgs, console: &mut Console) -> Result<u8, CliError> {
    let backend = Backend::reach(common).await?;
    let client = &backend.client;
    let call_uid = resolve(client, &output.call.call).await?;
    let page_bytes = u32::try_from(MAX_OUTPUT_PAGE_BYTES).unwrap_or(u32::MAX);
    let wait = if output.follow { LONG_POLL } else { Duration::ZERO };
    let mut cursor = 0;
    loop {
        let page = client.call_output(call_uid, cursor, page_bytes, wait).await?;
        let done = page.end || (page.pieces.is_empty() && !output.follow);
        cursor = page.next_cursor;
        if common.json {
            print_json(page, done, console)?;
        } else {
            if page.skipped_bytes > 0 {
                console.note(&format!("{} bytes of output were not kept", page.skipped_bytes));
            }
            for piece in page.pieces {
                let piece = LiveOutput { call_uid, stream: piece.stream, bytes: piece.bytes.0 };
                pieces::write(&piece).map_err(CliError::of_write)?;
            }
        }
        if done {
            return Ok(exit::OK);
        }
    }
}

/// A line of `--json`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Line {
    Skipped { skipped_bytes: u64 },
    Piece { stream: Stream, bytes: usize, text: Blob },
    End { next_cursor: u64, end: bool },
}

fn print_json(page: OutputPage, done: bool, console: &mut Console) -> Result<(), CliError> {
    if page.skipped_bytes > 0 {
        console.json(&Line::Skipped { skipped_bytes: page.skipped_bytes })?;
    }
    for piece in page.pieces {
        console.json(&Line::Piece { stream: piece.stream, bytes: piece.bytes.0.len(), text: piece.bytes })?;
    }
    if done { console.json(&Line::End { next_cursor: page.next_cursor, end: page.end }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_documented_form() {
        let piece = Line::Piece { stream: Stream::Stderr, bytes: 3, text: Blob(b"a\n\xff".to_vec()) };
        let text = serde_json::to_string(&piece).expect("JSON");
        assert_eq!(text, "{\"stream\":\"stderr\",\"bytes\":3,\"text\":\"a\\n\u{fffd}\"}");
        let end = serde_json::to_string(&Line::End { next_cursor: 9, end: true }).expect("JSON");
        assert_eq!(end, r#"{"next_cursor":9,"end":true}"#);
    }
}
