//! Evaluation of packets.

use std::net::IpAddr;
use std::sync::Arc;

use super::Fake;
use super::content::{Stored, stored_key};
use super::rules::JUMP_LIMIT;
use crate::chain::{ChainType, Hook, Policy};
use crate::element::Element;
use crate::expression::{
    BitwiseOperation, CompareOperator, ConnectionTrackingKey, DynsetOperation, Expression, FibFlags,
    FibResult, LookupFlags, MetaKey, NatFlags, NatKind, NumberGeneratorKind, PayloadBase, RejectKind,
};
use crate::register::Register;
use crate::set::MapData;
use crate::table::{TableFlags, TableKey};
use crate::table_family::TableFamily;
use crate::uapi::{NFPROTO_IPV4, NFPROTO_IPV6};
use crate::value::Value;
use crate::verdict::{Data, Verdict};

/// A packet for [`Fake::evaluate`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet {
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same family.
    pub destination: IpAddr,
    /// Protocol of the transport layer.
    pub protocol: u8,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Mark.
    pub mark: u32,
    /// Name of the input device.
    pub input: Box<str>,
    /// Name of the output device.
    pub output: Box<str>,
    /// State of the connection, as bits: established 2, related 4, new 8.
    pub state: u32,
    /// Status of the connection, as bits: 0x10 source NAT, 0x20 destination NAT.
    pub status: u32,
    /// Addresses of the host.
    pub local_addresses: Vec<IpAddr>,
}

impl Packet {
    /// The first packet of a connection.
    #[must_use]
    pub fn new(source: IpAddr, destination: IpAddr, protocol: u8, destination_port: u16) -> Self {
        Packet {
            source,
            destination,
            protocol,
            source_port: 40_000,
            destination_port,
            mark: 0,
            input: "eth0".into(),
            output: "eth1".into(),
            state: NEW,
            status: 0,
            local_addresses: Vec::new(),
        }
    }
}

const NEW: u32 = 8;
const SOURCE_NAT: u32 = 0x10;
const DESTINATION_NAT: u32 = 0x20;
/// `RTN_UNICAST` and `RTN_LOCAL`.
const UNICAST: u32 = 1;
const LOCAL: u32 = 2;

/// What a hook does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PacketFate {
    /// It continues after the hook.
    Accepted,
    /// It is dropped.
    Dropped,
    /// It is dropped, and the sender gets an error.
    Rejected,
}

/// The result of [`Fake::evaluate`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketOutcome {
    /// What happens to the packet.
    pub fate: PacketFate,
    /// The packet after the hook, with translated addresses.
    pub packet: Packet,
    /// Whether the source is translated to an address of the output device.
    pub is_masqueraded: bool,
}

/// What an expression does with its rule.
enum Step {
    Continue,
    Break,
    Verdict(Verdict),
    Reject,
}

struct Evaluation {
    packet: Packet,
    table: TableKey,
    registers: [u8; 64],
    is_masqueraded: bool,
}

impl Fake {
    /// Evaluates the base chains of a hook, in the order of their priorities. Chains of type nat see new connections only.
    ///
    /// Expressions that the fake does not evaluate end their rule. It evaluates immediate, payload, meta, cmp, range, bitwise (mask
    /// and xor; and, or, xor of registers), byteorder, lookup, dynset, ct (state, status, mark), fib (type of addresses), numgen, nat,
    /// masq, redir, reject, counter and log.
    pub fn evaluate(&mut self, hook: Hook, packet: Packet) -> PacketOutcome {
        let family = match packet.source {
            IpAddr::V4(_) => TableFamily::Ip,
            IpAddr::V6(_) => TableFamily::Ip6,
        };
        let mut chains = Vec::new();
        for table in self.tables.values() {
            let key = &table.table.key;
            if ![family, TableFamily::Inet].contains(&key.family)
                || table.table.flags.contains(TableFlags::DORMANT)
            {
                continue;
            }
            for content in table.chains.values() {
                if let Some(base) = content.chain.base.as_ref().filter(|base| base.hook == hook) {
                    let name = content.chain.key.name.clone();
                    chains.push((
                        base.priority,
                        key.clone(),
                        name,
                        base.chain_type.clone(),
                        base.policy,
                    ));
                }
            }
        }
        chains.sort_by_key(|(priority, ..)| *priority);
        let mut outcome = PacketOutcome {
            fate: PacketFate::Accepted,
            packet,
            is_masqueraded: false,
        };
        for (_, table, chain, chain_type, policy) in chains {
            if chain_type == ChainType::Nat && outcome.packet.state & NEW == 0 {
                continue;
            }
            let mut evaluation = Evaluation {
                packet: outcome.packet,
                table,
                registers: [0; 64],
                is_masqueraded: outcome.is_masqueraded,
            };
            let step = self.chain(&mut evaluation, &chain, 0);
            outcome.packet = evaluation.packet;
            outcome.is_masqueraded = evaluation.is_masqueraded;
            outcome.fate = match step {
                Step::Reject => PacketFate::Rejected,
                Step::Verdict(Verdict::Drop) => PacketFate::Dropped,
                Step::Verdict(Verdict::Accept) => PacketFate::Accepted,
                _ if policy == Some(Policy::Drop) => PacketFate::Dropped,
                _ => PacketFate::Accepted,
            };
            if outcome.fate != PacketFate::Accepted {
                break;
            }
        }
        outcome
    }

