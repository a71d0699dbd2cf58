//! The tables: their chains and rules, which depend on the configuration only.
//!
//! Registers: the key of a frontend, which is address, protocol and port, is in the first ones. What follows them is named in `Registers`.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use kernlink_nftables::{
    BaseChain, Bitwise, ByteOrder, ByteOrderOperation, Chain, ChainType, Compare, CompareOperator,
    ConnectionTracking, ConnectionTrackingKey, Dynset, DynsetOperation, Expression, Fib, FibFlags, FibResult,
    Hook, Immediate, Lookup, LookupFlags, Masquerade, Meta, MetaKey, MetaSet, Nat, NatFlags, NatKind,
    NumberGenerator, NumberGeneratorKind, Operation, Payload, PayloadBase, Register, Reject, RejectKind,
    Rule, Table, TableFamily, TableFlags, TableKey, Value, Verdict,
};
use kernlink_services::Family;

use crate::class;
use crate::layout::SetName;
use crate::ranges;
use crate::timeouts;

/// What the rules of a family depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) family: Family,
    /// The bit of the packet mark that requests masquerading.
    pub(crate) mark: u32,
    pub(crate) masquerade_all: bool,
    /// How traffic from pods of this node is recognised. `None`: it is not.
    pub(crate) pods: Option<Pods>,
    /// The networks of cluster IPs in this family.
    pub(crate) service_cidrs: Vec<IpNet>,
}

/// How traffic from pods of this node is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pods {
    /// By its source.
    Network(IpNet),
    /// By the name of the input interface.
    Interface(Box<str>),
    /// By the first characters of the name of the input interface.
    Prefix(Box<str>),
}

/// Ends of types of addresses in `fib`: an address of this node.
const RTN_LOCAL: u32 = 2;
/// The bit of new connections in `ct state`.
const NEW: u32 = 8;
/// The bit in `ct status` of a connection whose destination was translated.
const DNAT: u32 = 0x20;
/// The ICMP codes of an unreachable port.
const PORT_UNREACHABLE: [u8; 2] = [3, 4];

/// The base chains: name, type, hook and priority.
const BASE_CHAINS: [(&str, ChainType, Hook, i32); 8] = [
    (
        "filter-prerouting-pre-dnat",
        ChainType::Filter,
        Hook::Prerouting,
        BaseChain::DSTNAT - 10,
    ),
    (
        "filter-output-pre-dnat",
        ChainType::Filter,
        Hook::Output,
        BaseChain::DSTNAT - 10,
    ),
    ("filter-input", ChainType::Filter, Hook::Input, BaseChain::FILTER),
    (
        "filter-forward",
        ChainType::Filter,
        Hook::Forward,
        BaseChain::FILTER,
    ),
    (
        "filter-output",
        ChainType::Filter,
        Hook::Output,
        BaseChain::FILTER,
    ),
    (
        "nat-prerouting",
        ChainType::Nat,
        Hook::Prerouting,
        BaseChain::DSTNAT,
    ),
    ("nat-output", ChainType::Nat, Hook::Output, BaseChain::DSTNAT),
    (
        "nat-postrouting",
        ChainType::Nat,
        Hook::Postrouting,
        BaseChain::SRCNAT,
    ),
];

/// The maps that a packet to a frontend uses: those of the frontend, or those for traffic from pods and from the node to a frontend with policy
/// `Local`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Normal,
    Short,
}

impl Variant {
    const ALL: [Self; 2] = [Variant::Normal, Variant::Short];

    fn prefix(self) -> &'static str {
        match self {
            Variant::Normal => "",
            Variant::Short => "short-",
        }
    }

    fn classes(self) -> SetName {
        match self {
            Variant::Normal => SetName::Frontends,
            Variant::Short => SetName::ShortCircuits,
        }
    }

    fn endpoints(self) -> SetName {
        match self {
            Variant::Normal => SetName::Endpoints,
            Variant::Short => SetName::ShortEndpoints,
        }
    }

    fn affinity_endpoints(self) -> SetName {
        match self {
            Variant::Normal => SetName::AffinityEndpoints,
            Variant::Short => SetName::ShortAffinityEndpoints,
        }
    }

    fn members(self) -> SetName {
        match self {
            Variant::Normal => SetName::AffinityMembers,
            Variant::Short => SetName::ShortAffinityMembers,
        }
    }
}

