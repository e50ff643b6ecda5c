//! Peers that are broken, slow or malicious: bounded, and nobody else notices.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proptest::test_runner::{Config, TestRunner};
use toolcell_protocol::call::{Containment, Status};
use toolcell_protocol::client_api::{ClientMessage, DaemonHello, DaemonMessage, Request};
use toolcell_protocol::codec::encode_frame;
use toolcell_protocol::version::VersionRange;
use toolcell_tests::daemon::TestDaemon;
use toolcell_tests::peer::{PATIENCE, Peer, habit};
use toolcell_tests::procfs;
use toolcell_tests::setting::Setting;
use toolcell_tests::waiting::wait_until;

const WEAK: Setting = Setting::own(Containment::Weak);

/// The daemon ends this connection in time; what it says before does not matter.
fn is_closed(stream: &mut UnixStream, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    let mut piece = [0_u8; 4096];
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).expect("set a timeout");
        match stream.read(&mut piece) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
    false
}

fn others_are_served(daemon: &TestDaemon) {
    assert_eq!(daemon.client().run_one(habit("ok")).status, Status::Ok);
}

fn connections_end(daemon: &TestDaemon) {
    let mut peer = daemon.peer();
    wait_until("only this connection is left", Duration::from_secs(10), || {
        let connections = peer.status().connections;
        if connections == 1 { Ok(()) } else { Err(connections) }
    });
}

#[test]
fn a_peer_that_sends_junk_is_closed() {
    let daemon = TestDaemon::in_setting(WEAK);
    let junk: [&[u8]; 6] = [
        b"\0\0\0\x05hello",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x0b\x04\xfd\xff\xff\xff\xff\xff\xff\xff\x7fx",
        b"{ this is not JSON\n",
    ];
    for bytes in junk {
        let mut stream = UnixStream::connect(daemon.socket()).expect("connect");
        stream.write_all(bytes).expect("send junk");
        assert!(is_closed(&mut stream, Duration::from_secs(7)), "{bytes:?} did not close the connection");
        others_are_served(&daemon);
    }
    connections_end(&daemon);
}

#[test]
fn a_huge_length_is_refused_before_any_memory_is_taken() {
    let daemon = TestDaemon::in_setting(WEAK);
    let before = procfs::peak_resident_kib(daemon.pid()).expect("there");
    for length in [16 * 1024 * 1024 + 1, 1 << 30, u32::MAX] {
        // Before and after the handshake.
        for handshake in [false, true] {
            let mut peer = Peer::mute(&daemon.socket()).expect("connect");
            if handshake {
                peer.shake_hands(VersionRange::CLIENT).expect("a hello");
            }
            peer.raw().write_all(&length.to_be_bytes()).expect("send a length");
            assert!(is_closed(peer.raw(), Duration::from_secs(3)), "a length of {length} was taken");
        }
    }
    let after = procfs::peak_resident_kib(daemon.pid()).expect("there");
    assert!(after < before + 8 * 1024, "KiB of the daemon: {before} then {after}");
    others_are_served(&daemon);
}

#[test]
fn a_version_that_is_not_spoken_is_refused_and_told_which_is() {
    let daemon = TestDaemon::in_setting(WEAK);
    for versions in [
        VersionRange { oldest: 900, newest: 901 },
        VersionRange { oldest: 0, newest: 0 },
        VersionRange { oldest: 5, newest: 1 },
    ] {
        let mut peer = Peer::mute(&daemon.socket()).expect("connect");
        match peer.shake_hands(versions).expect("an answer") {
            DaemonHello::Refused { reason, versions } => {
                assert_eq!(versions, VersionRange::CLIENT);
                assert!(!reason.is_empty());
            }
            other => panic!("{versions:?} was not refused but {other:?}"),
        }
        assert!(is_closed(peer.raw(), Duration::from_secs(3)));
    }
    // A newer client that still speaks ours is served.
    let mut peer = Peer::mute(&daemon.socket()).expect("connect");
    let hello = peer.shake_hands(VersionRange { oldest: 1, newest: 40 }).expect("a hello");
    assert!(matches!(hello, DaemonHello::Accepted { version: 1, .. }), "{hello:?}");
}

