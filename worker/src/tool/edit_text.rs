//! The text side of `edit_file`: finding, replacing, and telling what was most likely meant. Pure.

use std::borrow::Cow;

/// Most places that are listed.
const MAX_PLACES: usize = 10;

/// Largest result of an edit.
const MAX_RESULT_BYTES: usize = 64 * 1024 * 1024;

/// Lines of a file that are searched for something near.
const MAX_SEARCHED_LINES: usize = 200_000;

/// Lines of the text to find that are compared.
const MAX_COMPARED_LINES: usize = 20;

/// Below this likeness (0 to 1) lines are not shown as the nearest.
const WORTH_SHOWING: f64 = 0.5;

/// An edit that was made.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Edited {
    pub(super) content: Vec<u8>,
    pub(super) replacements: usize,
    /// Line of the first replacement, from 1.
    pub(super) first_line: usize,
}

/// Why an edit was not made.
#[derive(Debug, PartialEq)]
pub(super) enum NotEdited {
    /// The text is not there.
    Absent {
        nearest: Option<Nearest>,
        /// The line where the new text is already.
        already: Option<usize>,
    },
    /// The text is there more than once.
    Ambiguous {
        count: usize,
        /// The first lines where it begins.
        lines: Vec<usize>,
    },
    /// Old and new text are the same.
    Unchanged,
    /// The result would be larger than [`MAX_RESULT_BYTES`].
    TooLarge { bytes: usize },
}

/// Lines that resemble the text that was not found.
#[derive(Debug, PartialEq)]
pub(super) struct Nearest {
    /// From 1.
    pub(super) first_line: usize,
    pub(super) lines: usize,
    /// Word for word the same.
    pub(super) only_white_space: bool,
}

/// Replaces `old` by `new`: the one place where it is, or all with `all`.
///
/// A file whose lines all end in CRLF keeps that: line ends in `old` and `new` are taken as such. In any other file
/// line ends must match, but for CRLF in `old` where the file has none.
pub(super) fn edit(content: &[u8], old: &str, new: &str, all: bool) -> Result<Edited, NotEdited> {
    let (old, new) = with_line_ends_of(content, old, new);
    let (old, new) = (old.as_bytes(), new.as_bytes());
    if old == new {
        return Err(NotEdited::Unchanged);
    }
    // Two places that overlap are two places when it must be unique.
    let mut places = Occurrences::new(content, old, !all);
    let mut count = 0_usize;
    let mut lines = Vec::new();
    let mut line = 1;
    let mut counted_to = 0;
    for at in places.by_ref() {
        count += 1;
        if lines.len() < MAX_PLACES {
            line += newlines(&content[counted_to..at]);
            counted_to = at;
            lines.push(line);
        }
    }
    let Some(&first_line) = lines.first() else {
        return Err(NotEdited::Absent {
            nearest: nearest(content, old),
            already: first_line_of(content, new),
        });
    };
    if !all && count > 1 {
        return Err(NotEdited::Ambiguous { count, lines });
    }
    let bytes = (content.len() - count * old.len()).saturating_add(count.saturating_mul(new.len()));
    if bytes > MAX_RESULT_BYTES {
        return Err(NotEdited::TooLarge { bytes });
    }
    let mut result = Vec::with_capacity(bytes);
    let mut copied_to = 0;
    for at in Occurrences::new(content, old, false) {
        result.extend_from_slice(&content[copied_to..at]);
        result.extend_from_slice(new);
        copied_to = at + old.len();
    }
    result.extend_from_slice(&content[copied_to..]);
    Ok(Edited { content: result, replacements: count, first_line })
}

fn with_line_ends_of<'a>(content: &[u8], old: &'a str, new: &'a str) -> (Cow<'a, str>, Cow<'a, str>) {
    let crlf = content.windows(2).filter(|pair| pair == b"\r\n").count();
    let lf = newlines(content);
    if crlf > 0 && crlf == lf {
        return (to_crlf(old), to_crlf(new));
    }
    if crlf == 0 && lf > 0 && old.contains("\r\n") {
        return (old.replace("\r\n", "\n").into(), new.replace("\r\n", "\n").into());
    }
    (old.into(), new.into())
}

fn to_crlf(text: &str) -> Cow<'_, str> {
    if text.contains('\n') { text.replace("\r\n", "\n").replace('\n', "\r\n").into() } else { text.into() }
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

fn first_line_of(content: &[u8], text: &[u8]) -> Option<usize> {
    // A short text is in most files anyway and says nothing.
    if text.len() < 8 {
        return None;
    }
    Occurrences::new(content, text, false).next().map(|at| newlines(&content[..at]) + 1)
}

/// Where a text is in another one: Knuth, Morris and Pratt, so that no pair of texts takes longer than their length.
struct Occurrences<'a> {
    content: &'a [u8],
    text: &'a [u8],
    /// For each length of a matched beginning: how long the next shorter one is that also fits.
    shorter: Vec<usize>,
    at: usize,
    matched: usize,
    overlapping: bool,
}

