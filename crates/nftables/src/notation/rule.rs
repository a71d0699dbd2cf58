//! Rules as `nft` lists them.

use std::fmt::Write as _;

use super::set;
use super::value::{Quoted, duration, field};
use crate::data_type::DataType;
use crate::element::Element;
use crate::expression::lengths::ct_length;
use crate::expression::{
    BitwiseOperation, ByteOrderOperation, CompareOperator, ConnectionTrackingKey, Expression, FibFlags,
    FibResult, InvertFlags, LimitKind, LogFlags, LookupFlags, MetaKey, NatFlags, NatKind,
    NumberGeneratorKind, PayloadBase, QuotaFlags, RejectKind,
};
use crate::register::Register;
use crate::rule::Rule;
use crate::set::{MapData, Set, SetFlags};
use crate::table_family::TableFamily;
use crate::value::Value;
use crate::verdict::Data;

/// The sets that rules refer to, with the elements of the anonymous ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Context<'a> {
    pub(super) sets: &'a [crate::SetContents],
}

/// What a register has.
#[derive(Clone, Debug)]
struct Operand {
    text: String,
    data_type: DataType,
    length: u32,
    /// A constant.
    value: Option<Value>,
    /// The mask and the inverted bits of a computation.
    mask: Option<(Value, Value)>,
    /// The protocol of the transport layer or the family that the field needs.
    needs: Option<Dependency>,
}

/// A field whose value decides which header follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dependency {
    TransportProtocol,
    NetworkProtocol,
}

/// A rule while it is printed.
struct Printer<'a> {
    context: Context<'a>,
    family: TableFamily,
    registers: [Option<Operand>; 16],
    statements: Vec<String>,
    /// Protocol of the transport layer that a comparison requires, and its statement.
    transport: Option<(u8, usize)>,
    network: Option<usize>,
}

impl<'a> Context<'a> {
    /// The statements of a rule, and its comment.
    pub(super) fn rule(&self, rule: &Rule) -> String {
        let mut printer = Printer {
            context: *self,
            family: rule.chain.table.family,
            registers: std::array::from_fn(|_| None),
            statements: Vec::new(),
            transport: None,
            network: None,
        };
        for expression in &rule.expressions {
            if printer.print(expression).is_none() {
                printer.statements.push(raw(expression));
            }
        }
        let mut text: Vec<String> = printer
            .statements
            .into_iter()
            .filter(|text| !text.is_empty())
            .collect();
        text.extend(
            rule.comment()
                .map(|comment| format!("comment {}", Quoted(comment))),
        );
        text.join(" ")
    }

    /// An expression with a state, which needs no register.
    pub(super) fn expression(&self, expression: &Expression) -> String {
        stateful(expression).unwrap_or_else(|| raw(expression))
    }

    fn set(&self, name: &str) -> Option<&'a crate::SetContents> {
        self.sets.iter().find(|contents| *contents.set.key.name == *name)
    }
}

/// An expression that has no notation here.
fn raw(expression: &Expression) -> String {
    format!("[ {expression:?} ]")
}

fn stateful(expression: &Expression) -> Option<String> {
    Some(match expression {
        Expression::Counter(counter) => {
            format!("counter packets {} bytes {}", counter.packets, counter.bytes)
        }
        Expression::Limit(limit) => {
            let over = if limit.flags.contains(InvertFlags::INVERT) {
                "over "
            } else {
                ""
            };
            let unit = match limit.unit {
                1 => "second",
                60 => "minute",
                3600 => "hour",
                86_400 => "day",
                604_800 => "week",
                _ => return None,
            };
            match limit.kind {
                LimitKind::Packets => format!(
                    "limit rate {over}{}/{unit} burst {} packets",
                    limit.rate, limit.burst
                ),
                LimitKind::Bytes if limit.burst == 0 => {
                    format!("limit rate {over}{} bytes/{unit}", limit.rate)
                }
                LimitKind::Bytes => format!(
                    "limit rate {over}{} bytes/{unit} burst {} bytes",
                    limit.rate, limit.burst
                ),
                LimitKind::Unknown(_) => return None,
            }
        }
        Expression::Quota(quota) => {
            let over = if quota.flags.contains(QuotaFlags::INVERT) {
                "over "
            } else {
                ""
            };
            let (number, unit) = bytes(quota.bytes);
            let mut text = format!("quota {over}{number} {unit}");
            if quota.consumed > 0 {
                let (number, unit) = bytes(quota.consumed);
                let _infallible = write!(text, " used {number} {unit}");
            }
            text
        }
        Expression::ConnectionLimit(limit) => {
            let over = if limit.flags.contains(InvertFlags::INVERT) {
                "over "
            } else {
                ""
            };
            format!("ct count {over}{}", limit.count)
        }
        Expression::Last(last) if last.set == 0 => "last used never".into(),
        Expression::Last(last) => {
            let time = duration(std::time::Duration::from_millis(last.milliseconds));
            format!("last used {time}")
        }
        _ => return None,
    })
}

