//! What the daemon keeps of a call's output, and how `call.output` reads it.
//!
//! ```text
//! head (in memory, from byte 0) ─▶ spool file (all of it, up to its cap)  ─▶ tail (the last bytes)
//! ```
//!
//! A cursor says in which of the three a reader is and where. Readers pull; a slow one falls behind and
//! disturbs nobody. The worker writes the spool; this module only reads it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;
use toolcell_protocol::call::{Blob, Stream};
use toolcell_protocol::client_api::{OutputPage, OutputPiece};
use toolcell_protocol::id::CallUid;
use toolcell_protocol::limits::MAX_CHUNK_BYTES;
use toolcell_protocol::worker_api::Segment;

/// Bytes in front of each record of a spool file: the stream, then the length (little-endian).
const RECORD_HEAD_BYTES: u64 = 5;

/// Regions of a cursor, in its two highest bits.
const REGION_SHIFT: u32 = 62;
const IN_HEAD: u64 = 0;
const IN_SPOOL: u64 = 1;
const IN_TAIL: u64 = 2;

/// What is kept of one call's output.
#[derive(Debug, Default)]
pub struct Kept {
    /// From the first byte on.
    pub head: Vec<Segment>,
    /// Bytes in `head`.
    pub head_bytes: u64,
    /// The end, once the attempt is over.
    pub tail: Vec<Segment>,
    /// Bytes that are in none of head, spool and tail.
    pub gap_bytes: u64,
    /// All bytes written.
    pub total_bytes: u64,
    /// Bytes of output in the spool file.
    pub spool_bytes: u64,
    /// The spool file, if the job has one.
    pub spool: Option<PathBuf>,
    /// Nothing more comes.
    pub ended: bool,
    /// The memory was needed for newer calls.
    pub expired: bool,
}

/// One call's output, shared between its attempt and its readers.
#[derive(Debug, Default)]
pub struct OutputLog {
    kept: Mutex<Kept>,
    grew: Notify,
}

impl OutputLog {
    /// What is kept. No code panics while it holds this lock, so a poisoned one is still good.
    pub fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those who wait for more.
    pub fn wake(&self) {
        self.grew.notify_waiters();
    }

