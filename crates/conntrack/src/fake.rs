//! The fake.

use std::collections::{BTreeMap, HashMap};

use kernlink_base::Protocol;
use kernlink_netlink::{Errno, Refusal};

use crate::client::Conntrack;
use crate::deletion::Deletion;
use crate::error::Error;
use crate::filter::Filter;
use crate::flow::{Flow, FlowKey, Labels};
use crate::flow_update::FlowUpdate;
use crate::flows::Flows;
use crate::new_flow::NewFlow;
use crate::operation::{FlushScope, Operation};
use crate::protocol_state::{ProtocolState, SctpState, TcpState};
use crate::statistics::Totals;
use crate::status::Status;
use crate::tuple::{ProtocolPart, Tuple};
use crate::zone::{Zone, ZoneDirection};

/// A connection-tracking table in memory, which refuses invalid operations with the same errors as the kernel.
///
/// It has no clock and no packets: a flow ends only when it is deleted or its timeout is set to 0.
#[derive(Clone, Debug)]
pub struct Fake {
    flows: BTreeMap<u32, Flow>,
    /// Both tuples of every flow, each with the zone id of its direction.
    index: HashMap<(u16, Tuple), u32>,
    next_id: u32,
    /// Ids by original tuple and zone id. The kernel computes an id from the flow's address in memory and its original tuple, and
    /// uses the address again soon: here a later flow with the same original tuple always gets the same id.
    ids: HashMap<(u16, Tuple), u32>,
    has_labels: bool,
    limit: u32,
    helpers: Vec<(String, Protocol)>,
    has_permission: bool,
}

impl Default for Fake {
    fn default() -> Self {
        Fake::new()
    }
}

impl Fake {
    /// An empty table for 262 144 flows, without helpers and labels, of a caller with all permissions.
    #[must_use]
    pub fn new() -> Self {
        Fake {
            flows: BTreeMap::new(),
            index: HashMap::new(),
            next_id: 0x1234_0000,
            ids: HashMap::new(),
            has_labels: false,
            limit: 262_144,
            helpers: Vec::new(),
            has_permission: true,
        }
    }

    /// Sets the maximum number of flows; 0 is no limit.
    #[must_use]
    pub fn with_limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Gives new flows room for labels, as if a rule used labels.
    #[must_use]
    pub fn with_labels(mut self) -> Self {
        self.has_labels = true;
        self
    }

    /// Adds a helper for a protocol.
    #[must_use]
    pub fn with_helper(mut self, name: impl Into<String>, protocol: Protocol) -> Self {
        self.helpers.push((name.into(), protocol));
        self
    }

    /// Refuses every request, as if the caller lacked `CAP_NET_ADMIN`.
    #[must_use]
    pub fn without_permission(mut self) -> Self {
        self.has_permission = false;
        self
    }

    /// Adds a flow with all its fields, such as counters, status bits and labels. It has room for labels if `labels` is set. An
    /// `id` that is 0 or used by another flow is replaced.
    ///
    /// # Errors
    /// [`is_already_exists`](Error::is_already_exists) if a flow with one of the tuples exists.
    pub fn insert(&mut self, mut flow: Flow) -> Result<FlowKey, Error> {
        let taken = |errno| Error::Request {
            attempt: "insert a flow",
            source: refused(errno),
        };
        if self
            .places(&flow)
            .iter()
            .any(|place| self.index.contains_key(place))
        {
            return Err(taken(Errno::EEXIST));
        }
        if flow.id == 0 || self.flows.contains_key(&flow.id) {
            let [place, _] = self.places(&flow);
            flow.id = *self.ids.entry(place).or_insert_with(|| {
                self.next_id = self.next_id.wrapping_add(1);
                self.next_id
            });
        }
        for place in self.places(&flow) {
            self.index.insert(place, flow.id);
        }
        let key = flow.key();
        self.flows.insert(flow.id, flow);
        Ok(key)
    }

