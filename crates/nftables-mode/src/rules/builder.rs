//! Expressions and rules of a table.

use kernlink_nftables::{
    Bitwise, Chain, Compare, CompareOperator, ConnectionTracking, ConnectionTrackingKey, Expression, Fib,
    FibFlags, FibResult, Immediate, Lookup, LookupFlags, Meta, MetaKey, MetaSet, Nat, NatKind,
    NumberGenerator, NumberGeneratorKind, Payload, PayloadBase, Register, Reject, RejectKind, Rule,
    TableFamily, TableKey, Value, Verdict,
};

use super::{Parameters, Part, Pods};
use crate::layout::SetName;

/// Ends of types of addresses in `fib`: an address of this node.
const RTN_LOCAL: u32 = 2;
/// The bit of new connections in `ct state`.
const NEW: u32 = 8;
/// The bit in `ct status` of a connection whose destination was translated.
const DNAT: u32 = 0x20;
/// The ICMP codes of an unreachable port.
const PORT_UNREACHABLE: [u8; 2] = [3, 4];

/// Adds chains and rules to a part of a table.
pub(super) struct Builder<'a> {
    pub(super) parameters: &'a Parameters,
    pub(super) table: TableKey,
    pub(super) part: Part,
    /// The number of registers of an address.
    pub(super) address: u32,
}