    /// Evaluates a chain and those that it jumps to.
    fn chain(&mut self, evaluation: &mut Evaluation, chain: &str, depth: usize) -> Step {
        if depth > JUMP_LIMIT {
            return Step::Verdict(Verdict::Drop);
        }
        let content = self.content(&evaluation.table);
        // Packets do not change chains.
        let Some(content) = content.and_then(|table| table.chains.get(chain)).map(Arc::clone) else {
            return Step::Continue;
        };
        for rule in &content.rules {
            match self.rule(evaluation, &rule.expressions) {
                Step::Continue | Step::Break => {}
                Step::Verdict(Verdict::Return) => return Step::Continue,
                Step::Verdict(Verdict::Continue | Verdict::Break) => {}
                Step::Verdict(Verdict::Goto(target)) => return self.chain(evaluation, &target, depth + 1),
                Step::Verdict(Verdict::Jump(target)) => match self.chain(evaluation, &target, depth + 1) {
                    Step::Continue | Step::Break => {}
                    step => return step,
                },
                step => return step,
            }
        }
        Step::Continue
    }

    fn rule(&mut self, evaluation: &mut Evaluation, expressions: &[Expression]) -> Step {
        for expression in expressions {
            match self.step(evaluation, expression) {
                Some(Step::Continue) => {}
                Some(step) => return step,
                // A register or packet that does not have the bytes.
                None => return Step::Break,
            }
        }
        Step::Continue
    }

