//! The UDP flows of a listening port: which ones exist and when they end. No sockets, no clock: the time is an argument.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use foldhash::quality::RandomState;

/// Identifies a flow: datagrams from one client to one local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// The address and port of the client.
    pub client: SocketAddr,
    /// The local address to which it sends; replies are sent from it.
    pub local: IpAddr,
}

/// When flows end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTimeouts {
    /// The time without a datagram in either direction, before the first reply.
    pub first_reply: Duration,
    /// The time without a datagram in either direction, after the first reply.
    pub idle: Duration,
}

impl Default for FlowTimeouts {
    /// 10 seconds before the first reply, 30 seconds after it.
    fn default() -> Self {
        Self {
            first_reply: Duration::from_secs(10),
            idle: Duration::from_secs(30),
        }
    }
}

/// The flows of a listening port, each with a value `V`.
#[derive(Debug)]
pub struct FlowTable<V> {
    flows: HashMap<FlowKey, Flow<V>, RandomState>,
    /// For each flow without a reply a time at which it may end: not after its end, but possibly before it, because a datagram only changes
    /// the flow.
    unanswered: Checks,
    /// The same for the flows with a reply.
    answered: Checks,
    timeouts: FlowTimeouts,
}

type Checks = BTreeSet<(Instant, FlowKey)>;

#[derive(Debug)]
struct Flow<V> {
    value: V,
    last: Instant,
    has_reply: bool,
    /// Its entry in `answered` or `unanswered`.
    check: Instant,
}

impl<V> Flow<V> {
    fn end(&self, timeouts: FlowTimeouts) -> Instant {
        let timeout = if self.has_reply {
            timeouts.idle
        } else {
            timeouts.first_reply
        };
        far(self.last, timeout)
    }
}

/// The time after a duration; the latest one that can be represented if that is too far.
fn far(from: Instant, after: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
    from.checked_add(after)
        .or_else(|| from.checked_add(LONGEST))
        .unwrap_or(from)
}

impl<V> FlowTable<V> {
    /// No flows.
    #[must_use]
    pub fn new(timeouts: FlowTimeouts) -> Self {
        Self {
            flows: HashMap::default(),
            unanswered: BTreeSet::new(),
            answered: BTreeSet::new(),
            timeouts,
        }
    }

    /// The number of flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether there is no flow.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// The value of the flow to which a datagram of the client belongs. The datagram extends the flow. `None`: it is the first one.
    pub fn find(&mut self, key: &FlowKey, now: Instant) -> Option<&V> {
        let flow = self.flows.get_mut(key)?;
        flow.last = now;
        Some(&flow.value)
    }

    /// Adds a flow after its first datagram. Returns the value of a flow with this key that existed.
    pub fn insert(&mut self, key: FlowKey, value: V, now: Instant) -> Option<V> {
        let before = self.remove(&key);
        let check = far(now, self.timeouts.first_reply);
        self.unanswered.insert((check, key));
        let flow = Flow {
            value,
            last: now,
            has_reply: false,
            check,
        };
        self.flows.insert(key, flow);
        before
    }

    /// Records a reply, which extends the flow. False if the flow has ended.
    pub fn reply(&mut self, key: &FlowKey, now: Instant) -> bool {
        let Some(flow) = self.flows.get_mut(key) else {
            return false;
        };
        flow.last = now;
        if !flow.has_reply {
            flow.has_reply = true;
            self.unanswered.remove(&(flow.check, *key));
            flow.check = flow.end(self.timeouts);
            self.answered.insert((flow.check, *key));
        }
        true
    }

    /// Removes a flow and returns its value.
    pub fn remove(&mut self, key: &FlowKey) -> Option<V> {
        let flow = self.flows.remove(key)?;
        let checks = if flow.has_reply {
            &mut self.answered
        } else {
            &mut self.unanswered
        };
        checks.remove(&(flow.check, *key));
        Some(flow.value)
    }

    /// Removes the oldest flow without a reply, and returns its value. `None`: all have one.
    pub fn remove_unanswered(&mut self) -> Option<V> {
        let (_, key) = *self.unanswered.first()?;
        self.remove(&key)
    }

