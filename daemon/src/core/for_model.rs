//! The bounded text that a model reads, made from the head and the tail of a call's output.
//!
//! Cut at character boundaries only, head and tail kept, with one line between them that says how much is
//! missing and how to read it. Bytes that are not UTF-8 become U+FFFD; a character that arrives in pieces, even
//! with the other stream's output between them, does not.

use toolcell_protocol::call::Stream;
use toolcell_protocol::worker_api::Segment;

/// The text of one call's output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// At most the asked-for bytes.
    pub text: String,
    /// Bytes of output that are not in it.
    pub omitted_bytes: u64,
    /// For `output = "json"`: standard output, if it is JSON, else why not.
    pub structured: Option<Result<String, String>>,
}

/// What was kept of an output.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a> {
    /// From the first byte on.
    pub head: &'a [Segment],
    /// Bytes between head and tail that were not kept.
    pub gap_bytes: u64,
    /// Up to the last byte.
    pub tail: &'a [Segment],
}

/// Makes the text.
///
/// `how_to_read` ends the line about what is missing, like `all that was kept: toolcell output 0198…`.
#[must_use]
pub fn render(kept: Kept<'_>, limit_bytes: usize, expect_json: bool, how_to_read: &str) -> Rendered {
    let structured = expect_json.then(|| structured(kept));
    let (mut head, tail) = if kept.gap_bytes == 0 {
        (decode(kept.head.iter().chain(kept.tail)), String::new())
    } else {
        (decode(kept.head), decode_tail(kept.tail))
    };
    if kept.gap_bytes == 0 && head.len() <= limit_bytes {
        return Rendered { text: head, omitted_bytes: 0, structured };
    }
    // The line in the middle takes its share of the bound; half of the rest for each side.
    let room = limit_bytes.saturating_sub(how_to_read.len() + 80);
    let tail_source = if tail.is_empty() && kept.gap_bytes == 0 { head.clone() } else { tail };
    let tail_from = ceil_boundary(&tail_source, tail_source.len().saturating_sub(room / 2));
    let tail_text = &tail_source[tail_from..];
    let all_kept = head.len() as u64 + if kept.gap_bytes == 0 { 0 } else { tail_source.len() as u64 };
    head.truncate(head.floor_char_boundary(room - room / 2));
    let omitted_bytes = kept.gap_bytes + all_kept.saturating_sub((head.len() + tail_text.len()) as u64);
    let text = format!(
        "{head}{}[... {omitted_bytes} bytes are left out here; {how_to_read} ...]\n{tail_text}",
        if head.is_empty() || head.ends_with('\n') { "" } else { "\n" },
    );
    Rendered { text, omitted_bytes, structured }
}

/// Cuts a text that was made before to fewer bytes, head and tail kept.
#[must_use]
pub fn shorten(text: &str, limit_bytes: usize, call: &str) -> String {
    let room = limit_bytes.saturating_sub(160);
    let head = &text[..text.floor_char_boundary(room - room / 2)];
    let tail = &text[ceil_boundary(text, text.len().saturating_sub(room / 2))..];
    let left_out = text.len().saturating_sub(head.len() + tail.len());
    format!(
        "{head}\n[... {left_out} bytes are left out here so that the batch fits; call.get {call} has them ...]\n{tail}"
    )
}

fn structured(kept: Kept<'_>) -> Result<String, String> {
    if kept.gap_bytes > 0 {
        return Err("the output is too large to be checked as JSON".to_owned());
    }
    let stdout: Vec<u8> = kept
        .head
        .iter()
        .chain(kept.tail)
        .filter(|segment| segment.stream == Stream::Stdout)
        .flat_map(|segment| segment.bytes.0.iter().copied())
        .collect();
    match serde_json::from_slice::<&serde_json::value::RawValue>(&stdout) {
        Ok(json) => Ok(json.get().to_owned()),
        Err(error) => Err(format!("standard output is not JSON: {error}")),
    }
}

/// Decodes pieces in arrival order; a character cut at the end of a piece waits for the next of its stream.
fn decode<'a>(segments: impl IntoIterator<Item = &'a Segment>) -> String {
    let mut text = String::new();
    let mut carried: [Vec<u8>; 2] = [Vec::new(), Vec::new()];
    for segment in segments {
        let carry = &mut carried[usize::from(segment.stream == Stream::Stderr)];
        if carry.is_empty()
            && let Ok(whole) = std::str::from_utf8(&segment.bytes.0)
        {
            text.push_str(whole);
            continue;
        }
        carry.extend_from_slice(&segment.bytes.0);
        let complete = carry.len() - cut_character_bytes(carry);
        text.push_str(&String::from_utf8_lossy(&carry[..complete]));
        carry.drain(..complete);
    }
    for carry in carried {
        text.push_str(&String::from_utf8_lossy(&carry));
    }
    text
}