/// Chains and rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) chains: Vec<Chain>,
    pub(crate) rules: Vec<Rule>,
}

impl Part {
    /// The operations that add it.
    pub(crate) fn creation(&self) -> impl Iterator<Item = Operation> + '_ {
        let chains = self.chains.iter().cloned().map(Operation::add);
        chains.chain(self.rules.iter().cloned().map(Operation::add))
    }
}

/// The chains and rules of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skeleton {
    /// What no hook has.
    pub(crate) inner: Part,
    /// The base chains and their rules: with them packets reach the table.
    pub(crate) base: Part,
}

impl Skeleton {
    pub(crate) fn new(table: &TableKey, parameters: &Parameters) -> Self {
        let mut builder = Builder {
            parameters,
            table: table.clone(),
            part: Part::default(),
            address: match parameters.family {
                Family::Ipv4 => 1,
                Family::Ipv6 => 4,
            },
        };
        builder.choices();
        builder.affinity();
        builder.kinds();
        builder.firewall();
        builder.checks();
        let inner = std::mem::take(&mut builder.part);
        builder.hooks();
        Self {
            inner,
            base: builder.part,
        }
    }
}

/// The operations that make a table with its sets and what no hook has.
pub(crate) fn creation(
    table: &TableKey,
    skeleton: &Skeleton,
    family: Family,
    flags: TableFlags,
) -> Vec<Operation> {
    let mut operations = vec![Operation::add(Table::new(table.clone()).with_flags(flags))];
    let sets = SetName::ALL.iter().map(|name| name.set(table, family));
    operations.extend(sets.map(Operation::add));
    operations.extend(skeleton.inner.creation());
    operations
}

/// The chain that leads to the rule for the timeout of a service port with session affinity.
const RENEWAL: &str = "affinity-renewal";

/// The number of timeouts whose rules are in one chain.
const RENEWALS: usize = 9;

/// The chain that refuses packets to cluster IPs.
pub(crate) const CHECK_CLUSTER_IPS: &str = "check-cluster-ips";

struct Builder<'a> {
    parameters: &'a Parameters,
    table: TableKey,
    part: Part,
    /// The number of registers of an address.
    address: u32,
}

