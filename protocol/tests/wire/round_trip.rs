//! What is written is what is read, for any message.

use std::fmt::Debug;

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toolcell_protocol::codec::{decode, encode, encode_frame};
use toolcell_protocol::frame::FrameBuffer;

use crate::{strategies, worker_strategies};

fn survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T) -> Result<(), TestCaseError> {
    let bytes = encode(message).expect("a message has an encoding");
    prop_assert_eq!(&decode::<T>(&bytes).expect("its bytes decode"), message);

    let mut framed = Vec::new();
    encode_frame(message, &mut framed).expect("a message fits a frame");
    let mut buffer = FrameBuffer::new();
    buffer.extend(&framed);
    let body = buffer.next_frame().expect("a good frame").expect("a whole frame");
    prop_assert_eq!(body, &bytes[..]);

    // A whole message is never the beginning of a longer one, and never its own beginning.
    for cut in 0..bytes.len() {
        prop_assert!(decode::<T>(&bytes[..cut]).is_err(), "a message decodes from its first {} bytes", cut);
    }
    let mut longer = bytes;
    longer.push(0);
    prop_assert!(decode::<T>(&longer).is_err(), "a byte is left over and nobody minds");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_client_message_survives(message in strategies::client_message()) {
        survives(&message)?;
    }

    #[test]
    fn any_daemon_message_survives(message in strategies::daemon_message()) {
        survives(&message)?;
    }

    #[test]
    fn any_message_to_the_spawner_survives(message in worker_strategies::to_spawner()) {
        survives(&message)?;
    }

    #[test]
    fn any_message_from_the_spawner_survives(message in worker_strategies::from_spawner()) {
        survives(&message)?;
    }

    #[test]
    fn any_message_to_a_worker_survives(message in worker_strategies::to_worker()) {
        survives(&message)?;
    }

    #[test]
    fn any_message_from_a_worker_survives(message in worker_strategies::from_worker()) {
        survives(&message)?;
    }

    #[test]
    fn a_result_survives_json(result in strategies::call_result()) {
        let text = serde_json::to_string(&result).expect("a result has JSON");
        let back = serde_json::from_str(&text).expect("its JSON parses");
        prop_assert_eq!(result, back);
    }
}
