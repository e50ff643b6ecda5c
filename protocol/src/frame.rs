//! Bytes with a length in front: four bytes, big-endian, then the body.
//!
//! The length is checked against [`MAX_FRAME_BYTES`] before memory is taken. A first byte of `{` on a client
//! socket therefore can never start a frame (it would announce more than 2 GB), which is how the two framings
//! are told apart.

use std::io::{self, Read, Write};

use thiserror::Error;

use crate::limits::MAX_FRAME_BYTES;

/// Bytes of the length in front of each body.
pub const HEADER_BYTES: usize = 4;

/// Why a frame was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The announced body is larger than a frame may be.
    #[error("a frame announces {bytes} bytes, at most {MAX_FRAME_BYTES} are allowed")]
    TooLarge {
        /// Announced size.
        bytes: usize,
    },
    /// The stream ended inside a frame.
    #[error("the stream ended after {got} of {wanted} bytes of a frame")]
    CutOff {
        /// Bytes that had arrived.
        got: usize,
        /// Bytes that the frame should have had.
        wanted: usize,
    },
}

/// Reads the header: the size of the body that follows.
///
/// # Errors
/// [`FrameError::TooLarge`].
pub fn body_size(header: [u8; HEADER_BYTES]) -> Result<usize, FrameError> {
    let bytes = u32::from_be_bytes(header) as usize;
    if bytes > MAX_FRAME_BYTES {
        return Err(FrameError::TooLarge { bytes });
    }
    Ok(bytes)
}

/// The header of a body of this size.
///
/// # Errors
/// [`FrameError::TooLarge`].
pub fn header(body_bytes: usize) -> Result<[u8; HEADER_BYTES], FrameError> {
    match u32::try_from(body_bytes) {
        Ok(bytes) if body_bytes <= MAX_FRAME_BYTES => Ok(bytes.to_be_bytes()),
        _ => Err(FrameError::TooLarge { bytes: body_bytes }),
    }
}

/// Takes frames out of bytes as they arrive, whatever the pieces are.
///
/// Memory: the bytes of the frames not yet taken, plus what one read brought.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl FrameBuffer {
    /// An empty buffer; takes no memory until bytes arrive.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), start: 0 }
    }

    /// Adds bytes that arrived.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.compact();
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame's body, if it has arrived.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`] as soon as the header is there; the stream is of no use after that.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let rest = &self.bytes[self.start..];
        let Some(head) = rest.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let size = body_size(*head)?;
        if rest.len() < HEADER_BYTES + size {
            return Ok(None);
        }
        let from = self.start + HEADER_BYTES;
        self.start = from + size;
        Ok(Some(&self.bytes[from..from + size]))
    }

    /// Bytes that have arrived and are not yet taken.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// The first byte not yet taken.
    #[must_use]
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.start).copied()
    }

    fn compact(&mut self) {
        if self.start == self.bytes.len() {
            self.bytes.clear();
        } else if self.start > 0 {
            self.bytes.drain(..self.start);
        }
        self.start = 0;
        // A single large frame must not pin its memory for the life of a quiet connection.
        if self.bytes.is_empty() && self.bytes.capacity() > 256 * 1024 {
            self.bytes = Vec::new();
        }
    }
}

/// Reads one frame from a blocking stream; `None` at a clean end.
///
/// # Errors
/// I/O errors as they are; a bad frame as [`io::ErrorKind::InvalidData`] around a [`FrameError`].
pub fn read_blocking(stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0_u8; HEADER_BYTES];
    let got = read_up_to(stream, &mut head)?;
    if got == 0 {
        return Ok(None);
    }
    if got < HEADER_BYTES {
        return Err(invalid(FrameError::CutOff { got, wanted: HEADER_BYTES }));
    }
    let size = body_size(head).map_err(invalid)?;
    let mut body = vec![0_u8; size];
    let got = read_up_to(stream, &mut body)?;
    if got < size {
        return Err(invalid(FrameError::CutOff { got: HEADER_BYTES + got, wanted: HEADER_BYTES + size }));
    }
    Ok(Some(body))
}

/// Writes one frame to a blocking stream.
///
/// # Errors
/// I/O errors as they are; a body over the bound as [`io::ErrorKind::InvalidData`].
pub fn write_blocking(stream: &mut impl Write, body: &[u8]) -> io::Result<()> {
    let head = header(body.len()).map_err(invalid)?;
    let mut whole = Vec::with_capacity(HEADER_BYTES + body.len());
    whole.extend_from_slice(&head);
    whole.extend_from_slice(body);
    stream.write_all(&whole)
}

fn invalid(error: FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn read_up_to(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match stream.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(bodies: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for body in bodies {
            write_blocking(&mut bytes, body).expect("a Vec takes every byte");
        }
        bytes
    }

    #[test]
    fn an_oversized_length_is_refused_before_memory_is_taken() {
        let mut buffer = FrameBuffer::new();
        buffer.extend(b"{\"jsonrpc\"");
        assert!(matches!(buffer.next_frame(), Err(FrameError::TooLarge { .. })));
        assert!(buffer.bytes.capacity() < 1024);
        assert!(header(MAX_FRAME_BYTES + 1).is_err());
        assert!(header(MAX_FRAME_BYTES).is_ok());
    }

    #[test]
    fn a_stream_that_ends_inside_a_frame_is_an_error_and_not_an_end() {
        let bytes = framed(&[b"abc".to_vec()]);
        for cut in 1..bytes.len() {
            let error = read_blocking(&mut &bytes[..cut]).expect_err("cut off");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(read_blocking(&mut &bytes[..0]).expect("clean end"), None);
    }

    proptest! {
        #[test]
        fn frames_survive_any_cutting(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
            cuts in prop::collection::vec(1_usize..64, 1..64),
        ) {
            let bytes = framed(&bodies);
            let mut buffer = FrameBuffer::new();
            let mut got = Vec::new();
            let mut at = 0;
            let mut cuts = cuts.iter().cycle();
            while at < bytes.len() {
                let end = (at + cuts.next().expect("cycle")).min(bytes.len());
                buffer.extend(&bytes[at..end]);
                at = end;
                while let Some(body) = buffer.next_frame().expect("good frames") {
                    got.push(body.to_vec());
                }
            }
            prop_assert_eq!(got, bodies);
            prop_assert_eq!(buffer.pending_bytes(), 0);
        }

        #[test]
        fn junk_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut buffer = FrameBuffer::new();
            buffer.extend(&bytes);
            while let Ok(Some(_)) = buffer.next_frame() {}
        }
    }
}
