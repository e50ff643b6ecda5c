//! A fake daemon for client tests: one end of a socketpair on a thread, played by a script that speaks the
//! protocol crate. A script that fails panics on its thread, and [`Playing::end`] passes that on.
// Each test file uses its own part of this.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use toolcell_client::protocol::call::{
    BatchResult, Blob, CallResult, Details, Status, StatusDetail, Stream, Verdict,
};
use toolcell_client::protocol::client_api::{
    BatchExecute, CallRequest, ClientMessage, DaemonHello, DaemonMessage, Event, EventBody, ExecuteAnswer,
    KillAnswer, Refusal, Reply, Request,
};
use toolcell_client::protocol::codec;
use toolcell_client::protocol::frame;
use toolcell_client::protocol::id::{BatchId, CallUid, SessionId};
use toolcell_client::protocol::version::CLIENT_PROTOCOL;
use uuid::Uuid;

/// Longest time that a script waits for the client.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client that sends nothing for so long waits for answers.
const NO_MORE: Duration = Duration::from_millis(10);

pub struct FakeDaemon {
    pub stream: UnixStream,
    seq: u64,
}

pub struct Playing(JoinHandle<()>);

impl Playing {
    pub fn end(self) {
        if let Err(panic) = self.0.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Plays a script; the other end is for the client.
pub fn play(script: impl FnOnce(&mut FakeDaemon) + Send + 'static) -> (UnixStream, Playing) {
    let (ours, theirs) = UnixStream::pair().expect("a socketpair");
    (theirs, play_on(ours, script))
}

/// Plays a script on a stream.
pub fn play_on(stream: UnixStream, script: impl FnOnce(&mut FakeDaemon) + Send + 'static) -> Playing {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    Playing(std::thread::spawn(move || script(&mut FakeDaemon { stream, seq: 0 })))
}

impl FakeDaemon {
    pub fn receive(&mut self) -> Option<ClientMessage> {
        let body = frame::read_blocking(&mut self.stream).expect("a whole message")?;
        Some(codec::decode(&body).expect("a client's message"))
    }

    pub fn send(&mut self, message: &DaemonMessage) {
        let mut bytes = Vec::new();
        codec::encode_frame(message, &mut bytes).expect("it fits");
        self.stream.write_all(&bytes).expect("the client reads");
    }

    pub fn shake_hands(&mut self) {
        assert!(matches!(self.receive(), Some(ClientMessage::Hello(_))));
        self.send(&accepted());
    }

    pub fn request(&mut self) -> (u64, Request) {
        match self.receive() {
            Some(ClientMessage::Request { id, request }) => (id, request),
            other => panic!("a request was awaited, not {other:?}"),
        }
    }

    pub fn reply(&mut self, id: u64, reply: Result<Reply, Refusal>) {
        self.send(&DaemonMessage::Reply { id, reply });
    }

    pub fn event(&mut self, body: EventBody) {
        self.seq += 1;
        let event = Event { session_id: session_id(), seq: self.seq, at_ms: 1_700_000_000_000, body };
        self.send(&DaemonMessage::Event(event));
    }

    pub fn output(&mut self, call_uid: CallUid, seq: u64, bytes: &[u8]) {
        let bytes = Blob(bytes.to_vec());
        self.send(&DaemonMessage::Output { call_uid, seq, stream: Stream::Stdout, bytes });
    }

    /// The opening of a session and the acceptance of one batch.
    pub fn accept_batch(&mut self) -> Batch {
        let (id, request) = self.request();
        assert!(matches!(request, Request::SessionOpen(_)));
        self.reply(id, Ok(opened()));
        let (id, request) = self.request();
        let Request::BatchExecute(BatchExecute { calls, .. }) = request else {
            panic!("a batch was awaited, not {request:?}")
        };
        let batch = Batch::new(calls);
        self.reply(id, Ok(batch.accepted()));
        batch
    }

    /// Answers so many kills, always all that have come once no more come; gives their calls, and the most that
    /// were unanswered at a time.
    pub fn answer_kills(&mut self, count: usize) -> (Vec<CallUid>, usize) {
        let (forward, requests) = mpsc::channel();
        let stream = self.stream.try_clone().expect("a second handle");
        let reading = std::thread::spawn(move || {
            let mut daemon = Self { stream, seq: 0 };
            for _ in 0..count {
                forward.send(daemon.request()).expect("somebody answers");
            }
        });
        let (mut calls, mut most) = (Vec::new(), 0);
        while let Ok(first) = requests.recv() {
            let mut unanswered = vec![first];
            while let Ok(next) = requests.recv_timeout(NO_MORE) {
                unanswered.push(next);
            }
            most = most.max(unanswered.len());
            for (id, request) in unanswered {
                let Request::CallKill { call_uid, .. } = request else {
                    panic!("a kill was awaited, not {request:?}")
                };
                calls.push(call_uid);
                self.reply(id, Ok(Reply::CallKilled(KillAnswer::Killed)));
            }
        }
        reading.join().expect("so many kills came");
        (calls, most)
    }

    /// Takes requests until the client goes.
    pub fn until_the_client_goes(&mut self) {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).expect("a clean end");
    }
}

/// A batch as the fake daemon sees it.
pub struct Batch {
    pub batch_id: BatchId,
    pub calls: Vec<(CallUid, CallRequest)>,
}

impl Batch {
    pub fn new(calls: Vec<CallRequest>) -> Self {
        let calls = calls.into_iter().map(|call| (CallUid(Uuid::from_u128(fresh())), call)).collect();
        Self { batch_id: BatchId(Uuid::from_u128(fresh())), calls }
    }

