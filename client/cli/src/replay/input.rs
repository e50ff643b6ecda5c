//! Reads files of recorded runs: plain or gzip, our own form or the session logs of known agents.
//!
//! One line is one run or one entry of a log; a file that is a single JSON document over many lines is read whole. What
//! is not understood is counted and named, and never fatal.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use serde_json::Value;

use super::logs::Logs;
use super::record::Run;

/// Longest line that is read.
const MAX_LINE: u64 = 256 * 1024 * 1024;
/// Kinds of unknown lines that are named.
const NAMED: usize = 20;

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{step} {path}: {source}", path = path.display())]
pub struct InputError {
    step: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Lines that were not understood.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// How many.
    pub lines: u64,
    /// What they were, where the first one stood, and how many there were of each.
    pub kinds: BTreeMap<String, (String, u64)>,
}

impl Unknown {
    /// Counts one line.
    pub fn add(&mut self, kind: String, place: impl FnOnce() -> String) {
        self.lines += 1;
        if self.kinds.len() < NAMED || self.kinds.contains_key(&kind) {
            self.kinds.entry(kind).or_insert_with(|| (place(), 0)).1 += 1;
        }
    }
}

/// Counts the bytes that were taken from the file, for the progress line.
#[derive(Debug)]
struct Counted<'a, R> {
    inner: R,
    bytes: &'a std::cell::Cell<u64>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bytes.set(self.bytes.get() + read as u64);
        Ok(read)
    }
}

/// Gives each run of a file to `each`; `-` is standard input.
///
/// # Errors
/// If the file cannot be opened or read.
pub fn read_runs(
    path: &Path,
    bytes: &std::cell::Cell<u64>,
    unknown: &mut Unknown,
    each: &mut dyn FnMut(Run),
) -> Result<(), InputError> {
    let fail = |step| move |source| InputError { step, path: path.to_owned(), source };
    let raw: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).map_err(fail("open"))?)
    };
    let mut raw = BufReader::with_capacity(128 * 1024, Counted { inner: raw, bytes });
    let gzip = raw.fill_buf().map_err(fail("read"))?.starts_with(&[0x1F, 0x8B]);
    let mut text: Box<dyn BufRead + '_> = if gzip {
        Box::new(BufReader::with_capacity(128 * 1024, MultiGzDecoder::new(raw)))
    } else {
        Box::new(raw)
    };
    let mut logs = Logs::new(path);
    let mut line = Vec::new();
    let mut number = 0_u64;
    loop {
        line.clear();
        let read = (&mut text).take(MAX_LINE).read_until(b'\n', &mut line).map_err(fail("read"))?;
        if read == 0 {
            break;
        }
        number += 1;
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let place = || format!("{}:{number}", path.display());
        if let Ok(run) = serde_json::from_slice::<Run>(&line) {
            each(run);
            continue;
        }
        match serde_json::from_slice::<Value>(&line) {
            Ok(value) => logs.entry(&value, &place, unknown, each),
            Err(error) if error.is_eof() && number == 1 => {
                // The document goes on over the next lines.
                text.read_to_end(&mut line).map_err(fail("read"))?;
                document(&line, &mut logs, &place, unknown, each);
            }
            Err(error) => unknown.add(format!("not JSON ({error})"), place),
        }
    }
    logs.finish(each);
    Ok(())
}

fn document(
    bytes: &[u8],
    logs: &mut Logs,
    place: &dyn Fn() -> String,
    unknown: &mut Unknown,
    each: &mut dyn FnMut(Run),
) {
    if let Ok(run) = serde_json::from_slice::<Run>(bytes) {
        return each(run);
    }
    match serde_json::from_slice::<Value>(bytes) {
        Ok(value) => logs.entry(&value, place, unknown, each),
        Err(error) => unknown.add(format!("not JSON ({error})"), place),
    }
}
