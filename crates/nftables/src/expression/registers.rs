//! Which registers an expression reads and writes.

use crate::expression::lengths::{ct_length, meta_length};
use crate::expression::{Expression, FibResult, RouteKey, SocketKey, XfrmKey};
use crate::register::Register;
use crate::set::{MapData, Set};
use crate::uapi::{IFNAMSIZ, NFPROTO_IPV6};
use crate::verdict::Data;

/// Registers from the first one, and a number of bytes.
pub(crate) type Access = (Register, u32);

impl Expression {
    /// What the expression reads. `set` finds a set by name.
    pub(crate) fn reads<'s>(&self, set: impl Fn(&str) -> Option<&'s Set>) -> Vec<Access> {
        let key = |name: &str, register| set(name).map(|set| (register, set.key_length));
        let data = |name: &str, register| match set(name)?.data? {
            MapData::Values { length, .. } => Some((register, length)),
            MapData::Verdicts | MapData::Objects(_) => None,
        };
        let one = |register: Option<Register>, length| register.map(|register| (register, length));
        match self {
            Expression::PayloadSet(set) => vec![(set.source, set.length)],
            Expression::MetaSet(set) => vec![(set.source, meta_length(set.key))],
            Expression::ConnectionTrackingSet(set) => vec![(set.source, ct_length(set.key).unwrap_or(4))],
            Expression::ExtensionHeaderSet(set) => vec![(set.source, set.length)],
            Expression::Hash(hash) => one(hash.source, hash.length.unwrap_or(0)).into_iter().collect(),
            Expression::Compare(compare) => vec![(compare.source, compare.value.len() as u32)],
            Expression::Range(range) => vec![(range.source, range.from.len() as u32)],
            Expression::Bitwise(bitwise) => {
                let second = one(bitwise.second_source, bitwise.length);
                std::iter::once((bitwise.source, bitwise.length))
                    .chain(second)
                    .collect()
            }
            Expression::ByteOrder(order) => vec![(order.source, order.length)],
            Expression::Lookup(lookup) => key(&lookup.set, lookup.source).into_iter().collect(),
            Expression::Dynset(dynset) => {
                let data = dynset.data.and_then(|register| data(&dynset.set, register));
                key(&dynset.set, dynset.key).into_iter().chain(data).collect()
            }
            Expression::ObjectMap(map) => key(&map.set, map.source).into_iter().collect(),
            Expression::Nat(nat) => {
                let address = address_length(nat.family);
                [
                    one(nat.address, address),
                    one(nat.last_address, address),
                    one(nat.port, 2),
                    one(nat.last_port, 2),
                ]
                .into_iter()
                .flatten()
                .collect()
            }
            Expression::Masquerade(masquerade) => [one(masquerade.port, 2), one(masquerade.last_port, 2)]
                .into_iter()
                .flatten()
                .collect(),
            Expression::Redirect(redirect) => [one(redirect.port, 2), one(redirect.last_port, 2)]
                .into_iter()
                .flatten()
                .collect(),
            Expression::Tproxy(tproxy) => {
                let address = one(tproxy.address, address_length(tproxy.family));
                [address, one(tproxy.port, 2)].into_iter().flatten().collect()
            }
            Expression::Duplicate(duplicate) => [one(duplicate.address, 4), one(duplicate.device, 4)]
                .into_iter()
                .flatten()
                .collect(),
            Expression::Forward(forward) => {
                let address = forward.family.map_or(4, address_length);
                std::iter::once((forward.device, 4))
                    .chain(one(forward.address, address))
                    .collect()
            }
            Expression::Queue(queue) => one(queue.source, 2).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// What the expression writes. `set` finds a set by name.
    pub(crate) fn writes<'s>(&self, set: impl Fn(&str) -> Option<&'s Set>) -> Option<Access> {
        match self {
            Expression::Immediate(immediate) => match &immediate.data {
                Data::Value(value) => Some((immediate.destination, value.len() as u32)),
                Data::Verdict(_) => None,
            },
            Expression::Payload(payload) => Some((payload.destination, payload.length)),
            Expression::Meta(meta) => Some((meta.destination, meta_length(meta.key))),
            // The length of addresses depends on the family of the packet.
            Expression::ConnectionTracking(ct) => Some((ct.destination, ct_length(ct.key).unwrap_or(16))),
            Expression::ExtensionHeader(header) => Some((header.destination, header.length.max(1))),
            Expression::Fib(fib) => Some(match fib.result {
                FibResult::OutputName => (fib.destination, IFNAMSIZ as u32),
                _ => (fib.destination, 4),
            }),
            Expression::Route(route) => Some(match route.key {
                RouteKey::NextHop6 => (route.destination, 16),
                RouteKey::MaximumSegment => (route.destination, 2),
                RouteKey::Xfrm => (route.destination, 1),
                _ => (route.destination, 4),
            }),
            Expression::Socket(socket) => Some(match socket.key {
                SocketKey::Mark => (socket.destination, 4),
                SocketKey::ControlGroup => (socket.destination, 8),
                _ => (socket.destination, 1),
            }),
            Expression::OsFingerprint(osf) => Some((osf.destination, 16)),
            Expression::Tunnel(tunnel) => Some((tunnel.destination, 4)),
            Expression::Xfrm(xfrm) => Some(match xfrm.key {
                XfrmKey::Destination6 | XfrmKey::Source6 => (xfrm.destination, 16),
                _ => (xfrm.destination, 4),
            }),
            Expression::NumberGenerator(generator) => Some((generator.destination, 4)),
            Expression::Hash(hash) => Some((hash.destination, 4)),
            Expression::Inner(inner) => inner.expression.writes(set),
            Expression::Bitwise(bitwise) => Some((bitwise.destination, bitwise.length)),
            Expression::ByteOrder(order) => Some((order.destination, order.length)),
            Expression::Lookup(lookup) => match set(&lookup.set)?.data? {
                MapData::Values { length, .. } => Some((lookup.destination?, length)),
                MapData::Verdicts | MapData::Objects(_) => None,
            },
            _ => None,
        }
    }
}

fn address_length(family: u32) -> u32 {
    if family == u32::from(NFPROTO_IPV6) { 16 } else { 4 }
}