    pub fn accepted(&self) -> Reply {
        Reply::BatchAccepted {
            batch_id: self.batch_id,
            answer: ExecuteAnswer::ExecutingTools,
            call_uids: self.calls.iter().map(|(uid, _)| *uid).collect(),
        }
    }

    pub fn started(&self, at: usize) -> EventBody {
        let (call_uid, call) = &self.calls[at];
        EventBody::ToolStarted {
            call_uid: *call_uid,
            call_id: call.call_id.clone(),
            name: call.tool.clone(),
            pid: 100,
            args: call.args.clone(),
        }
    }

    pub fn tool_finished(&self, at: usize, status: Status) -> EventBody {
        let (call_uid, call) = &self.calls[at];
        EventBody::ToolFinished {
            call_uid: *call_uid,
            call_id: call.call_id.clone(),
            name: call.tool.clone(),
            status,
            duration_us: Some(1_000),
        }
    }

    pub fn result(&self, status: Status) -> BatchResult {
        let results = self.calls.iter().map(|(call_uid, call)| CallResult {
            call_id: call.call_id.clone(),
            call_uid: *call_uid,
            tool: call.tool.clone(),
            status,
            status_detail: StatusDetail::default(),
            for_model: format!("text of {}", call.call_id),
            details: Details::default(),
        });
        BatchResult {
            batch_id: self.batch_id,
            session_id: session_id(),
            verdict: Verdict::NextTurn,
            messages: Vec::new(),
            reason: None,
            steering: Vec::new(),
            results: results.collect(),
        }
    }

    pub fn finished(&self, status: Status) -> EventBody {
        EventBody::BatchFinished(Arc::new(self.result(status)))
    }
}

pub fn accepted() -> DaemonMessage {
    DaemonMessage::Hello(DaemonHello::Accepted {
        version: CLIENT_PROTOCOL,
        daemon: "fake/1".to_owned(),
        epoch: 7,
        uid: 1000,
    })
}

pub fn opened() -> Reply {
    Reply::SessionOpened { session_id: session_id(), created: true, last_seq: 0 }
}

pub fn session_id() -> SessionId {
    SessionId(Uuid::from_u128(1))
}

fn fresh() -> u128 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(100);
    u128::from(NEXT.fetch_add(1, Ordering::Relaxed))
}