/// A number of bytes in the largest unit that divides it.
pub(super) fn bytes(number: u64) -> (u64, &'static str) {
    let units = [(1 << 20, "mbytes"), (1 << 10, "kbytes")];
    let found = units
        .iter()
        .find(|(unit, _)| number > 0 && number.is_multiple_of(*unit));
    found.map_or((number, "bytes"), |(unit, name)| (number / unit, *name))
}

impl Printer<'_> {
    fn store(&mut self, register: Register, operand: Operand) -> Option<()> {
        *self.registers.get_mut(register.index()? as usize)? = Some(operand);
        Some(())
    }

    fn loaded(
        &mut self,
        register: Register,
        text: impl Into<String>,
        data_type: DataType,
        length: u32,
    ) -> Option<()> {
        self.store(
            register,
            Operand {
                text: text.into(),
                data_type,
                length,
                value: None,
                mask: None,
                needs: None,
            },
        )
    }

    /// The operands in adjacent registers.
    fn key(&self, register: Register, length: u32) -> Option<Vec<&Operand>> {
        let mut index = register.index()?;
        let end = index + length.div_ceil(4);
        let mut operands = Vec::new();
        while index < end {
            let operand = self.registers.get(index as usize)?.as_ref()?;
            index += operand.length.div_ceil(4).max(1);
            operands.push(operand);
        }
        Some(operands)
    }

    /// The fields of a key.
    fn joined(&mut self, register: Register, length: u32) -> Option<String> {
        let mut index = register.index()?;
        let end = index + length.div_ceil(4);
        let mut texts = Vec::new();
        while index < end {
            let operand = self.compared(Register::data(index))?;
            index += operand.length.div_ceil(4).max(1);
            texts.push(operand.masked_text());
        }
        Some(texts.join(" . "))
    }

    /// The operand of a comparison: without the comparison of the protocol before it, whose protocol names the header.
    fn compared(&mut self, register: Register) -> Option<Operand> {
        let mut operand = self.registers.get(register.index()? as usize)?.clone()?;
        match (operand.needs, self.transport, self.network) {
            (Some(Dependency::TransportProtocol), Some((protocol, statement)), _) => {
                let name = field(DataType::Protocol, &[protocol]);
                if let Some(rest) = operand.text.strip_prefix("th ")
                    && matches!(protocol, 6 | 17 | 33 | 132 | 136)
                {
                    operand.text = format!("{name} {rest}");
                    self.clear(statement);
                }
            }
            (Some(Dependency::NetworkProtocol), _, Some(statement)) => self.clear(statement),
            _ => {}
        }
        Some(operand)
    }

    fn clear(&mut self, statement: usize) {
        if let Some(text) = self.statements.get_mut(statement) {
            text.clear();
        }
    }

    fn say(&mut self, text: impl Into<String>) -> Option<()> {
        self.statements.push(text.into());
        Some(())
    }

    /// The name of a set, or its elements if it is anonymous.
    fn set_text(&self, name: &str) -> String {
        match self.context.set(name) {
            Some(contents) if contents.set.flags.contains(SetFlags::ANONYMOUS) => {
                let elements: &[Element] = &contents.elements;
                format!(
                    "{{ {} }}",
                    set::elements(&contents.set, elements, &self.context).join(", ")
                )
            }
            _ => format!("@{name}"),
        }
    }

    fn find(&self, name: &str) -> Option<&Set> {
        self.context.set(name).map(|contents| &contents.set)
    }

    /// `None` if there is no notation for the expression, or a register has something without one.
    fn print(&mut self, expression: &Expression) -> Option<()> {
        if let Some(text) = stateful(expression) {
            return self.say(text);
        }
        match expression {
            Expression::Immediate(immediate) => match &immediate.data {
                Data::Verdict(verdict) => self.say(verdict.to_string()),
                Data::Value(value) => self.store(
                    immediate.destination,
                    Operand {
                        text: value.to_string(),
                        data_type: DataType::Integer,
                        length: value.len() as u32,
                        value: Some(value.clone()),
                        mask: None,
                        needs: None,
                    },
                ),
            },
            Expression::Payload(payload) => {
                let (text, data_type, needs) = self.payload(payload.base, payload.offset, payload.length);
                let operand = Operand {
                    text,
                    data_type,
                    length: payload.length,
                    value: None,
                    mask: None,
                    needs,
                };
                self.store(payload.destination, operand)
            }
            Expression::Meta(meta) => {
                let (text, data_type) = meta_field(meta.key)?;
                let length = crate::expression::lengths::meta_length(meta.key);
                self.loaded(meta.destination, text, data_type, length)
            }
            Expression::MetaSet(meta) => {
                let (text, data_type) = meta_field(meta.key)?;
                let source = self.key(meta.source, 1)?.first()?.assigned(data_type);
                self.say(format!("{text} set {source}"))
            }
            Expression::ConnectionTracking(ct) => {
                let (data_type, length) = ct_field(ct.key, self.family)?;
                let name = ct_name(ct.key, ct.direction)?;
                self.loaded(ct.destination, name, data_type, length)
            }
            Expression::ConnectionTrackingSet(ct) => {
                let (data_type, _) = ct_field(ct.key, self.family)?;
                let source = self.key(ct.source, 1)?.first()?.assigned(data_type);
                let name = ct_name(ct.key, ct.direction)?;
                self.say(format!("{name} set {source}"))
            }
            Expression::Fib(fib) => {
                let names = [
                    (FibFlags::SOURCE, "saddr"),
                    (FibFlags::DESTINATION, "daddr"),
                    (FibFlags::MARK, "mark"),
                    (FibFlags::INPUT_INTERFACE, "iif"),
                    (FibFlags::OUTPUT_INTERFACE, "oif"),
                ];
                let flags: Vec<&str> = names
                    .iter()
                    .filter(|(flag, _)| fib.flags.contains(*flag))
                    .map(|(_, name)| *name)
                    .collect();
                let data_type = match fib.result {
                    FibResult::AddressType => DataType::AddressType,
                    _ => return None,
                };
                let text = format!("fib {} {}", flags.join(" . "), fib.result);
                self.loaded(fib.destination, text, data_type, 4)
            }
            Expression::NumberGenerator(generator) => {
                let kind = match generator.kind {
                    NumberGeneratorKind::Incremental => "inc",
                    _ => "random",
                };
                let mut text = format!("numgen {kind} mod {}", generator.modulus);
                if generator.offset > 0 {
                    let _infallible = write!(text, " offset {}", generator.offset);
                }
                self.loaded(generator.destination, text, DataType::Integer, 4)
            }
            Expression::Bitwise(bitwise) if bitwise.operation == BitwiseOperation::MaskXor => {
                let mut operand = self.registers.get(bitwise.source.index()? as usize)?.clone()?;
                if operand.mask.is_some() {
                    return None;
                }
                operand.mask = Some((bitwise.mask.clone()?, bitwise.xor.clone()?));
                self.store(bitwise.destination, operand)
            }
            // `nft` writes such an expression for one byte, which has no order.
            Expression::ByteOrder(order) if order.length == 1 && order.source == order.destination => {
                Some(())
            }
            // A number in the byte order of the network, as ranges need it.
            Expression::ByteOrder(order)
                if order.operation == ByteOrderOperation::ToNetwork && order.source == order.destination =>
            {
                let index = order.source.index()? as usize;
                let operand = self.registers.get_mut(index)?.as_mut()?;
                if operand.data_type == DataType::UserId && operand.length == order.length {
                    operand.data_type = DataType::Integer;
                    return Some(());
                }
                None
            }
            Expression::Compare(compare) => self.compare(compare.source, compare.operator, &compare.value),
            Expression::Range(range) => {
                let operand = self.compared(range.source)?;
                let not = if range.operator == CompareOperator::NotEqual {
                    "!= "
                } else {
                    ""
                };
                let text = super::value::range(operand.data_type, range.from.as_bytes(), range.to.as_bytes());
                self.say(format!("{} {not}{text}", operand.text))
            }
            Expression::Lookup(lookup) => {
                let set = self.find(&lookup.set)?;
                let (length, data) = (set.key_length, set.data);
                let key = self.joined(lookup.source, length)?;
                let name = self.set_text(&lookup.set);
                match (lookup.destination, data) {
                    (None, _) => {
                        let not = if lookup.flags.contains(LookupFlags::INVERT) {
                            "!= "
                        } else {
                            ""
                        };
                        self.say(format!("{key} {not}{name}"))
                    }
                    (Some(_), Some(MapData::Verdicts)) => self.say(format!("{key} vmap {name}")),
                    (Some(register), Some(MapData::Values { types, length })) => {
                        let data_type = types.iter().next()?;
                        self.loaded(register, format!("{key} map {name}"), data_type, length)
                    }
                    _ => None,
                }
            }
            Expression::Dynset(dynset) => {
                let length = self.find(&dynset.set)?.key_length;
                let mut text = format!(
                    "{} @{} {{ {}",
                    dynset.operation,
                    dynset.set,
                    self.joined(dynset.key, length)?
                );
                if let Some(timeout) = dynset.timeout {
                    let _infallible = write!(text, " timeout {}", duration(timeout));
                }
                for expression in &dynset.expressions {
                    let _infallible = write!(text, " {}", stateful(expression)?);
                }
                if let Some(data) = dynset.data {
                    let _infallible = write!(text, " : {}", self.joined(data, 4)?);
                }
                self.say(text + " }")
            }
            Expression::ObjectReference(object) => {
                self.say(format!("{} name {}", object.kind, Quoted(&object.name)))
            }
            Expression::ObjectMap(map) => {
                let set = self.find(&map.set)?;
                let length = set.key_length;
                let Some(MapData::Objects(kind)) = set.data else {
                    return None;
                };
                let key = self.joined(map.source, length)?;
                self.say(format!("{kind} name {key} map {}", self.set_text(&map.set)))
            }
            Expression::Nat(nat)
                if nat.last_address.is_none_or(|last| Some(last) == nat.address)
                    && nat.last_port.is_none_or(|last| Some(last) == nat.port) =>
            {
                let verb = match nat.kind {
                    NatKind::Source => "snat",
                    NatKind::Destination => "dnat",
                    NatKind::Unknown(_) => return None,
                };
                let (family, data_type) = if nat.family == 2 {
                    ("ip", DataType::Ipv4Address)
                } else {
                    ("ip6", DataType::Ipv6Address)
                };
                let address = match nat.address {
                    None => None,
                    Some(register) => Some(self.key(register, 1)?.first()?.assigned(data_type)),
                };
                // The port of a map's value is in the same operand as the address.
                let port = nat
                    .port
                    .and_then(|register| self.registers.get(register.index()? as usize)?.as_ref());
                let port = port.map(|operand| operand.assigned(DataType::Service));
                let is_map = address.as_ref().is_some_and(|address| address.contains(" map "));
                let target = match (address, port) {
                    (Some(address), _) if is_map => format!(" {family} to {address}"),
                    (Some(address), Some(port)) if nat.family == 2 => format!(" to {address}:{port}"),
                    (Some(address), Some(port)) => format!(" to [{address}]:{port}"),
                    (Some(address), None) => format!(" to {address}"),
                    (None, Some(port)) => format!(" to :{port}"),
                    (None, None) => String::new(),
                };
                let family = if self.family == TableFamily::Inet && !is_map {
                    format!(" {family}")
                } else {
                    String::new()
                };
                self.say(format!("{verb}{family}{target}{}", nat_flags(nat.flags)))
            }
            Expression::Masquerade(masquerade) if masquerade.port.is_none() => {
                self.say(format!("masquerade{}", nat_flags(masquerade.flags)))
            }
            Expression::Redirect(redirect)
                if redirect.last_port.is_none_or(|last| Some(last) == redirect.port) =>
            {
                let target = match redirect.port {
                    Some(register) => format!(
                        " to :{}",
                        self.key(register, 1)?.first()?.assigned(DataType::Service)
                    ),
                    None => String::new(),
                };
                self.say(format!("redirect{target}{}", nat_flags(redirect.flags)))
            }
            Expression::Reject(reject) => match (reject.kind, reject.code) {
                (RejectKind::TcpReset, _) => self.say("reject with tcp reset"),
                (RejectKind::Icmp, Some(3)) if self.family == TableFamily::Ip => self.say("reject"),
                (RejectKind::Icmp, Some(4)) if self.family == TableFamily::Ip6 => self.say("reject"),
                (RejectKind::Icmpx, Some(1)) => self.say("reject"),
                _ => None,
            },
            Expression::Log(log) => {
                let mut text = "log".to_owned();
                if let Some(prefix) = &log.prefix {
                    let _infallible = write!(text, " prefix {}", Quoted(prefix));
                }
                if let Some(group) = log.group {
                    let _infallible = write!(text, " group {group}");
                }
                if let Some(level) = log.level.filter(|level| *level != crate::LogLevel::Warning) {
                    let _infallible = write!(text, " level {level}");
                }
                (log.flags == LogFlags::empty()).then(|| self.say(text))?
            }
            Expression::Notrack(_) => self.say("notrack"),
            Expression::FlowOffload(flow) => self.say(format!("flow add @{}", flow.flowtable)),
            _ => None,
        }
    }

    fn compare(&mut self, source: Register, operator: CompareOperator, expected: &Value) -> Option<()> {
        let operand = self.compared(source)?;
        let bytes = expected.as_bytes();
        let text = &operand.text;
        let is_zero = bytes.iter().all(|byte| *byte == 0);
        let is_flags = matches!(
            operand.data_type,
            DataType::ConnectionState | DataType::ConnectionStatus | DataType::TcpFlags
        );
        if let Some((mask, xor)) = &operand.mask {
            if xor.as_bytes().iter().any(|byte| *byte != 0) {
                return None;
            }
            let prefix = matches!(operand.data_type, DataType::Ipv4Address | DataType::Ipv6Address)
                .then(|| prefix(mask.as_bytes()))
                .flatten();
            let masked = field(operand.data_type, mask.as_bytes());
            let value = field(operand.data_type, bytes);
            return match (operator, prefix) {
                (CompareOperator::Equal, Some(length)) => self.say(format!("{text} {value}/{length}")),
                (CompareOperator::NotEqual, Some(length)) => self.say(format!("{text} != {value}/{length}")),
                (CompareOperator::NotEqual, None) if is_flags && is_zero => {
                    self.say(format!("{text} {masked}"))
                }
                (operator, None) => self.say(format!("{text} & {masked} {operator} {value}")),
                _ => None,
            };
        }
        // `nft` writes a range of numbers as two comparisons.
        if operator == CompareOperator::LessOrEqual
            && let Some(last) = self.statements.last_mut()
            && let Some(first) = last.strip_prefix(&format!("{text} >= "))
        {
            *last = format!("{text} {first}-{}", field(operand.data_type, bytes));
            return Some(());
        }
        // A comparison of the first bytes of an address is one of a prefix.
        if matches!(operand.data_type, DataType::Ipv4Address | DataType::Ipv6Address)
            && bytes.len() < operand.data_type.length()? as usize
        {
            let mut address = bytes.to_vec();
            address.resize(operand.data_type.length()? as usize, 0);
            let value = field(operand.data_type, &address);
            let operator = if operator == CompareOperator::NotEqual {
                "!= "
            } else {
                ""
            };
            return self.say(format!("{text} {operator}{value}/{}", bytes.len() * 8));
        }
        let value = field(operand.data_type, bytes);
        let statement = match operator {
            CompareOperator::Equal if is_flags => format!("{text} == {value}"),
            CompareOperator::Equal => format!("{text} {value}"),
            operator => format!("{text} {operator} {value}"),
        };
        if operator == CompareOperator::Equal {
            match (&*operand.text, bytes) {
                ("meta l4proto" | "ip protocol" | "ip6 nexthdr", [protocol]) => {
                    self.transport = Some((*protocol, self.statements.len()));
                }
                ("meta nfproto", [_]) => self.network = Some(self.statements.len()),
                _ => {}
            }
        }
        self.say(statement)
    }

    fn payload(&self, base: PayloadBase, offset: u32, length: u32) -> (String, DataType, Option<Dependency>) {
        let needs_family = (self.family == TableFamily::Inet).then_some(Dependency::NetworkProtocol);
        let transport = Some(Dependency::TransportProtocol);
        let is_ipv6 = self.family == TableFamily::Ip6;
        match (base, offset, length) {
            (PayloadBase::Network, 12, 1..=4) if !is_ipv6 => {
                ("ip saddr".into(), DataType::Ipv4Address, needs_family)
            }
            (PayloadBase::Network, 16, 1..=4) if !is_ipv6 => {
                ("ip daddr".into(), DataType::Ipv4Address, needs_family)
            }
            (PayloadBase::Network, 9, 1) if !is_ipv6 => {
                ("ip protocol".into(), DataType::Protocol, needs_family)
            }
            (PayloadBase::Network, 8, 1) if !is_ipv6 => ("ip ttl".into(), DataType::Integer, needs_family),
            (PayloadBase::Network, 8, _) => ("ip6 saddr".into(), DataType::Ipv6Address, needs_family),
            (PayloadBase::Network, 24, _) => ("ip6 daddr".into(), DataType::Ipv6Address, needs_family),
            (PayloadBase::Transport, 0, 2) => ("th sport".into(), DataType::Service, transport),
            (PayloadBase::Transport, 2, 2) => ("th dport".into(), DataType::Service, transport),
            (base, offset, length) => (
                format!("@{base},{},{}", offset * 8, length * 8),
                DataType::Integer,
                None,
            ),
        }
    }
}