    fn places(&self, flow: &Flow) -> [(u16, Tuple); 2] {
        [
            (flow.zone.id_in(ZoneDirection::Original), flow.original),
            (flow.zone.id_in(ZoneDirection::Reply), flow.reply),
        ]
    }

    /// Looks up the zone id of the original direction first, then that of the reply direction, as the kernel does.
    fn find(&self, key: &FlowKey) -> Option<u32> {
        [ZoneDirection::Original, ZoneDirection::Reply]
            .into_iter()
            .find_map(|direction| self.index.get(&(key.zone.id_in(direction), key.tuple)))
            .copied()
    }

    fn remove(&mut self, id: u32) {
        if let Some(flow) = self.flows.remove(&id) {
            for place in self.places(&flow) {
                self.index.remove(&place);
            }
        }
    }

    fn apply(&mut self, operation: &Operation) -> Result<(), Error> {
        operation.check().map_err(|problem| Error::Invalid {
            operation: Box::new(operation.clone()),
            problem,
        })?;
        let done = match operation {
            _ if !self.has_permission => Err(Errno::EPERM),
            Operation::Add(flow) => self.add_flow(flow),
            Operation::Ensure(flow) => match self.find(&flow.key()) {
                None => self.add_flow(flow),
                Some(id) => {
                    let existing = self.flows.get(&id);
                    // The bits of the flow stay set.
                    let status = existing.map_or(flow.status, |existing| existing.status | flow.status);
                    let mut update = FlowUpdate::new()
                        .with_timeout(flow.timeout)
                        .with_mark(flow.mark)
                        .with_status(status);
                    update.tcp_state = flow.tcp_state;
                    update.protocol_state = flow.protocol_state;
                    update.labels = flow.labels.map(|labels| (labels, Labels(u128::MAX)));
                    let helper = existing.and_then(|flow| flow.helper.as_deref());
                    // The kernel sets these only when a flow begins.
                    if flow.source_nat.is_some()
                        || flow.destination_nat.is_some()
                        || flow.master.is_some()
                        || (flow.helper.is_some() && flow.helper.as_deref() != helper)
                    {
                        Err(Errno::EOPNOTSUPP)
                    } else {
                        self.update_flow(id, &update)
                    }
                }
            },
            Operation::Update(key, update) => match self.find(key) {
                Some(id) => self.update_flow(id, update),
                None => Err(Errno::ENOENT),
            },
            Operation::Delete(key) => match self.find(key) {
                Some(id) if key.id.is_none_or(|key_id| key_id == id) => {
                    self.remove(id);
                    Ok(())
                }
                _ => Err(Errno::ENOENT),
            },
            Operation::DeleteMatching(filter) => {
                self.remove_matching(filter);
                Ok(())
            }
            Operation::Flush(scope) => {
                self.remove_matching(&scope.filter());
                Ok(())
            }
        };
        done.map_err(|errno| {
            let (operation, source) = (Box::new(operation.clone()), refused(errno));
            if errno == Errno::EPERM && self.has_permission {
                Error::TimeoutFixed { operation, source }
            } else {
                Error::Failed { operation, source }
            }
        })
    }

    fn remove_matching(&mut self, filter: &Filter) -> u64 {
        let ids: Vec<u32> = self
            .flows
            .values()
            .filter(|flow| filter.matches(flow))
            .map(|flow| flow.id)
            .collect();
        for id in &ids {
            self.remove(*id);
        }
        ids.len() as u64
    }

