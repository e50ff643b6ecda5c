//! The spool: a call's whole output in a file that the daemon reads while it grows.
//!
//! The file is a row of records `{stream: u8 (1 stdout, 2 stderr), length: u32 little-endian, bytes}`. Each is
//! appended with one call where the kernel allows it; a reader that meets a record that is not whole yet waits.
//! A failing disk is no failure of the tool: the error is kept for the result, and the tool goes on.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::OpenOptionsExt;

use toolcell_protocol::call::{SpoolInfo, Stream};
use toolcell_protocol::worker_api::SpoolPolicy;

/// Bytes in front of each record's payload.
const HEADER_BYTES: usize = 5;

/// One attempt's spool.
#[derive(Debug)]
pub(crate) struct Spool {
    path: String,
    max_bytes: u64,
    /// Bytes of output that are in the file.
    bytes: u64,
    /// Length of the file up to the last whole record.
    file_bytes: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Not needed yet; the output so far, as records.
    Waiting(Vec<u8>),
    Open(File),
    Failed(String),
}

impl Spool {
    pub(crate) fn new(policy: &SpoolPolicy) -> Self {
        Self {
            path: policy.path.clone(),
            max_bytes: policy.max_bytes,
            bytes: 0,
            file_bytes: 0,
            state: State::Waiting(Vec::new()),
        }
    }

    /// Remembers output in case a file will be needed.
    pub(crate) fn keep_back(&mut self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match &mut self.state {
            State::Waiting(records) => {
                records.extend_from_slice(&header(stream, bytes.len()));
                records.extend_from_slice(bytes);
            }
            State::Open(_) | State::Failed(_) => self.write(stream, bytes),
        }
    }

    /// Writes output, what was kept back first.
    pub(crate) fn write(&mut self, stream: Stream, bytes: &[u8]) {
        if let State::Waiting(records) = &mut self.state {
            let records = std::mem::take(records);
            self.state = match create(&self.path) {
                Ok(file) => State::Open(file),
                Err(error) => State::Failed(format!("cannot make {}: {error}", self.path)),
            };
            for (stream, bytes) in split(&records) {
                self.append(stream, bytes);
            }
        }
        self.append(stream, bytes);
    }

    fn append(&mut self, stream: Stream, bytes: &[u8]) {
        let State::Open(file) = &mut self.state else { return };
        let room = self.max_bytes.saturating_sub(self.bytes);
        let bytes = &bytes[..usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len())];
        if bytes.is_empty() {
            return;
        }
        match write_record(file, &header(stream, bytes.len()), bytes) {
            Ok(()) => {
                self.bytes += bytes.len() as u64;
                self.file_bytes += (HEADER_BYTES + bytes.len()) as u64;
            }
            Err(error) => {
                // Half a record would stop every reader.
                let _ = file.set_len(self.file_bytes);
                self.state = State::Failed(format!("cannot write {}: {error}", self.path));
            }
        }
    }

    /// Bytes of output that are in the file.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What became of it; `None` if no file was needed.
    pub(crate) fn finish(self, total_bytes: u64) -> Option<SpoolInfo> {
        let error = match self.state {
            State::Waiting(_) => return None,
            State::Open(_) => None,
            State::Failed(error) => Some(error),
        };
        Some(SpoolInfo { bytes: self.bytes, complete: self.bytes == total_bytes, error })
    }
}

fn create(path: &str) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn header(stream: Stream, length: usize) -> [u8; HEADER_BYTES] {
    let mut head = [0; HEADER_BYTES];
    head[0] = match stream {
        Stream::Stdout => 1,
        Stream::Stderr => 2,
    };
    // A piece is one read from a pipe, far below 4 GiB.
    head[1..].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    head
}

/// The records of a buffer of ours.
fn split(mut records: &[u8]) -> impl Iterator<Item = (Stream, &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = records.split_first_chunk::<HEADER_BYTES>()?;
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let (bytes, rest) = rest.split_at_checked(length)?;
        records = rest;
        Some((if head[0] == 1 { Stream::Stdout } else { Stream::Stderr }, bytes))
    })
}

fn write_record(file: &mut File, head: &[u8], bytes: &[u8]) -> io::Result<()> {
    let written = loop {
        match file.write_vectored(&[IoSlice::new(head), IoSlice::new(bytes)]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if written < head.len() {
        file.write_all(&head[written..])?;
        return file.write_all(bytes);
    }
    file.write_all(&bytes[written - head.len()..])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Reads a whole file, as the daemon would: every byte with its stream.
    pub(crate) fn records(file: &[u8]) -> Vec<(Stream, u8)> {
        let read: Vec<_> = split(file).collect();
        let used: usize = read.iter().map(|(_, bytes)| HEADER_BYTES + bytes.len()).sum();
        assert_eq!(used, file.len(), "the file ends with a whole record");
        read.into_iter().flat_map(|(stream, bytes)| bytes.iter().map(move |&byte| (stream, byte))).collect()
    }

    fn spool(path: &std::path::Path) -> Spool {
        Spool::new(&SpoolPolicy { path: path.to_str().expect("text").to_owned(), max_bytes: 1 << 20 })
    }

    #[test]
    fn a_file_that_exists_is_not_touched_and_the_error_is_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("spool");
        std::fs::write(&path, b"precious").expect("written");
        let mut spool = spool(&path);
        spool.write(Stream::Stdout, b"abc");
        let info = spool.finish(3).expect("it was needed");
        assert!(!info.complete && info.bytes == 0);
        assert!(info.error.expect("an error").contains("exists"));
        assert_eq!(std::fs::read(&path).expect("read"), b"precious");
    }

    #[test]
    fn a_full_disk_leaves_whole_records_and_an_error() {
        use std::os::unix::fs::PermissionsExt;

        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("spool");
        let mut spool = spool(&path);
        spool.write(Stream::Stdout, b"abc");
        let mode = std::fs::metadata(&path).expect("made").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // /dev/full answers every write with "no space left".
        spool.state = State::Open(OpenOptions::new().write(true).open("/dev/full").expect("/dev/full"));
        spool.write(Stream::Stderr, b"def");
        spool.write(Stream::Stderr, b"ghi");
        let info = spool.finish(9).expect("it was needed");
        assert_eq!((info.bytes, info.complete), (3, false));
        assert!(info.error.expect("an error").contains("No space left"));
        assert_eq!(records(&std::fs::read(&path).expect("read")).len(), 3);
    }
}
