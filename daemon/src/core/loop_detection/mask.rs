//! Masks what changes from one run of the same thing to the next, so that only what was said is compared.
//!
//! In results: time stamps, clock times, durations, memory addresses, UUIDs, process ids, request ids and random names
//! of temporary files; a run of white space counts as one space. Other ids and numbers stay: a new commit or a new line
//! count is progress. In arguments only clock times and random temporary names are masked, since ids there say what is
//! asked for; `./` and `//` in paths are dropped.
//!
//! Works on a stream of pieces with constant memory: words of more than [`MAX_WORD`] bytes pass unmasked.
//!
//! ```text
//!           word byte            separator: judge the word, emit it or its mask
//!  between ───────────▶ in word ──────────────────────────────────────────────▶ between
//!                          │ MAX_WORD bytes                                       ▲
//!                          └───────▶ passing through ─────── separator ───────────┘
//! ```

use super::digest::Digest;
use super::mask_patterns::{
    is_clock_or_stamp, is_edge, is_unit_word, is_volatile, put_path, result_mask, trim,
};

/// Longest word that is looked at.
pub(crate) const MAX_WORD: usize = 160;

/// Where masked text goes.
pub(crate) trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Digest {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes(bytes);
    }
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// What is masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Argument,
    Result,
}

/// A number that becomes a duration if the next word is a unit.
#[derive(Debug, Clone, Copy)]
struct Held {
    bytes: [u8; 24],
    len: usize,
}

pub(crate) struct Masker<S> {
    sink: S,
    kind: Kind,
    word: [u8; MAX_WORD],
    len: usize,
    digit: bool,
    slash: bool,
    passing: bool,
    space: bool,
    begun: bool,
    held: Option<Held>,
    /// The word before named something volatile (`pid`, `request_id`): the next word with a digit is masked.
    armed: bool,
    /// The word before was `id`: a following long hexadecimal number is masked.
    id: bool,
    /// The word before was `request`: a following `id` is volatile.
    request: bool,
}

const WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        table[byte] = b.is_ascii_alphanumeric()
            || matches!(b, b'_' | b'.' | b':' | b'-' | b'+' | b'/' | b',')
            || b >= 0x80;
        byte += 1;
    }
    table
};

impl<S: Sink> Masker<S> {
    pub(crate) const fn new(kind: Kind, sink: S) -> Self {
        Self {
            sink,
            kind,
            word: [0; MAX_WORD],
            len: 0,
            digit: false,
            slash: false,
            passing: false,
            space: false,
            begun: false,
            held: None,
            armed: false,
            id: false,
            request: false,
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let run = rest.iter().position(|&b| !WORD[usize::from(b)]).unwrap_or(rest.len());
            if run > 0 {
                self.word_bytes(&rest[..run]);
                rest = &rest[run..];
                continue;
            }
            self.end_word();
            self.separator(rest[0]);
            rest = &rest[1..];
        }
    }

    /// Ends the text and gives the sink back.
    pub(crate) fn finish(&mut self) -> &mut S {
        self.end_word();
        self.release();
        &mut self.sink
    }

    fn word_bytes(&mut self, run: &[u8]) {
        if !self.passing && self.len + run.len() > MAX_WORD {
            self.release();
            self.lead();
            self.sink.put(&self.word[..self.len]);
            self.len = 0;
            self.passing = true;
        }
        if self.passing {
            self.sink.put(run);
            return;
        }
        self.word[self.len..self.len + run.len()].copy_from_slice(run);
        self.len += run.len();
        for &b in run {
            self.digit |= b.is_ascii_digit();
            self.slash |= b == b'/';
        }
    }

    fn separator(&mut self, byte: u8) {
        if byte.is_ascii_whitespace() {
            self.space = self.begun || self.held.is_some();
            return;
        }
        self.release();
        self.lead();
        self.sink.put(&[byte]);
        if !matches!(byte, b'"' | b'\'' | b'=' | b'(' | b'[' | b'#' | b'\\') {
            self.armed = false;
            self.id = false;
        }
        self.request = false;
    }

    /// Writes the space that was seen before what comes now.
    fn lead(&mut self) {
        if std::mem::take(&mut self.space) && self.begun {
            self.sink.put(b" ");
        }
        self.begun = true;
    }

    /// Writes a held number that turned out to be just a number.
    fn release(&mut self) {
        if let Some(held) = self.held.take() {
            let space = std::mem::replace(&mut self.space, held.bytes[23] != 0);
            self.lead();
            self.sink.put(&held.bytes[..held.len]);
            self.space = space;
        }
    }

