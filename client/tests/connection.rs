//! The protocol without I/O: cut anywhere, answered in any order, and lied to.

mod fake;

use std::collections::HashMap;

use proptest::prelude::*;
use toolcell_client::ClientError;
use toolcell_client::connection::{Connection, Incoming};
use toolcell_client::protocol::client_api::{
    ClientMessage, DaemonHello, DaemonMessage, Refusal, RefusalCode, Reply, Request,
};
use toolcell_client::protocol::codec;
use toolcell_client::protocol::frame::FrameBuffer;
use toolcell_client::protocol::version::VersionRange;

fn framed(messages: &[DaemonMessage]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        codec::encode_frame(message, &mut bytes).expect("it fits");
    }
    bytes
}

fn open() -> Connection {
    let mut connection = Connection::new("test").expect("a short name");
    let hello = connection.outgoing().len();
    connection.sent(hello);
    connection.handle_bytes(&framed(&[fake::accepted()]));
    let message = connection.next_message().expect("good").expect("whole").message;
    assert_eq!(message, Incoming::Accepted);
    connection
}

fn drain(connection: &mut Connection) -> Result<Vec<Incoming>, ClientError> {
    let mut all = Vec::new();
    while let Some(received) = connection.next_message()? {
        all.push(received.message);
    }
    Ok(all)
}

fn sent_requests(connection: &mut Connection) -> Vec<(u64, Request)> {
    let mut buffer = FrameBuffer::new();
    buffer.extend(connection.outgoing());
    let count = connection.outgoing().len();
    connection.sent(count);
    let mut requests = Vec::new();
    while let Some(body) = buffer.next_frame().expect("good frames") {
        match codec::decode(body).expect("a client's message") {
            ClientMessage::Request { id, request } => requests.push((id, request)),
            ClientMessage::Hello(_) => {}
        }
    }
    requests
}

#[test]
fn nothing_can_be_asked_before_the_handshake_is_done() {
    let mut connection = Connection::new("test").expect("a short name");
    let error = connection.request(Request::ServerStatus).expect_err("too early");
    assert!(matches!(error, ClientError::Handshake { .. }));
    assert!(connection.failure().is_none(), "waiting for the handshake is still possible");
}

#[test]
fn a_refused_handshake_says_which_versions_there_are() {
    let mut connection = Connection::new("test").expect("a short name");
    connection.handle_bytes(&framed(&[DaemonMessage::Hello(DaemonHello::Refused {
        reason: "too old".to_owned(),
        versions: VersionRange { oldest: 8, newest: 9 },
    })]));
    let error = connection.next_message().expect_err("refused");
    let text = error.to_string();
    assert!(matches!(error, ClientError::Handshake { .. }));
    assert!(text.contains("too old") && text.contains("8 to 9") && text.contains("one release"), "{text}");
}

#[test]
fn a_version_that_was_not_offered_is_no_handshake() {
    let mut connection = Connection::new("test").expect("a short name");
    let DaemonMessage::Hello(DaemonHello::Accepted { daemon, epoch, uid, .. }) = fake::accepted() else {
        panic!("accepted() accepts")
    };
    let hello = DaemonHello::Accepted { version: 99, daemon, epoch, uid };
    connection.handle_bytes(&framed(&[DaemonMessage::Hello(hello)]));
    assert!(matches!(connection.next_message(), Err(ClientError::Handshake { .. })));
}

#[test]
fn another_server_behind_the_socket_is_told_apart_from_a_daemon() {
    let mut connection = Connection::new("test").expect("a short name");
    connection.handle_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let text = connection.next_message().expect_err("no daemon").to_string();
    assert!(text.contains("not a toolcell daemon"), "{text}");
}

#[test]
fn an_answer_to_nothing_ends_the_conversation_for_good() {
    let mut connection = open();
    let id = connection.request(Request::ServerStatus).expect("open");
    let stray = DaemonMessage::Reply { id: id + 1, reply: Ok(Reply::Tools(Vec::new())) };
    connection.handle_bytes(&framed(&[stray]));
    let first = connection.next_message().expect_err("a protocol error");
    assert!(matches!(first, ClientError::Protocol { .. }));
    connection.handle_end(None);
    assert_eq!(connection.next_message().expect_err("for good"), first);
    assert_eq!(connection.request(Request::ServerStatus).expect_err("for good"), first);
}