    /// Reads a page, waiting at most `wait` for its first byte.
    ///
    /// # Errors
    /// Errors of the spool file; `NotFound` when the output is not kept any more.
    pub async fn read(
        self: Arc<Self>,
        cursor: u64,
        max_bytes: usize,
        wait: std::time::Duration,
    ) -> io::Result<OutputPage> {
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            // Registered before looking, so that nothing that comes in between is missed.
            let grew = self.grew.notified();
            tokio::pin!(grew);
            grew.as_mut().enable();
            let log = Arc::clone(&self);
            let page = if log.needs_file(cursor) {
                tokio::task::spawn_blocking(move || log.page(cursor, max_bytes))
                    .await
                    .map_err(|error| io::Error::other(format!("reading the spool: {error}")))??
            } else {
                log.page(cursor, max_bytes)?
            };
            if !page.pieces.is_empty()
                || page.end
                || wait.is_zero()
                || tokio::time::Instant::now() >= deadline
            {
                return Ok(page);
            }
            let _ = tokio::time::timeout_at(deadline, grew).await;
        }
    }

    fn needs_file(&self, cursor: u64) -> bool {
        let kept = self.kept();
        match cursor >> REGION_SHIFT {
            IN_SPOOL => true,
            IN_HEAD => kept.spool_bytes > 0 && cursor >= kept.head_bytes,
            _ => false,
        }
    }

    fn page(&self, cursor: u64, max_bytes: usize) -> io::Result<OutputPage> {
        let at = cursor & ((1 << REGION_SHIFT) - 1);
        match cursor >> REGION_SHIFT {
            IN_HEAD => self.head_page(at, max_bytes),
            IN_SPOOL => self.spool_page(at, max_bytes),
            IN_TAIL => Ok(self.tail_page(at, max_bytes, 0)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "a cursor that no page gave")),
        }
    }

    fn head_page(&self, at: u64, max_bytes: usize) -> io::Result<OutputPage> {
        let kept = self.kept();
        if kept.expired {
            return Err(io::ErrorKind::NotFound.into());
        }
        if at < kept.head_bytes {
            let (pieces, taken) = slice(&kept.head, at, max_bytes);
            let next_cursor = at + taken;
            let end = kept.ended && next_cursor == kept.total_bytes;
            return Ok(OutputPage { pieces, next_cursor, end, skipped_bytes: 0 });
        }
        let head_bytes = kept.head_bytes;
        if kept.spool_bytes > 0 {
            drop(kept);
            let (offset, into_record) = self.spool_position(head_bytes)?;
            return self.spool_page_from(offset, into_record, max_bytes);
        }
        if kept.ended {
            let gap = kept.gap_bytes;
            drop(kept);
            return Ok(self.tail_page(0, max_bytes, gap));
        }
        Ok(OutputPage { pieces: Vec::new(), next_cursor: at, end: false, skipped_bytes: 0 })
    }

    fn tail_page(&self, at: u64, max_bytes: usize, skipped_bytes: u64) -> OutputPage {
        let kept = self.kept();
        let (pieces, taken) = slice(&kept.tail, at, max_bytes);
        let tail_bytes: u64 = kept.tail.iter().map(|segment| segment.bytes.0.len() as u64).sum();
        let next = at + taken;
        OutputPage {
            pieces,
            next_cursor: IN_TAIL << REGION_SHIFT | next,
            end: kept.ended && next >= tail_bytes,
            skipped_bytes,
        }
    }

    /// Cursors in the spool are file offsets of records, plus the bytes of the record already read: these
    /// never need more than the chunk bound, so both fit in one number.
    fn spool_page(&self, at: u64, max_bytes: usize) -> io::Result<OutputPage> {
        let unit = MAX_CHUNK_BYTES as u64 + 1;
        self.spool_page_from(at / unit, at % unit, max_bytes)
    }

    fn spool_page_from(
        &self,
        mut offset: u64,
        mut into_record: u64,
        max_bytes: usize,
    ) -> io::Result<OutputPage> {
        let (path, spool_bytes, ended) = {
            let kept = self.kept();
            (kept.spool.clone(), kept.spool_bytes, kept.ended)
        };
        let Some(path) = path else { return Err(io::ErrorKind::NotFound.into()) };
        let file = File::open(&path)?;
        let mut pieces: Vec<OutputPiece> = Vec::new();
        let mut room = max_bytes;
        let mut at_end = false;
        while room > 0 {
            let Some((stream, length)) = record_head(&file, offset)? else {
                at_end = true;
                break;
            };
            let wanted = (length - into_record).min(room as u64);
            let mut bytes = vec![0_u8; usize::try_from(wanted).unwrap_or(0)];
            let got = read_up_to(&file, &mut bytes, offset + RECORD_HEAD_BYTES + into_record)?;
            bytes.truncate(got);
            room -= got;
            into_record += got as u64;
            if !bytes.is_empty() {
                pieces.push(OutputPiece { stream, bytes: Blob(bytes) });
            }
            if into_record < length {
                // The page is full, or the worker is just writing this record.
                at_end = room > 0;
                break;
            }
            offset += RECORD_HEAD_BYTES + length;
            into_record = 0;
        }
        let unit = MAX_CHUNK_BYTES as u64 + 1;
        let next_cursor = IN_SPOOL << REGION_SHIFT | (offset * unit + into_record);
        if !(at_end && ended) {
            return Ok(OutputPage { pieces, next_cursor, end: false, skipped_bytes: 0 });
        }
        // The file is at its end for good: go on with the tail, if the file does not have everything.
        let kept = self.kept();
        if spool_bytes >= kept.total_bytes {
            return Ok(OutputPage { pieces, next_cursor, end: true, skipped_bytes: 0 });
        }
        let tail_bytes: u64 = kept.tail.iter().map(|segment| segment.bytes.0.len() as u64).sum();
        let unspooled = kept.total_bytes - spool_bytes;
        // The tail may begin inside what the file has.
        let overlap = tail_bytes.saturating_sub(unspooled);
        drop(kept);
        if pieces.is_empty() {
            return Ok(self.tail_page(overlap, max_bytes, unspooled.saturating_sub(tail_bytes)));
        }
        Ok(OutputPage { pieces, next_cursor, end: false, skipped_bytes: 0 })
    }

    /// Where in the spool the output's byte `at` is. Walks the records of the head only.
    fn spool_position(&self, at: u64) -> io::Result<(u64, u64)> {
        let path = self.kept().spool.clone().ok_or(io::ErrorKind::NotFound)?;
        let file = File::open(path)?;
        let (mut offset, mut before) = (0, 0);
        while let Some((_, length)) = record_head(&file, offset)? {
            if before + length > at {
                return Ok((offset, at - before));
            }
            before += length;
            offset += RECORD_HEAD_BYTES + length;
        }
        Ok((offset, 0))
    }
}

/// A record's stream and length; `None` at the end of the file.
fn record_head(file: &File, offset: u64) -> io::Result<Option<(Stream, u64)>> {
    let mut head = [0_u8; RECORD_HEAD_BYTES as usize];
    if read_up_to(file, &mut head, offset)? < head.len() {
        return Ok(None);
    }
    let stream = match head[0] {
        1 => Stream::Stdout,
        2 => Stream::Stderr,
        other => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the spool has a record of kind {other} at byte {offset}"),
            ));
        }
    };
    let length = u64::from(u32::from_le_bytes([head[1], head[2], head[3], head[4]]));
    if length > MAX_CHUNK_BYTES as u64 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the spool has a record of {length} bytes at byte {offset}"),
        ));
    }
    Ok(Some((stream, length)))
}

fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

fn slice(segments: &[Segment], from: u64, max_bytes: usize) -> (Vec<OutputPiece>, u64) {
    let (mut pieces, mut before, mut taken) = (Vec::new(), 0_u64, 0_usize);
    for segment in segments {
        let length = segment.bytes.0.len() as u64;
        if before + length > from + taken as u64 && taken < max_bytes {
            let start = usize::try_from((from + taken as u64).saturating_sub(before)).unwrap_or(0);
            let end = segment.bytes.0.len().min(start + (max_bytes - taken));
            taken += end - start;
            pieces.push(OutputPiece {
                stream: segment.stream,
                bytes: Blob(segment.bytes.0[start..end].to_vec()),
            });
        }
        before += length;
    }
    (pieces, taken as u64)
}

/// The end of a stream that goes through without being kept: the newest chunks that hold `limit_bytes`.
#[derive(Debug)]
pub struct TailRing {
    chunks: VecDeque<(Stream, Bytes)>,
    bytes: usize,
    limit_bytes: usize,
}

impl TailRing {
    /// An empty ring.
    #[must_use]
    pub const fn new(limit_bytes: usize) -> Self {
        Self { chunks: VecDeque::new(), bytes: 0, limit_bytes }
    }

    /// Adds a chunk. Copies nothing: at most one chunk more than the limit is held.
    pub fn push(&mut self, stream: Stream, chunk: Bytes) {
        self.bytes += chunk.len();
        self.chunks.push_back((stream, chunk));
        while let Some((_, oldest)) = self.chunks.front()
            && self.bytes - oldest.len() >= self.limit_bytes
        {
            self.bytes -= oldest.len();
            self.chunks.pop_front();
        }
    }

    /// The last `limit_bytes`, at most.
    #[must_use]
    pub fn into_segments(self) -> Vec<Segment> {
        let mut surplus = self.bytes.saturating_sub(self.limit_bytes);
        let mut segments = Vec::with_capacity(self.chunks.len());
        for (stream, chunk) in self.chunks {
            let cut = surplus.min(chunk.len());
            surplus -= cut;
            if cut < chunk.len() {
                segments.push(Segment { stream, bytes: Blob(chunk[cut..].to_vec()) });
            }
        }
        segments
    }
}

/// All outputs that are kept, with one bound on the memory of the finished ones.
#[derive(Debug)]
pub struct OutputStore {
    logs: BTreeMap<CallUid, Arc<OutputLog>>,
    ended: VecDeque<(CallUid, usize)>,
    ended_bytes: usize,
    limit_bytes: usize,
}

impl OutputStore {
    /// An empty store.
    #[must_use]
    pub const fn new(limit_bytes: usize) -> Self {
        Self { logs: BTreeMap::new(), ended: VecDeque::new(), ended_bytes: 0, limit_bytes }
    }

    /// The log of a call that has not ended; made when it is first asked for, by its attempt or by a reader.
    pub fn open(&mut self, call: CallUid) -> Arc<OutputLog> {
        Arc::clone(self.logs.entry(call).or_default())
    }

    /// The log of a call.
    #[must_use]
    pub fn get(&self, call: CallUid) -> Option<Arc<OutputLog>> {
        self.logs.get(&call).cloned()
    }

    /// A call has ended: its readers are told (it may never have started), its bytes count now, and the oldest ended ones make room.
    pub fn ended(&mut self, call: CallUid) {
        let Some(log) = self.logs.get(&call) else { return };
        let bytes: usize = {
            let mut kept = log.kept();
            kept.ended = true;
            log.wake();
            kept.head.iter().chain(&kept.tail).map(|segment| segment.bytes.0.capacity()).sum()
        };
        self.ended.push_back((call, bytes));
        self.ended_bytes += bytes;
        while self.ended_bytes > self.limit_bytes {
            let Some((oldest, bytes)) = self.ended.pop_front() else { break };
            self.ended_bytes -= bytes;
            if let Some(log) = self.logs.get(&oldest) {
                let mut kept = log.kept();
                kept.head = Vec::new();
                kept.tail = Vec::new();
                kept.expired = true;
            }
        }
    }

    /// Forgets a call and removes its spool file.
    pub fn forget(&mut self, call: CallUid) {
        let Some(log) = self.logs.remove(&call) else { return };
        if let Some(at) = self.ended.iter().position(|(ended, _)| *ended == call)
            && let Some((_, bytes)) = self.ended.remove(at)
        {
            self.ended_bytes -= bytes;
        }
        let spool = {
            let kept = log.kept();
            (kept.spool_bytes > 0).then(|| kept.spool.clone()).flatten()
        };
        if let Some(path) = spool
            && let Err(error) = std::fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove a spool file");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn segment(stream: Stream, bytes: &[u8]) -> Segment {
        Segment { stream, bytes: Blob(bytes.to_vec()) }
    }