    /// Removes a flow if its value satisfies a condition, and returns the value.
    pub fn remove_if(&mut self, key: &FlowKey, condition: impl FnOnce(&V) -> bool) -> Option<V> {
        let flow = self.flows.get(key)?;
        if condition(&flow.value) {
            self.remove(key)
        } else {
            None
        }
    }

    /// Removes the flows that have ended, and returns their values.
    pub fn expire(&mut self, now: Instant) -> Vec<V> {
        let mut ended = Vec::new();
        for checks in [&mut self.unanswered, &mut self.answered] {
            while let Some(&(check, key)) = checks.first() {
                if check > now {
                    break;
                }
                checks.remove(&(check, key));
                let Some(flow) = self.flows.get_mut(&key) else {
                    continue;
                };
                let end = flow.end(self.timeouts);
                if end > now {
                    flow.check = end;
                    checks.insert((end, key));
                } else {
                    ended.extend(self.flows.remove(&key).map(|flow| flow.value));
                }
            }
        }
        ended
    }

    /// Keeps the flows that satisfy a condition; returns the values of the others.
    pub fn retain(&mut self, mut keep: impl FnMut(&FlowKey, &V) -> bool) -> Vec<V> {
        let removed = self.flows.iter().filter(|(key, flow)| !keep(key, &flow.value));
        let removed: Vec<FlowKey> = removed.map(|(key, _)| *key).collect();
        removed.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// The time at which [`expire`](Self::expire) is to be called. `None` without flows. A reply before that time may bring an end
    /// nearer if the idle timeout is the shorter one: the time is at most one idle timeout from now.
    #[must_use]
    pub fn next_check(&self, now: Instant) -> Option<Instant> {
        let firsts = [self.unanswered.first(), self.answered.first()];
        let (check, _) = *firsts.into_iter().flatten().min()?;
        if self.timeouts.idle < self.timeouts.first_reply {
            return Some(check.min(far(now, self.timeouts.idle)));
        }
        Some(check)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(client: u16) -> FlowKey {
        FlowKey {
            client: SocketAddr::from(([192, 0, 2, 1], client)),
            local: IpAddr::from([192, 0, 2, 10]),
        }
    }

    fn table() -> FlowTable<u16> {
        FlowTable::new(FlowTimeouts {
            first_reply: Duration::from_secs(10),
            idle: Duration::from_secs(30),
        })
    }

    #[test]
    fn a_flow_without_a_reply_ends_after_the_first_timeout() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut flows = table();
        flows.insert(key(1), 1, start);
        assert_eq!(flows.next_check(start), Some(at(10)));
        assert!(flows.expire(at(10) - Duration::from_nanos(1)).is_empty());
        assert_eq!(flows.expire(at(10)), [1]);
        assert!(flows.is_empty());
        assert_eq!(flows.next_check(start), None);
    }

    #[test]
    fn a_reply_gives_a_flow_the_idle_timeout_and_each_datagram_extends_it() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut flows = table();
        flows.insert(key(1), 1, start);
        assert!(flows.reply(&key(1), at(9)));
        assert!(flows.expire(at(38)).is_empty());
        assert_eq!(flows.find(&key(1), at(38)), Some(&1));
        assert!(flows.expire(at(67)).is_empty());
        assert_eq!(flows.expire(at(68)), [1]);
        assert!(!flows.reply(&key(1), at(68)));
    }

    #[test]
    fn an_idle_timeout_below_the_first_one_is_kept() {
        let start = Instant::now();
        let mut flows = FlowTable::new(FlowTimeouts {
            first_reply: Duration::from_secs(10),
            idle: Duration::from_secs(1),
        });
        flows.insert(key(1), 1, start);
        assert_eq!(flows.next_check(start), Some(start + Duration::from_secs(1)));
        assert!(flows.expire(start + Duration::from_secs(1)).is_empty());
        flows.reply(&key(1), start);
        assert_eq!(flows.next_check(start), Some(start + Duration::from_secs(1)));
        assert_eq!(flows.expire(start + Duration::from_secs(1)), [1]);
    }