    fn step(&mut self, evaluation: &mut Evaluation, expression: &Expression) -> Option<Step> {
        let when = |condition: bool| if condition { Step::Continue } else { Step::Break };
        match expression {
            Expression::Immediate(immediate) => match &immediate.data {
                Data::Verdict(verdict) => return Some(Step::Verdict(verdict.clone())),
                Data::Value(value) => evaluation.store(immediate.destination, value.as_bytes())?,
            },
            Expression::Payload(payload) => {
                let header = evaluation.header(payload.base)?;
                let start = payload.offset as usize;
                let bytes = header.get(start..start.checked_add(payload.length as usize)?)?;
                evaluation.store(payload.destination, bytes)?;
            }
            Expression::Meta(meta) => {
                let value = evaluation.meta(meta.key)?;
                evaluation.store(meta.destination, value.as_bytes())?;
            }
            Expression::MetaSet(meta) => {
                let bytes = evaluation.load(meta.source, 4)?.try_into().ok()?;
                if meta.key == MetaKey::Mark {
                    evaluation.packet.mark = u32::from_ne_bytes(bytes);
                }
            }
            Expression::Compare(compare) => {
                let expected = compare.value.as_bytes();
                let order = evaluation.load(compare.source, expected.len())?.cmp(expected);
                return Some(when(match compare.operator {
                    CompareOperator::Equal => order.is_eq(),
                    CompareOperator::NotEqual => order.is_ne(),
                    CompareOperator::Less => order.is_lt(),
                    CompareOperator::LessOrEqual => order.is_le(),
                    CompareOperator::Greater => order.is_gt(),
                    CompareOperator::GreaterOrEqual => order.is_ge(),
                    CompareOperator::Unknown(_) => false,
                }));
            }
            Expression::Range(range) => {
                let bytes = evaluation.load(range.source, range.from.len())?;
                let is_inside = range.from.as_bytes() <= bytes && bytes <= range.to.as_bytes();
                return Some(when(is_inside == (range.operator == CompareOperator::Equal)));
            }
            Expression::Bitwise(bitwise) => {
                let length = bitwise.length as usize;
                let source = evaluation.load(bitwise.source, length)?;
                let second = match (bitwise.second_source, &bitwise.data) {
                    (Some(register), _) => evaluation.load(register, length)?,
                    (None, Some(data)) => data.as_bytes(),
                    (None, None) => &[],
                };
                let combine = |with: fn(u8, u8) -> u8| -> Vec<u8> {
                    source
                        .iter()
                        .zip(second)
                        .map(|(one, other)| with(*one, *other))
                        .collect()
                };
                let result: Vec<u8> = match bitwise.operation {
                    BitwiseOperation::MaskXor => {
                        let mask = bitwise.mask.as_ref()?.as_bytes();
                        let xor = bitwise.xor.as_ref()?.as_bytes();
                        let masked = source.iter().zip(mask).zip(xor);
                        masked.map(|((byte, mask), xor)| (byte & mask) ^ xor).collect()
                    }
                    BitwiseOperation::And => combine(|one, other| one & other),
                    BitwiseOperation::Or => combine(|one, other| one | other),
                    BitwiseOperation::Xor => combine(|one, other| one ^ other),
                    _ => return None,
                };
                evaluation.store(bitwise.destination, &result)?;
            }
            Expression::ByteOrder(order) => {
                let size = order.size as usize;
                let bytes = evaluation.load(order.source, order.length as usize)?;
                let mut bytes = bytes.to_vec();
                if cfg!(target_endian = "little") && size > 0 {
                    bytes.chunks_mut(size).for_each(<[u8]>::reverse);
                }
                evaluation.store(order.destination, &bytes)?;
            }
            Expression::Lookup(lookup) => {
                let key = evaluation.table.set(lookup.set.clone());
                let set = self.content(&evaluation.table)?.sets.get(&lookup.set)?;
                let value = Value::new(evaluation.load(lookup.source, set.key_length as usize)?);
                let found = self.elements.get(&key)?.find(set, &value, self.now);
                if lookup.flags.contains(LookupFlags::INVERT) {
                    return Some(when(found.is_none()));
                }
                let found = found?;
                match (lookup.destination, found.data) {
                    (Some(Register::VERDICT), Some(Data::Verdict(verdict))) => {
                        return Some(Step::Verdict(verdict));
                    }
                    (Some(register), Some(Data::Value(data))) => {
                        evaluation.store(register, data.as_bytes())?
                    }
                    _ => {}
                }
            }
            Expression::Dynset(dynset) => {
                let key = evaluation.table.set(dynset.set.clone());
                let set = self.content(&evaluation.table)?.sets.get(&dynset.set)?;
                let mut element = Element::new(evaluation.load(dynset.key, set.key_length as usize)?);
                if let (Some(register), Some(MapData::Values { length, .. })) = (dynset.data, set.data) {
                    element.data = Some(Data::Value(Value::new(
                        evaluation.load(register, length as usize)?,
                    )));
                }
                element.timeout = dynset.timeout.filter(|timeout| set.timeout != Some(*timeout));
                let deadline = dynset.timeout.or(set.timeout).map(|timeout| self.now + timeout);
                let limit = set.size.unwrap_or(65_535) as usize;
                let stored = self.elements.get_mut(&key)?;
                let stored_key = stored_key(&element);
                if dynset.operation == DynsetOperation::Delete {
                    return Some(when(stored.elements.remove(&stored_key).is_some()));
                }
                if let Some(existing) = stored.elements.get_mut(&stored_key) {
                    if dynset.operation == DynsetOperation::Update {
                        existing.deadline = deadline;
                    }
                } else if stored.elements.len() >= limit {
                    return Some(Step::Break);
                } else {
                    stored.elements.insert(stored_key, Stored { element, deadline });
                }
            }
            Expression::ConnectionTracking(ct) => {
                let packet = &evaluation.packet;
                let value = match ct.key {
                    ConnectionTrackingKey::State => packet.state,
                    ConnectionTrackingKey::Status => packet.status,
                    ConnectionTrackingKey::Mark => 0,
                    _ => return None,
                };
                evaluation.store(ct.destination, &value.to_ne_bytes())?;
            }
            Expression::Fib(fib) => {
                if fib.result != FibResult::AddressType {
                    return None;
                }
                let packet = &evaluation.packet;
                let address = if fib.flags.contains(FibFlags::SOURCE) {
                    packet.source
                } else {
                    packet.destination
                };
                let is_local = address.is_loopback() || packet.local_addresses.contains(&address);
                let kind = if is_local { LOCAL } else { UNICAST };
                evaluation.store(fib.destination, &kind.to_ne_bytes())?;
            }
            Expression::NumberGenerator(generator) => {
                let number = match generator.kind {
                    NumberGeneratorKind::Incremental => {
                        self.sequence = self.sequence.wrapping_add(1);
                        self.sequence.wrapping_sub(1)
                    }
                    _ => match self.fixed_random {
                        Some(number) => u64::from(number),
                        None => self.next_random(),
                    },
                };
                let number = (number % u64::from(generator.modulus.max(1))) as u32;
                let number = number.wrapping_add(generator.offset);
                evaluation.store(generator.destination, &number.to_ne_bytes())?;
            }
            Expression::Nat(nat) => {
                let length = if nat.family == u32::from(NFPROTO_IPV4) {
                    4
                } else {
                    16
                };
                let address = match nat.address {
                    Some(register) => Some(address(evaluation.load(register, length)?)?),
                    None => None,
                };
                let port = match nat.port {
                    Some(register) => {
                        Some(u16::from_be_bytes(evaluation.load(register, 2)?.try_into().ok()?))
                    }
                    None => None,
                };
                let packet = &mut evaluation.packet;
                let (old_address, old_port) = match nat.kind {
                    NatKind::Source => {
                        packet.status |= SOURCE_NAT;
                        (&mut packet.source, &mut packet.source_port)
                    }
                    _ => {
                        packet.status |= DESTINATION_NAT;
                        (&mut packet.destination, &mut packet.destination_port)
                    }
                };
                *old_address = address.unwrap_or(*old_address);
                *old_port = port.unwrap_or(*old_port);
                return Some(Step::Verdict(Verdict::Accept));
            }
            Expression::Masquerade(masquerade) => {
                evaluation.is_masqueraded = true;
                evaluation.packet.status |= SOURCE_NAT;
                if masquerade.flags.contains(NatFlags::FULLY_RANDOM) {
                    evaluation.packet.source_port = 1024 + (self.next_random() % 64_512) as u16;
                }
                return Some(Step::Verdict(Verdict::Accept));
            }
            Expression::Redirect(redirect) => {
                if let Some(register) = redirect.port {
                    let port = evaluation.load(register, 2)?.try_into().ok()?;
                    evaluation.packet.destination_port = u16::from_be_bytes(port);
                }
                evaluation.packet.status |= DESTINATION_NAT;
                return Some(Step::Verdict(Verdict::Accept));
            }
            Expression::Reject(reject) => {
                let is_one_family = [TableFamily::Ip, TableFamily::Ip6].contains(&evaluation.table.family);
                // The kernel drops without an answer.
                if reject.kind == RejectKind::Icmpx && is_one_family {
                    return Some(Step::Verdict(Verdict::Drop));
                }
                return Some(Step::Reject);
            }
            Expression::Counter(_) | Expression::Log(_) => {}
            _ => return None,
        }
        Some(Step::Continue)
    }