#[test]
fn a_request_before_the_handshake_and_a_second_handshake_end_the_connection() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut peer = Peer::mute(&daemon.socket()).expect("connect");
    peer.send(&ClientMessage::Request { id: 1, request: Request::ServerStatus }).expect("send");
    let answer = peer.receive(PATIENCE);
    let served = matches!(&answer, Ok(Some(DaemonMessage::Reply { reply: Ok(_), .. })));
    assert!(!served, "served before the handshake: {answer:?}");
    assert!(is_closed(peer.raw(), Duration::from_secs(7)));

    let mut peer = daemon.peer();
    let again = peer.shake_hands(VersionRange::CLIENT);
    assert!(!matches!(again, Ok(DaemonHello::Accepted { .. })), "accepted twice: {again:?}");
    assert!(is_closed(peer.raw(), Duration::from_secs(7)));
    others_are_served(&daemon);
}

#[test]
fn half_a_frame_costs_nothing_whether_its_sender_stays_or_goes() {
    let daemon = TestDaemon::configure(WEAK).set("server.handshake_timeout_ms", 400).start();
    let mut whole = Vec::new();
    let hello = ClientMessage::Hello(toolcell_protocol::client_api::ClientHello {
        versions: VersionRange::CLIENT,
        client: "half".into(),
    });
    encode_frame(&hello, &mut whole).expect("encodes");
    let mut staying = Vec::new();
    for cut in 0..whole.len() {
        let mut stream = UnixStream::connect(daemon.socket()).expect("connect");
        stream.write_all(&whole[..cut]).expect("send a part");
        if cut % 2 == 0 {
            staying.push(stream);
        }
    }
    others_are_served(&daemon);
    for mut stream in staying {
        assert!(is_closed(&mut stream, Duration::from_secs(3)), "a half hello may stay for ever");
    }
    connections_end(&daemon);
}

