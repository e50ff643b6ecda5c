//! What the fuzz targets do with their bytes. Plain functions, so that the protocol's own tests run the same
//! bodies under proptest on a stable compiler.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toolcell_protocol::client_api::{ClientMessage, DaemonMessage};
use toolcell_protocol::codec::{decode, encode};
use toolcell_protocol::frame::{FrameBuffer, read_blocking, write_blocking};
use toolcell_protocol::limits::MAX_FRAME_BYTES;
use toolcell_protocol::worker_api::{FromSpawner, FromWorker, ToSpawner, ToWorker};

/// Frames: whatever the pieces are, both readers find the same bodies, and what they took writes back to the
/// bytes that it came from. The first byte chooses the size of the pieces.
pub fn frame(bytes: &[u8]) {
    let Some((&first, stream)) = bytes.split_first() else { return };
    let piece = usize::from(first).max(1);
    let mut buffer = FrameBuffer::new();
    let mut in_pieces = Vec::new();
    let mut refused = false;
    'pieces: for chunk in stream.chunks(piece) {
        buffer.extend(chunk);
        loop {
            match buffer.next_frame() {
                Ok(Some(body)) => in_pieces.push(body.to_vec()),
                Ok(None) => break,
                Err(_) => {
                    refused = true;
                    break 'pieces;
                }
            }
        }
    }
    assert!(refused || buffer.pending_bytes() < 4 + MAX_FRAME_BYTES, "more is held than one frame");

    let mut rest = stream;
    let mut at_once = Vec::new();
    let clean = loop {
        match read_blocking(&mut rest) {
            Ok(Some(body)) => at_once.push(body),
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    assert_eq!(in_pieces, at_once, "the two readers disagree");
    assert_eq!(clean, !refused && buffer.pending_bytes() == 0, "the two readers disagree about the end");

    let mut written = Vec::new();
    for body in &at_once {
        write_blocking(&mut written, body).expect("what was read can be written");
    }
    assert!(stream.starts_with(&written), "what was read writes back to other bytes");
}

/// Messages: any bytes decode to an error or to a value that survives a round trip. The first byte chooses
/// the type.
pub fn message(bytes: &[u8]) {
    let Some((&first, body)) = bytes.split_first() else { return };
    match first % 6 {
        0 => round_trip::<ClientMessage>(body),
        1 => round_trip::<DaemonMessage>(body),
        2 => round_trip::<ToSpawner>(body),
        3 => round_trip::<FromSpawner>(body),
        4 => round_trip::<ToWorker>(body),
        _ => round_trip::<FromWorker>(body),
    }
}

fn round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(value) = decode::<T>(bytes) else { return };
    let again = encode(&value).expect("a decoded value has an encoding");
    assert_eq!(decode::<T>(&again).expect("an encoded value decodes"), value);
}
