//! `edit_file`: one text in a file replaced by another.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;

use serde::Deserialize;

use super::Failure;
use super::edit_text::{Edited, Nearest, NotEdited, edit};
use super::path::{io_failure, resolve};
use super::replace::Target;

/// Largest file that can be edited.
const MAX_FILE_BYTES: u64 = 32 * 1024 * 1024;

/// Most lines of the file that an answer shows.
const MAX_SHOWN_LINES: usize = 12;

/// Most characters of one line that an answer shows.
const MAX_SHOWN_CHARS: usize = 300;

/// Lines shown before and after a replacement.
const CONTEXT_LINES: usize = 2;

/// Arguments of `edit_file`.
#[derive(Debug, Deserialize)]
pub(super) struct Args<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow)]
    old_string: Cow<'a, str>,
    #[serde(borrow)]
    new_string: Cow<'a, str>,
    #[serde(default)]
    replace_all: bool,
}

pub(super) fn run(args: &Args<'_>, cwd: &Path) -> Result<Vec<u8>, Failure> {
    let path = resolve(&args.path, cwd)?;
    if args.old_string.is_empty() {
        return Err(Failure(
            "old_string is empty. Give the text to replace; to write a whole file use write_file.".to_owned(),
        ));
    }
    let target = Target::open(&path, true)?;
    let shown = target.path.display().to_string();
    let Some(existing) = &target.existing else {
        let missing = std::io::Error::from_raw_os_error(nix::libc::ENOENT);
        let Failure(text) = io_failure("open", &target.path, &missing);
        return Err(Failure(format!("{text} To create a file use write_file.")));
    };
    if existing.metadata.len() > MAX_FILE_BYTES {
        return Err(Failure(format!(
            "{shown} has {} bytes; files of up to {MAX_FILE_BYTES} can be edited here. Use a command, like sed, in bash.",
            existing.metadata.len()
        )));
    }
    let mut content = Vec::with_capacity(existing.metadata.len() as usize + 1);
    (&existing.file)
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut content)
        .map_err(|error| io_failure("read", &target.path, &error))?;

    let edited = edit(&content, &args.old_string, &args.new_string, args.replace_all)
        .map_err(|why| refusal(&shown, &content, args, &why))?;
    target.write(&edited.content)?;
    Ok(report(&shown, args, &edited).into_bytes())
}

fn report(shown: &str, args: &Args<'_>, edited: &Edited) -> String {
    let Edited { content, replacements, first_line } = edited;
    let mut text = match replacements {
        1 => format!("edited {shown}: 1 replacement, in line {first_line}\n"),
        n => format!("edited {shown}: {n} replacements, the first in line {first_line}\n"),
    };
    let from = first_line.saturating_sub(CONTEXT_LINES).max(1);
    let to = first_line + args.new_string.matches('\n').count() + CONTEXT_LINES;
    show_lines(&mut text, content, from, to - from + 1);
    text
}

fn refusal(shown: &str, content: &[u8], args: &Args<'_>, why: &NotEdited) -> Failure {
    let mut text = String::new();
    match why {
        NotEdited::Unchanged => {
            let _ = write!(text, "{shown} was not changed: old_string and new_string are the same.");
        }
        NotEdited::TooLarge { bytes } => {
            let _ = write!(text, "{shown} was not changed: it would get {bytes} bytes, which is too large.");
        }
        NotEdited::Ambiguous { count, lines } => {
            let list = lines.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
            let more = if *count > lines.len() { ", …" } else { "" };
            let _ = write!(
                text,
                "{shown} was not changed: old_string is there {count} times, beginning in the lines {list}{more}. Add \
                 lines before or after it so that it is there only once, or set replace_all to true."
            );
        }
        NotEdited::Absent { nearest, already } => {
            let _ = write!(text, "{shown} was not changed: old_string is not in it.");
            if let Some(line) = already {
                let _ = write!(text, " new_string is, in line {line}: the edit may have been made before.");
            }
            if looks_numbered(&args.old_string) {
                text.push_str(
                    " old_string seems to hold line numbers as read_file shows them; they are not part of the file.",
                );
            }
            show_nearest(&mut text, content, nearest.as_ref());
        }
    }
    Failure(text)
}

fn show_nearest(text: &mut String, content: &[u8], nearest: Option<&Nearest>) {
    let Some(Nearest { first_line, lines, only_white_space }) = nearest else {
        text.push_str(" Nothing in it is similar. Read the file to see what is there.");
        return;
    };
    if *only_white_space {
        let _ = writeln!(
            text,
            " From line {first_line} on it is there with other white space. Copy it exactly, without the line numbers:"
        );
    } else {
        let _ = writeln!(text, " The most similar text begins in line {first_line}:");
    }
    show_lines(text, content, *first_line, *lines);
}

/// Lines with their numbers, as `read_file` shows them.
fn show_lines(text: &mut String, content: &[u8], first: usize, count: usize) {
    // What follows the last line end is a line only if there is something.
    let content = content.strip_suffix(b"\n").unwrap_or(content);
    let lines = content.split(|byte| *byte == b'\n').enumerate().skip(first - 1);
    for (index, line) in lines.take(count.min(MAX_SHOWN_LINES)) {
        let line = String::from_utf8_lossy(line);
        let cut: String = line.trim_end_matches('\r').chars().take(MAX_SHOWN_CHARS).collect();
        let more = if cut.len() < line.trim_end_matches('\r').len() { "…" } else { "" };
        let _ = writeln!(text, "{:>6}\t{cut}{more}", index + 1);
    }
    if count > MAX_SHOWN_LINES {
        let _ = writeln!(text, "[{} more lines]", count - MAX_SHOWN_LINES);
    }
}

/// Whether every line begins with a number and a tab.
fn looks_numbered(text: &str) -> bool {
    text.lines().all(|line| {
        let digits = line.trim_start().split('\t').next().unwrap_or_default();
        line.contains('\t') && !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}
