//! When may an admitted call run? Limits of the host, of each uid and of each session; fair between uids, and
//! inside a uid fair between sessions: each in turn gives one call.
//!
//! ```text
//! rotation of uids that may run something ─▶ its rotation of sessions that may run something ─▶ first waiting call
//! ```
//!
//! A uid or a session that is at its limit is not in the rotation, so taking the next call does not cost more
//! when thousands wait behind a limit.

use std::collections::{BTreeMap, VecDeque};

use toolcell_protocol::id::{CallUid, SessionId};

/// How many calls may run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLimits {
    /// Of all.
    pub total: usize,
    /// Of one uid.
    pub per_uid: usize,
    /// Of one session.
    pub per_session: usize,
}

#[derive(Debug, Default)]
struct UidQueue {
    running: usize,
    waiting: usize,
    rotation: VecDeque<SessionId>,
    in_rotation: bool,
}

#[derive(Debug)]
struct SessionQueue {
    uid: u32,
    running: usize,
    waiting: VecDeque<CallUid>,
    in_rotation: bool,
}

/// The queue.
#[derive(Debug)]
pub struct FairQueue {
    limits: RunLimits,
    running: usize,
    waiting: usize,
    uids: BTreeMap<u32, UidQueue>,
    sessions: BTreeMap<SessionId, SessionQueue>,
    rotation: VecDeque<u32>,
}

impl FairQueue {
    /// An empty queue.
    #[must_use]
    pub const fn new(limits: RunLimits) -> Self {
        Self {
            limits,
            running: 0,
            waiting: 0,
            uids: BTreeMap::new(),
            sessions: BTreeMap::new(),
            rotation: VecDeque::new(),
        }
    }

    /// Adds a call behind its session's others.
    pub fn push(&mut self, uid: u32, session: SessionId, call: CallUid) {
        let queue = self.sessions.entry(session).or_insert_with(|| SessionQueue {
            uid,
            running: 0,
            waiting: VecDeque::new(),
            in_rotation: false,
        });
        queue.waiting.push_back(call);
        self.waiting += 1;
        self.uids.entry(uid).or_default().waiting += 1;
        self.rotate_in(session);
    }

    /// Takes the next call that may run now, and counts it as running.
    pub fn pop(&mut self) -> Option<CallUid> {
        if self.running >= self.limits.total {
            return None;
        }
        while let Some(uid) = self.rotation.pop_front() {
            let Some(of_uid) = self.uids.get_mut(&uid) else { continue };
            of_uid.in_rotation = false;
            if of_uid.running >= self.limits.per_uid {
                continue;
            }
            let Some(session) = of_uid.rotation.pop_front() else { continue };
            let Some(queue) = self.sessions.get_mut(&session) else {
                self.rotate_uid_in(uid);
                continue;
            };
            queue.in_rotation = false;
            let call = (queue.running < self.limits.per_session).then(|| queue.waiting.pop_front()).flatten();
            if call.is_some() {
                queue.running += 1;
                of_uid.running += 1;
                of_uid.waiting -= 1;
                self.running += 1;
                self.waiting -= 1;
            }
            self.rotate_in(session);
            self.rotate_uid_in(uid);
            if call.is_some() {
                return call;
            }
        }
        None
    }

    /// A running call of this session has ended.
    pub fn finished(&mut self, session: SessionId) {
        let Some(queue) = self.sessions.get_mut(&session) else { return };
        let uid = queue.uid;
        queue.running = queue.running.saturating_sub(1);
        self.running = self.running.saturating_sub(1);
        if let Some(of_uid) = self.uids.get_mut(&uid) {
            of_uid.running = of_uid.running.saturating_sub(1);
        }
        self.rotate_in(session);
        self.rotate_uid_in(uid);
        self.drop_if_idle(session, uid);
    }

    /// Takes a waiting call out; says whether it was there.
    pub fn remove(&mut self, session: SessionId, call: CallUid) -> bool {
        let Some(queue) = self.sessions.get_mut(&session) else { return false };
        let uid = queue.uid;
        let Some(at) = queue.waiting.iter().position(|waiting| *waiting == call) else { return false };
        queue.waiting.remove(at);
        self.waiting -= 1;
        if let Some(of_uid) = self.uids.get_mut(&uid) {
            of_uid.waiting -= 1;
        }
        self.drop_if_idle(session, uid);
        true
    }

    /// Calls counted as running.
    #[must_use]
    pub const fn running(&self) -> usize {
        self.running
    }

    /// Calls that wait.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Calls of this uid that wait.
    #[must_use]
    pub fn waiting_of(&self, uid: u32) -> usize {
        self.uids.get(&uid).map_or(0, |of_uid| of_uid.waiting)
    }

    fn rotate_in(&mut self, session: SessionId) {
        let Some(queue) = self.sessions.get_mut(&session) else { return };
        if queue.in_rotation || queue.waiting.is_empty() || queue.running >= self.limits.per_session {
            return;
        }
        queue.in_rotation = true;
        let uid = queue.uid;
        if let Some(of_uid) = self.uids.get_mut(&uid) {
            of_uid.rotation.push_back(session);
        }
        self.rotate_uid_in(uid);
    }

