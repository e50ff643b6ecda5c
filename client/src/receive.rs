//! Bytes as they arrive, read from the socket straight into the place where frames are taken from.
//!
//! A reader asks for [`spare`](ReceiveBuffer::spare) room, reads into it and says how much came. A large frame
//! is therefore copied once (out of the kernel) before it is decoded, and its memory is taken as it arrives and
//! never because a length was announced.

use toolcell_protocol::frame::{FrameError, HEADER_BYTES, body_size};

/// Room for one read.
const READ_BYTES: usize = 64 * 1024;

/// Memory that a quiet connection may keep.
const KEEP_BYTES: usize = 1024 * 1024;

/// The bytes of frames that are not yet taken.
///
/// ```text
/// bytes: [ taken | start .. pending .. end | spare ]
/// ```
#[derive(Debug, Default)]
pub struct ReceiveBuffer {
    /// All of it is initialised; `end` says how much of it has arrived.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReceiveBuffer {
    /// Room for the next read; never empty.
    pub fn spare(&mut self) -> &mut [u8] {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            if self.bytes.len() > KEEP_BYTES {
                self.bytes = Vec::new();
            }
        }
        if self.bytes.len() - self.end < READ_BYTES {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.bytes.len() - self.end < READ_BYTES {
                // Doubling keeps the moving of a large frame's first part linear in its size.
                let size = (self.bytes.len() * 2).max(self.end + READ_BYTES);
                self.bytes.resize(size, 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// `count` bytes were read into [`spare`](Self::spare).
    pub fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }

    /// The next whole frame's body, if it has arrived.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let pending = &self.bytes[self.start..self.end];
        let Some(head) = pending.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let size = body_size(*head)?;
        if pending.len() < HEADER_BYTES + size {
            return Ok(None);
        }
        let from = self.start + HEADER_BYTES;
        self.start = from + size;
        Ok(Some(&self.bytes[from..from + size]))
    }

    /// Bytes that have arrived and are not yet taken.
    pub const fn pending_bytes(&self) -> usize {
        self.end - self.start
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use toolcell_protocol::frame::write_blocking;

    use super::*;

    fn feed(buffer: &mut ReceiveBuffer, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let spare = buffer.spare();
            let count = spare.len().min(bytes.len());
            spare[..count].copy_from_slice(&bytes[..count]);
            buffer.filled(count);
            bytes = &bytes[count..];
        }
    }

    #[test]
    fn an_announced_length_takes_no_memory() {
        let mut buffer = ReceiveBuffer::default();
        feed(&mut buffer, &(16_u32 * 1024 * 1024).to_be_bytes());
        assert_eq!(buffer.next_frame().expect("within the bound"), None);
        assert!(buffer.spare().len() <= READ_BYTES * 2);
        let mut buffer = ReceiveBuffer::default();
        feed(&mut buffer, b"HTTP/1.1 400 Bad Request");
        assert!(buffer.next_frame().is_err());
    }

    #[test]
    fn a_large_frame_does_not_pin_its_memory() {
        let mut bytes = Vec::new();
        write_blocking(&mut bytes, &vec![7; 3 * KEEP_BYTES]).expect("a Vec takes every byte");
        let mut buffer = ReceiveBuffer::default();
        feed(&mut buffer, &bytes);
        assert_eq!(buffer.next_frame().expect("good").map(<[u8]>::len), Some(3 * KEEP_BYTES));
        assert_eq!(buffer.pending_bytes(), 0);
        assert_eq!(buffer.spare().len(), READ_BYTES);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn frames_survive_any_cutting(
            sizes in prop::collection::vec(0_usize..200_000, 0..6),
            cuts in prop::collection::vec(1_usize..100_000, 1..16),
        ) {
            let bodies: Vec<Vec<u8>> =
                sizes.iter().map(|size| (0..*size).map(|at| (at % 251) as u8).collect()).collect();
            let mut bytes = Vec::new();
            for body in &bodies {
                write_blocking(&mut bytes, body).expect("a Vec takes every byte");
            }
            let mut buffer = ReceiveBuffer::default();
            let mut got = Vec::new();
            let mut rest = &bytes[..];
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(*cuts.next().expect("cycle")));
                feed(&mut buffer, piece);
                rest = after;
                while let Some(body) = buffer.next_frame().expect("good frames") {
                    got.push(body.to_vec());
                }
            }
            prop_assert_eq!(got, bodies);
            prop_assert_eq!(buffer.pending_bytes(), 0);
        }
    }
}
