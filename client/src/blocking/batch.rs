//! Sessions and running batches, blocking.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use toolcell_protocol::call::BatchResult;
use toolcell_protocol::client_api::{
    BatchExecute, CallInfo, CallRequest, ExecuteAnswer, KillAnswer, Request, SessionInfo, SessionRef,
};
use toolcell_protocol::id::{BatchId, CallUid, SessionId, SessionName};

use super::client::Client;
use super::pump::Awaited;
use crate::answer::{self, KILLS_IN_FLIGHT, KILLS_TOGETHER};
use crate::error::ClientError;
use crate::event::BatchEvent;

/// A session that this connection is attached to. Dropping it does nothing: a session ends with
/// [`close`](Self::close), or as its `on_disconnect` says when its last connection is gone.
#[derive(Debug, Clone)]
pub struct Session {
    client: Client,
    name: SessionName,
    session_id: SessionId,
    created: bool,
    last_seq: u64,
}

impl Session {
    pub(super) const fn new(
        client: Client,
        name: SessionName,
        session_id: SessionId,
        created: bool,
        last_seq: u64,
    ) -> Self {
        Self { client, name, session_id, created, last_seq }
    }

    /// How requests name it.
    #[must_use]
    pub fn reference(&self) -> SessionRef {
        SessionRef { uid: None, name: self.name.clone() }
    }

    /// The daemon's id of it.
    #[must_use]
    pub const fn session_id(&self) -> SessionId {
        self.session_id
    }

    /// It did not exist before.
    #[must_use]
    pub const fn created(&self) -> bool {
        self.created
    }

    /// Sequence number of its newest event when it was opened.
    #[must_use]
    pub const fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// The connection.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Runs the tool calls of one model turn. Returns as soon as the daemon has accepted them.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the session has a batch in flight, two calls have one `call_id`, or a field
    /// is out of its bounds; see also [`Client::tools`].
    pub fn execute(&self, calls: Vec<CallRequest>) -> Result<RunningBatch, ClientError> {
        self.execute_with_key(calls, None)
    }

    /// The same with an idempotency key: the same key in the same session answers with the batch that is there.
    ///
    /// # Errors
    /// See [`execute`](Self::execute).
    pub fn execute_with_key(
        &self,
        calls: Vec<CallRequest>,
        key: Option<String>,
    ) -> Result<RunningBatch, ClientError> {
        let request = Request::BatchExecute(BatchExecute { session: self.reference(), calls, key });
        let awaited = self.client.pump.submit(vec![request])?.remove(0);
        let key = awaited.id;
        let (batch_id, answer, call_uids) = answer::batch_accepted(awaited.answer()?)?;
        Ok(RunningBatch { client: self.client.clone(), key, batch_id, answer, call_uids })
    }

    /// Its state.
    ///
    /// # Errors
    /// See [`Client::tools`].
    pub fn get(&self) -> Result<SessionInfo, ClientError> {
        self.client.session_get(self.reference())
    }

    /// Its calls that run or wait, and with `finished` those that have ended.
    ///
    /// # Errors
    /// See [`Client::tools`].
    pub fn calls(&self, finished: bool) -> Result<Vec<CallInfo>, ClientError> {
        self.client.call_list(Some(self.reference()), finished)
    }

    /// Ends it; answers how many running calls were killed and how many waiting ones cancelled.
    ///
    /// # Errors
    /// See [`Client::tools`].
    pub fn close(self) -> Result<(u32, u32), ClientError> {
        self.client.session_close(self.reference())
    }
}

/// A batch that the daemon has accepted.
///
/// Read it with [`next_event`](Self::next_event) and [`finish`](Self::finish). **Dropping it cancels nothing**:
/// its calls run on, their results can be asked for by their uid, and the session takes no other batch until
/// they have ended. To cancel, say so: [`kill`](Self::kill) one call, [`cancel`](Self::cancel) all.
///
/// A batch with `stream` calls that is not read holds its tools once the pipes and queues in between are full,
/// and other batches of the same connection once [`Options::backlog_bytes`](crate::Options) wait here. Give
/// such batches a connection each.
#[derive(Debug)]
pub struct RunningBatch {
    client: Client,
    key: u64,
    batch_id: BatchId,
    answer: ExecuteAnswer,
    call_uids: Vec<CallUid>,
}