impl Builder<'_> {
    // Registers.

    /// The first register after the key of a frontend.
    pub(super) fn after_key(&self) -> u32 {
        self.address + 2
    }

    /// The register of the number of a service port with session affinity; the client follows it, and an endpoint precedes it.
    pub(super) fn pool(&self) -> u32 {
        self.after_key() + self.address + 1
    }

    pub(super) fn address_length(&self) -> u32 {
        self.address * 4
    }

    // Expressions.

    pub(super) fn source(&self, register: u32) -> Expression {
        self.load_address(register, [12, 8])
    }

    pub(super) fn destination(&self, register: u32) -> Expression {
        self.load_address(register, [16, 24])
    }

    /// The address at this offset of the header, in IPv4 and in IPv6.
    fn load_address(&self, register: u32, offsets: [u32; 2]) -> Expression {
        let offset = offsets[self.parameters.family.index()];
        let register = Register::data(register);
        Payload::new(register, PayloadBase::Network, offset, self.address_length()).into()
    }

    /// Destination address, protocol and destination port, in the first registers.
    pub(super) fn key(&self) -> Vec<Expression> {
        let mut key = vec![self.destination(0)];
        key.extend(self.protocol_and_port(self.address));
        key
    }

    pub(super) fn protocol_and_port(&self, register: u32) -> [Expression; 2] {
        [
            Meta::new(MetaKey::TransportProtocol, Register::data(register)).into(),
            self.port(register + 1),
        ]
    }

    pub(super) fn port(&self, register: u32) -> Expression {
        Payload::new(Register::data(register), PayloadBase::Transport, 2_u32, 2_u32).into()
    }

    pub(super) fn lookup(set: SetName, source: u32) -> Expression {
        Lookup::new(set.text(), Register::data(source)).into()
    }

    pub(super) fn lookup_missing(set: SetName, source: u32) -> Expression {
        Lookup::new(set.text(), Register::data(source))
            .with_flags(LookupFlags::INVERT)
            .into()
    }

    pub(super) fn value_of(set: SetName, source: u32, destination: u32) -> Expression {
        Lookup::new(set.text(), Register::data(source))
            .with_destination(Register::data(destination))
            .into()
    }

    /// The timeout of a service port with session affinity, then its number.
    pub(super) fn find_timeout(&self) -> Vec<Expression> {
        let mut expressions = self.key();
        expressions.push(Self::value_of(SetName::AffinityPools, 0, self.pool() - 1));
        expressions
    }

    /// The same, and the client after it.
    ///
    /// `nft` does not know that a map writes several registers, and aborts if a rule uses the first one of them as a key, or as the value of an element.
    /// So a rule uses the later ones only, and 0 is written to them before: `nft` prints this 0; without it, it would leave the statement out,
    /// and print an error.
    pub(super) fn find_client(&self) -> Vec<Expression> {
        let pool = self.pool();
        let mut expressions = vec![Self::zero(pool, 4)];
        expressions.extend(self.find_timeout());
        expressions.push(self.source(pool + 1));
        expressions
    }

    /// Continues if the number of the class is less than this one.
    pub(super) fn is_less(&self, classes: SetName, number: u16) -> Vec<Expression> {
        let register = self.after_key();
        let mut expressions = self.key();
        expressions.push(Self::value_of(classes, 0, register));
        let compare = Compare::new(
            Register::data(register),
            CompareOperator::Less,
            Value::port(number),
        );
        expressions.push(compare.into());
        expressions
    }

    /// Continues if the frontend is in a set.
    pub(super) fn is_in(&self, set: SetName) -> Vec<Expression> {
        let mut expressions = self.key();
        expressions.push(Self::lookup(set, 0));
        expressions
    }

    /// Continues if the frontend is in a map, in which no value is `unused`. Before Linux 6.5, a lookup in a map must write the value to a register.
    pub(super) fn has_value(&self, map: SetName, unused: Value) -> Vec<Expression> {
        let register = self.after_key();
        let mut expressions = self.key();
        expressions.push(Self::value_of(map, 0, register));
        expressions.push(Compare::new(Register::data(register), CompareOperator::NotEqual, unused).into());
        expressions
    }

    pub(super) fn verdict(verdict: Verdict) -> Expression {
        Immediate::verdict(verdict).into()
    }

    pub(super) fn goto(chain: impl Into<Box<str>>) -> Expression {
        Self::verdict(Verdict::Goto(chain.into()))
    }

    pub(super) fn jump(chain: impl Into<Box<str>>) -> Expression {
        Self::verdict(Verdict::Jump(chain.into()))
    }

    /// Continues if any of these bits of a register is set.
    pub(super) fn has_bits(register: u32, bits: u32) -> [Expression; 2] {
        Self::bits(register, bits, CompareOperator::NotEqual)
    }

    /// Continues if none of these bits of a register is set, or, with [`NotEqual`](CompareOperator::NotEqual), any of them.
    fn bits(register: u32, bits: u32, zero: CompareOperator) -> [Expression; 2] {
        let register = Register::data(register);
        [
            Bitwise::mask_xor(register, Value::host_u32(bits), Value::host_u32(0)).into(),
            Compare::new(register, zero, Value::host_u32(0)).into(),
        ]
    }

    /// Continues with packets of connections whose destination was translated, or with all others.
    pub(super) fn is_translated(is: bool) -> Vec<Expression> {
        let status = ConnectionTracking::new(ConnectionTrackingKey::Status, Register::data(0));
        let mut translated = vec![status.into()];
        let zero = if is {
            CompareOperator::NotEqual
        } else {
            CompareOperator::Equal
        };
        translated.extend(Self::bits(0, DNAT, zero));
        translated
    }

    /// Continues with new connections.
    pub(super) fn is_new() -> Vec<Expression> {
        let mut new = vec![ConnectionTracking::new(ConnectionTrackingKey::State, Register::data(0)).into()];
        new.extend(Self::has_bits(0, NEW));
        new
    }

    pub(super) fn set_mark(&self) -> Vec<Expression> {
        let (register, mark) = (Register::data(0), self.parameters.mark);
        vec![
            Meta::new(MetaKey::Mark, register).into(),
            Bitwise::mask_xor(register, Value::host_u32(!mark), Value::host_u32(mark)).into(),
            MetaSet::new(MetaKey::Mark, register).into(),
        ]
    }

    /// Continues with packets from pods of this node, or with all others. `None` if they are not recognised.
    pub(super) fn is_from_pods(&self, is: CompareOperator) -> Option<Vec<Expression>> {
        let register = Register::data(0);
        let expressions = match self.parameters.pods.as_ref()? {
            Pods::Network(net) => {
                let mut expressions = vec![self.source(0)];
                let address = Value::from(net.trunc().addr());
                if net.prefix_len() < net.max_prefix_len() {
                    let zero = Value::new(&vec![0; address.len()]);
                    expressions.push(Bitwise::mask_xor(register, net.netmask().into(), zero).into());
                }
                expressions.push(Compare::new(register, is, address).into());
                expressions
            }
            Pods::Interface(name) => vec![
                Meta::new(MetaKey::InputName, register).into(),
                Compare::new(register, is, Value::interface_name(name)).into(),
            ],
            Pods::Prefix(prefix) => vec![
                Meta::new(MetaKey::InputName, register).into(),
                Compare::new(register, is, Value::new(prefix.as_bytes())).into(),
            ],
        };
        Some(expressions)
    }

    /// Continues with packets from an address of this node.
    pub(super) fn is_from_node() -> [Expression; 2] {
        let register = Register::data(0);
        [
            Fib::new(register, FibResult::AddressType, FibFlags::SOURCE).into(),
            Compare::new(register, CompareOperator::Equal, Value::host_u32(RTN_LOCAL)).into(),
        ]
    }

    /// Writes 0 to registers from this one on.
    pub(super) fn zero(register: u32, length: u32) -> Expression {
        let zero = vec![0; usize::try_from(length).unwrap_or_default()];
        Immediate::new(Register::data(register), Value::new(&zero)).into()
    }

    /// The endpoint of a client. The field before it overwrites the port of the frontend, which is to be read again.
    pub(super) fn find_endpoint(&self, clients: SetName, pool: u32) -> [Expression; 3] {
        let endpoint = self.after_key();
        [
            Self::zero(endpoint, self.address_length()),
            Self::zero(endpoint + self.address, 2),
            Self::value_of(clients, pool, endpoint - 1),
        ]
    }

    pub(super) fn random(register: u32, bits: u32) -> Expression {
        NumberGenerator::new(
            Register::data(register),
            1_u32 << bits,
            NumberGeneratorKind::Random,
        )
        .into()
    }

    /// To the address and port in registers from this one on.
    pub(super) fn translate(&self, register: u32) -> Expression {
        let protocol = TableFamily::from(self.parameters.family).number();
        Nat::new(NatKind::Destination, u32::from(protocol))
            .with_address(Register::data(register))
            .with_port(Register::data(register + self.address))
            .into()
    }

    pub(super) fn reject(&self) -> Expression {
        Reject::new(RejectKind::Icmp)
            .with_code(Some(PORT_UNREACHABLE[self.parameters.family.index()]))
            .into()
    }

    // Chains and rules.

    pub(super) fn chain(&mut self, name: impl Into<Box<str>>) {
        let chain = Chain::new(self.table.chain(name));
        self.part.chains.push(chain);
    }

    pub(super) fn rule(&mut self, chain: impl Into<Box<str>>, expressions: Vec<Expression>) {
        let rule = Rule::new(self.table.chain(chain), expressions);
        self.part.rules.push(rule);
    }

    /// A rule with a client of a service port, which `nft` prints with a 0 as the number of the service port.
    pub(super) fn rule_of_client(
        &mut self,
        chain: impl Into<Box<str>>,
        expressions: Vec<Expression>,
        comment: &str,
    ) {
        let comment = format!("0x0 is the second value in @affinity-pools; {comment}");
        let rule = Rule::new(self.table.chain(chain), expressions).with_comment(&comment);
        self.part.rules.push(rule);
    }
}