#[test]
fn a_slow_loris_is_cut_off_at_the_handshake_timeout_and_others_are_served_meanwhile() {
    let daemon = TestDaemon::configure(WEAK).set("server.handshake_timeout_ms", 600).start();
    let mut whole = Vec::new();
    let hello = ClientMessage::Hello(toolcell_protocol::client_api::ClientHello {
        versions: VersionRange::CLIENT,
        client: "x".repeat(2000),
    });
    encode_frame(&hello, &mut whole).expect("encodes");
    let mut slow: Vec<UnixStream> =
        (0..50).map(|_| UnixStream::connect(daemon.socket()).expect("connect")).collect();
    let started = Instant::now();
    let mut sent = 0;
    // A byte every 20 ms from each would take 40 s.
    while started.elapsed() < Duration::from_secs(20) {
        let before = slow.len();
        slow.retain_mut(|stream| stream.write_all(&whole[sent..=sent]).is_ok());
        sent += 1;
        if slow.is_empty() {
            break;
        }
        if before == slow.len() {
            others_are_served(&daemon);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(slow.is_empty(), "{} are still connected after {:?}", slow.len(), started.elapsed());
    connections_end(&daemon);
}

#[test]
fn ten_thousand_connects_leave_no_descriptor_and_no_memory_and_a_short_log() {
    let daemon = TestDaemon::in_setting(WEAK);
    let look = || {
        let files = procfs::open_files(daemon.pid()).len();
        (files, procfs::resident_kib(daemon.pid()).expect("there"), daemon.log().len())
    };
    for _ in 0..200 {
        drop(UnixStream::connect(daemon.socket()));
    }
    connections_end(&daemon);
    let mut peer = daemon.peer();
    wait_until("the stock of workers is full", Duration::from_secs(10), || {
        let idle = peer.status().idle_workers;
        if idle == toolcell_tests::full_stock() { Ok(()) } else { Err(idle) }
    });
    drop(peer);
    let before = look();
    for round in 0..10_000 {
        let mut stream = UnixStream::connect(daemon.socket()).expect("connect");
        if round % 3 == 0 {
            let _ = stream.write_all(b"\xff\xff\xff\xff junk");
        }
        drop(stream);
    }
    connections_end(&daemon);
    let after = look();
    assert!(after.0 <= before.0 + 2, "descriptors of the daemon: {} then {}", before.0, after.0);
    assert!(after.1 <= before.1 + 4 * 1024, "KiB of the daemon: {} then {}", before.1, after.1);
    // One line at most for each bad peer.
    assert!(after.2 - before.2 < 10_000 * 400, "the log grew by {} bytes", after.2 - before.2);
    let longest = daemon.log().lines().map(str::len).max().unwrap_or(0);
    assert!(longest < 4096, "a line of the log has {longest} bytes");
    others_are_served(&daemon);
}

#[test]
fn more_connections_than_allowed_are_turned_away_and_those_that_are_there_go_on() {
    let daemon = TestDaemon::configure(WEAK).set("server.max_connections_per_uid", 20).start();
    let mut first = daemon.client();
    let mut held: Vec<Peer> = Vec::new();
    let mut turned_away = 0;
    for _ in 0..100 {
        match Peer::connect(&daemon.socket()) {
            Ok(peer) => held.push(peer),
            Err(_) => turned_away += 1,
        }
    }
    assert!(held.len() <= 20 && turned_away >= 80, "{} held, {turned_away} turned away", held.len());
    assert_eq!(first.run_one(habit("ok")).status, Status::Ok);
    drop(held);
    connections_end_beside(&mut first);
    others_are_served(&daemon);
}

fn connections_end_beside(peer: &mut Peer) {
    wait_until("only this connection is left", Duration::from_secs(10), || {
        let connections = peer.status().connections;
        if connections == 1 { Ok(()) } else { Err(connections) }
    });
}

#[test]
fn a_peer_that_asks_without_reading_is_bounded() {
    let daemon = TestDaemon::in_setting(WEAK);
    let before = procfs::resident_kib(daemon.pid()).expect("there");
    let mut deaf = daemon.peer();
    deaf.raw().set_write_timeout(Some(Duration::from_millis(300))).expect("set a timeout");
    let mut sent = 0;
    // Until the daemon stops reading or closes the connection.
    while sent < 400_000 && deaf.post(Request::ToolsList).is_ok() {
        sent += 1;
    }
    assert!(sent < 400_000, "the daemon took {sent} requests whose answers nobody reads");
    let grown = procfs::resident_kib(daemon.pid()).expect("there").saturating_sub(before);
    assert!(grown < 64 * 1024, "the daemon grew by {grown} KiB");
    others_are_served(&daemon);
}

#[test]
fn a_deaf_executor_costs_its_own_connection_at_most() {
    let daemon = TestDaemon::in_setting(WEAK);
    let mut deaf = daemon.client();
    let batch = deaf.batch_request((0..200).map(|_| habit("flood 20000")).collect());
    deaf.post(batch).expect("send a batch");
    for _ in 0..10 {
        others_are_served(&daemon);
    }
    drop(deaf);
    daemon.wait_until_no_tool_is_left(Duration::from_secs(10));
}

#[test]
fn real_messages_with_bytes_changed_never_end_the_daemon() {
    let daemon = TestDaemon::in_setting(WEAK);
    let client = daemon.client();
    let mut real = Vec::new();
    for request in [
        Request::ToolsList,
        Request::SessionGet { session: client.session.clone() },
        client.batch_request(vec![habit("ok")]),
        Request::CallList { session: None, finished: true },
        Request::ServerStatus,
    ] {
        encode_frame(&ClientMessage::Request { id: 7, request }, &mut real).expect("encodes");
    }
    let changes = proptest::collection::vec((0..real.len(), proptest::num::u8::ANY), 1..8);
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(200) });
    runner
        .run(&changes, |changes| {
            let mut bytes = real.clone();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            let mut peer = daemon.peer();
            let _ = peer.raw().write_all(&bytes);
            let _ = peer.raw().shutdown(std::net::Shutdown::Write);
            let ended = is_closed(peer.raw(), Duration::from_secs(20));
            proptest::prop_assert!(ended, "the connection hangs");
            Ok(())
        })
        .expect("no change ends the daemon");
    others_are_served(&daemon);
}
