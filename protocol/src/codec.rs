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