    /// xorshift64.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

impl Evaluation {
    fn store(&mut self, register: Register, bytes: &[u8]) -> Option<()> {
        let start = register.index()? as usize * 4;
        let end = start + bytes.len().next_multiple_of(4);
        let registers = self.registers.get_mut(start..end)?;
        registers.fill(0);
        registers.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(())
    }

    fn load(&self, register: Register, length: usize) -> Option<&[u8]> {
        let start = register.index()? as usize * 4;
        self.registers.get(start..start.checked_add(length)?)
    }

    /// The bytes of a header that the fake has: addresses, protocol and ports; the others are 0.
    fn header(&self, base: PayloadBase) -> Option<Vec<u8>> {
        let packet = &self.packet;
        match base {
            PayloadBase::Network => Some(match (packet.source, packet.destination) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    let mut header = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, packet.protocol, 0, 0];
                    header.extend(source.octets());
                    header.extend(destination.octets());
                    header
                }
                (IpAddr::V6(source), IpAddr::V6(destination)) => {
                    let mut header = vec![0x60, 0, 0, 0, 0, 20, packet.protocol, 64];
                    header.extend(source.octets());
                    header.extend(destination.octets());
                    header
                }
                _ => return None,
            }),
            PayloadBase::Transport => {
                let mut header = packet.source_port.to_be_bytes().to_vec();
                header.extend(packet.destination_port.to_be_bytes());
                header.resize(20, 0);
                Some(header)
            }
            _ => None,
        }
    }

    fn meta(&self, key: MetaKey) -> Option<Value> {
        let packet = &self.packet;
        let is_ipv4 = packet.source.is_ipv4();
        Some(match key {
            MetaKey::Mark => Value::host_u32(packet.mark),
            MetaKey::TransportProtocol => Value::protocol(packet.protocol),
            MetaKey::NetworkProtocol => Value::new(&[if is_ipv4 { NFPROTO_IPV4 } else { NFPROTO_IPV6 }]),
            MetaKey::Protocol => Value::new(&if is_ipv4 { [8, 0] } else { [0x86, 0xdd] }),
            MetaKey::InputName => Value::interface_name(&packet.input),
            MetaKey::OutputName => Value::interface_name(&packet.output),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
