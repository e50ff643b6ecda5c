//! Whom a message is for, without I/O: answers wait for their request, events and output for their batch.
//!
//! A waiter is known by the id of its request; the events of a batch wait under the id of the request that
//! executed it. What nobody waits for any more is dropped as it comes: a request that timed out, a
//! `RunningBatch` that was dropped.
//!
//! The daemon may send a batch's first events before the answer that names the batch. They are held as long as
//! any execution is unanswered, and given out or dropped then.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use toolcell_protocol::call::BatchResult;
use toolcell_protocol::client_api::{EventBody, Refusal, Reply};
use toolcell_protocol::id::{BatchId, CallUid};

use crate::connection::{Incoming, Received};
use crate::error::ClientError;
use crate::event::BatchEvent;

type Answer = Result<Reply, Refusal>;

#[derive(Debug)]
struct Item {
    event: BatchEvent,
    /// Number of a piece of output in its call.
    seq: Option<u64>,
    frame_bytes: usize,
}

/// A batch that somebody follows.
#[derive(Debug)]
struct Followed {
    batch_id: BatchId,
    calls: Vec<CallUid>,
    queue: VecDeque<Item>,
    result: Option<Arc<BatchResult>>,
    taken_over: bool,
}

#[derive(Debug)]
struct FollowedCall {
    key: u64,
    next_seq: Option<u64>,
}

/// Everything that has arrived and waits for its owner.
#[derive(Debug, Default)]
pub struct Inbox {
    /// `None`: awaited.
    answers: HashMap<u64, Option<Answer>>,
    executing: HashSet<u64>,
    followed: HashMap<u64, Followed>,
    by_batch: HashMap<BatchId, u64>,
    by_call: HashMap<CallUid, FollowedCall>,
    unclaimed: Vec<Item>,
    backlog_bytes: usize,
}

impl Inbox {
    /// A request was sent; its answer will be taken.
    pub fn expect_answer(&mut self, id: u64) {
        self.answers.insert(id, None);
    }

    /// A batch was sent for execution; its answer will be taken, and its events after that.
    pub fn expect_batch(&mut self, id: u64) {
        self.executing.insert(id);
        self.expect_answer(id);
    }

    /// The answer, once.
    pub fn take_answer(&mut self, id: u64) -> Option<Answer> {
        match self.answers.entry(id) {
            Entry::Occupied(entry) if entry.get().is_some() => entry.remove(),
            Entry::Occupied(_) | Entry::Vacant(_) => None,
        }
    }

    /// Nobody waits for this answer any more.
    pub fn forget_answer(&mut self, id: u64) {
        if self.answers.remove(&id).is_some_and(|answer| answer.is_some()) {
            // The answer had come and nobody saw it, so nobody will ever follow its batch.
            self.forget_batch(id);
        }
    }

    /// The next thing that a batch has for its follower: `None` is nothing yet, `Some(None)` nothing ever.
    ///
    /// # Errors
    /// [`ClientError::TakenOver`].
    pub fn pop(&mut self, key: u64) -> Result<Option<Option<BatchEvent>>, ClientError> {
        let Some(followed) = self.followed.get_mut(&key) else { return Ok(Some(None)) };
        if let Some(item) = followed.queue.pop_front() {
            self.backlog_bytes -= item.frame_bytes;
            return Ok(Some(Some(item.event)));
        }
        if followed.taken_over {
            return Err(ClientError::TakenOver { batch_id: followed.batch_id });
        }
        Ok(followed.result.is_some().then_some(None))
    }

    /// The result of a batch, as soon as it has arrived, whatever is still queued before it.
    ///
    /// # Errors
    /// [`ClientError::TakenOver`].
    pub fn result(&mut self, key: u64) -> Result<Option<Arc<BatchResult>>, ClientError> {
        let Some(followed) = self.followed.get_mut(&key) else { return Ok(None) };
        for item in followed.queue.drain(..) {
            self.backlog_bytes -= item.frame_bytes;
        }
        if followed.taken_over {
            return Err(ClientError::TakenOver { batch_id: followed.batch_id });
        }
        Ok(followed.result.take())
    }

    /// Nobody follows this batch any more.
    pub fn forget_batch(&mut self, key: u64) {
        let Some(followed) = self.followed.remove(&key) else { return };
        self.backlog_bytes -= followed.queue.iter().map(|item| item.frame_bytes).sum::<usize>();
        if self.by_batch.get(&followed.batch_id) == Some(&key) {
            self.by_batch.remove(&followed.batch_id);
        }
        for call in &followed.calls {
            if self.by_call.get(call).is_some_and(|known| known.key == key) {
                self.by_call.remove(call);
            }
        }
    }

    /// Bytes that have arrived and wait for their reader.
    pub const fn backlog_bytes(&self) -> usize {
        self.backlog_bytes
    }