impl Operand {
    /// With the mask, if there is one.
    fn masked_text(&self) -> String {
        match &self.mask {
            Some((mask, xor)) if xor.as_bytes().iter().all(|byte| *byte == 0) => {
                format!("{} & {}", self.text, field(self.data_type, mask.as_bytes()))
            }
            Some((mask, xor)) => format!("({} & {mask}) ^ {xor}", self.text),
            None => self.text.clone(),
        }
    }

    /// As the right side of an assignment to a field of this type.
    fn assigned(&self, data_type: DataType) -> String {
        match (&self.value, &self.mask) {
            (Some(value), None) => {
                let length = data_type.length().map_or(value.len(), |length| length as usize);
                field(
                    data_type,
                    value.as_bytes().get(..length).unwrap_or(value.as_bytes()),
                )
            }
            (None, Some((mask, xor))) => {
                let [mask_bytes, xor_bytes] = [mask, xor].map(Value::as_bytes);
                let is_or = mask_bytes.iter().zip(xor_bytes).all(|(mask, xor)| !mask == *xor);
                let is_all = mask_bytes.iter().all(|byte| *byte == 0xff);
                if is_all {
                    format!("{} ^ {}", self.text, field(data_type, xor_bytes))
                } else if is_or {
                    format!("{} | {}", self.text, field(data_type, xor_bytes))
                } else {
                    self.masked_text()
                }
            }
            _ => self.masked_text(),
        }
    }
}