    fn add_flow(&mut self, new: &NewFlow) -> Result<(), Errno> {
        let mut reply = new
            .reply
            .or_else(|| new.original.inverted())
            .ok_or(Errno::EINVAL)?;
        let mut status = change_status(Status::CONFIRMED, new.status)?;
        if let Some(target) = new.destination_nat {
            reply.source = target.address;
            if let (ProtocolPart::Ports { source, .. }, Some(port)) = (&mut reply.part, target.port) {
                *source = port;
            }
            status |= Status::DST_NAT;
        }
        if let Some(target) = new.source_nat {
            reply.destination = target.address;
            if let (ProtocolPart::Ports { destination, .. }, Some(port)) = (&mut reply.part, target.port) {
                *destination = port;
            }
            status |= Status::SRC_NAT;
        }
        if status.intersects(Status::SRC_NAT | Status::DST_NAT) {
            status |= Status::SRC_NAT_DONE | Status::DST_NAT_DONE;
        }
        let mut flow = Flow::new(new.original, reply);
        flow.zone = match new.zone {
            Zone { id: 0, .. } => Zone::DEFAULT,
            zone => zone,
        };
        flow.timeout = Some(new.timeout);
        flow.mark = new.mark;
        // The kernel ignores labels of a flow without room.
        flow.labels = self.has_labels.then(|| new.labels.unwrap_or_default());
        flow.use_count = 1;
        flow.protocol_state = match new.original.protocol {
            Protocol::TCP => Some(ProtocolState::Tcp {
                state: checked_state(new.tcp_state.unwrap_or(TcpState::NONE))?,
                window_scale: [0; 2],
                flags: [0; 2],
            }),
            Protocol::SCTP => Some(ProtocolState::Sctp {
                state: SctpState::NONE,
                verification_tags: [0; 2],
            }),
            _ => None,
        };
        if let (Some(new_state), Some(state)) = (new.protocol_state, &mut flow.protocol_state) {
            *state = stored_state(new_state)?;
        }
        if let Some(name) = &new.helper {
            let known = (name.clone(), new.original.protocol);
            if !self.helpers.contains(&known) {
                return Err(Errno::EOPNOTSUPP);
            }
            flow.helper = Some(name.as_str().into());
            status |= Status::HELPER;
        }
        if let Some(master) = new.master {
            let key = FlowKey::new(master).with_zone(flow.zone);
            self.find(&key).ok_or(Errno::ENOENT)?;
            flow.master = Some(Box::new(master));
            status |= Status::EXPECTED;
        }
        flow.status = status;
        if self
            .places(&flow)
            .iter()
            .any(|place| self.index.contains_key(place))
        {
            return Err(Errno::EEXIST);
        }
        if self.limit != 0 && self.flows.len() >= self.limit as usize {
            return Err(Errno::ENOMEM);
        }
        // A flow with a timeout of 0 ends at once.
        if new.timeout.is_zero() {
            return Ok(());
        }
        self.insert(flow).map(drop).map_err(|_| Errno::EEXIST)
    }

    fn update_flow(&mut self, id: u32, update: &FlowUpdate) -> Result<(), Errno> {
        let flow = self.flows.get_mut(&id).ok_or(Errno::ENOENT)?;
        // In the order of the kernel: changes before a refused one are kept.
        if let Some(timeout) = update.timeout {
            if flow.status.contains(Status::FIXED_TIMEOUT) {
                return Err(Errno::EPERM);
            }
            flow.timeout = Some(timeout);
        }
        if let Some(status) = update.status {
            flow.status = change_status(flow.status, status)?;
        }
        if let (Some(new_state), Some(ProtocolState::Tcp { state, .. })) =
            (update.tcp_state, &mut flow.protocol_state)
        {
            *state = checked_state(new_state)?;
        }
        if let (Some(new_state), Some(state)) = (update.protocol_state, &mut flow.protocol_state) {
            *state = stored_state(new_state)?;
        }
        if let Some((mark, mask)) = update.mark {
            flow.mark = (flow.mark & !mask) | (mark & mask);
        }
        if let Some((labels, mask)) = update.labels {
            let own = flow.labels.as_mut().ok_or(Errno::ENOSPC)?;
            own.0 = (own.0 & !mask.0) | (labels.0 & mask.0);
        }
        if flow.timeout.is_some_and(|timeout| timeout.is_zero()) {
            self.remove(id);
        }
        Ok(())
    }
}

