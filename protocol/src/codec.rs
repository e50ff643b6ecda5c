//! Values to bytes and back. The only file that names bincode.
//!
//! bincode is unmaintained (RUSTSEC-2025-0141) and its format is not self-describing. Both are answered here
//! and nowhere else: one fixed configuration, a decode limit (without it an 11-byte message can ask for 2^63
//! bytes and abort the process), and every byte of the input must be used.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::frame::{self, FrameError, HEADER_BYTES};
use crate::limits::MAX_FRAME_BYTES;

/// Why a value could not be encoded or decoded.
#[derive(Debug, Error)]
pub enum CodecError {
    /// The value has no encoding.
    #[error("cannot encode a {what}: {reason}")]
    Encode {
        /// Name of the message's type.
        what: &'static str,
        /// What the encoder said.
        reason: String,
    },
    /// The bytes are not such a value.
    #[error("{bytes} bytes are not a {what}: {reason}")]
    Decode {
        /// Name of the message's type.
        what: &'static str,
        /// Length of the input.
        bytes: usize,
        /// What the decoder said.
        reason: String,
    },
    /// The value ended before the bytes did.
    #[error("a {what} used {used} of {bytes} bytes; all must be used")]
    Trailing {
        /// Name of the message's type.
        what: &'static str,
        /// Bytes that the value took.
        used: usize,
        /// Length of the input.
        bytes: usize,
    },
    /// The encoded value does not fit a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

const fn configuration() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<MAX_FRAME_BYTES>()
}

/// The last part of a type's path, for messages.
fn name_of<T>() -> &'static str {
    let path = std::any::type_name::<T>();
    path.rsplit("::").next().unwrap_or(path)
}

/// Encodes a value.
///
/// # Errors
/// [`CodecError::Encode`].
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    let mut bytes = Vec::with_capacity(128);
    encode_into(value, &mut bytes)?;
    Ok(bytes)
}

/// Decodes a value; every byte must be used.
///
/// # Errors
/// [`CodecError::Decode`] and [`CodecError::Trailing`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let (value, used) = bincode::serde::decode_from_slice(bytes, configuration()).map_err(|error| {
        CodecError::Decode { what: name_of::<T>(), bytes: bytes.len(), reason: error.to_string() }
    })?;
    if used != bytes.len() {
        return Err(CodecError::Trailing { what: name_of::<T>(), used, bytes: bytes.len() });
    }
    Ok(value)
}

/// Appends a value as one whole frame, length included.
///
/// # Errors
/// [`CodecError::Encode`], and [`CodecError::Frame`] when the value is too large; `out` is as before then.
pub fn encode_frame<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let framed = encode_into(value, out)
        .and_then(|()| frame::header(out.len() - start - HEADER_BYTES).map_err(CodecError::from));
    match framed {
        Ok(head) => {
            out[start..start + HEADER_BYTES].copy_from_slice(&head);
            Ok(())
        }
        Err(error) => {
            out.truncate(start);
            Err(error)
        }
    }
}

fn encode_into<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
    bincode::serde::encode_into_std_write(value, out, configuration())
        .map(|_| ())
        .map_err(|error| CodecError::Encode { what: name_of::<T>(), reason: error.to_string() })
}

/// The parts of a [`FromWorker::Output`](crate::worker_api::FromWorker::Output) without copying its bytes;
/// `None` if the frame is anything else (or a bad one, which `decode` then explains).
#[must_use]
pub fn peek_output(body: &[u8]) -> Option<(u64, crate::call::Stream, &[u8])> {
    // Place of `Output` among the variants; the golden bytes hold it.
    const OUTPUT_VARIANT: u8 = 2;
    if *body.first()? != OUTPUT_VARIANT {
        return None;
    }
    let ((seq, stream, length), used): ((u64, crate::call::Stream, u64), usize) =
        bincode::serde::decode_from_slice(&body[1..], configuration()).ok()?;
    let payload = &body[1 + used..];
    (payload.len() as u64 == length).then_some((seq, stream, payload))
}

/// Appends the head of a frame whose last field is a [`Blob`](crate::call::Blob) of `payload_bytes`; the
/// payload itself is to follow on the socket. `empty` is the message with an empty blob.
///
/// # Errors
/// [`CodecError::Encode`], and [`CodecError::Frame`] when the whole would be too large; `out` is as before then.
pub fn encode_frame_head<T: Serialize>(
    empty: &T,
    payload_bytes: usize,
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let framed = encode_into(empty, out)
        .and_then(|()| {
            // The length of the empty blob is one byte, zero, and the last one.
            out.pop();
            encode_into(&(payload_bytes as u64), out)
        })
        .and_then(|()| {
            frame::header(out.len() - start - HEADER_BYTES + payload_bytes).map_err(CodecError::from)
        });
    match framed {
        Ok(head) => {
            out[start..start + HEADER_BYTES].copy_from_slice(&head);
            Ok(())
        }
        Err(error) => {
            out.truncate(start);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::call::{Blob, Stream};
    use crate::worker_api::FromWorker;

    proptest! {
        #[test]
        fn an_output_frame_can_be_taken_apart_and_made_without_copying(
            seq in any::<u64>(),
            stderr in any::<bool>(),
            bytes in prop::collection::vec(any::<u8>(), 0..70_000),
        ) {
            let stream = if stderr { Stream::Stderr } else { Stream::Stdout };
            let whole = FromWorker::Output { seq, stream, bytes: Blob(bytes.clone()) };
            let mut frame = Vec::new();
            encode_frame(&whole, &mut frame).expect("small enough");
            prop_assert_eq!(peek_output(&frame[HEADER_BYTES..]), Some((seq, stream, &bytes[..])));
            let mut head = Vec::new();
            let empty = FromWorker::Output { seq, stream, bytes: Blob::default() };
            encode_frame_head(&empty, bytes.len(), &mut head).expect("small enough");
            head.extend_from_slice(&bytes);
            prop_assert_eq!(head, frame);
        }

        #[test]
        fn junk_is_refused_and_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = peek_output(&bytes);
            let _ = decode::<FromWorker>(&bytes);
        }
    }

    #[test]
    fn trailing_bytes_are_refused() {
        let mut bytes = encode(&FromWorker::Hello { version: 1 }).expect("small");
        bytes.push(0);
        assert!(matches!(decode::<FromWorker>(&bytes), Err(CodecError::Trailing { used: 2, bytes: 3, .. })));
    }
}