/// The length of the prefix that a mask is.
fn prefix(mask: &[u8]) -> Option<u32> {
    let ones: u32 = mask.iter().map(|byte| byte.leading_ones()).sum();
    let all: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    let full = mask.iter().take_while(|byte| **byte == 0xff).count() as u32 * 8;
    let next = mask.get(full as usize / 8).map_or(0, |byte| byte.leading_ones());
    (ones == all && full + next == all).then_some(all)
}

fn nat_flags(flags: NatFlags) -> String {
    let names = [
        (NatFlags::RANDOM, " random"),
        (NatFlags::FULLY_RANDOM, " fully-random"),
        (NatFlags::PERSISTENT, " persistent"),
    ];
    names
        .iter()
        .filter(|(flag, _)| flags.contains(*flag))
        .map(|(_, name)| *name)
        .collect()
}

fn meta_field(key: MetaKey) -> Option<(String, DataType)> {
    Some(match key {
        MetaKey::Mark => ("meta mark".into(), DataType::Mark),
        MetaKey::TransportProtocol => ("meta l4proto".into(), DataType::Protocol),
        MetaKey::NetworkProtocol => ("meta nfproto".into(), DataType::NetworkProtocol),
        MetaKey::InputName => ("iifname".into(), DataType::InterfaceName),
        MetaKey::OutputName => ("oifname".into(), DataType::InterfaceName),
        MetaKey::Trace => ("meta nftrace".into(), DataType::Integer),
        MetaKey::Length => ("meta length".into(), DataType::Integer),
        MetaKey::Cpu => ("meta cpu".into(), DataType::Integer),
        _ => return None,
    })
}