    /// Gives a message to its waiter, and says which one that is.
    ///
    /// # Errors
    /// [`ClientError::Protocol`] when it cannot be true.
    pub fn handle(&mut self, received: Received) -> Result<Option<u64>, ClientError> {
        let Received { message, frame_bytes } = received;
        match message {
            Incoming::Accepted => Ok(None),
            Incoming::Reply { id, reply } => self.handle_reply(id, reply),
            Incoming::Event(event) => {
                self.handle_item(Item { event: BatchEvent::Event(event), seq: None, frame_bytes })
            }
            Incoming::Output { seq, output } => {
                self.handle_item(Item { event: BatchEvent::Output(output), seq: Some(seq), frame_bytes })
            }
        }
    }

    fn handle_reply(&mut self, id: u64, reply: Answer) -> Result<Option<u64>, ClientError> {
        let executing = self.executing.remove(&id);
        let awaited = self.answers.contains_key(&id);
        if executing
            && awaited
            && let Ok(Reply::BatchAccepted { batch_id, call_uids, .. }) = &reply
        {
            self.follow(id, *batch_id, call_uids)?;
        }
        if executing && self.executing.is_empty() {
            self.drop_unclaimed();
        }
        if !awaited {
            return Ok(None);
        }
        self.answers.insert(id, Some(reply));
        Ok(Some(id))
    }

    fn follow(&mut self, key: u64, batch_id: BatchId, call_uids: &[CallUid]) -> Result<(), ClientError> {
        if let Some(older) = self.by_batch.insert(batch_id, key)
            && let Some(followed) = self.followed.get_mut(&older)
        {
            followed.taken_over = true;
        }
        for call in call_uids {
            self.by_call.insert(*call, FollowedCall { key, next_seq: None });
        }
        self.followed.insert(
            key,
            Followed {
                batch_id,
                calls: call_uids.to_vec(),
                queue: VecDeque::new(),
                result: None,
                taken_over: false,
            },
        );
        for item in std::mem::take(&mut self.unclaimed) {
            self.backlog_bytes -= item.frame_bytes;
            self.handle_item(item)?;
        }
        Ok(())
    }

    fn handle_item(&mut self, item: Item) -> Result<Option<u64>, ClientError> {
        let Some(key) = self.owner(&item) else {
            if !self.executing.is_empty() {
                self.backlog_bytes += item.frame_bytes;
                self.unclaimed.push(item);
            }
            return Ok(None);
        };
        self.check_seq(&item)?;
        let Some(followed) = self.followed.get_mut(&key) else { return Ok(None) };
        if let BatchEvent::Event(event) = &item.event
            && let EventBody::BatchFinished(result) = &event.body
        {
            if !result.results.iter().map(|one| one.call_uid).eq(followed.calls.iter().copied()) {
                return Err(ClientError::protocol(format!(
                    "batch {} ended with {} results that are not those of its {} calls",
                    followed.batch_id,
                    result.results.len(),
                    followed.calls.len()
                )));
            }
            followed.result = Some(Arc::clone(result));
            self.by_batch.remove(&followed.batch_id);
            for call in &followed.calls {
                self.by_call.remove(call);
            }
        }
        self.backlog_bytes += item.frame_bytes;
        followed.queue.push_back(item);
        Ok(Some(key))
    }

    fn owner(&self, item: &Item) -> Option<u64> {
        let call = match &item.event {
            BatchEvent::Output(output) => output.call_uid,
            BatchEvent::Event(event) => match &event.body {
                EventBody::BatchStarted { batch_id, .. } => return self.by_batch.get(batch_id).copied(),
                EventBody::BatchFinished(result) => return self.by_batch.get(&result.batch_id).copied(),
                EventBody::ToolStarted { call_uid, .. }
                | EventBody::ToolKilled { call_uid, .. }
                | EventBody::ToolFinished { call_uid, .. } => *call_uid,
            },
        };
        self.by_call.get(&call).map(|known| known.key)
    }

    /// No piece of a call's output may be missing; the first one that a follower sees may have any number.
    fn check_seq(&mut self, item: &Item) -> Result<(), ClientError> {
        let (Some(seq), BatchEvent::Output(output)) = (item.seq, &item.event) else { return Ok(()) };
        let Some(call) = self.by_call.get_mut(&output.call_uid) else { return Ok(()) };
        if let Some(wanted) = call.next_seq
            && wanted != seq
        {
            return Err(ClientError::protocol(format!(
                "output {seq} of call {} where {wanted} should be",
                output.call_uid
            )));
        }
        call.next_seq = seq.checked_add(1);
        Ok(())
    }

    fn drop_unclaimed(&mut self) {
        for item in self.unclaimed.drain(..) {
            self.backlog_bytes -= item.frame_bytes;
        }
    }
}