    fn rotate_uid_in(&mut self, uid: u32) {
        let Some(of_uid) = self.uids.get_mut(&uid) else { return };
        if of_uid.in_rotation || of_uid.rotation.is_empty() || of_uid.running >= self.limits.per_uid {
            return;
        }
        of_uid.in_rotation = true;
        self.rotation.push_back(uid);
    }

    /// Memory must not grow with sessions that were once busy.
    fn drop_if_idle(&mut self, session: SessionId, uid: u32) {
        if self.sessions.get(&session).is_some_and(|queue| queue.running == 0 && queue.waiting.is_empty()) {
            if let (Some(queue), Some(of_uid)) = (self.sessions.remove(&session), self.uids.get_mut(&uid))
                && queue.in_rotation
            {
                of_uid.rotation.retain(|other| *other != session);
            }
            if self.uids.get(&uid).is_some_and(|of_uid| of_uid.running == 0 && of_uid.waiting == 0)
                && self.uids.remove(&uid).is_some_and(|of_uid| of_uid.in_rotation)
            {
                self.rotation.retain(|other| *other != uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    const LIMITS: RunLimits = RunLimits { total: 4, per_uid: 3, per_session: 2 };

    fn session(n: u8) -> SessionId {
        SessionId(Uuid::from_u128(u128::from(n)))
    }

    fn call(n: u128) -> CallUid {
        CallUid(Uuid::from_u128(n))
    }

    #[test]
    fn a_quiet_session_is_next_after_one_call_of_a_loud_one() {
        let mut queue = FairQueue::new(RunLimits { total: 1, per_uid: 1, per_session: 1 });
        for n in 0..1000 {
            queue.push(1, session(1), call(n));
        }
        assert_eq!(queue.pop(), Some(call(0)));
        queue.push(1, session(2), call(5000));
        queue.finished(session(1));
        let second = queue.pop();
        queue.finished(if second == Some(call(5000)) { session(2) } else { session(1) });
        let third = queue.pop();
        assert!([second, third].contains(&Some(call(5000))));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Push { uid: u8, session: u8 },
        Pop,
        Finish(usize),
        Remove(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0_u8..3, 0_u8..3).prop_map(|(uid, session)| Step::Push { uid, session: uid * 3 + session }),
            Just(Step::Pop),
            (0_usize..8).prop_map(Step::Finish),
            (0_usize..16).prop_map(Step::Remove),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// Against a model that holds two plain lists: limits hold, nothing is lost or given twice, order inside
        /// a session is kept, and something is given whenever something may run.
        #[test]
        fn the_queue_agrees_with_two_plain_lists(steps in steps()) {
            let mut queue = FairQueue::new(LIMITS);
            let mut waiting: Vec<(u8, u8, CallUid)> = Vec::new();
            let mut running: Vec<(u8, u8, CallUid)> = Vec::new();
            let mut next = 0_u128;
            for step in steps {
                match step {
                    Step::Push { uid, session: s } => {
                        next += 1;
                        queue.push(u32::from(uid), session(s), call(next));
                        waiting.push((uid, s, call(next)));
                    }
                    Step::Pop => {
                        let of = |list: &[(u8, u8, CallUid)], f: &dyn Fn(&(u8, u8, CallUid)) -> bool| {
                            list.iter().filter(|item| f(item)).count()
                        };
                        let may_run = running.len() < LIMITS.total && waiting.iter().any(|(uid, s, _)| {
                            of(&running, &|r| r.0 == *uid) < LIMITS.per_uid
                                && of(&running, &|r| r.1 == *s) < LIMITS.per_session
                        });
                        let got = queue.pop();
                        prop_assert_eq!(got.is_some(), may_run);
                        if let Some(got) = got {
                            let at = waiting.iter().position(|w| w.2 == got).expect("was waiting");
                            let item = waiting.remove(at);
                            prop_assert!(!waiting[..at].iter().any(|w| w.1 == item.1), "order in a session");
                            running.push(item);
                            prop_assert!(of(&running, &|r| r.0 == item.0) <= LIMITS.per_uid);
                            prop_assert!(of(&running, &|r| r.1 == item.1) <= LIMITS.per_session);
                        }
                    }
                    Step::Finish(at) if at < running.len() => {
                        let (_, s, _) = running.remove(at);
                        queue.finished(session(s));
                    }
                    Step::Remove(at) if at < waiting.len() => {
                        let (_, s, removed) = waiting.remove(at);
                        prop_assert!(queue.remove(session(s), removed));
                        prop_assert!(!queue.remove(session(s), removed));
                    }
                    Step::Finish(_) | Step::Remove(_) => {}
                }
                prop_assert_eq!(queue.running(), running.len());
                prop_assert_eq!(queue.waiting(), waiting.len());
            }
            // Memory is given back.
            while let Some((_, s, _)) = running.pop() {
                queue.finished(session(s));
            }
            while let Some((_, s, removed)) = waiting.pop() {
                queue.remove(session(s), removed);
            }
            prop_assert!(queue.sessions.is_empty() && queue.uids.is_empty() && queue.rotation.is_empty());
        }
    }
}