/// A property of a connection with the direction that it is of.
fn ct_name(key: ConnectionTrackingKey, direction: Option<u8>) -> Option<String> {
    Some(match direction {
        None => format!("ct {key}"),
        Some(0) => format!("ct original {key}"),
        Some(1) => format!("ct reply {key}"),
        Some(_) => return None,
    })
}

/// The type and the length of a property of a connection.
fn ct_field(key: ConnectionTrackingKey, family: TableFamily) -> Option<(DataType, u32)> {
    let data_type = match (key, family) {
        (ConnectionTrackingKey::State, _) => DataType::ConnectionState,
        (ConnectionTrackingKey::Status, _) => DataType::ConnectionStatus,
        (ConnectionTrackingKey::Mark, _) => DataType::Mark,
        (ConnectionTrackingKey::Direction, _) => DataType::ConnectionDirection,
        (ConnectionTrackingKey::NetworkProtocol, _) => DataType::NetworkProtocol,
        (ConnectionTrackingKey::Protocol, _) => DataType::Protocol,
        (ConnectionTrackingKey::SourcePort | ConnectionTrackingKey::DestinationPort, _) => DataType::Service,
        (ConnectionTrackingKey::SourceIp | ConnectionTrackingKey::DestinationIp, _)
        | (ConnectionTrackingKey::Source | ConnectionTrackingKey::Destination, TableFamily::Ip) => {
            DataType::Ipv4Address
        }
        (ConnectionTrackingKey::SourceIp6 | ConnectionTrackingKey::DestinationIp6, _)
        | (ConnectionTrackingKey::Source | ConnectionTrackingKey::Destination, TableFamily::Ip6) => {
            DataType::Ipv6Address
        }
        // Numbers in the byte order of the host.
        (
            ConnectionTrackingKey::Packets
            | ConnectionTrackingKey::Bytes
            | ConnectionTrackingKey::AveragePacket
            | ConnectionTrackingKey::Zone
            | ConnectionTrackingKey::Id,
            _,
        ) => DataType::UserId,
        _ => return None,
    };
    let length = ct_length(key).or(data_type.length())?;
    Some((data_type, length))
}
