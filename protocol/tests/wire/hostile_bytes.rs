//! Bytes that nobody honest sends: they are refused, quickly and without taking memory for what they claim.

use std::fs;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use toolcell_protocol::client_api::{ClientMessage, DaemonMessage};
use toolcell_protocol::codec::{CodecError, decode, encode, encode_frame};
use toolcell_protocol::frame::{FrameBuffer, FrameError, read_blocking};
use toolcell_protocol::limits::MAX_FRAME_BYTES;
use toolcell_protocol::worker_api::{FromSpawner, FromWorker, ToSpawner, ToWorker};

use crate::{fuzz_bodies, samples, worker_samples};

/// Marks a 64-bit number in the encoding.
const NUMBER_OF_64_BITS: u8 = 253;

/// Largest resident size that this process has had.
fn peak_memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("read /proc/self/status");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a VmHWM line");
    line.split_ascii_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// Decodes as every type of message; what comes out does not matter.
fn decode_as_everything(bytes: &[u8]) {
    for kind in 0..6_u8 {
        let mut input = vec![kind];
        input.extend_from_slice(bytes);
        fuzz_bodies::message(&input);
    }
}

fn every_sample() -> Vec<Vec<u8>> {
    fn all<T: serde::Serialize>(messages: &[T]) -> Vec<Vec<u8>> {
        messages.iter().map(|message| encode(message).expect("a sample has an encoding")).collect()
    }
    let mut bytes = all(&samples::client_messages());
    bytes.extend(all(&samples::daemon_messages()));
    bytes.extend(all(&worker_samples::to_spawner()));
    bytes.extend(all(&worker_samples::from_spawner()));
    bytes.extend(all(&worker_samples::to_worker()));
    bytes.extend(all(&worker_samples::from_worker()));
    bytes
}

#[test]
fn eleven_bytes_that_ask_for_eight_exbibytes_are_refused() {
    let mut closing = encode(&DaemonMessage::Closing { reason: String::new() }).expect("encodes");
    closing.truncate(1);
    closing.push(NUMBER_OF_64_BITS);
    closing.extend_from_slice(&(1_u64 << 63).to_le_bytes());
    closing.push(b'x');
    assert_eq!(closing.len(), 11);
    let error = decode::<DaemonMessage>(&closing).expect_err("nobody has 8 EiB");
    assert!(matches!(error, CodecError::Decode { bytes: 11, .. }), "{error}");
}

#[test]
fn a_huge_length_anywhere_in_any_message_takes_no_memory() {
    let before = peak_memory_kib();
    let started = Instant::now();
    for bytes in every_sample() {
        for at in 0..bytes.len() {
            for length in [u64::MAX, 1 << 63, 1 << 40, 1 << 31, MAX_FRAME_BYTES as u64 - 1] {
                let mut hostile = bytes[..at].to_vec();
                hostile.push(NUMBER_OF_64_BITS);
                hostile.extend_from_slice(&length.to_le_bytes());
                hostile.extend_from_slice(&bytes[at + 1..]);
                decode_as_everything(&hostile);
            }
        }
    }
    let grown = peak_memory_kib() - before;
    // A length just below the bound may be believed for a moment (and other tests of this process take a few
    // whole frames); nothing may be believed beyond it.
    assert!(grown < 8 * MAX_FRAME_BYTES as u64 / 1024, "decoding took {grown} KiB");
    assert!(started.elapsed() < Duration::from_secs(120), "decoding took {:?}", started.elapsed());
}

#[test]
fn a_byte_too_many_is_named() {
    let mut bytes = encode(&ToWorker::Kill).expect("encodes");
    bytes.extend_from_slice(b"xyz");
    let error = decode::<ToWorker>(&bytes).expect_err("bytes are left over");
    assert_eq!(error.to_string(), "a ToWorker used 1 of 4 bytes; all must be used");
}

#[test]
fn a_variant_that_does_not_exist_is_refused() {
    for variant in 40..=250_u8 {
        assert!(decode::<ClientMessage>(&[variant]).is_err());
        assert!(decode::<DaemonMessage>(&[variant]).is_err());
        assert!(decode::<ToSpawner>(&[variant]).is_err());
        assert!(decode::<FromSpawner>(&[variant]).is_err());
        assert!(decode::<ToWorker>(&[variant]).is_err());
        assert!(decode::<FromWorker>(&[variant]).is_err());
    }
}

#[test]
fn no_message_is_decoded_as_one_of_json_lines() {
    let line = br#"{"jsonrpc":"2.0","id":1,"method":"hello"}"#;
    let error = read_blocking(&mut &line[..]).expect_err("a brace announces 2 GB");
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<FrameError>());
    assert!(matches!(inner, Some(FrameError::TooLarge { .. })), "{error}");
}

#[test]
fn a_message_beyond_the_bound_is_not_written_and_leaves_the_buffer_as_it_was() {
    let mut out = b"before".to_vec();
    let reason = "x".repeat(MAX_FRAME_BYTES);
    let error = encode_frame(&DaemonMessage::Closing { reason }, &mut out).expect_err("too large");
    assert!(matches!(error, CodecError::Frame(_) | CodecError::Encode { .. }), "{error}");
    assert_eq!(out, b"before");
}

#[test]
fn a_frame_of_the_greatest_size_passes_and_one_byte_more_does_not() {
    let mut stream = u32::try_from(MAX_FRAME_BYTES).expect("fits").to_be_bytes().to_vec();
    stream.resize(4 + MAX_FRAME_BYTES, 7);
    let mut buffer = FrameBuffer::new();
    buffer.extend(&stream);
    assert_eq!(buffer.next_frame().expect("good").map(<[u8]>::len), Some(MAX_FRAME_BYTES));
    buffer.extend(&u32::try_from(MAX_FRAME_BYTES + 1).expect("fits").to_be_bytes());
    assert!(buffer.next_frame().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn junk_is_never_more_than_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        decode_as_everything(&bytes);
        fuzz_bodies::frame(&bytes);
    }

    #[test]
    fn small_numbers_reach_deep_and_are_never_more_than_an_error(
        bytes in prop::collection::vec(prop_oneof![0_u8..20, any::<u8>()], 0..200),
    ) {
        decode_as_everything(&bytes);
    }

    #[test]
    fn a_real_message_with_bytes_changed_is_never_more_than_an_error(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut all = every_sample();
        let index = which.index(all.len());
        let mut bytes = all.swap_remove(index);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        decode_as_everything(&bytes);
    }

    #[test]
    fn frames_with_good_lengths_are_the_same_for_both_readers(
        piece in 0_u8..20,
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
        cut in 0_usize..30,
    ) {
        let mut stream = vec![piece];
        for body in &bodies {
            stream.extend_from_slice(&u32::try_from(body.len()).expect("short").to_be_bytes());
            stream.extend_from_slice(body);
        }
        let keep = stream.len().saturating_sub(cut).max(1);
        fuzz_bodies::frame(&stream[..keep]);
    }
}
