//! The bytes of one message of every variant, as files. They fail when a message changes by accident.
//!
//! After a change that was meant (a *new* variant, or a version that has not shipped), write the files anew
//! with `TOOLCELL_WRITE_GOLDEN=1 cargo test -p toolcell-protocol golden` and read the difference.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toolcell_protocol::codec::{decode, encode};

use crate::{samples, worker_samples};

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1")
}

fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(32) {
        for byte in line {
            write!(text, "{byte:02x}").expect("a String takes every text");
        }
        text.push('\n');
    }
    text
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| {
            let pair = str::from_utf8(pair).expect("hexadecimal digits are ASCII");
            u8::from_str_radix(pair, 16).expect("two hexadecimal digits")
        })
        .collect()
}

/// Names and bytes of one message type; checks on the way that each variant has a sample and that its golden
/// bytes still decode to it.
fn collect<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    all: &mut BTreeMap<&'static str, Vec<u8>>,
    complaints: &mut Vec<String>,
    names: &[&'static str],
    name_of: fn(&T) -> &'static str,
    samples: Vec<T>,
) {
    let mut missing: Vec<&str> = names.to_vec();
    for sample in samples {
        let name = name_of(&sample);
        missing.retain(|wanted| *wanted != name);
        let bytes = encode(&sample).expect("a sample has an encoding");
        if let Ok(golden) = fs::read_to_string(directory().join(format!("{name}.hex"))) {
            match decode::<T>(&from_hex(&golden)) {
                Ok(decoded) if decoded == sample => {}
                Ok(decoded) => complaints.push(format!("{name}: the golden bytes now mean {decoded:?}")),
                Err(error) => complaints.push(format!("{name}: the golden bytes cannot be decoded: {error}")),
            }
        }
        assert!(all.insert(name, bytes).is_none(), "two samples are named {name}");
    }
    complaints.extend(missing.iter().map(|name| format!("{name}: the variant has no sample")));
}

fn every_sample(complaints: &mut Vec<String>) -> BTreeMap<&'static str, Vec<u8>> {
    let mut all = BTreeMap::new();
    collect(&mut all, complaints, samples::CLIENT_NAMES, samples::client_name, samples::client_messages());
    collect(&mut all, complaints, samples::DAEMON_NAMES, samples::daemon_name, samples::daemon_messages());
    collect(
        &mut all,
        complaints,
        worker_samples::TO_SPAWNER_NAMES,
        worker_samples::to_spawner_name,
        worker_samples::to_spawner(),
    );
    collect(
        &mut all,
        complaints,
        worker_samples::FROM_SPAWNER_NAMES,
        worker_samples::from_spawner_name,
        worker_samples::from_spawner(),
    );
    collect(
        &mut all,
        complaints,
        worker_samples::TO_WORKER_NAMES,
        worker_samples::to_worker_name,
        worker_samples::to_worker(),
    );
    collect(
        &mut all,
        complaints,
        worker_samples::FROM_WORKER_NAMES,
        worker_samples::from_worker_name,
        worker_samples::from_worker(),
    );
    collect(
        &mut all,
        complaints,
        worker_samples::ACTION_NAMES,
        worker_samples::action_name,
        worker_samples::actions(),
    );
    collect(
        &mut all,
        complaints,
        worker_samples::END_NAMES,
        worker_samples::end_name,
        worker_samples::ends(),
    );
    all.extend(samples::plain_enums());
    all.extend(worker_samples::plain_enums());
    all
}

#[test]
fn every_variant_has_golden_bytes_and_still_encodes_to_them() {
    let write = std::env::var_os("TOOLCELL_WRITE_GOLDEN").is_some();
    let mut complaints = Vec::new();
    let all = every_sample(&mut complaints);
    if write {
        complaints.retain(|complaint| complaint.ends_with("no sample"));
        fs::create_dir_all(directory()).expect("make the golden directory");
    }
    let mut files: Vec<String> = fs::read_dir(directory())
        .expect("read the golden directory")
        .map(|entry| entry.expect("read the golden directory").file_name().into_string().expect("UTF-8 name"))
        .collect();
    for (name, bytes) in &all {
        let file = format!("{name}.hex");
        let path = directory().join(&file);
        let now = to_hex(bytes);
        match fs::read_to_string(&path) {
            Ok(golden) if golden == now => {}
            _ if write => fs::write(&path, now).expect("write golden bytes"),
            Ok(golden) => {
                complaints.push(format!("{name}: the bytes changed\n    golden {golden}    now    {now}"));
            }
            Err(error) => complaints.push(format!("{name}: no golden bytes ({error})")),
        }
        files.retain(|present| *present != file);
    }
    for file in files {
        if write {
            fs::remove_file(directory().join(&file)).expect("remove golden bytes of a variant that is gone");
        } else {
            complaints.push(format!("{file}: golden bytes of a variant that is gone"));
        }
    }
    assert!(
        complaints.is_empty(),
        "the wire format differs from protocol/tests/golden/v1. A shipped message never changes: append a new \
         variant instead. Only for a version that has not shipped, run \
         `TOOLCELL_WRITE_GOLDEN=1 cargo test -p toolcell-protocol golden`.\n{}",
        complaints.join("\n")
    );
}

#[test]
fn the_two_hellos_are_variant_zero_for_ever() {
    let first_byte = |bytes: Vec<u8>| bytes[0];
    assert_eq!(first_byte(encode(&samples::client_messages()[0]).expect("encodes")), 0);
    assert_eq!(first_byte(encode(&samples::daemon_messages()[0]).expect("encodes")), 0);
    assert_eq!(first_byte(encode(&worker_samples::to_spawner()[0]).expect("encodes")), 0);
    assert_eq!(first_byte(encode(&worker_samples::from_spawner()[0]).expect("encodes")), 0);
    assert_eq!(first_byte(encode(&worker_samples::to_worker()[0]).expect("encodes")), 0);
    assert_eq!(first_byte(encode(&worker_samples::from_worker()[0]).expect("encodes")), 0);
}

#[test]
fn the_bytes_of_a_chunk_are_the_last_of_its_message() {
    for (name, bytes) in every_sample(&mut Vec::new()) {
        if name == "output" {
            assert!(bytes.ends_with(&[4, 0, 1, 254, 255]), "{bytes:?}");
        }
        if name == "from_worker_output" {
            assert!(bytes.ends_with(&[2, 0, 255]), "{bytes:?}");
        }
    }
}
