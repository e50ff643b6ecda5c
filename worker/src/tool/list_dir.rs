//! `list_dir`: what is in a directory.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::{self, DirEntry, FileType};
use std::io::Write as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use nix::libc;
use serde::Deserialize;

use super::path::{io_failure, resolve};
use super::{Failure, whole_number};

/// Entries that are listed unless the model says otherwise.
const DEFAULT_ENTRIES: u64 = 1000;

/// Most entries that are listed.
const MAX_ENTRIES: u64 = 10_000;

/// Arguments of `list_dir`.
#[derive(Debug, Deserialize)]
pub(super) struct Args<'a> {
    #[serde(borrow, default)]
    path: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "whole_number")]
    limit: Option<u64>,
}

pub(super) fn run(args: &Args<'_>, cwd: &Path) -> Result<Vec<u8>, Failure> {
    let path = resolve(args.path.as_deref().unwrap_or("."), cwd)?;
    // At most MAX_ENTRIES, so it fits.
    let limit = args.limit.unwrap_or(DEFAULT_ENTRIES).clamp(1, MAX_ENTRIES) as usize;
    let entries = fs::read_dir(&path).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOTDIR) if path.exists() => {
            Failure(format!("{} is not a directory. Use read_file to read a file.", path.display()))
        }
        _ => io_failure("list", &path, &error),
    })?;

    let mut count = 0_u64;
    let mut kept: Vec<(OsString, DirEntry)> = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| io_failure("list", &path, &error))?;
        count += 1;
        kept.push((entry.file_name(), entry));
        // A directory may have millions of entries; those that cannot be among the first ones are let go.
        if kept.len() >= limit * 2 {
            keep_first(&mut kept, limit);
        }
    }
    keep_first(&mut kept, limit);
    if count == 0 {
        return Ok(format!("[{} is empty]\n", path.display()).into_bytes());
    }

    let mut text = Vec::with_capacity(kept.len() * 48);
    for (name, entry) in &kept {
        line(&mut text, &printable(&name.to_string_lossy()), entry);
    }
    let more = count - kept.len() as u64;
    if more > 0 {
        let _ = writeln!(
            text,
            "[{more} more of {count} entries; list a directory below, use a larger limit (at most {MAX_ENTRIES}), or \
             `find` in bash]"
        );
    }
    Ok(text)
}

fn keep_first(entries: &mut Vec<(OsString, DirEntry)>, limit: usize) {
    entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    entries.truncate(limit);
}

fn line(text: &mut Vec<u8>, name: &str, entry: &DirEntry) {
    // An entry that is gone by now, or that may not be looked at, is listed all the same.
    let Ok(kind) = entry.file_type() else {
        let _ = writeln!(text, "? {:>12} {name}", "-");
        return;
    };
    let letter = letter_of(kind);
    let size = match entry.metadata() {
        Ok(metadata) if kind.is_file() => metadata.len().to_string(),
        _ => "-".to_owned(),
    };
    let _ = write!(text, "{letter} {size:>12} {name}");
    if kind.is_dir() {
        text.push(b'/');
    } else if kind.is_symlink()
        && let Ok(target) = fs::read_link(entry.path())
    {
        let _ = write!(text, " -> {}", printable(&target.to_string_lossy()));
    }
    text.push(b'\n');
}

fn letter_of(kind: FileType) -> char {
    if kind.is_file() {
        'f'
    } else if kind.is_dir() {
        'd'
    } else if kind.is_symlink() {
        'l'
    } else if kind.is_fifo() {
        'p'
    } else if kind.is_socket() {
        's'
    } else if kind.is_char_device() {
        'c'
    } else if kind.is_block_device() {
        'b'
    } else {
        '?'
    }
}

/// A name on one line, whatever is in it.
fn printable(name: &str) -> Cow<'_, str> {
    if name.chars().any(char::is_control) {
        Cow::Owned(name.escape_debug().to_string())
    } else {
        Cow::Borrowed(name)
    }
}
