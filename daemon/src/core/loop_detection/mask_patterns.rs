//! What a word has to look like to be masked: clock times, durations, addresses, random names.
//!
//! A word is a run of letters, digits and the signs that hold times, paths and numbers together; its edges (`:`, `.`, …)
//! are taken off before it is judged.

use super::mask::Sink;

/// Writes a path with doubled slashes made one and a random name below a temporary directory masked.
pub(super) fn put_path(sink: &mut impl Sink, word: &[u8]) {
    let temporary =
        find(word, b"/tmp/").map(|at| at + 5).or_else(|| find(word, b"/var/folders/").map(|at| at + 13));
    if let Some(start) = temporary {
        let end = word[start..]
            .iter()
            .position(|&b| b == b'/' || b == b':' || b == b',')
            .map_or(word.len(), |n| start + n);
        if is_random_name(&word[start..end]) {
            put_single_slashes(sink, &word[..start]);
            sink.put(b"<tmp>");
            put_single_slashes(sink, &word[end..]);
            return;
        }
    }
    put_single_slashes(sink, word);
}

pub(super) fn put_single_slashes(sink: &mut impl Sink, word: &[u8]) {
    let mut start = 0;
    for at in 1..word.len() {
        // `://` of an address stays.
        if word[at] == b'/' && word[at - 1] == b'/' && (at < 2 || word[at - 2] != b':') {
            sink.put(&word[start..at]);
            start = at + 1;
        }
    }
    sink.put(word.get(start..).unwrap_or_default());
}

pub(super) fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// `tmpab12cd`, `tmp.Xy12Zq`, `build-4f3a2b1c`: names that a program made up, not names that somebody chose.
pub(super) fn is_random_name(name: &[u8]) -> bool {
    let digits = name.iter().filter(|b| b.is_ascii_digit()).count();
    let upper = name.iter().filter(|b| b.is_ascii_uppercase()).count();
    if name.starts_with(b"tmp") && name.len() >= 7 && digits + upper > 0 {
        return true;
    }
    name.split(|b| !b.is_ascii_alphanumeric()).any(|part| {
        let digits = part.iter().filter(|b| b.is_ascii_digit()).count();
        (digits >= 5 && digits == part.len()) || (part.len() >= 8 && digits >= 2 && part.len() - digits >= 2)
    })
}

pub(super) const fn is_edge(b: u8) -> bool {
    matches!(b, b'.' | b':' | b'-' | b'+' | b'/' | b',')
}

pub(super) fn trim(word: &[u8]) -> &[u8] {
    let start = word.iter().position(|b| !is_edge(*b)).unwrap_or(word.len());
    let end = word.iter().rposition(|b| !is_edge(*b)).map_or(start, |at| at + 1);
    &word[start..end]
}

pub(super) fn is_volatile(word: &[u8]) -> bool {
    const NAMES: &[&str] = &[
        "pid",
        "ppid",
        "nonce",
        "requestid",
        "reqid",
        "traceid",
        "spanid",
        "correlationid",
        "ts",
        "timestamp",
        "took",
        "tookms",
        "elapsed",
        "elapsedms",
        "duration",
        "durationms",
        "latency",
        "latencyms",
        "uptime",
        "attempt",
        "retry",
    ];
    if word.len() < 2
        || word.len() > 20
        || !matches!(
            word[0] | 32,
            b'p' | b'n' | b'r' | b't' | b's' | b'c' | b'e' | b'd' | b'l' | b'u' | b'a' | b'x'
        )
    {
        return false;
    }
    let mut plain = [0_u8; 20];
    let mut len = 0;
    for &b in word {
        if b != b'_' && b != b'-' {
            plain[len] = b.to_ascii_lowercase();
            len += 1;
        }
    }
    let plain = plain[..len].strip_prefix(b"x").unwrap_or(&plain[..len]);
    NAMES.iter().any(|name| name.as_bytes() == plain)
}

pub(super) fn is_unit_word(word: &[u8]) -> bool {
    const UNITS: &[&str] = &[
        "s",
        "ms",
        "us",
        "ns",
        "sec",
        "secs",
        "second",
        "seconds",
        "min",
        "mins",
        "minute",
        "minutes",
        "hour",
        "hours",
        "millisecond",
        "milliseconds",
    ];
    let word = trim(word);
    word.len() <= 12 && UNITS.iter().any(|unit| unit.as_bytes() == word)
}

/// The mask for a word of a result (its edges trimmed, at least one digit in it), if it has one.
pub(super) fn result_mask(word: &[u8]) -> Option<&'static [u8]> {
    let first = *word.first()?;
    if word.len() == 36 && is_uuid(word) {
        return Some(b"<uuid>");
    }
    if !first.is_ascii_digit() {
        return None;
    }
    if word.len() > 5
        && word[0] == b'0'
        && word[1] | 32 == b'x'
        && word[2..].iter().all(u8::is_ascii_hexdigit)
    {
        return Some(b"<address>");
    }
    if is_date(word) || is_clock_or_stamp(word) || is_short_clock(word) {
        return Some(b"<time>");
    }
    is_duration(word).then_some(&b"<duration>"[..])
}

pub(super) fn is_uuid(word: &[u8]) -> bool {
    word.iter()
        .enumerate()
        .all(|(at, b)| if matches!(at, 8 | 13 | 18 | 23) { *b == b'-' } else { b.is_ascii_hexdigit() })
}

/// Takes `pattern` (`d` stands for a digit) off the front.
pub(super) fn strip<'a>(word: &'a [u8], pattern: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = word.split_at_checked(pattern.len())?;
    let fits = head.iter().zip(pattern).all(|(b, p)| if *p == b'd' { b.is_ascii_digit() } else { b == p });
    fits.then_some(rest)
}

pub(super) fn is_date(word: &[u8]) -> bool {
    strip(word, b"dddd-dd-dd").is_some_and(|rest| rest.is_empty())
}

/// `2026-01-31T10:00:00.5Z`, `10:00:00`, `10:00:00,123`, with or without a zone.
pub(super) fn is_clock_or_stamp(word: &[u8]) -> bool {
    let clock = match strip(word, b"dddd-dd-dd") {
        Some([b'T' | b't' | b'_' | b'-', clock @ ..]) => clock,
        Some(_) => return false,
        None => word,
    };
    let Some(rest) = strip(clock, b"dd:dd:dd").or_else(|| strip(clock, b"d:dd:dd")) else { return false };
    rest.iter().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b',' | b':' | b'+' | b'-' | b'Z' | b'z'))
}

/// `10:45`, not `a.rs:10:45` and not `99:99`.
pub(super) fn is_short_clock(word: &[u8]) -> bool {
    strip(word, b"dd:dd").is_some_and(|rest| rest.is_empty())
        && &word[..2] < b"24".as_slice()
        && &word[3..4] < b"6".as_slice()
}

/// `0.12s`, `12ms`, `1m30s`.
pub(super) fn is_duration(word: &[u8]) -> bool {
    let mut rest = word;
    while !rest.is_empty() {
        let number = rest.iter().position(|b| !(b.is_ascii_digit() || *b == b'.')).unwrap_or(rest.len());
        if number == 0 {
            return false;
        }
        rest = &rest[number..];
        let unit = rest.iter().position(u8::is_ascii_digit).unwrap_or(rest.len());
        if !matches!(
            &rest[..unit],
            b"s" | b"ms" | b"us" | b"ns" | b"m" | b"h" | b"sec" | b"secs" | b"min" | b"\xC2\xB5s"
        ) {
            return false;
        }
        rest = &rest[unit..];
    }
    true
}