impl RunningBatch {
    /// The batch.
    #[must_use]
    pub const fn batch_id(&self) -> BatchId {
        self.batch_id
    }

    /// What the daemon answered.
    #[must_use]
    pub const fn answer(&self) -> ExecuteAnswer {
        self.answer
    }

    /// The daemon's ids of the calls, in call order.
    #[must_use]
    pub fn call_uids(&self) -> &[CallUid] {
        &self.call_uids
    }

    /// The next thing that happens; `None` after `BatchFinished`.
    ///
    /// # Errors
    /// [`ClientError::ConnectionLost`] and the other ends of a connection.
    pub fn next_event(&mut self) -> Result<Option<BatchEvent>, ClientError> {
        self.client.pump.wait(|inbox| inbox.pop(self.key))
    }

    /// The same, at most so long. The outer `None`: nothing happened in that time.
    ///
    /// # Errors
    /// See [`next_event`](Self::next_event).
    pub fn next_event_within(&mut self, limit: Duration) -> Result<Option<Option<BatchEvent>>, ClientError> {
        self.client.pump.wait_for(limit, |inbox| inbox.pop(self.key))
    }

    /// Waits for the end, however long it takes, and drops events and output that were not read.
    ///
    /// # Errors
    /// [`ClientError::ConnectionLost`] and the other ends of a connection: there is no result then, and the
    /// calls can be asked for by their uid.
    pub fn finish(self) -> Result<BatchResult, ClientError> {
        let result = self.client.pump.wait(|inbox| inbox.result(self.key))?;
        Ok(Arc::unwrap_or_clone(result))
    }

    /// Kills one call of the batch, and answers when it is proven gone or after 2 s.
    ///
    /// # Errors
    /// See [`Client::tools`].
    pub fn kill(&self, call: CallUid, reason: &str) -> Result<KillAnswer, ClientError> {
        self.client.call_kill(call, reason)
    }

    /// Kills all calls of the batch and waits for its end; what had finished keeps its result.
    ///
    /// # Errors
    /// See [`Client::tools`].
    pub fn cancel(self, reason: &str) -> Result<BatchResult, ClientError> {
        self.kill_all(reason)?;
        self.finish()
    }

    /// Kills all calls of the batch, some dozens at a time, and answers when all are proven gone or 2 s after the
    /// last was asked to be. It begins with the last call, so that those that wait do not start in the place of
    /// those that were killed.
    ///
    /// # Errors
    /// See [`Client::tools`]. A refused kill is told after the others were sent.
    pub fn kill_all(&self, reason: &str) -> Result<(), ClientError> {
        let mut in_flight = VecDeque::<Awaited<'_>>::with_capacity(KILLS_IN_FLIGHT);
        let mut refused = None;
        for group in self.call_uids.rchunks(KILLS_TOGETHER) {
            while in_flight.len() + group.len() > KILLS_IN_FLIGHT
                && let Some(kill) = in_flight.pop_front()
            {
                answer::one_of_many_killed(kill.answer()?, &mut refused)?;
            }
            let kills = group
                .iter()
                .rev()
                .map(|call_uid| Request::CallKill { call_uid: *call_uid, reason: reason.to_owned() })
                .collect();
            in_flight.extend(self.client.pump.submit(kills)?);
        }
        for kill in in_flight {
            answer::one_of_many_killed(kill.answer()?, &mut refused)?;
        }
        refused.map_or(Ok(()), |refusal| Err(ClientError::Refused(refusal)))
    }
}

impl Drop for RunningBatch {
    fn drop(&mut self) {
        self.client.pump.with_inbox(|inbox| inbox.forget_batch(self.key));
    }
}
