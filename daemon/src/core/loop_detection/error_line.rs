//! Finds the line of an output that names the error, and makes a fingerprint of its kind.
//!
//! A shell's output may be anything with the error somewhere in it: the last line that names one counts, and inside a
//! traceback only the line with the exception. Other tools answer with the error itself: their first line counts, cut at
//! the first quoted part, which is mostly the argument that was tried. (A command or a query that names another column
//! than the one before is a new attempt; there the quoted part stays.) Digits are masked.

use super::digest::Fingerprint;
use super::mask::{Kind, Masker};

/// Longest part of a line that counts.
const MAX_LINE: usize = 160;

/// A line is not cut shorter than this: what is left has to say something.
const SHORTEST: usize = 20;
/// In the output of a command more is needed, since short sentences (`Unknown column 'x'`) differ by what they quote.
const SHORTEST_OF_SHELL: usize = 40;

/// Words that name an error, also as the end of one (`NameError`), by their last letter.
const fn names_of(last: u8) -> &'static [&'static [u8]] {
    match last {
        b'r' => &[b"error"],
        b'n' => &[b"exception"],
        b'l' => &[b"fatal"],
        b't' => &[b"cannot", b"timeout"],
        b'd' => &[b"denied", b"invalid", b"unmatched", b"refused", b"unauthorized", b"failed"],
        b'g' => &[b"missing"],
        _ => &[],
    }
}

/// The same, of two words.
const PAIRS: &[(&[u8], &[u8])] = &[(b"not", b"found"), (b"no", b"such"), (b"timed", b"out")];

/// The line that names the error.
pub(crate) fn find(text: &str, shell: bool) -> Option<&str> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !is_tag(line));
    if !shell {
        return lines.next();
    }
    let traceback = text.contains("Traceback (most recent");
    lines.rfind(|line| if traceback { names_exception(line) } else { names_error(line) })
}

/// `<output>`: a wrapper that some harness puts around outputs.
fn is_tag(line: &str) -> bool {
    line.len() < 24 && line.starts_with('<') && line.ends_with('>') && !line.contains(' ')
}

fn names_error(line: &str) -> bool {
    let line = &line.as_bytes()[..line.len().min(MAX_LINE)];
    let mut before: &[u8] = b"";
    line.split(|b| !(b.is_ascii_alphanumeric() || *b == b'_')).filter(|word| !word.is_empty()).any(|word| {
        let ends_with = |name: &&[u8]| {
            word.len().checked_sub(name.len()).is_some_and(|at| word[at..].eq_ignore_ascii_case(name))
        };
        let pair =
            |(one, two): &(&[u8], &[u8])| before.eq_ignore_ascii_case(one) && word.eq_ignore_ascii_case(two);
        let last = word[word.len() - 1].to_ascii_lowercase();
        let named = names_of(last).iter().any(ends_with) || PAIRS.iter().any(pair);
        before = word;
        named
    })
}

fn names_exception(line: &str) -> bool {
    let head =
        line.split(|c: char| !(c.is_alphanumeric() || c == '.' || c == '_')).next().unwrap_or_default();
    head.ends_with("Error")
        || head.ends_with("Exception")
        || head == "KeyboardInterrupt"
        || head == "SystemExit"
}

/// `grep: Unmatched [`: the search itself was wrong. That there is no such file is an answer.
pub(crate) fn is_complaint(line: &str) -> bool {
    const SEARCHES: &[&str] = &["grep", "egrep", "fgrep", "rg", "find", "ls", "diff", "test"];
    let Some((program, said)) = line.split_once(": ") else { return false };
    SEARCHES.contains(&program)
        && !["No such file", "Permission denied", "Is a directory", "cannot access"]
            .iter()
            .any(|answer| said.contains(answer))
}

/// The kind of error that a line names.
pub(crate) fn fingerprint(line: &str, shell: bool) -> Fingerprint {
    let line = cut(line, MAX_LINE);
    let says_enough = if shell { SHORTEST_OF_SHELL } else { SHORTEST };
    let quote = line.find(['`', '\'', '"']).filter(|at| *at > says_enough);
    let line = &line[..quote.unwrap_or(line.len())];
    let mut masker = Masker::new(Kind::Result, Vec::with_capacity(MAX_LINE));
    masker.push(line.as_bytes());
    let masked = masker.finish();
    let mut plain = Vec::with_capacity(masked.len());
    for &b in &*masked {
        if b.is_ascii_digit() {
            if plain.last() != Some(&b'#') {
                plain.push(b'#');
            }
        } else {
            plain.push(b);
        }
    }
    Fingerprint(xxhash_rust::xxh3::xxh3_64(&plain))
}

/// Appends the first line that says something, cut and with control characters taken out.
pub(crate) fn show(text: &str, out: &mut String) {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !is_tag(line)).unwrap_or_default();
    let part = cut(line, MAX_LINE);
    out.extend(part.chars().map(|c| if c.is_control() { ' ' } else { c }));
    if part.len() < line.len() {
        out.push('…');
    }
}

pub(crate) fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_names_the_error_is_found() {
        let trace = "ran fine\nTraceback (most recent call last):\n  File \"a\", line 1\n    raise error\nFileNotFoundError: [Errno 2] No such file: '/x'\nbye";
        assert_eq!(find(trace, true), Some("FileNotFoundError: [Errno 2] No such file: '/x'"));
        assert_eq!(find("warning: old\nsed: unmatched [\nlast", true), Some("sed: unmatched ["));
        assert_eq!(find("5 lines\nerrors are fine", true), None);
        assert_eq!(find("\n<output>\nNo match for old_str\nmore", false), Some("No match for old_str"));
    }

    #[test]
    fn one_kind_of_error_is_one_fingerprint() {
        let same = |shell, a, b| fingerprint(a, shell) == fingerprint(b, shell);
        assert!(same(
            false,
            "No replacement was made, old_str `a` is not there",
            "No replacement was made, old_str `b` is not there"
        ));
        assert!(!same(true, "Unknown column 'a' in 'field list'", "Unknown column 'b' in 'field list'"));
        assert!(same(true, "error at line 7", "error at line 123"));
        assert!(!same(true, "bash: foo: command not found", "bash: bar: command not found"));
    }
}
