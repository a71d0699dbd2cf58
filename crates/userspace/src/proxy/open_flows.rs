//! The flows of a listening port, as long as it is open.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::flows::{FlowKey, FlowTable, FlowTimeouts};

/// The flows of a listening port. After the port was closed none begins, so none outlives it.
#[derive(Debug)]
pub(super) struct OpenFlows<V>(Mutex<State<V>>);

#[derive(Debug)]
struct State<V> {
    table: FlowTable<V>,
    is_closed: bool,
}

/// Whether a flow began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// It began.
    Yes,
    /// What it is for is no longer permitted.
    NotPermitted,
    /// The port is closed.
    Closed,
}

impl<V> OpenFlows<V> {
    pub(super) fn new(timeouts: FlowTimeouts) -> Self {
        Self(Mutex::new(State {
            table: FlowTable::new(timeouts),
            is_closed: false,
        }))
    }

    /// Ends all flows. Returns their values.
    pub(super) fn close(&self) -> Vec<V> {
        let mut state = self.lock();
        state.is_closed = true;
        state.table.retain(|_, _| false)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Begins a flow with the value that `begin` returns, if `is_permitted`. Both are called while no other thread can change the flows or
    /// record a reply: what ends flows first changes what `is_permitted` reads and then calls [`retain`](Self::retain), so that no flow
    /// is missed.
    pub(super) fn begin(
        &self,
        key: FlowKey,
        now: Instant,
        is_permitted: impl FnOnce() -> bool,
        begin: impl FnOnce() -> V,
    ) -> Begun {
        let mut state = self.lock();
        if state.is_closed {
            return Begun::Closed;
        }
        if !is_permitted() {
            return Begun::NotPermitted;
        }
        let value = begin();
        let before = state.table.insert(key, value, now);
        drop(state);
        drop(before);
        Begun::Yes
    }

    pub(super) fn len(&self) -> usize {
        self.lock().table.len()
    }

    /// Calls `work` with the value of a flow to which a datagram of the client belongs.
    pub(super) fn find<T>(&self, key: &FlowKey, now: Instant, work: impl FnOnce(&V) -> T) -> Option<T> {
        self.lock().table.find(key, now).map(work)
    }

    pub(super) fn reply(&self, key: &FlowKey, now: Instant) -> bool {
        self.lock().table.reply(key, now)
    }

    pub(super) fn remove(&self, key: &FlowKey) -> Option<V> {
        self.lock().table.remove(key)
    }

    pub(super) fn remove_if(&self, key: &FlowKey, condition: impl FnOnce(&V) -> bool) -> Option<V> {
        self.lock().table.remove_if(key, condition)
    }

    pub(super) fn remove_unanswered(&self) -> Option<V> {
        self.lock().table.remove_unanswered()
    }

    pub(super) fn retain(&self, keep: impl FnMut(&FlowKey, &V) -> bool) -> Vec<V> {
        self.lock().table.retain(keep)
    }

    pub(super) fn expire(&self, now: Instant) -> Vec<V> {
        self.lock().table.expire(now)
    }

    pub(super) fn next_check(&self, now: Instant) -> Option<Instant> {
        self.lock().table.next_check(now)
    }

    fn lock(&self) -> MutexGuard<'_, State<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use super::*;

    fn key() -> FlowKey {
        FlowKey {
            client: SocketAddr::from(([192, 0, 2, 1], 1000)),
            local: IpAddr::from([192, 0, 2, 10]),
        }
    }

    #[test]
    fn after_the_port_was_closed_no_flow_begins() {
        let now = Instant::now();
        let flows = OpenFlows::new(FlowTimeouts::default());
        assert_eq!(flows.begin(key(), now, || true, || 1), Begun::Yes);
        assert_eq!(flows.close(), [1]);
        let begun = flows.begin(key(), now, || true, || panic!("the flow would outlive the port"));
        assert_eq!(begun, Begun::Closed);
        assert!(flows.is_closed());
        assert_eq!(flows.len(), 0);
    }

    #[test]
    fn a_flow_that_is_no_longer_permitted_does_not_begin() {
        let flows = OpenFlows::new(FlowTimeouts::default());
        let begun = flows.begin(key(), Instant::now(), || false, || panic!("the flow began"));
        assert_eq!(begun, Begun::NotPermitted);
    }

    #[test]
    fn no_reply_is_recorded_and_no_flow_ends_while_a_flow_begins() {
        let now = Instant::now();
        let flows = OpenFlows::new(FlowTimeouts::default());
        let is_locked = || flows.0.try_lock().is_err();
        let permitted = || {
            assert!(is_locked(), "endpoints may leave unnoticed");
            true
        };
        let begin = || {
            assert!(is_locked(), "the task of replies would not find its flow");
            1
        };
        assert_eq!(flows.begin(key(), now, permitted, begin), Begun::Yes);
        assert!(flows.reply(&key(), now));
    }
}
