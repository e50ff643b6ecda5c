//! `read_file`: a page of a text file, with line numbers.
//!
//! Four system calls for a small file: open, fstat, read, close.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::libc;
use serde::Deserialize;

use super::path::{io_failure, must_be_regular, resolve};
use super::{Failure, whole_number};

/// Lines of a page unless the model says otherwise.
const DEFAULT_LINES: u64 = 2000;

/// Most bytes of a page.
const MAX_PAGE_BYTES: usize = 256 * 1024;

/// Most bytes that are shown of one line.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// Bytes that are read at once.
const CHUNK_BYTES: u64 = 64 * 1024;

/// Room for a line's number and for the remark about a line that was cut.
const LINE_EXTRA_BYTES: usize = 160;

/// Arguments of `read_file`.
#[derive(Debug, Deserialize)]
pub(super) struct Args<'a> {
    #[serde(borrow)]
    path: std::borrow::Cow<'a, str>,
    #[serde(default, deserialize_with = "whole_number")]
    offset: Option<u64>,
    #[serde(default, deserialize_with = "whole_number")]
    limit: Option<u64>,
}

pub(super) fn run(args: &Args<'_>, cwd: &Path) -> Result<Vec<u8>, Failure> {
    let path = resolve(&args.path, cwd)?;
    let file = OpenOptions::new()
        .read(true)
        // A FIFO without a writer must not hold us; what it is, is asked next.
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(&path)
        .map_err(|error| io_failure("open", &path, &error))?;
    let metadata = file.metadata().map_err(|error| io_failure("look at", &path, &error))?;
    must_be_regular(&path, &metadata)?;

    let mut page = Page::new(args, metadata.len());
    let ended = page.read(&file, metadata.len()).map_err(|error| io_failure("read", &path, &error))?;
    match ended {
        Ended::Binary => Err(Failure(format!(
            "{} is a binary file ({} bytes): it has a NUL byte in line {}. Look at it with a command, \
             like `file`, `xxd` or `strings`; text in UTF-16 can be converted with `iconv`.",
            path.display(),
            metadata.len(),
            page.line
        ))),
        Ended::AtEnd if page.shown == 0 && page.bytes_seen == 0 => Ok(b"[the file is empty]\n".to_vec()),
        Ended::AtEnd if page.shown == 0 => Err(Failure(format!(
            "{} has no line {}: it has {} lines. Choose a smaller offset.",
            path.display(),
            page.first,
            page.line - 1 + u64::from(page.line_bytes > 0)
        ))),
        Ended::AtEnd => Ok(page.text),
        Ended::GoesOn => {
            let mut text = page.text;
            if text.last() != Some(&b'\n') {
                text.push(b'\n');
            }
            let _ = writeln!(
                text,
                "[lines {} to {} of a file of {} bytes; it goes on: read on with offset = {}]",
                page.first,
                page.line - 1,
                metadata.len(),
                page.line
            );
            Ok(text)
        }
    }
}

/// Why a page ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    AtEnd,
    GoesOn,
    Binary,
}

/// A page that is being made.
struct Page {
    /// The first line to show, from 1.
    first: u64,
    /// Lines to show.
    limit: u64,
    /// The line that the next byte belongs to, from 1.
    line: u64,
    /// Lines whose text was begun.
    shown: u64,
    /// Bytes of the current line so far.
    line_bytes: usize,
    /// Where the current line's text begins in `text`.
    line_start: usize,
    bytes_seen: u64,
    text: Vec<u8>,
}

impl Page {
    fn new(args: &Args<'_>, file_bytes: u64) -> Self {
        // Numbers take 7 bytes a line; with 28 bytes or more a line this is enough from the start.
        let room = usize::try_from(file_bytes + file_bytes / 4).unwrap_or(usize::MAX).saturating_add(64);
        Self {
            first: args.offset.unwrap_or(1).max(1),
            limit: args.limit.unwrap_or(DEFAULT_LINES).max(1),
            line: 1,
            shown: 0,
            line_bytes: 0,
            line_start: 0,
            bytes_seen: 0,
            text: Vec::with_capacity(room.min(MAX_PAGE_BYTES)),
        }
    }

    fn read(&mut self, mut file: &File, file_bytes: u64) -> io::Result<Ended> {
        // One byte more than the file has: a read that does not fill the buffer has seen its end.
        // Files in /proc say 0 and have more.
        let room = if file_bytes == 0 { CHUNK_BYTES } else { CHUNK_BYTES.min(file_bytes.saturating_add(1)) };
        // At most CHUNK_BYTES, so it fits.
        let mut chunk = vec![0; room as usize];
        loop {
            let count = match file.read(&mut chunk) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if count == 0 {
                self.end_line();
                return Ok(Ended::AtEnd);
            }
            self.bytes_seen += count as u64;
            if let Some(ended) = self.take(&chunk[..count]) {
                return Ok(ended);
            }
            if self.bytes_seen == file_bytes && count < chunk.len() {
                self.end_line();
                return Ok(Ended::AtEnd);
            }
        }
    }

    /// Takes the next bytes of the file; `Some` when the page is full or cannot be shown.
    fn take(&mut self, mut rest: &[u8]) -> Option<Ended> {
        while !rest.is_empty() {
            let newline = rest.iter().position(|byte| *byte == b'\n');
            let (piece, after) = rest.split_at(newline.map_or(rest.len(), |at| at + 1));
            if self.line >= self.first {
                if self.line_bytes == 0 {
                    let full = self.text.len() + MAX_LINE_BYTES + LINE_EXTRA_BYTES > MAX_PAGE_BYTES;
                    if self.shown == self.limit || (full && self.shown > 0) {
                        return Some(Ended::GoesOn);
                    }
                    self.begin_line();
                }
                if piece.contains(&0) {
                    return Some(Ended::Binary);
                }
                let content = if newline.is_some() { &piece[..piece.len() - 1] } else { piece };
                let fits = MAX_LINE_BYTES.saturating_sub(self.line_bytes).min(content.len());
                self.text.extend_from_slice(&content[..fits]);
                self.line_bytes += content.len();
            }
            if newline.is_some() {
                if self.line >= self.first {
                    self.end_line();
                    self.text.push(b'\n');
                }
                self.line_bytes = 0;
                self.line += 1;
            } else {
                // Also in lines that are skipped: whether the file ends in the middle of a line.
                self.line_bytes = self.line_bytes.max(1);
            }
            rest = after;
        }
        None
    }

    fn begin_line(&mut self) {
        let _ = write!(self.text, "{:>6}\t", self.line);
        self.line_start = self.text.len();
        self.shown += 1;
    }

    /// Says what is missing of a line that was too long.
    fn end_line(&mut self) {
        if self.shown == 0 || self.line_bytes <= MAX_LINE_BYTES {
            return;
        }
        // The cut may have gone through a character.
        if let Err(error) = std::str::from_utf8(&self.text[self.line_start..])
            && error.error_len().is_none()
        {
            self.text.truncate(self.line_start + error.valid_up_to());
        }
        let shown = self.text.len() - self.line_start;
        let missing = self.line_bytes - shown;
        let _ = write!(
            self.text,
            "[… {missing} more bytes in this line; in bash: sed -n {}p FILE | tail -c +{}]",
            self.line,
            shown + 1
        );
        self.line_bytes = 0;
    }
}
