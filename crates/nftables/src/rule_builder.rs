//! Rules without knowledge of registers.

use std::net::IpAddr;
use std::time::Duration;

use kernlink_base::Protocol;

use crate::chain::ChainKey;
use crate::expression::lengths::{ct_length, meta_length};
use crate::expression::{
    Bitwise, Compare, CompareOperator, ConnectionTracking, ConnectionTrackingKey, Counter, Dynset,
    DynsetOperation, Expression, Fib, FibFlags, FibResult, Immediate, Log, Lookup, LookupFlags, Masquerade,
    Meta, MetaKey, MetaSet, Nat, NatFlags, NatKind, Notrack, NumberGenerator, NumberGeneratorKind, Payload,
    PayloadBase, Range, Reject, RejectKind,
};
use crate::register::Register;
use crate::rule::Rule;
use crate::set::{MapData, Set, SetFlags};
use crate::table_family::TableFamily;
use crate::uapi::{NFPROTO_IPV4, NFPROTO_IPV6};
use crate::value::Value;
use crate::verdict::{Data, Verdict};

/// Builds a rule. Methods that load a field of the packet append it to the key; the next comparison, lookup or change of a set uses the
/// whole key. Registers are chosen by the builder.
///
/// The first error is kept and returned by [`build`](Self::build).
///
/// ```
/// use kernlink_nftables::{DataType, RuleBuilder, Set, TableFamily, TableKey};
///
/// let table = TableKey::new(TableFamily::Ip, "services");
/// let types = [DataType::Ipv4Address, DataType::Protocol, DataType::Service];
/// let frontends = Set::verdict_map(table.set("frontends"), &types);
/// let rule = RuleBuilder::new(table.chain("services"))
///     .destination_address()
///     .transport_protocol()
///     .destination_port()
///     .verdict_of(&frontends)
///     .build()?;
/// assert_eq!(rule.expressions.len(), 4);
/// // The port is missing in the key.
/// let rule = RuleBuilder::new(table.chain("services")).destination_address().verdict_of(&frontends).build();
/// assert_eq!(rule.unwrap_err().to_string(), "lookup in frontends: a key of 4 bytes; the set has keys of 12 bytes");
/// # Ok::<(), kernlink_nftables::RuleError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "the rule is made by `build`"]
pub struct RuleBuilder {
    chain: ChainKey,
    expressions: Vec<Expression>,
    /// Fields that were loaded for the next comparison or lookup, in adjacent registers.
    key: Vec<Field>,
    /// The value of the last map lookup.
    value: Option<(Register, u32)>,
    comment: Option<Box<str>>,
    is_ended: bool,
    error: Option<RuleError>,
}

#[derive(Clone, Copy, Debug)]
struct Field {
    register: Register,
    length: u32,
    is_host_byte_order: bool,
}

/// The index of the first register for values; keys have those before it.
const VALUES: u32 = 12;

/// Why a rule cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// A comparison, a lookup or a change without a key.
    #[error("{what}: no field was loaded before it")]
    NoKey {
        /// The step.
        what: Box<str>,
    },
    /// A field at the end of the rule that no comparison, lookup or change of a set uses.
    #[error("the rule ends with a field that is loaded and not used")]
    UnusedKey,
    /// A key of more bytes than there are registers for it.
    #[error("the key has more than {} bytes", VALUES * 4)]
    KeyTooLong,
    /// Lengths that differ.
    #[error("{what}: a key of {actual} bytes; {expected}")]
    Length {
        /// The step.
        what: Box<str>,
        /// The length of the key in bytes.
        actual: u32,
        /// What has which length.
        expected: Box<str>,
    },
    /// A comparison of order, or a range, with a value in the host's byte order. The kernel compares bytes.
    #[error("{what}: the field is in the host's byte order; only == and != are possible")]
    ByteOrder {
        /// The step.
        what: Box<str>,
    },
    /// A set where a map is required, or another kind of map.
    #[error("{what}: {set} is not {required}")]
    SetKind {
        /// The step.
        what: Box<str>,
        /// The set.
        set: Box<str>,
        /// What is required.
        required: &'static str,
    },
    /// A set of another table.
    #[error("{what}: the set {set} is in another table")]
    OtherTable {
        /// The step.
        what: Box<str>,
        /// The set.
        set: Box<str>,
    },
    /// A field that the family of the table does not have.
    #[error("{what} in a table of family {family}: valid in ip and ip6")]
    Family {
        /// The step.
        what: Box<str>,
        /// The family.
        family: TableFamily,
    },
    /// A message whose code is one of both families, in a table of one family.
    #[error("reject with icmpx in a table of family {family}: the kernel drops without an answer; use icmp")]
    Icmpx {
        /// The family.
        family: TableFamily,
    },
    /// A step after one that always ends the rule.
    #[error("{what}: the step before it always ends the rule")]
    Unreachable {
        /// The step.
        what: Box<str>,
    },
    /// Address translation without a value of a map that has an address and a port.
    #[error("{what}: the step before it is not a lookup of a value of {length} bytes")]
    NoValue {
        /// The step.
        what: Box<str>,
        /// The required length in bytes.
        length: u32,
    },
    /// A number that the kernel refuses.
    #[error("a random number below 0; the modulus must be at least 1")]
    Modulus,
}