#[test]
fn a_second_answer_is_an_answer_to_nothing() {
    let mut connection = open();
    let id = connection.request(Request::ToolsList).expect("open");
    let answer = DaemonMessage::Reply { id, reply: Ok(Reply::Tools(Vec::new())) };
    connection.handle_bytes(&framed(&[answer.clone(), answer]));
    assert!(connection.next_message().expect("the first").is_some());
    assert!(matches!(connection.next_message(), Err(ClientError::Protocol { .. })));
}

#[test]
fn a_last_word_is_the_reason_of_the_end() {
    let mut connection = open();
    connection.handle_bytes(&framed(&[DaemonMessage::Closing { reason: "shutting down".to_owned() }]));
    let text = connection.next_message().expect_err("over").to_string();
    assert!(text.contains("shutting down"), "{text}");
}

#[test]
fn a_request_that_fits_no_frame_is_refused_here_and_harms_nothing() {
    let mut connection = open();
    let huge = Request::CallKill {
        call_uid: toolcell_client::protocol::id::CallUid(uuid::Uuid::nil()),
        reason: "x".repeat(17 * 1024 * 1024),
    };
    assert!(matches!(connection.request(huge), Err(ClientError::BadRequest { .. })));
    assert!(connection.outgoing().is_empty());
    assert!(connection.request(Request::ServerStatus).is_ok());
}

proptest! {
    #[test]
    fn answers_find_their_requests_in_any_order_and_any_cutting(
        order in (1_usize..40).prop_flat_map(|n| Just((0..n).collect::<Vec<_>>()).prop_shuffle()),
        cuts in prop::collection::vec(1_usize..50, 1..20),
    ) {
        let mut connection = open();
        for _ in &order {
            connection.request(Request::ServerStatus).expect("open");
        }
        let requests = sent_requests(&mut connection);
        prop_assert_eq!(requests.len(), order.len());
        let refusal = |id: u64| Refusal { code: RefusalCode::Overloaded, message: format!("for {id}") };
        let replies: Vec<_> = order
            .iter()
            .map(|at| requests[*at].0)
            .map(|id| DaemonMessage::Reply { id, reply: Err(refusal(id)) })
            .collect();
        let bytes = framed(&replies);
        let mut got = HashMap::new();
        let mut rest = &bytes[..];
        let mut cuts = cuts.iter().cycle();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(*cuts.next().expect("cycle")));
            rest = after;
            connection.handle_bytes(piece);
            for message in drain(&mut connection).expect("good messages") {
                let Incoming::Reply { id, reply } = message else { panic!("only replies were sent") };
                prop_assert_eq!(&reply, &Err(refusal(id)));
                prop_assert!(got.insert(id, ()).is_none());
            }
        }
        prop_assert_eq!(got.len(), order.len());
    }

    #[test]
    fn junk_ends_the_conversation_or_waits_but_never_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        opened in any::<bool>(),
    ) {
        let mut connection = if opened { open() } else { Connection::new("test").expect("a short name") };
        connection.handle_bytes(&bytes);
        let outcome = drain(&mut connection);
        prop_assert_eq!(outcome.is_err(), connection.failure().is_some());
        connection.handle_end(None);
        prop_assert!(connection.failure().is_some());
    }

    #[test]
    fn an_end_at_any_byte_is_a_lost_connection_and_never_a_message(cut in 1_usize..10_000) {
        let mut connection = open();
        let id = connection.request(Request::ToolsList).expect("open");
        let bytes = framed(&[DaemonMessage::Reply { id, reply: Ok(Reply::Tools(Vec::new())) }]);
        connection.handle_bytes(&bytes[..cut % bytes.len()]);
        prop_assert_eq!(drain(&mut connection).expect("not yet"), []);
        connection.handle_end(None);
        let lost = matches!(connection.next_message(), Err(ClientError::ConnectionLost { .. }));
        prop_assert!(lost);
    }
}