    fn read_all(log: &OutputLog, max_bytes: usize) -> (Vec<u8>, u64) {
        let (mut cursor, mut all, mut skipped) = (0, Vec::new(), 0);
        loop {
            let page = log.page(cursor, max_bytes).expect("readable");
            for piece in &page.pieces {
                all.extend_from_slice(&piece.bytes.0);
            }
            skipped += page.skipped_bytes;
            if page.end {
                return (all, skipped);
            }
            assert!(page.next_cursor != cursor, "a page must go on");
            cursor = page.next_cursor;
        }
    }

    #[test]
    fn the_oldest_ended_output_makes_room() {
        let mut store = OutputStore::new(10);
        for n in 0..3_u128 {
            let uid = CallUid(uuid::Uuid::from_u128(n));
            let log = store.open(uid);
            let mut kept = log.kept();
            kept.head = vec![segment(Stream::Stdout, b"12345")];
            kept.head_bytes = 5;
            drop(kept);
            store.ended(uid);
        }
        let first = store.get(CallUid(uuid::Uuid::from_u128(0))).expect("still known");
        assert_eq!(first.page(0, 10).expect_err("expired").kind(), io::ErrorKind::NotFound);
        assert!(store.get(CallUid(uuid::Uuid::from_u128(2))).expect("known").page(0, 10).is_ok());
    }

    proptest! {
        /// Any split into head, spool with a cap and tail reads back as what was written, less the gap.
        #[test]
        fn pages_join_to_what_was_written(
            chunks in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 1..40)), 0..30),
            head_limit in 0_usize..100,
            spool_limit in prop_oneof![Just(0_usize), 0_usize..2000],
            tail_limit in 0_usize..100,
            max_bytes in 1_usize..60,
        ) {
            let all: Vec<u8> = chunks.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
            let stream = |err: bool| if err { Stream::Stderr } else { Stream::Stdout };
            let mut head = Vec::new();
            let mut head_bytes = 0;
            for (err, bytes) in &chunks {
                let take = bytes.len().min(head_limit - head_bytes);
                if take > 0 {
                    head.push(segment(stream(*err), &bytes[..take]));
                    head_bytes += take;
                }
            }
            let spooled = spool_limit > 0 && all.len() > head_bytes && spool_limit > head_bytes;
            let mut file = tempfile::NamedTempFile::new().expect("temporary file");
            let mut spool_bytes = 0;
            if spooled {
                for (err, bytes) in &chunks {
                    let take = bytes.len().min(spool_limit - spool_bytes);
                    if take > 0 {
                        let mut record = vec![if *err { 2 } else { 1 }];
                        record.extend_from_slice(&u32::try_from(take).expect("small").to_le_bytes());
                        record.extend_from_slice(&bytes[..take]);
                        file.write_all(&record).expect("written");
                        spool_bytes += take;
                    }
                }
            }
            let had = head_bytes.max(spool_bytes);
            let tail_bytes = tail_limit.min(all.len() - head_bytes);
            let tail = vec![segment(Stream::Stdout, &all[all.len() - tail_bytes..])];
            let gap = (all.len() - had).saturating_sub(tail_bytes);
            let log = OutputLog::default();
            {
                let mut kept = log.kept();
                kept.spool = Some(file.path().to_owned());
                kept.head = head;
                kept.head_bytes = head_bytes as u64;
                kept.tail = if spooled || gap > 0 || tail_bytes > 0 { tail } else { Vec::new() };
                kept.gap_bytes = (all.len() - head_bytes).saturating_sub(tail_bytes) as u64;
                kept.total_bytes = all.len() as u64;
                kept.spool_bytes = spool_bytes as u64;
                kept.ended = true;
            }
            let (got, skipped) = read_all(&log, max_bytes);
            prop_assert_eq!(skipped, gap as u64);
            let mut wanted = all[..had].to_vec();
            wanted.extend_from_slice(&all[(all.len() - tail_bytes).max(had)..]);
            prop_assert_eq!(got, wanted);
        }

        #[test]
        fn the_ring_holds_the_last_bytes(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..20), limit in 0_usize..50) {
            let mut ring = TailRing::new(limit);
            let all: Vec<u8> = chunks.concat();
            for chunk in chunks {
                ring.push(Stream::Stdout, Bytes::from(chunk));
            }
            let got: Vec<u8> = ring.into_segments().into_iter().flat_map(|segment| segment.bytes.0).collect();
            prop_assert_eq!(&got[..], &all[all.len() - limit.min(all.len())..]);
        }
    }
}