impl Builder<'_> {
    // Registers.

    /// The first register after the key of a frontend.
    fn after_key(&self) -> u32 {
        self.address + 2
    }

    /// The register of the number of a service port with session affinity; the client follows it, and an endpoint precedes it.
    fn pool(&self) -> u32 {
        self.after_key() + self.address + 1
    }

    fn address_length(&self) -> u32 {
        self.address * 4
    }

    // Expressions.

    fn source(&self, register: u32) -> Expression {
        let offset = match self.parameters.family {
            Family::Ipv4 => 12_u32,
            Family::Ipv6 => 8,
        };
        Payload::new(
            Register::data(register),
            PayloadBase::Network,
            offset,
            self.address_length(),
        )
        .into()
    }

    fn destination(&self, register: u32) -> Expression {
        let offset = match self.parameters.family {
            Family::Ipv4 => 16_u32,
            Family::Ipv6 => 24,
        };
        Payload::new(
            Register::data(register),
            PayloadBase::Network,
            offset,
            self.address_length(),
        )
        .into()
    }

    /// Destination address, protocol and destination port, in the first registers.
    fn key(&self) -> Vec<Expression> {
        let mut key = vec![self.destination(0)];
        key.extend(self.protocol_and_port(self.address));
        key
    }

    fn protocol_and_port(&self, register: u32) -> [Expression; 2] {
        [
            Meta::new(MetaKey::TransportProtocol, Register::data(register)).into(),
            self.port(register + 1),
        ]
    }

    fn port(&self, register: u32) -> Expression {
        Payload::new(Register::data(register), PayloadBase::Transport, 2_u32, 2_u32).into()
    }

    fn lookup(set: SetName, source: u32) -> Expression {
        Lookup::new(set.text(), Register::data(source)).into()
    }

    fn lookup_missing(set: SetName, source: u32) -> Expression {
        Lookup::new(set.text(), Register::data(source))
            .with_flags(LookupFlags::INVERT)
            .into()
    }

    fn value_of(set: SetName, source: u32, destination: u32) -> Expression {
        Lookup::new(set.text(), Register::data(source))
            .with_destination(Register::data(destination))
            .into()
    }

    /// The timeout of a service port with session affinity, then its number.
    fn find_timeout(&self) -> Vec<Expression> {
        let mut expressions = self.key();
        expressions.push(Self::value_of(SetName::AffinityPools, 0, self.pool() - 1));
        expressions
    }

    /// The same, and the client after it.
    ///
    /// `nft` does not know that a map writes several registers, and aborts if a rule uses the first one of them as a key, or as the value of an element.
    /// So a rule uses the later ones only, and 0 is written to them before: `nft` prints this 0; without it, it would leave the statement out,
    /// and print an error.
    fn find_client(&self) -> Vec<Expression> {
        let pool = self.pool();
        let mut expressions = vec![Self::zero(pool, 4)];
        expressions.extend(self.find_timeout());
        expressions.push(self.source(pool + 1));
        expressions
    }

    /// Continues if the number of the class is less than this one.
    fn is_less(&self, classes: SetName, number: u16) -> Vec<Expression> {
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
    fn is_in(&self, set: SetName) -> Vec<Expression> {
        let mut expressions = self.key();
        expressions.push(Self::lookup(set, 0));
        expressions
    }

    /// Continues if the frontend is in a map, in which no value is `unused`. Before Linux 6.5, a lookup in a map must write the value to a register.
    fn has_value(&self, map: SetName, unused: Value) -> Vec<Expression> {
        let register = self.after_key();
        let mut expressions = self.key();
        expressions.push(Self::value_of(map, 0, register));
        expressions.push(Compare::new(Register::data(register), CompareOperator::NotEqual, unused).into());
        expressions
    }

    fn verdict(verdict: Verdict) -> Expression {
        Immediate::verdict(verdict).into()
    }

    fn goto(chain: impl Into<Box<str>>) -> Expression {
        Self::verdict(Verdict::Goto(chain.into()))
    }

    fn jump(chain: impl Into<Box<str>>) -> Expression {
        Self::verdict(Verdict::Jump(chain.into()))
    }

    /// Continues if any of these bits of a register is set.
    fn has_bits(register: u32, bits: u32) -> [Expression; 2] {
        let register = Register::data(register);
        [
            Bitwise::mask_xor(register, Value::host_u32(bits), Value::host_u32(0)).into(),
            Compare::new(register, CompareOperator::NotEqual, Value::host_u32(0)).into(),
        ]
    }

    /// Continues with new connections.
    fn is_new() -> Vec<Expression> {
        let mut new = vec![ConnectionTracking::new(ConnectionTrackingKey::State, Register::data(0)).into()];
        new.extend(Self::has_bits(0, NEW));
        new
    }

    fn set_mark(&self) -> Vec<Expression> {
        let (register, mark) = (Register::data(0), self.parameters.mark);
        vec![
            Meta::new(MetaKey::Mark, register).into(),
            Bitwise::mask_xor(register, Value::host_u32(!mark), Value::host_u32(mark)).into(),
            MetaSet::new(MetaKey::Mark, register).into(),
        ]
    }

    /// Continues with packets from pods of this node, or with all others. `None` if they are not recognised.
    fn is_from_pods(&self, is: CompareOperator) -> Option<Vec<Expression>> {
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
    fn is_from_node() -> [Expression; 2] {
        let register = Register::data(0);
        [
            Fib::new(register, FibResult::AddressType, FibFlags::SOURCE).into(),
            Compare::new(register, CompareOperator::Equal, Value::host_u32(RTN_LOCAL)).into(),
        ]
    }

    /// Writes 0 to registers from this one on.
    fn zero(register: u32, length: u32) -> Expression {
        let zero = vec![0; usize::try_from(length).unwrap_or_default()];
        Immediate::new(Register::data(register), Value::new(&zero)).into()
    }

    /// The endpoint of a client. The field before it overwrites the port of the frontend, which is to be read again.
    fn find_endpoint(&self, clients: SetName, pool: u32) -> [Expression; 3] {
        let endpoint = self.after_key();
        [
            Self::zero(endpoint, self.address_length()),
            Self::zero(endpoint + self.address, 2),
            Self::value_of(clients, pool, endpoint - 1),
        ]
    }

    fn random(register: u32, bits: u32) -> Expression {
        NumberGenerator::new(
            Register::data(register),
            1_u32 << bits,
            NumberGeneratorKind::Random,
        )
        .into()
    }

    /// To the address and port in registers from this one on.
    fn translate(&self, register: u32) -> Expression {
        let protocol = TableFamily::from(self.parameters.family).number();
        Nat::new(NatKind::Destination, u32::from(protocol))
            .with_address(Register::data(register))
            .with_port(Register::data(register + self.address))
            .into()
    }

    fn reject(&self) -> Expression {
        Reject::new(RejectKind::Icmp)
            .with_code(Some(PORT_UNREACHABLE[self.parameters.family.index()]))
            .into()
    }

    // Chains and rules.

    fn chain(&mut self, name: impl Into<Box<str>>) {
        let chain = Chain::new(self.table.chain(name));
        self.part.chains.push(chain);
    }

    fn rule(&mut self, chain: impl Into<Box<str>>, expressions: Vec<Expression>) {
        let rule = Rule::new(self.table.chain(chain), expressions);
        self.part.rules.push(rule);
    }

    /// A rule with a client of a service port, which `nft` prints with a 0 as the number of the service port.
    fn rule_of_client(&mut self, chain: impl Into<Box<str>>, expressions: Vec<Expression>, comment: &str) {
        let comment = format!("0x0 is the second value in @affinity-pools; {comment}");
        let rule = Rule::new(self.table.chain(chain), expressions).with_comment(&comment);
        self.part.rules.push(rule);
    }

    /// The chains that choose an endpoint, by class, and those that lead to them.
    fn choices(&mut self) {
        let value = self.after_key();
        for variant in Variant::ALL {
            let prefix = variant.prefix();
            for bits in class::all() {
                let attempt = format!("{prefix}try-{bits}");
                self.chain(attempt.clone());
                let mut rule = self.key();
                rule.push(Self::random(value, bits));
                rule.push(Self::value_of(variant.endpoints(), 0, value + 1));
                rule.push(self.translate(value + 1));
                self.rule(attempt.clone(), rule);
                let balance = format!("{prefix}balance-{bits}");
                self.chain(balance.clone());
                let tries = if bits == 0 { 1 } else { class::TRIES };
                for _ in 0..tries {
                    self.rule(balance.clone(), vec![Self::jump(attempt.clone())]);
                }
                if let Some(fewer) = bits.checked_sub(1) {
                    self.rule(balance.clone(), vec![Self::jump(format!("{prefix}try-{fewer}"))]);
                    // A packet may have met the class before a change, and the endpoints after it: there is an endpoint with the index 0.
                    self.rule(balance.clone(), vec![Self::goto(format!("{prefix}try-0"))]);
                }
            }
            for bits in class::all_with_affinity() {
                self.chain(format!("{prefix}affinity-{bits}"));
            }
            let sizes = format!("{prefix}sizes");
            let mut dispatch = Vec::new();
            for (name, end, classes) in class::GROUPS {
                let group = format!("{prefix}{name}");
                self.chain(group.clone());
                let last = *classes.end();
                for bits in classes {
                    let mut rule = if bits == last {
                        Vec::new()
                    } else {
                        self.is_less(variant.classes(), class::number(bits) + 1)
                    };
                    rule.push(Self::goto(format!("{prefix}balance-{bits}")));
                    self.rule(group.clone(), rule);
                }
                let end = if end > class::MOST_BITS {
                    class::AFFINITY
                } else {
                    class::number(end)
                };
                let mut rule = self.is_less(variant.classes(), end);
                rule.push(Self::goto(group));
                dispatch.push(rule);
            }
            for bits in class::all_with_affinity() {
                let mut rule = if bits == class::MOST_BITS {
                    Vec::new()
                } else {
                    self.is_less(variant.classes(), class::AFFINITY + class::number(bits) + 1)
                };
                rule.push(Self::goto(format!("{prefix}affinity-{bits}")));
                dispatch.push(rule);
            }
            self.chain(sizes.clone());
            for rule in dispatch {
                self.rule(sizes.clone(), rule);
            }
        }
    }

    /// The rules for service ports with session affinity. A client whose endpoint is gone is forgotten, then one that is not known gets an
    /// endpoint, then the entry is renewed and the packet is translated. If the map is full the packet is balanced without an entry.
    fn affinity(&mut self) {
        let (endpoint, pool) = (self.after_key(), self.pool());
        let clients = SetName::AffinityClients;
        self.renewals();
        for variant in Variant::ALL {
            let prefix = variant.prefix();
            let forget = format!("{prefix}affinity-forget");
            self.chain(forget.clone());
            let mut rule = self.find_client();
            rule.extend(self.find_endpoint(clients, pool));
            rule.push(self.port(endpoint - 1));
            rule.push(Self::lookup_missing(variant.members(), 0));
            rule.push(
                // The kernel requires a value, and does not use it.
                Dynset::new(clients.text(), DynsetOperation::Delete, Register::data(pool))
                    .with_data(Register::data(endpoint - 1))
                    .into(),
            );
            let comment = format!("unless the endpoint is in @{}", variant.members());
            self.rule_of_client(forget.clone(), rule, &comment);
            for bits in class::all_with_affinity() {
                let choose = format!("{prefix}affinity-try-{bits}");
                self.chain(choose.clone());
                // A lookup in a map for a key that is missing requires Linux 6.5.
                let mut known = self.find_client();
                known.extend(self.find_endpoint(clients, pool));
                known.push(Self::goto(RENEWAL));
                self.rule_of_client(choose.clone(), known, "if there is an endpoint");
                let mut rule = self.find_client();
                rule.push(Self::random(endpoint, bits));
                if self.address > 1 {
                    rule.push(Self::zero(endpoint + 1, self.address_length() - 4));
                }
                rule.extend([
                    Self::zero(endpoint + self.address, 2),
                    Self::value_of(variant.affinity_endpoints(), 0, endpoint - 1),
                    self.port(endpoint - 1),
                    Dynset::new(clients.text(), DynsetOperation::Add, Register::data(pool))
                        .with_data(Register::data(endpoint - 1))
                        .into(),
                ]);
                let comment = format!("the endpoint from @{}", variant.affinity_endpoints());
                self.rule_of_client(choose.clone(), rule, &comment);
                let affinity = format!("{prefix}affinity-{bits}");
                self.rule(affinity.clone(), vec![Self::jump(forget.clone())]);
                let tries = if bits == 0 { 1 } else { class::AFFINITY_TRIES };
                for _ in 0..tries {
                    self.rule(affinity.clone(), vec![Self::jump(choose.clone())]);
                }
                if let Some(fewer) = bits.checked_sub(class::AFFINITY_STEP) {
                    for next in [fewer, 0] {
                        let next = format!("{prefix}affinity-try-{next}");
                        self.rule(affinity.clone(), vec![Self::jump(next)]);
                    }
                }
                self.rule(affinity.clone(), vec![Self::jump(RENEWAL)]);
                self.rule(
                    affinity.clone(),
                    vec![Self::goto(format!("{prefix}balance-{bits}"))],
                );
            }
        }
    }

    /// The rules that renew the entry of a client, and translate the destination. The timeout of an entry is a part of the rule that writes it, so there is
    /// one for each timeout; that of the default is the first one, and comparisons lead to the others.
    fn renewals(&mut self) {
        self.chain(RENEWAL);
        self.renewal(RENEWAL, timeouts::DEFAULT);
        let timeout = Register::data(self.pool() - 1);
        for (number, group) in (1..).zip(timeouts::ALL.chunks(RENEWALS)) {
            let chain = format!("{RENEWAL}-{number}");
            self.chain(chain.clone());
            for timeout in group.iter().filter(|timeout| **timeout != timeouts::DEFAULT) {
                self.renewal(&chain, *timeout);
            }
            let mut rule = self.find_timeout();
            let last = group.last().copied().unwrap_or_default();
            rule.extend([
                ByteOrder::new(timeout, timeout, ByteOrderOperation::ToNetwork, 4_u32, 4_u32).into(),
                Compare::new(
                    timeout,
                    CompareOperator::LessOrEqual,
                    Value::new(&last.to_be_bytes()),
                )
                .into(),
                Self::goto(chain),
            ]);
            self.rule(RENEWAL, rule);
        }
    }

    /// The rule for clients of Services with this timeout in seconds.
    fn renewal(&mut self, chain: &str, timeout: u32) {
        let (endpoint, pool) = (self.after_key(), self.pool());
        let clients = SetName::AffinityClients;
        let mut rule = self.find_client();
        rule.extend([Compare::new(
            Register::data(pool - 1),
            CompareOperator::Equal,
            Value::host_u32(timeout),
        )
        .into()]);
        rule.extend(self.find_endpoint(clients, pool));
        rule.extend([
            self.port(endpoint - 1),
            Dynset::new(clients.text(), DynsetOperation::Update, Register::data(pool))
                .with_data(Register::data(endpoint - 1))
                .with_timeout(Duration::from_secs(u64::from(timeout)))
                .into(),
            self.translate(endpoint),
        ]);
        self.rule_of_client(chain, rule, &format!("the timeout is {timeout} s"));
    }

    /// The chains from a frontend to its class.
    fn kinds(&mut self) {
        self.chain("local-traffic");
        if let Some(mut rule) = self.is_from_pods(CompareOperator::Equal) {
            rule.push(Self::goto("short-sizes"));
            self.rule("local-traffic", rule);
        }
        let mut rule: Vec<Expression> = Self::is_from_node().into();
        rule.extend(self.set_mark());
        rule.push(Self::goto("short-sizes"));
        self.rule("local-traffic", rule);
        self.rule("local-traffic", vec![Self::goto("sizes")]);
        self.chain("external-traffic");
        let mut rule = self.is_in(SetName::LocalFrontends);
        rule.push(Self::goto("local-traffic"));
        self.rule("external-traffic", rule);
        let rule = self.set_mark();
        self.rule("external-traffic", rule);
        self.rule("external-traffic", vec![Self::goto("sizes")]);
        self.chain("services");
        let mut rule = self.is_in(SetName::ExternalFrontends);
        rule.push(Self::goto("external-traffic"));
        self.rule("services", rule);
        let marked = if self.parameters.masquerade_all {
            Some(Vec::new())
        } else {
            self.is_from_pods(CompareOperator::NotEqual)
        };
        if let Some(mut rule) = marked {
            rule.extend(self.set_mark());
            self.rule("services", rule);
        }
        self.rule("services", vec![Self::goto("sizes")]);
    }

    /// The chains that look for the source of a packet in the ranges of a frontend.
    fn firewall(&mut self) {
        let value = self.after_key();
        let bits = u8::try_from(self.address_length() * 8).unwrap_or(u8::MAX);
        let mut dispatch = Vec::new();
        for group in ranges::groups(self.parameters.family) {
            let chain = format!("source-ranges-{group}");
            self.chain(chain.clone());
            for length in ranges::lengths(group) {
                let mut rule = self.key();
                rule.push(Immediate::new(Register::data(value), Value::host_u32(u32::from(length))).into());
                rule.push(self.source(value + 1));
                if length < bits {
                    let mask = ranges::mask(self.parameters.family, length);
                    let zero = Value::new(&vec![0; mask.len()]);
                    rule.push(Bitwise::mask_xor(Register::data(value + 1), mask, zero).into());
                }
                rule.push(Self::lookup(SetName::AllowedSources, 0));
                rule.push(Self::verdict(Verdict::Accept));
                self.rule(chain.clone(), rule);
            }
            let mut rule = self.key();
            rule.push(Self::value_of(SetName::RestrictedFrontends, 0, value));
            rule.extend(Self::has_bits(value, 1 << group));
            rule.push(Self::jump(chain));
            dispatch.push(rule);
        }
        self.chain("source-ranges");
        for rule in dispatch {
            self.rule("source-ranges", rule);
        }
        self.rule("source-ranges", vec![Self::verdict(Verdict::Drop)]);
    }

    /// The chains that refuse connections, after destination addresses were translated.
    fn checks(&mut self) {
        self.chain("check-endpoints");
        let mut rule = self.key();
        rule.push(Self::lookup(SetName::NoEndpoints, 0));
        rule.push(self.reject());
        self.rule("check-endpoints", rule);
        let mut rule = self.key();
        rule.push(Self::lookup(SetName::NoLocalEndpoints, 0));
        rule.push(Self::verdict(Verdict::Drop));
        self.rule("check-endpoints", rule);
        self.chain(CHECK_CLUSTER_IPS);
        let rule = vec![
            self.destination(0),
            Self::lookup(SetName::ClusterIps, 0),
            self.reject(),
        ];
        self.rule(CHECK_CLUSTER_IPS, rule);
        for net in self.parameters.service_cidrs.clone() {
            let mut rule = vec![self.destination(0)];
            let address = Value::from(net.trunc().addr());
            if net.prefix_len() < net.max_prefix_len() {
                let zero = Value::new(&vec![0; address.len()]);
                rule.push(Bitwise::mask_xor(Register::data(0), net.netmask().into(), zero).into());
            }
            rule.push(Compare::new(Register::data(0), CompareOperator::Equal, address).into());
            rule.push(Self::verdict(Verdict::Drop));
            self.rule(CHECK_CLUSTER_IPS, rule);
        }
    }

    /// The base chains.
    fn hooks(&mut self) {
        for (name, chain_type, hook, priority) in BASE_CHAINS {
            let chain = Chain::new(self.table.chain(name));
            let chain = chain.with_base(BaseChain::new(chain_type, hook, priority));
            self.part.chains.push(chain);
        }
        for chain in ["filter-prerouting-pre-dnat", "filter-output-pre-dnat"] {
            let mut rule = Self::is_new();
            rule.extend(self.has_value(SetName::RestrictedFrontends, Value::host_u32(0)));
            rule.push(Self::goto("source-ranges"));
            self.rule(chain, rule);
        }
        for (chain, to) in [
            ("filter-input", &["check-endpoints"][..]),
            ("filter-forward", &["check-endpoints", CHECK_CLUSTER_IPS]),
            ("filter-output", &["check-endpoints", CHECK_CLUSTER_IPS]),
        ] {
            for to in to {
                let mut rule = Self::is_new();
                rule.push(Self::jump(*to));
                self.rule(chain, rule);
            }
        }
        for chain in ["nat-prerouting", "nat-output"] {
            // 0 is a value: of a frontend with policy `Local` without an endpoint of this node, at which pods and the node use all endpoints.
            let mut rule = self.has_value(SetName::Frontends, Value::port(u16::MAX));
            rule.push(Self::jump("services"));
            self.rule(chain, rule);
        }
        self.postrouting();
    }

    fn postrouting(&mut self) {
        let (register, mark) = (Register::data(0), self.parameters.mark);
        let masquerade: Expression = Masquerade::new().with_flags(NatFlags::FULLY_RANDOM).into();
        let mut marked: Vec<Expression> = vec![Meta::new(MetaKey::Mark, register).into()];
        marked.extend(Self::has_bits(0, mark));
        marked.extend([
            Meta::new(MetaKey::Mark, register).into(),
            Bitwise::mask_xor(register, Value::host_u32(!mark), Value::host_u32(0)).into(),
            MetaSet::new(MetaKey::Mark, register).into(),
            masquerade.clone(),
        ]);
        self.rule("nat-postrouting", marked);
        let mut hairpin: Vec<Expression> =
            vec![ConnectionTracking::new(ConnectionTrackingKey::Status, register).into()];
        hairpin.extend(Self::has_bits(0, DNAT));
        hairpin.push(self.source(0));
        hairpin.push(self.destination(self.address));
        hairpin.extend(self.protocol_and_port(self.address * 2));
        hairpin.push(Self::lookup(SetName::HairpinEndpoints, 0));
        hairpin.push(masquerade);
        self.rule("nat-postrouting", hairpin);
    }
}

/// Whether an address may be the destination of translated packets.
pub(crate) fn is_destination(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !address.is_unspecified() && !address.is_multicast() && !is_broadcast
}

#[cfg(test)]
mod tests {
    use kernlink_nftables::{Item, SetFlags};

    use super::*;
    use crate::layout::Slot;

    /// Linux before 6.5 refuses others.
    #[test]
    fn every_lookup_in_a_map_writes_its_value_to_a_register() {
        for family in Family::ALL {
            let table = Slot::First.table(family);
            let parameters = Parameters {
                family,
                mark: 1 << 14,
                masquerade_all: false,
                pods: None,
                service_cidrs: Vec::new(),
            };
            let skeleton = Skeleton::new(&table, &parameters);
            let operations = creation(&table, &skeleton, family, TableFlags::empty());
            let maps: Vec<_> = operations
                .iter()
                .filter_map(|operation| match operation {
                    Operation::Add(Item::Set(set)) if set.flags.contains(SetFlags::MAP) => {
                        Some(set.key.name.clone())
                    }
                    _ => None,
                })
                .collect();
            assert!(!maps.is_empty());
            let parts = [&skeleton.inner, &skeleton.base];
            for rule in parts.iter().flat_map(|part| &part.rules) {
                for expression in &rule.expressions {
                    if let Expression::Lookup(lookup) = expression
                        && maps.contains(&lookup.set)
                    {
                        assert!(lookup.destination.is_some(), "{}: {lookup:?}", rule.chain);
                    }
                }
            }
        }
    }
}