impl RuleBuilder {
    /// A rule of this chain without steps.
    pub fn new(chain: ChainKey) -> Self {
        RuleBuilder {
            chain,
            expressions: Vec::new(),
            key: Vec::new(),
            value: None,
            comment: None,
            is_ended: false,
            error: None,
        }
    }

    /// The rule.
    ///
    /// # Errors
    /// The first step that cannot be built.
    pub fn build(self) -> Result<Rule, RuleError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if !self.key.is_empty() {
            return Err(RuleError::UnusedKey);
        }
        let rule = Rule::new(self.chain, self.expressions);
        Ok(match self.comment {
            Some(comment) => rule.with_comment(&comment),
            None => rule,
        })
    }

    /// Sets the comment.
    pub fn comment(mut self, comment: &str) -> Self {
        self.comment = Some(comment.into());
        self
    }

    /// Appends the source address to the key, in tables of the families ip and ip6.
    pub fn source_address(self) -> Self {
        self.address("source address", 12, 8)
    }

    /// Appends the destination address to the key.
    pub fn destination_address(self) -> Self {
        self.address("destination address", 16, 24)
    }

    /// Appends the source port of TCP, UDP or SCTP to the key. Compare the protocol too: other protocols have other bytes there.
    pub fn source_port(self) -> Self {
        self.payload(PayloadBase::Transport, 0, 2)
    }

    /// Appends the destination port of TCP, UDP or SCTP to the key.
    pub fn destination_port(self) -> Self {
        self.payload(PayloadBase::Transport, 2, 2)
    }

    /// The rule ends unless the packet has this protocol of the transport layer, one with ports, and this destination port. A field that
    /// was loaded before must have been used.
    pub fn is_to_port(self, protocol: Protocol, port: u16) -> Self {
        let rule = self.transport_protocol().equals(protocol);
        rule.destination_port().equals(Value::port(port))
    }

    /// Appends bytes of the packet to the key.
    pub fn payload(self, base: PayloadBase, offset: u32, length: u32) -> Self {
        self.load(length, false, |register| {
            Payload::new(register, base, offset, length).into()
        })
    }

    /// Appends the protocol of the transport layer to the key.
    pub fn transport_protocol(self) -> Self {
        self.meta(MetaKey::TransportProtocol)
    }

    /// Appends metadata of the packet to the key.
    pub fn meta(self, key: MetaKey) -> Self {
        let is_host = ![
            MetaKey::TransportProtocol,
            MetaKey::NetworkProtocol,
            MetaKey::Protocol,
        ]
        .contains(&key);
        self.load(meta_length(key), is_host, |register| {
            Meta::new(key, register).into()
        })
    }

    /// Appends a property of the connection to the key. Addresses of connections have no fixed length and are not supported.
    pub fn connection(self, key: ConnectionTrackingKey) -> Self {
        match ct_length(key) {
            Some(length) => self.load(length, true, |register| {
                ConnectionTracking::new(key, register).into()
            }),
            None => {
                let family = self.chain.table.family;
                self.fail(RuleError::Family {
                    what: key.to_string().into(),
                    family,
                })
            }
        }
    }

    /// Appends the type of an address in the routing table (`RTN_*`: 2 is local) to the key.
    pub fn address_type(self, flags: FibFlags) -> Self {
        self.load(4, true, |register| {
            Fib::new(register, FibResult::AddressType, flags).into()
        })
    }

    /// Appends a random number below `modulus` to the key.
    pub fn random(self, modulus: u32) -> Self {
        if modulus == 0 {
            return self.fail(RuleError::Modulus);
        }
        self.load(4, true, |register| {
            NumberGenerator::new(register, modulus, NumberGeneratorKind::Random).into()
        })
    }

    /// Changes the last field of the key: `(field & mask) ^ xor`.
    pub fn masked(mut self, mask: Value, xor: Value) -> Self {
        let Some(field) = self.key.last().copied() else {
            return self.fail(RuleError::NoKey { what: "mask".into() });
        };
        for operand in [&mask, &xor] {
            if operand.len() != field.length as usize {
                return self.fail(RuleError::Length {
                    what: "mask".into(),
                    actual: field.length,
                    expected: format!("the mask has {} bytes", operand.len()).into(),
                });
            }
        }
        self.expressions
            .push(Bitwise::mask_xor(field.register, mask, xor).into());
        self
    }

    /// The rule ends unless the key is equal to the value.
    pub fn equals(self, value: impl Into<Value>) -> Self {
        self.compare(CompareOperator::Equal, value.into())
    }

    /// The rule ends if the key is equal to the value.
    pub fn differs_from(self, value: impl Into<Value>) -> Self {
        self.compare(CompareOperator::NotEqual, value.into())
    }

    /// The rule ends unless the comparison is true. Order is that of the bytes.
    pub fn compare(mut self, operator: CompareOperator, value: Value) -> Self {
        let what = || format!("{operator} {value}");
        let is_order = !matches!(operator, CompareOperator::Equal | CompareOperator::NotEqual);
        match self.take_key(&what(), value.len() as u32, "the value has", is_order) {
            Ok(source) => {
                self.expressions
                    .push(Compare::new(source, operator, value).into());
                self
            }
            Err(error) => self.fail(error),
        }
    }

    /// The rule ends unless the key is in the range, both ends included.
    pub fn is_between(mut self, first: Value, last: Value) -> Self {
        let what = format!("range {first}-{last}");
        let length = first.len().max(last.len()) as u32;
        match self.take_key(&what, length, "the range has", true) {
            Ok(source) => {
                let range = Range::new(source, CompareOperator::Equal, first, last);
                self.expressions.push(range.into());
                self
            }
            Err(error) => self.fail(error),
        }
    }

    /// The rule ends unless the set has the key.
    pub fn is_in(self, set: &Set) -> Self {
        self.lookup(set, LookupFlags::empty())
    }

    /// The rule ends if the set has the key.
    pub fn is_not_in(self, set: &Set) -> Self {
        self.lookup(set, LookupFlags::INVERT)
    }

    fn lookup(mut self, set: &Set, flags: LookupFlags) -> Self {
        match self.take_set_key("lookup in", set) {
            Ok(source) => {
                let lookup = Lookup::new(set.key.name.clone(), source).with_flags(flags);
                self.expressions.push(lookup.into());
                self
            }
            Err(error) => self.fail(error),
        }
    }

    /// Does what a verdict map has for the key. The rule ends if it does not have the key.
    pub fn verdict_of(mut self, map: &Set) -> Self {
        if map.data != Some(MapData::Verdicts) {
            return self.wrong_kind("lookup in", map, "a verdict map");
        }
        match self.take_set_key("lookup in", map) {
            Ok(source) => {
                let lookup = Lookup::new(map.key.name.clone(), source).with_destination(Register::VERDICT);
                self.expressions.push(lookup.into());
                self
            }
            Err(error) => self.fail(error),
        }
    }

    /// Loads what a map has for the key, for the next step. The rule ends if it does not have the key.
    pub fn value_of(mut self, map: &Set) -> Self {
        let Some(MapData::Values { length, .. }) = map.data else {
            return self.wrong_kind("lookup in", map, "a map of values");
        };
        match self.take_set_key("lookup in", map) {
            Ok(source) => {
                // Long values may overwrite the key, which is not used after the lookup.
                let first = if length <= 4 * (16 - VALUES) { VALUES } else { 0 };
                let destination = Register::data(first);
                let lookup = Lookup::new(map.key.name.clone(), source).with_destination(destination);
                self.expressions.push(lookup.into());
                self.value = Some((destination, length));
                self
            }
            Err(error) => self.fail(error),
        }
    }

    /// Translates the destination to the address and port that the step before loaded from a map, whose values are address and port. Accepts the
    /// packet.
    pub fn destination_nat(self) -> Self {
        self.nat(NatKind::Destination, NatFlags::empty())
    }

    /// Translates the source to the address and port that the step before loaded from a map. Accepts the packet.
    pub fn source_nat(self) -> Self {
        self.nat(NatKind::Source, NatFlags::empty())
    }

    /// Translates the destination to a constant address, and a port if there is one. Accepts the packet.
    pub fn destination_nat_to(mut self, address: IpAddr, port: Option<u16>) -> Self {
        let value = match port {
            Some(port) => Value::concat([address.into(), Value::port(port)]),
            None => address.into(),
        };
        let first = Register::data(0);
        let family = if address.is_ipv4() {
            NFPROTO_IPV4
        } else {
            NFPROTO_IPV6
        };
        if let Err(error) = self.check_step("dnat") {
            return self.fail(error);
        }
        let mut nat = Nat::new(NatKind::Destination, u32::from(family)).with_address(first);
        if port.is_some() {
            nat = nat.with_port(Register::data(if address.is_ipv4() { 1 } else { 4 }));
        }
        self.expressions.push(Immediate::new(first, value).into());
        self.end(nat)
    }

    fn nat(mut self, kind: NatKind, flags: NatFlags) -> Self {
        let family = match self.address_length() {
            Ok(length) => length,
            Err(error) => return self.fail(error),
        };
        if let Err(error) = self.check_step(&kind.to_string()) {
            return self.fail(error);
        }
        let required = family + 4;
        match self.value.take() {
            Some((address, length)) if length == required => {
                let port = Register::from_number(address.number() + family / 4);
                let protocol = if family == 4 { NFPROTO_IPV4 } else { NFPROTO_IPV6 };
                let nat = Nat::new(kind, u32::from(protocol));
                self.end(nat.with_address(address).with_port(port).with_flags(flags))
            }
            _ => self.fail(RuleError::NoValue {
                what: kind.to_string().into(),
                length: required,
            }),
        }
    }

    /// Adds the key to a set, or renews its timeout (`update`), or deletes it. The rule ends if that fails.
    pub fn change_set(mut self, operation: DynsetOperation, set: &Set, timeout: Option<Duration>) -> Self {
        if !set.flags.contains(SetFlags::EVAL) {
            return self.wrong_kind(&format!("{operation}"), set, "a dynamic set (SetFlags::EVAL)");
        }
        if set.is_map() {
            return self.wrong_kind(&format!("{operation}"), set, "a set");
        }
        match self.take_set_key(&operation.to_string(), set) {
            Ok(key) => {
                let mut dynset = Dynset::new(set.key.name.clone(), operation, key);
                dynset.timeout = timeout;
                self.expressions.push(dynset.into());
                self
            }
            Err(error) => self.fail(error),
        }
    }

    /// Adds the key to a set, where it remains for the timeout of the set, if it has one. The rule ends if that fails: the set is full.
    pub fn add_to(self, set: &Set) -> Self {
        self.change_set(DynsetOperation::Add, set, None)
    }

    /// Sets bits of the mark: `(mark & keep) ^ toggle`.
    pub fn set_mark(self, keep: u32, toggle: u32) -> Self {
        let register = Register::data(VALUES);
        let change = Bitwise::mask_xor(register, Value::host_u32(keep), Value::host_u32(toggle));
        self.step("set mark", Meta::new(MetaKey::Mark, register))
            .step("set mark", change)
            .step("set mark", MetaSet::new(MetaKey::Mark, register))
    }

    /// Traces the packet from here on: a [`Monitor`](crate::Monitor) receives each rule that it meets (`meta nftrace set 1`).
    pub fn trace(self) -> Self {
        let register = Register::data(VALUES);
        self.step("trace", Immediate::new(register, Data::Value(Value::new(&[1]))))
            .step("trace", MetaSet::new(MetaKey::Trace, register))
    }

    /// Counts packets and bytes.
    pub fn counter(self) -> Self {
        self.step("counter", Counter::new())
    }

    /// Logs the packet with this text before it.
    pub fn log(self, prefix: &str) -> Self {
        let prefix: Option<Box<str>> = Some(prefix.into());
        self.step("log", Log::new().with_prefix(prefix))
    }

    /// Does not track the connection of the packet.
    pub fn notrack(self) -> Self {
        self.step("notrack", Notrack::new())
    }

    /// Rejects the packet. `code` is that of an ICMP message; `None` for a reset of TCP.
    ///
    /// In a table of family ip or ip6 the kernel accepts a rule with [`RejectKind::Icmpx`], and drops packets without an answer; it is refused here.
    pub fn reject(mut self, kind: RejectKind, code: Option<u8>) -> Self {
        let family = self.chain.table.family;
        if kind == RejectKind::Icmpx && [TableFamily::Ip, TableFamily::Ip6].contains(&family) {
            return self.fail(RuleError::Icmpx { family });
        }
        match self.check_step("reject") {
            Ok(()) => self.end(Reject::new(kind).with_code(code)),
            Err(error) => {
                self.error.get_or_insert(error);
                self
            }
        }
    }

    /// Masquerades the source. Accepts the packet.
    pub fn masquerade(self, flags: NatFlags) -> Self {
        match self.check_step("masquerade") {
            Ok(()) => self.end(Masquerade::new().with_flags(flags)),
            Err(error) => self.fail(error),
        }
    }

    /// Decides about the packet.
    pub fn verdict(self, verdict: Verdict) -> Self {
        match self.check_step(&verdict.to_string()) {
            // A jump returns, to the next rule.
            Ok(()) => self.end(Immediate::verdict(verdict)),
            Err(error) => self.fail(error),
        }
    }

    /// Appends an expression as it is. It must not use the registers of the key.
    pub fn expression(self, expression: impl Into<Expression>) -> Self {
        self.step("expression", expression)
    }

    fn step(mut self, what: &str, expression: impl Into<Expression>) -> Self {
        match self.check_step(what) {
            Ok(()) => {
                self.expressions.push(expression.into());
                self
            }
            Err(error) => self.fail(error),
        }
    }

    fn end(mut self, expression: impl Into<Expression>) -> Self {
        self.expressions.push(expression.into());
        self.is_ended = true;
        self
    }

    fn fail(mut self, error: RuleError) -> Self {
        self.error.get_or_insert(error);
        self
    }

    fn wrong_kind(self, what: &str, set: &Set, required: &'static str) -> Self {
        self.fail(RuleError::SetKind {
            what: what.into(),
            set: set.key.name.clone(),
            required,
        })
    }

    fn check_step(&self, what: &str) -> Result<(), RuleError> {
        if self.is_ended {
            return Err(RuleError::Unreachable { what: what.into() });
        }
        Ok(())
    }

    fn address_length(&self) -> Result<u32, RuleError> {
        match self.chain.table.family {
            TableFamily::Ip => Ok(4),
            TableFamily::Ip6 => Ok(16),
            family => Err(RuleError::Family {
                what: "address".into(),
                family,
            }),
        }
    }

    fn address(self, what: &str, ipv4: u32, ipv6: u32) -> Self {
        match self.address_length() {
            Ok(4) => self.payload(PayloadBase::Network, ipv4, 4),
            Ok(length) => self.payload(PayloadBase::Network, ipv6, length),
            Err(RuleError::Family { family, .. }) => self.fail(RuleError::Family {
                what: what.into(),
                family,
            }),
            Err(error) => self.fail(error),
        }
    }

    fn load(
        mut self,
        length: u32,
        is_host_byte_order: bool,
        expression: impl FnOnce(Register) -> Expression,
    ) -> Self {
        if let Err(error) = self.check_step("load") {
            return self.fail(error);
        }
        let used: u32 = self.key.iter().map(|field| field.length.div_ceil(4)).sum();
        if used + length.div_ceil(4) > VALUES {
            return self.fail(RuleError::KeyTooLong);
        }
        let register = Register::data(used);
        self.expressions.push(expression(register));
        self.key.push(Field {
            register,
            length,
            is_host_byte_order,
        });
        self
    }

    /// The first register of the key, which must have this length. One field has its own length, several are padded.
    fn take_key(
        &mut self,
        what: &str,
        length: u32,
        owner: &str,
        is_order: bool,
    ) -> Result<Register, RuleError> {
        self.check_step(what)?;
        let key = std::mem::take(&mut self.key);
        let Some(first) = key.first() else {
            return Err(RuleError::NoKey { what: what.into() });
        };
        let actual = match &*key {
            [field] => field.length,
            fields => fields.iter().map(|field| field.length.next_multiple_of(4)).sum(),
        };
        if actual != length {
            return Err(RuleError::Length {
                what: what.into(),
                actual,
                expected: format!("{owner} {length} bytes").into(),
            });
        }
        if is_order
            && key
                .iter()
                .any(|field| field.is_host_byte_order && field.length > 1)
        {
            return Err(RuleError::ByteOrder { what: what.into() });
        }
        Ok(first.register)
    }

    fn take_set_key(&mut self, what: &str, set: &Set) -> Result<Register, RuleError> {
        let what = format!("{what} {}", set.key.name);
        if set.key.table != self.chain.table {
            return Err(RuleError::OtherTable {
                what: what.into(),
                set: set.key.name.clone(),
            });
        }
        self.take_key(&what, set.key_length, "the set has keys of", false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataType, TableKey};

    fn table() -> TableKey {
        TableKey::new(TableFamily::Ip, "t")
    }

    fn builder() -> RuleBuilder {
        RuleBuilder::new(table().chain("c"))
    }

    #[track_caller]
    fn refused(builder: RuleBuilder, expected: &str) {
        assert_eq!(builder.build().unwrap_err().to_string(), expected);
    }

    #[test]
    fn a_port_is_compared_with_its_protocol() {
        let short = builder().is_to_port(Protocol::UDP, 53).build().unwrap();
        let long = builder().transport_protocol().equals(Protocol::UDP);
        let long = long.destination_port().equals([0, 53]).build().unwrap();
        assert_eq!(short, long);
        assert_eq!(short.to_string(), "udp dport 53");
        refused(
            builder().source_address().is_to_port(Protocol::UDP, 53),
            "== 0x11: a key of 8 bytes; the value has 1 bytes",
        );
    }

    #[test]
    fn a_key_is_added_to_a_set() {
        let set = Set::new(table().set("s"), &[DataType::Ipv4Address]);
        let dynamic = set.clone().with_flags(SetFlags::EVAL);
        let rule = |builder: RuleBuilder| builder.build().unwrap();
        let add = DynsetOperation::Add;
        assert_eq!(
            rule(builder().source_address().add_to(&dynamic)),
            rule(builder().source_address().change_set(add, &dynamic, None))
        );
        refused(
            builder().source_address().add_to(&set),
            "add: s is not a dynamic set (SetFlags::EVAL)",
        );
    }

    #[test]
    fn what_the_kernel_would_refuse_is_refused_with_the_reason() {
        let ports = Set::new(table().set("ports"), &[DataType::Service]);
        let other = Set::new(TableKey::new(TableFamily::Ip, "u").set("s"), &[DataType::Service]);
        let inet = RuleBuilder::new(TableKey::new(TableFamily::Inet, "t").chain("c"));
        refused(
            builder().source_address().is_in(&ports),
            "lookup in ports: a key of 4 bytes; the set has keys of 2 bytes",
        );
        refused(
            builder().destination_port().is_in(&other),
            "lookup in s: the set s is in another table",
        );
        refused(
            inet.source_address(),
            "source address in a table of family inet: valid in ip and ip6",
        );
        refused(
            builder()
                .meta(MetaKey::Mark)
                .compare(CompareOperator::Less, Value::host_u32(7)),
            "< 0x07000000: the field is in the host's byte order; only == and != are possible",
        );
        refused(
            builder().verdict(Verdict::Drop).counter(),
            "counter: the step before it always ends the rule",
        );
        refused(
            builder().reject(RejectKind::Icmpx, Some(1)),
            "reject with icmpx in a table of family ip: the kernel drops without an answer; use icmp",
        );
        refused(
            builder().destination_port().verdict_of(&ports),
            "lookup in: ports is not a verdict map",
        );
        refused(builder().equals([1]), "== 0x01: no field was loaded before it");
        refused(
            builder().random(0),
            "a random number below 0; the modulus must be at least 1",
        );
        refused(
            builder().destination_nat(),
            "dnat: the step before it is not a lookup of a value of 8 bytes",
        );
        refused(
            builder().destination_port().counter(),
            "the rule ends with a field that is loaded and not used",
        );
    }

    #[test]
    fn a_value_of_a_map_is_the_new_destination() {
        let types = [DataType::Ipv4Address, DataType::Mark];
        let map = Set::map(
            table().set("endpoints"),
            &types,
            &[DataType::Ipv4Address, DataType::Service],
        );
        let rule = builder()
            .destination_address()
            .random(4)
            .value_of(&map)
            .destination_nat()
            .comment("balance")
            .build()
            .unwrap();
        let nat = Nat::new(NatKind::Destination, 2_u32)
            .with_address(Register::data(12))
            .with_port(Register::data(13));
        assert_eq!(rule.expressions.last(), Some(&nat.into()));
        assert_eq!(rule.comment(), Some("balance"));
    }
}