/// Decodes a tail whose first character may have been cut.
fn decode_tail(segments: &[Segment]) -> String {
    let mut segments = segments.to_vec();
    let mut seen = [false; 2];
    for segment in &mut segments {
        let seen = &mut seen[usize::from(segment.stream == Stream::Stderr)];
        if !*seen {
            *seen = true;
            let cut = segment.bytes.0.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
            segment.bytes.0.drain(..cut);
        }
    }
    decode(&segments)
}

/// Length of an incomplete UTF-8 character at the end.
fn cut_character_bytes(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        if byte & 0xC0 == 0x80 {
            continue;
        }
        let wanted = match byte {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            _ => 1,
        };
        return if wanted > back { back } else { 0 };
    }
    0
}

fn ceil_boundary(text: &str, from: usize) -> usize {
    (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use toolcell_protocol::call::Blob;

    use super::*;

    fn out(bytes: &[u8]) -> Segment {
        Segment { stream: Stream::Stdout, bytes: Blob(bytes.to_vec()) }
    }

    fn err(bytes: &[u8]) -> Segment {
        Segment { stream: Stream::Stderr, bytes: Blob(bytes.to_vec()) }
    }

    fn whole(head: &[Segment]) -> Kept<'_> {
        Kept { head, gap_bytes: 0, tail: &[] }
    }

    #[test]
    fn a_small_output_is_shown_whole() {
        let rendered = render(whole(&[out(b"a\n"), err(b"b\n")]), 1024, false, "x");
        assert_eq!(rendered, Rendered { text: "a\nb\n".to_owned(), omitted_bytes: 0, structured: None });
    }

    #[test]
    fn a_character_that_arrives_byte_by_byte_between_the_other_stream_is_whole() {
        let euro = "€".as_bytes();
        let head = [out(&euro[..1]), err("ü".as_bytes()), out(&euro[1..2]), out(&euro[2..])];
        assert_eq!(render(whole(&head), 1024, false, "x").text, "ü€");
    }

    #[test]
    fn head_and_tail_survive_and_the_gap_is_counted() {
        let head = out("ä".repeat(5_000).as_bytes());
        let mut last = "ö".repeat(5_000).into_bytes();
        last.remove(0);
        let kept = Kept { head: &[head], gap_bytes: 1_000_000, tail: &[out(&last)] };
        let rendered = render(kept, 1024, false, "toolcell output 1");
        assert!(rendered.text.len() <= 1024, "{}", rendered.text.len());
        assert!(rendered.text.starts_with('ä') && rendered.text.ends_with('ö'));
        assert!(!rendered.text.contains('\u{FFFD}'));
        assert!(rendered.text.contains("bytes are left out here"));
        assert!(rendered.text.contains("toolcell output 1"));
        assert!(rendered.omitted_bytes > 1_000_000);
    }

    #[test]
    fn a_shortened_text_keeps_its_ends_and_its_bound() {
        let text = format!("begin{}end", "ü".repeat(5_000));
        let short = shorten(&text, 1024, "0198");
        assert!(
            short.len() <= 1024 && short.starts_with("begin") && short.ends_with("end"),
            "{}",
            short.len()
        );
        assert!(short.contains("call.get 0198"));
    }

    #[test]
    fn json_is_taken_from_standard_output_only() {
        let rendered = render(whole(&[err(b"note"), out(b" {\"a\":"), out(b"1}\n")]), 100, true, "x");
        assert_eq!(rendered.structured, Some(Ok("{\"a\":1}".to_owned())));
        let rendered = render(whole(&[out(b"a")]), 100, true, "x");
        assert!(matches!(rendered.structured, Some(Err(reason)) if reason.contains("not JSON")));
    }

    proptest! {
        #[test]
        fn text_is_whole_and_bounded_whatever_the_pieces(
            text in "[a-zäß€𝄞\n]{0,400}",
            cuts in prop::collection::vec(1_usize..5, 1..40),
            limit in 300_usize..600,
        ) {
            let mut pieces = Vec::new();
            let bytes = text.as_bytes();
            let (mut at, mut cuts) = (0, cuts.iter().cycle());
            while at < bytes.len() {
                let end = (at + cuts.next().expect("cycle")).min(bytes.len());
                pieces.push(out(&bytes[at..end]));
                at = end;
            }
            let rendered = render(whole(&pieces), limit, false, "x");
            prop_assert!(rendered.text.len() <= limit);
            prop_assert!(!rendered.text.contains(char::REPLACEMENT_CHARACTER));
            if text.len() <= limit {
                prop_assert_eq!(rendered.text, text);
            } else {
                prop_assert!(rendered.omitted_bytes > 0);
            }
        }

        #[test]
        fn junk_never_panics(
            head in prop::collection::vec(any::<u8>(), 0..900),
            tail in prop::collection::vec(any::<u8>(), 0..900),
            gap in 0_u64..3,
        ) {
            let rendered = render(Kept { head: &[out(&head)], gap_bytes: gap, tail: &[err(&tail)] }, 256, true, "x");
            prop_assert!(rendered.text.len() <= 256 || gap == 0 && rendered.omitted_bytes == 0);
        }
    }
}