impl<'a> Occurrences<'a> {
    /// `text` must not be empty; an empty one is nowhere.
    fn new(content: &'a [u8], text: &'a [u8], overlapping: bool) -> Self {
        let mut shorter = vec![0; text.len()];
        let mut matched = 0;
        for at in 1..text.len() {
            while matched > 0 && text[at] != text[matched] {
                matched = shorter[matched - 1];
            }
            if text[at] == text[matched] {
                matched += 1;
            }
            shorter[at] = matched;
        }
        Self { content, text, shorter, at: 0, matched: 0, overlapping }
    }
}

impl Iterator for Occurrences<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.text.is_empty() {
            return None;
        }
        while let Some(&byte) = self.content.get(self.at) {
            while self.matched > 0 && byte != self.text[self.matched] {
                self.matched = self.shorter[self.matched - 1];
            }
            if byte == self.text[self.matched] {
                self.matched += 1;
            }
            self.at += 1;
            if self.matched == self.text.len() {
                self.matched = if self.overlapping { self.shorter[self.matched - 1] } else { 0 };
                return Some(self.at - self.text.len());
            }
        }
        None
    }
}

/// The lines that resemble `old` most.
fn nearest(content: &[u8], old: &[u8]) -> Option<Nearest> {
    let wanted: Vec<&[u8]> = old.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).collect();
    let begin = wanted.iter().position(|line| !line.is_empty())?;
    let end = wanted.iter().rposition(|line| !line.is_empty())? + 1;
    let wanted = &wanted[begin..end];
    let compared = &wanted[..wanted.len().min(MAX_COMPARED_LINES)];
    let lines: Vec<&[u8]> =
        content.split(|byte| *byte == b'\n').take(MAX_SEARCHED_LINES).map(<[u8]>::trim_ascii).collect();

    let same_words = |a: &[u8], b: &[u8]| words(a).eq(words(b));
    let exact = lines
        .windows(wanted.len())
        .position(|window| window.iter().zip(wanted).all(|(line, wanted)| same_words(line, wanted)));
    if let Some(at) = exact {
        return Some(Nearest { first_line: at + 1, lines: wanted.len(), only_white_space: true });
    }
    let mut best = (WORTH_SHOWING, None);
    for at in 0..lines.len() {
        let window = &lines[at..lines.len().min(at + compared.len())];
        let sum: f64 = window.iter().zip(compared).map(|(line, wanted)| likeness(line, wanted)).sum();
        let mean = sum / compared.len() as f64;
        if mean > best.0 {
            best = (mean, Some(at));
        }
    }
    let at = best.1?;
    Some(Nearest { first_line: at + 1, lines: wanted.len().min(lines.len() - at), only_white_space: false })
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// How much of two lines is the same at their beginnings and ends, from 0 to 1.
fn likeness(a: &[u8], b: &[u8]) -> f64 {
    let (shorter, longer) = (a.len().min(b.len()), a.len().max(b.len()));
    if longer == 0 {
        return 1.0;
    }
    let beginning = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let end =
        a.iter().rev().zip(b.iter().rev()).take(shorter - beginning).take_while(|(x, y)| x == y).count();
    (beginning + end) as f64 / longer as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn edited(content: &str, old: &str, new: &str) -> String {
        String::from_utf8(edit(content.as_bytes(), old, new, false).expect("found").content).expect("text")
    }

    fn nearest_of(content: &str, old: &str) -> Option<Nearest> {
        match edit(content.as_bytes(), old, "something else", false) {
            Err(NotEdited::Absent { nearest, .. }) => nearest,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_place_is_replaced_and_the_rest_stays_byte_for_byte() {
        assert_eq!(edited("a\nb\nc", "b", "xx"), "a\nxx\nc");
        assert_eq!(edited("a\nb\nc\n", "b\n", ""), "a\nc\n");
        assert_eq!(edited("a\tb", "\t", " "), "a b");
        let latin1 = edit(b"caf\xe9 one", "one", "two", false).expect("found");
        assert_eq!(latin1, Edited { content: b"caf\xe9 two".to_vec(), replacements: 1, first_line: 1 });
    }

    #[test]
    fn several_places_are_counted_with_their_lines() {
        let content = "x = 1\ny = 1\n\nx = 1\n";
        assert_eq!(
            edit(content.as_bytes(), "x = 1", "x = 2", false),
            Err(NotEdited::Ambiguous { count: 2, lines: vec![1, 4] })
        );
        let all = edit(content.as_bytes(), "x = 1", "x = 2", true).expect("found");
        assert_eq!(
            all,
            Edited { content: b"x = 2\ny = 1\n\nx = 2\n".to_vec(), replacements: 2, first_line: 1 }
        );
        assert_eq!(edit(b"aaa", "aa", "b", false), Err(NotEdited::Ambiguous { count: 2, lines: vec![1, 1] }));
        assert_eq!(edit(b"aaa", "aa", "b", true).expect("found").content, b"ba");
    }

    #[test]
    fn only_the_first_places_are_listed() {
        let content = "x\n".repeat(50);
        let Err(NotEdited::Ambiguous { count, lines }) = edit(content.as_bytes(), "x", "y", false) else {
            panic!("50 places");
        };
        assert_eq!((count, lines), (50, (1..=10).collect()));
    }

    #[test]
    fn a_file_with_crlf_keeps_it_in_old_and_new_text() {
        assert_eq!(edited("a\r\nb\r\nc\r\n", "a\nb", "a\nx\ny"), "a\r\nx\r\ny\r\nc\r\n");
        assert_eq!(edited("a\r\nb\r\n", "b", "x\ny"), "a\r\nx\r\ny\r\n");
        assert_eq!(edited("a\r\nb\r\n", "a\r\nb", "x\r\ny"), "x\r\ny\r\n");
    }

    #[test]
    fn a_file_without_crlf_gets_none_from_an_old_text_that_has_it() {
        assert_eq!(edited("a\nb\n", "a\r\nb", "x\r\ny"), "x\ny\n");
    }

    #[test]
    fn a_file_with_mixed_line_ends_is_matched_as_it_is() {
        assert_eq!(edited("a\r\nb\nc\n", "b\nc", "x\ny"), "a\r\nx\ny\n");
        assert!(matches!(edit(b"a\r\nb\nc\n", "a\nb", "x", false), Err(NotEdited::Absent { .. })));
    }

    #[test]
    fn text_that_differs_in_white_space_only_is_found_as_that() {
        let content = "fn main() {\n\tlet x = 1;\n\tlet y  = 2;\n}\n";
        assert_eq!(
            nearest_of(content, "  let x = 1;\n  let y = 2;\n"),
            Some(Nearest { first_line: 2, lines: 2, only_white_space: true })
        );
    }

    #[test]
    fn the_nearest_lines_are_found_and_unlike_ones_are_not_proposed() {
        let content = "alpha\nlet total = count * price;\nomega\n";
        assert_eq!(
            nearest_of(content, "let total = count + price;"),
            Some(Nearest { first_line: 2, lines: 1, only_white_space: false })
        );
        assert_eq!(nearest_of(content, "0123456789"), None);
        assert_eq!(nearest_of("", "x"), None);
        assert_eq!(nearest_of("x\n", " \n"), None);
    }

    #[test]
    fn an_edit_that_was_made_before_is_recognised() {
        let result = edit(b"a\nlet b = 3;\n", "let b = 2;", "let b = 3;", false);
        assert!(matches!(result, Err(NotEdited::Absent { already: Some(2), .. })), "{result:?}");
    }

    #[test]
    fn the_same_old_and_new_text_is_refused() {
        assert_eq!(edit(b"abc", "b", "b", false), Err(NotEdited::Unchanged));
    }

    #[test]
    fn a_result_beyond_all_bounds_is_refused_before_it_is_made() {
        let content = "a".repeat(1 << 20);
        let new = "b".repeat(1 << 10);
        assert_eq!(edit(content.as_bytes(), "a", &new, true), Err(NotEdited::TooLarge { bytes: 1 << 30 }));
    }

    proptest! {
        #[test]
        fn it_does_what_the_standard_library_does(
            content in "[ab\n]{0,40}", old in "[ab\n]{1,4}", new in "[abc\n]{0,4}"
        ) {
            prop_assume!(old != new);
            let places = (0..content.len()).filter(|at| content[*at..].starts_with(&old)).count();
            match edit(content.as_bytes(), &old, &new, true) {
                Ok(edited) => {
                    prop_assert_eq!(String::from_utf8(edited.content).expect("text"), content.replace(&old, &new));
                    prop_assert_eq!(edited.replacements, content.matches(&old).count());
                    let at = content.find(&old).expect("found");
                    prop_assert_eq!(edited.first_line, content[..at].matches('\n').count() + 1);
                }
                Err(error) => {
                    let absent = matches!(error, NotEdited::Absent { .. });
                    prop_assert!(places == 0 && absent);
                }
            }
            match edit(content.as_bytes(), &old, &new, false) {
                Ok(edited) => {
                    prop_assert_eq!(places, 1);
                    prop_assert_eq!(
                        String::from_utf8(edited.content).expect("text"), content.replacen(&old, &new, 1)
                    );
                }
                Err(NotEdited::Ambiguous { count, .. }) => prop_assert!(count > 1 && count == places),
                Err(error) => {
                    let absent = matches!(error, NotEdited::Absent { .. });
                    prop_assert!(places == 0 && absent);
                }
            }
        }

        #[test]
        fn anything_may_be_searched_for_in_anything(content in prop::collection::vec(any::<u8>(), 0..200), old in ".{1,9}") {
            let _ = edit(&content, &old, "new", false);
            let _ = edit(&content, &old, "new", true);
        }
    }
}