/// Status bits after a request, as the kernel computes them
/// ([`nf_ct_change_status_common`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_core.c#L2836)).
fn change_status(old: Status, requested: Status) -> Result<Status, Errno> {
    let requested = requested | Status::CONFIRMED;
    let changed = old ^ requested;
    if changed.intersects(Status::EXPECTED | Status::CONFIRMED | Status::DYING) {
        return Err(Errno::EBUSY);
    }
    if (changed & old).intersects(Status::SEEN_REPLY | Status::ASSURED) {
        return Err(Errno::EBUSY);
    }
    Ok(old | (requested - UNCHANGEABLE))
}

/// `IPS_UNCHANGEABLE_MASK`.
const UNCHANGEABLE: Status = Status::SRC_NAT_DONE
    .union(Status::DST_NAT_DONE)
    .union(Status::SRC_NAT)
    .union(Status::DST_NAT)
    .union(Status::EXPECTED)
    .union(Status::CONFIRMED)
    .union(Status::DYING)
    .union(Status::SEQ_ADJUST)
    .union(Status::TEMPLATE)
    .union(Status::UNTRACKED)
    .union(Status::OFFLOAD)
    .union(Status::HW_OFFLOAD);

/// The protocol state after a request, as the kernel computes it
/// ([`nlattr_to_tcp`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_proto_tcp.c)).
fn stored_state(new: ProtocolState) -> Result<ProtocolState, Errno> {
    const WINDOW_SCALE: u8 = 1;
    Ok(match new {
        ProtocolState::Tcp {
            state,
            window_scale,
            flags,
        } => ProtocolState::Tcp {
            state: checked_state(state)?,
            window_scale: if flags.iter().all(|flags| flags & WINDOW_SCALE != 0) {
                window_scale
            } else {
                [0; 2]
            },
            flags,
        },
        other => other,
    })
}

fn checked_state(state: TcpState) -> Result<TcpState, Errno> {
    if state > TcpState::SYN_SENT2 {
        return Err(Errno::EINVAL);
    }
    Ok(state)
}

/// A flow as it is listed: without labels if none is set.
fn as_listed(mut flow: Flow) -> Flow {
    flow.labels = flow.labels.filter(|labels| labels.0 != 0);
    flow
}

fn refused(errno: Errno) -> kernlink_netlink::Error {
    kernlink_netlink::Error::Refused(Refusal::new(errno))
}

impl Conntrack for Fake {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        operations.iter().map(|operation| self.apply(operation)).collect()
    }

    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, Error> {
        filter.check().map_err(|problem| Error::InvalidFilter {
            filter: filter.to_string(),
            problem,
        })?;
        self.check_permission("list flows")?;
        let filter = filter.clone();
        let flows = self.flows.values().filter(move |flow| filter.matches(flow));
        Ok(Flows::new(flows.cloned().map(as_listed).map(Ok)))
    }

    fn flow(&mut self, key: &FlowKey) -> Result<Flow, Error> {
        const ATTEMPT: &str = "look up a flow";
        key.tuple.check("tuple").map_err(|problem| Error::InvalidFilter {
            filter: key.to_string(),
            problem,
        })?;
        self.check_permission(ATTEMPT)?;
        self.find(key)
            .filter(|id| key.id.is_none_or(|key_id| key_id == *id))
            .and_then(|id| self.flows.get(&id))
            .cloned()
            .map(as_listed)
            .ok_or(Error::Request {
                attempt: ATTEMPT,
                source: refused(Errno::ENOENT),
            })
    }

    fn delete_matching(&mut self, filter: &Filter) -> Result<Deletion, Error> {
        let operation = Operation::DeleteMatching(filter.clone());
        operation.check().map_err(|problem| Error::Invalid {
            operation: Box::new(operation),
            problem,
        })?;
        self.check_permission("list flows")?;
        Ok(Deletion {
            deleted: Some(self.remove_matching(filter)),
            ..Deletion::default()
        })
    }

    fn delete_many(&mut self, keys: &[FlowKey]) -> Deletion {
        let mut deletion = Deletion {
            deleted: Some(0),
            ..Deletion::default()
        };
        for key in keys {
            match self.apply(&Operation::Delete(*key)) {
                Ok(()) => *deletion.deleted.get_or_insert_default() += 1,
                Err(error) if error.is_not_found() => deletion.not_found += 1,
                Err(error) => deletion.failed.push((*key, error)),
            }
        }
        deletion
    }

    fn totals(&mut self) -> Result<Totals, Error> {
        self.check_permission("count flows")?;
        Ok(Totals {
            entries: u32::try_from(self.flows.len()).unwrap_or(u32::MAX),
            limit: Some(self.limit),
        })
    }
}

