//! The last bytes of the output, with their streams, in arrival order.

use std::collections::VecDeque;

use toolcell_protocol::call::{Blob, Stream};
use toolcell_protocol::worker_api::Segment;

/// A ring of bytes and, beside it, the runs of equal stream that they form.
#[derive(Debug)]
pub(crate) struct Tail {
    limit_bytes: usize,
    bytes: VecDeque<u8>,
    runs: VecDeque<(Stream, usize)>,
}

impl Tail {
    /// Takes no memory until bytes arrive.
    pub(crate) const fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, bytes: VecDeque::new(), runs: VecDeque::new() }
    }

    /// How many bytes are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Adds bytes; the oldest make room for them.
    pub(crate) fn push(&mut self, stream: Stream, bytes: &[u8]) {
        // What would be pushed out again at once is not put in.
        let bytes = &bytes[bytes.len().saturating_sub(self.limit_bytes)..];
        if bytes.is_empty() {
            return;
        }
        self.drop_oldest((self.bytes.len() + bytes.len()).saturating_sub(self.limit_bytes));
        self.bytes.extend(bytes);
        match self.runs.back_mut() {
            Some((last, count)) if *last == stream => *count += bytes.len(),
            _ => self.runs.push_back((stream, bytes.len())),
        }
    }

    fn drop_oldest(&mut self, mut count: usize) {
        self.bytes.drain(..count);
        while count > 0 {
            let Some((_, first)) = self.runs.front_mut() else { return };
            let taken = count.min(*first);
            *first -= taken;
            count -= taken;
            if *first == 0 {
                self.runs.pop_front();
            }
        }
    }

    /// The kept bytes, one segment a run.
    pub(crate) fn into_segments(mut self) -> Vec<Segment> {
        let runs = std::mem::take(&mut self.runs);
        runs.into_iter()
            .map(|(stream, count)| Segment { stream, bytes: Blob(self.bytes.drain(..count).collect()) })
            .collect()
    }
}