    #[test]
    fn one_client_has_a_flow_for_each_local_address() {
        let now = Instant::now();
        let mut flows = table();
        let other = FlowKey {
            local: IpAddr::from([192, 0, 2, 11]),
            ..key(1)
        };
        flows.insert(key(1), 1, now);
        flows.insert(other, 2, now);
        assert_eq!(flows.find(&key(1), now), Some(&1));
        assert_eq!(flows.find(&other, now), Some(&2));
    }

    #[test]
    fn flows_of_an_endpoint_that_left_are_removed() {
        let now = Instant::now();
        let mut flows = table();
        for client in 1..=4 {
            flows.insert(key(client), client % 2, now);
        }
        assert_eq!(flows.retain(|_, endpoint| *endpoint == 0), [1, 1]);
        assert_eq!(flows.len(), 2);
        assert_eq!(flows.insert(key(2), 7, now), Some(0));
        assert_eq!(flows.remove_if(&key(2), |value| *value == 0), None);
        assert_eq!(flows.remove_if(&key(2), |value| *value == 7), Some(7));
    }

    #[test]
    fn the_oldest_flow_without_a_reply_is_the_first_to_make_room() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut flows = table();
        for client in 1..=3 {
            flows.insert(key(client), client, at(client.into()));
        }
        flows.reply(&key(1), at(3));
        assert_eq!(flows.remove_unanswered(), Some(2));
        assert_eq!(flows.remove_unanswered(), Some(3));
        assert_eq!(flows.remove_unanswered(), None);
        assert_eq!(flows.find(&key(1), at(3)), Some(&1));
    }

    #[test]
    fn the_longest_timeouts_are_no_overflow() {
        let now = Instant::now();
        let mut flows = FlowTable::new(FlowTimeouts {
            first_reply: Duration::MAX,
            idle: Duration::MAX,
        });
        flows.insert(key(1), 1, now);
        assert!(flows.next_check(now) > Some(now));
    }

    proptest! {
        #[test]
        fn a_flow_ends_exactly_when_its_timeout_has_passed(
            steps in prop::collection::vec((0u8..5, 0u16..3, 0u64..12), 1..100)
        ) {
            let timeouts = FlowTimeouts { first_reply: Duration::from_secs(10), idle: Duration::from_secs(4) };
            let mut flows = FlowTable::new(timeouts);
            let mut model: HashMap<u16, (Instant, bool)> = HashMap::new();
            let mut now = Instant::now();
            for (what, client, seconds) in steps {
                now += Duration::from_secs(seconds);
                let mut ended: Vec<u16> = flows.expire(now);
                ended.sort_unstable();
                let timeout = |has_reply| if has_reply { timeouts.idle } else { timeouts.first_reply };
                let mut expected: Vec<u16> = Vec::new();
                model.retain(|client, (last, has_reply)| {
                    let lives = *last + timeout(*has_reply) > now;
                    if !lives {
                        expected.push(*client);
                    }
                    lives
                });
                expected.sort_unstable();
                prop_assert_eq!(ended, expected);
                match what {
                    0 => {
                        flows.insert(key(client), client, now);
                        model.insert(client, (now, false));
                    }
                    1 | 2 => {
                        let found = flows.find(&key(client), now).is_some();
                        prop_assert_eq!(found, model.contains_key(&client));
                        model.entry(client).and_modify(|flow| flow.0 = now);
                    }
                    3 => {
                        let found = flows.reply(&key(client), now);
                        prop_assert_eq!(found, model.contains_key(&client));
                        model.entry(client).and_modify(|flow| *flow = (now, true));
                    }
                    _ => {
                        flows.remove(&key(client));
                        model.remove(&client);
                    }
                }
                prop_assert_eq!(flows.len(), model.len());
                prop_assert_eq!(flows.unanswered.len() + flows.answered.len(), model.len());
                let unanswered = model.values().filter(|(_, has_reply)| !has_reply).count();
                prop_assert_eq!(flows.unanswered.len(), unanswered);
            }
        }
    }
}