impl Fake {
    fn check_permission(&self, attempt: &'static str) -> Result<(), Error> {
        if self.has_permission {
            return Ok(());
        }
        Err(Error::Request {
            attempt,
            source: refused(Errno::EPERM),
        })
    }

    /// All flows in the order of their ids, independent of permissions.
    pub fn all(&self) -> impl Iterator<Item = &Flow> {
        self.flows.values()
    }

    /// Deletes all flows, independent of permissions.
    pub fn clear(&mut self) {
        self.remove_matching(&FlushScope::All.filter());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::contract;

    fn flow(port: u16) -> NewFlow {
        let tuple = Tuple::udp(
            format!("10.0.0.1:{port}").parse().unwrap(),
            "10.0.0.2:53".parse().unwrap(),
        );
        NewFlow::new(tuple, Duration::from_secs(60))
    }

    #[test]
    fn the_fake_passes_the_contract() {
        contract::run(|check| {
            (check.run)(&mut Fake::new());
            (check.run)(&mut Fake::new().with_labels());
        })
        .unwrap();
    }

    #[test]
    fn a_full_table_refuses_flows() {
        let mut table = Fake::new().with_limit(2);
        table.add(&flow(1)).unwrap();
        table.add(&flow(2)).unwrap();
        assert!(table.add(&flow(3)).unwrap_err().is_table_full());
        assert!(table.add(&flow(2)).unwrap_err().is_already_exists());
        assert_eq!(table.totals().unwrap().entries, 2);
    }

    #[test]
    fn without_permission_every_request_is_refused() {
        let mut table = Fake::new().without_permission();
        assert!(table.add(&flow(1)).unwrap_err().is_permission_denied());
        assert!(table.list(&Filter::new()).unwrap_err().is_permission_denied());
        assert!(table.totals().unwrap_err().is_permission_denied());
    }

    #[test]
    fn helpers_and_labels_are_supported_on_request() {
        let mut table = Fake::new().with_helper("tftp", Protocol::UDP);
        table.add(&flow(1).with_helper("tftp")).unwrap();
        let found = table.flow(&flow(1).key()).unwrap();
        assert_eq!(found.helper.as_deref(), Some("tftp"));
        let labels = (Labels(1 << 7), Labels(1 << 7));
        let change = FlowUpdate::new().with_labels(labels.0, labels.1);
        assert_eq!(
            table.update(&flow(1).key(), &change).unwrap_err().errno(),
            Some(Errno::ENOSPC)
        );
        let mut with_labels = Flow::new(flow(9).original, flow(9).original.inverted().unwrap());
        with_labels.labels = Some(Labels(1));
        let key = table.insert(with_labels).unwrap();
        table.update(&key, &change).unwrap();
        assert_eq!(table.flow(&key).unwrap().labels, Some(Labels(1 << 7 | 1)));
    }
}