    fn end_word(&mut self) {
        if std::mem::take(&mut self.passing) {
            self.len = 0;
        }
        let len = std::mem::take(&mut self.len);
        if len == 0 {
            return;
        }
        let (digit, slash) = (std::mem::take(&mut self.digit), std::mem::take(&mut self.slash));
        let word = self.word;
        let word = &word[..len];
        if self.kind == Kind::Argument {
            self.lead();
            self.argument_word(word, digit, slash);
            return;
        }
        if self.held.is_some() {
            if self.space && is_unit_word(word) {
                let lead = self.held.take().is_some_and(|held| held.bytes[23] != 0);
                self.space = lead;
                self.lead();
                self.sink.put(b"<duration>");
                return;
            }
            self.release();
        }
        let core = trim(word);
        if !digit {
            self.lead();
            if slash {
                put_path(&mut self.sink, word)
            } else {
                self.sink.put(word)
            }
            let punctuation_only = core.is_empty();
            if !punctuation_only {
                self.armed = is_volatile(core) || (self.request && core.eq_ignore_ascii_case(b"id"));
                self.request = core.eq_ignore_ascii_case(b"request");
                self.id = core.eq_ignore_ascii_case(b"id");
            }
            return;
        }
        let nonce =
            std::mem::take(&mut self.id) && core.len() >= 12 && core.iter().all(u8::is_ascii_hexdigit);
        let armed = std::mem::take(&mut self.armed) || nonce;
        self.request = false;
        if let Some(mask) = if armed { Some(&b"<id>"[..]) } else { result_mask(core) } {
            self.lead();
            let start = word.len() - word.iter().skip_while(|b| is_edge(**b)).count();
            self.sink.put(&word[..start]);
            self.sink.put(mask);
            self.sink.put(&word[start + core.len()..]);
            return;
        }
        if let Some(colon) = word.iter().position(|&b| b == b':')
            && is_volatile(&word[..colon])
        {
            self.lead();
            self.sink.put(&word[..=colon]);
            self.sink.put(b"<id>");
            return;
        }
        if word.len() < 23 && word.iter().all(|b| b.is_ascii_digit() || *b == b'.') {
            let mut held = Held { bytes: [0; 24], len: word.len() };
            held.bytes[..word.len()].copy_from_slice(word);
            held.bytes[23] = u8::from(std::mem::take(&mut self.space));
            self.held = Some(held);
            return;
        }
        self.lead();
        if slash { put_path(&mut self.sink, word) } else { self.sink.put(word) }
    }

    fn argument_word(&mut self, word: &[u8], digit: bool, slash: bool) {
        if digit
            && let core = trim(word)
            && !core.is_empty()
            && is_clock_or_stamp(core)
        {
            self.sink.put(b"<time>");
        } else if slash {
            let word = word.strip_prefix(b"./").unwrap_or(word);
            put_path(&mut self.sink, word);
        } else {
            self.sink.put(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(kind: Kind, text: &str) -> String {
        let mut masker = Masker::new(kind, Vec::new());
        masker.push(text.as_bytes());
        String::from_utf8(std::mem::take(masker.finish())).expect("masks are text")
    }

    #[test]
    fn results_lose_times_durations_pids_and_addresses() {
        let cases = [
            ("[10:00:00.7] connect refused", "[<time>] connect refused"),
            ("at 2026-01-31T10:00:00.123Z done", "at <time> done"),
            ("2026-01-31 10:00:00,123 INFO x", "<time> <time> INFO x"),
            ("1 failed in 0.12s", "1 failed in <duration>"),
            ("took 12 seconds.", "took <id> seconds."),
            ("finished after 12 seconds", "finished after <duration>"),
            ("12 passed", "12 passed"),
            ("pid 1234 died", "pid <id> died"),
            ("pid=1234, pid: 77", "pid=<id>, pid: <id>"),
            ("<Foo object at 0x7fa2bc001>", "<Foo object at <address>>"),
            ("{\"status\":429,\"request_id\":\"r7\"}", "{\"status\":429,\"request_id\":\"<id>\"}"),
            ("HTTP 429 request id req_7", "HTTP 429 request id <id>"),
            ("id 123e4567-e89b-12d3-a456-426614174000!", "id <uuid>!"),
            ("a  b\n\n c ", "a b c"),
            ("src/a.rs:10:45: error", "src/a.rs:10:45: error"),
            ("<<CONTENT id=\"4f3a2b1c9d8e7f60\">>", "<<CONTENT id=\"<id>\">>"),
            ("commit 4f3a2b1c9d8e7f60", "commit 4f3a2b1c9d8e7f60"),
            ("wrote /tmp/tmpab12cd/x.py", "wrote /tmp/<tmp>/x.py"),
            ("read /tmp/test.py", "read /tmp/test.py"),
            ("real\t0m1.234s", "real <duration>"),
            ("epoch 3/24 loss 0.25", "epoch 3/24 loss 0.25"),
            ("", ""),
            ("5", "5"),
            ("at 10:45", "at <time>"),
        ];
        for (text, want) in cases {
            assert_eq!(masked(Kind::Result, text), want, "{text:?}");
        }
    }

    #[test]
    fn arguments_keep_their_ids_and_dates() {
        let cases = [
            ("cat ./src//a.rs", "cat src/a.rs"),
            ("git show 4f3a2b1c9d8e7f60", "git show 4f3a2b1c9d8e7f60"),
            ("2026-01-31", "2026-01-31"),
            ("2026-01-31T10:00:00Z", "<time>"),
            ("kill 1234", "kill 1234"),
            ("curl http://x//y", "curl http://x/y"),
            ("rm -rf /tmp/tmpab12cd", "rm -rf /tmp/<tmp>"),
            ("order 123e4567-e89b-12d3-a456-426614174000", "order 123e4567-e89b-12d3-a456-426614174000"),
        ];
        for (text, want) in cases {
            assert_eq!(masked(Kind::Argument, text), want, "{text:?}");
        }
    }

    #[test]
    fn the_pieces_do_not_show() {
        let text = "2026-01-31 10:00:00 pid 42: took 5 ms, wrote /tmp/tmpab12cd/x".repeat(5);
        let whole = masked(Kind::Result, &text);
        for size in 1..40 {
            let mut masker = Masker::new(Kind::Result, Vec::new());
            for piece in text.as_bytes().chunks(size) {
                masker.push(piece);
            }
            assert_eq!(String::from_utf8_lossy(masker.finish()), whole, "pieces of {size}");
        }
    }
}
