//! Statements that do something with the packet.

use std::net::Ipv6Addr;

use super::field;
use super::form::{Form, quoted};
use super::operand::{Extension, Origin};
use super::protocols::Slice;
use super::rule::Printer;
use crate::data_type::DataType;
use crate::expression::{
    Expression, ExtensionHeaderKind, Log, LogFlags, LogLevel, Nat, NatFlags, NatKind, PayloadBase, Queue,
    QueueFlags, Reject, RejectKind, Synproxy, SynproxyFlags,
};
use crate::object::ObjectKind;
use crate::register::Register;
use crate::table_family::TableFamily;

const NFPROTO_IPV4: u32 = crate::uapi::NFPROTO_IPV4 as u32;
const NFPROTO_IPV6: u32 = crate::uapi::NFPROTO_IPV6 as u32;

impl Printer<'_> {
    /// `None` if there is no notation for the expression, or a register has something without one.
    pub(super) fn effect(&mut self, expression: &Expression) -> Option<()> {
        let text = match expression {
            Expression::MetaSet(meta) => {
                let (text, form, length) = field::meta(meta.key)?;
                let source = self.assigned(meta.source, form, length)?;
                format!("{text} set {source}")
            }
            Expression::ConnectionTrackingSet(ct) => {
                let (text, form, length) = field::connection(ct.key, ct.direction, self.family)?;
                let source = self.assigned(ct.source, form, length)?;
                format!("{text} set {source}")
            }
            Expression::PayloadSet(payload) => {
                let slice = Slice {
                    base: payload.base,
                    offset: payload.offset.checked_mul(8)?,
                    length: payload.length.checked_mul(8)?,
                    tunnel: None,
                };
                let (text, source) = self.assigned_bits(slice, payload.source)?;
                format!("{text} set {source}")
            }
            Expression::ExtensionHeaderSet(header) => {
                let extension = Extension {
                    kind: header.kind,
                    number: header.number,
                    offset: header.offset.checked_mul(8)?,
                    length: header.length.checked_mul(8)?,
                    is_presence: false,
                };
                let view = extension.view()?;
                let source = self.assigned(header.source, view.form, header.length)?;
                format!("{} set {source}", view.text)
            }
            Expression::ExtensionHeaderRemoval(removal) => {
                let extension = Extension {
                    kind: removal.kind,
                    number: removal.number,
                    offset: 0,
                    length: 8,
                    is_presence: removal.kind == ExtensionHeaderKind::TcpOption,
                };
                let superfluous = self.protocols.superfluous_layer(PayloadBase::Transport);
                self.drop_statement(superfluous);
                format!("reset {}", extension.view()?.text)
            }
            Expression::Dynset(dynset) => return self.dynset(dynset),
            Expression::ObjectMap(map) => return self.object_map(map),
            Expression::ObjectReference(object) => {
                format!("{} {}", object_verb(object.kind), quoted(&object.name))
            }
            Expression::Nat(nat) => self.nat(nat)?,
            Expression::Masquerade(masquerade) => {
                let ports = self.ports(masquerade.port, masquerade.last_port)?;
                let ports = ports.map_or_else(String::new, |ports| format!(" to :{ports}"));
                format!("masquerade{ports}{}", nat_flags(masquerade.flags))
            }
            Expression::Redirect(redirect) => {
                let ports = self.ports(redirect.port, redirect.last_port)?;
                let ports = ports.map_or_else(String::new, |ports| format!(" to :{ports}"));
                format!("redirect{ports}{}", nat_flags(redirect.flags))
            }
            Expression::Tproxy(tproxy) => {
                let address = match tproxy.address {
                    Some(register) => Some(self.address(register, tproxy.family)?),
                    None => None,
                };
                let port = match tproxy.port {
                    Some(register) => {
                        format!(":{}", self.assigned(register, Form::of(DataType::Service), 2)?)
                    }
                    None => String::new(),
                };
                let family = if self.family == TableFamily::Inet {
                    family_name(tproxy.family)
                } else {
                    ""
                };
                let address = match address {
                    Some(address) if tproxy.family == NFPROTO_IPV6 && address.parse::<Ipv6Addr>().is_ok() => {
                        format!("[{address}]")
                    }
                    address => address.unwrap_or_default(),
                };
                format!("tproxy{family} to {address}{port}")
            }
            Expression::Duplicate(duplicate) => {
                let family = if self.network_family() == TableFamily::Ip6 {
                    NFPROTO_IPV6
                } else {
                    NFPROTO_IPV4
                };
                let device = match duplicate.device {
                    Some(register) => Some(self.assigned(register, Form::of(DataType::InterfaceIndex), 4)?),
                    None => None,
                };
                match (duplicate.address, device) {
                    (Some(address), device) => {
                        let device = device.map_or_else(String::new, |device| format!(" device {device}"));
                        format!("dup to {}{device}", self.address(address, family)?)
                    }
                    (None, Some(device)) => format!("dup to {device}"),
                    (None, None) => return None,
                }
            }
            Expression::Forward(forward) => {
                let device = self.assigned(forward.device, Form::of(DataType::InterfaceIndex), 4)?;
                match (forward.address, forward.family) {
                    (Some(address), Some(family)) => format!(
                        "fwd{} to {} device {device}",
                        family_name(family),
                        self.address(address, family)?
                    ),
                    _ => format!("fwd to {device}"),
                }
            }
            Expression::Reject(reject) => self.reject(reject)?,
            Expression::Log(log) => self::log(log),
            Expression::Queue(queue) => self.queue(queue)?,
            Expression::Notrack(_) => "notrack".into(),
            Expression::FlowOffload(flow) => format!("flow add @{}", flow.flowtable),
            Expression::Synproxy(synproxy) => self::synproxy(synproxy),
            _ => return None,
        };
        self.say(text);
        Some(())
    }

    fn address(&mut self, register: Register, family: u32) -> Option<String> {
        let (data_type, length) = match family {
            NFPROTO_IPV4 => (DataType::Ipv4Address, 4),
            NFPROTO_IPV6 => (DataType::Ipv6Address, 16),
            _ => return None,
        };
        self.assigned(register, Form::of(data_type), length)
    }

    /// A port or a range of ports; `Some(None)` if there is none.
    fn ports(&mut self, first: Option<Register>, last: Option<Register>) -> Option<Option<String>> {
        let form = Form::of(DataType::Service);
        let Some(first) = first else { return Some(None) };
        let mut text = self.assigned(first, form, 2)?;
        if let Some(last) = last.filter(|last| *last != first) {
            text += &format!("-{}", self.assigned(last, form, 2)?);
        }
        Some(Some(text))
    }

    fn nat(&mut self, nat: &Nat) -> Option<String> {
        let verb = match nat.kind {
            NatKind::Source => "snat",
            NatKind::Destination => "dnat",
            NatKind::Unknown(_) => return None,
        };
        let is_ipv6 = nat.family == NFPROTO_IPV6;
        let form = Form::of(if is_ipv6 {
            DataType::Ipv6Address
        } else {
            DataType::Ipv4Address
        });
        let origin = nat
            .address
            .and_then(|register| self.operand(register))
            .map(|operand| operand.origin.clone());
        // The data of a map may be addresses and ports, or ranges of both, in one value.
        let map = match &origin {
            Some(Origin::Map { types, .. }) => Some(*types),
            _ => None,
        };
        let is_concatenation = map.is_some_and(|types| types.iter().count() > 1);
        let address = match (nat.address, nat.last_address) {
            (None, _) => None,
            (Some(first), last) => {
                let text = self.address(first, nat.family)?;
                let last = last.filter(|last| *last != first && map.is_none());
                Some(match last {
                    None => text,
                    Some(last) => self.address_range(first, last, form, text)?,
                })
            }
        };
        let ports = if is_concatenation {
            None
        } else {
            self.ports(nat.port, nat.last_port)?
        };
        let mut text = verb.to_owned();
        if address.is_some() || ports.is_some() {
            let is_prefix = nat.flags.contains(NatFlags::NETMAP);
            let is_range = map.is_some() && nat.last_address.is_some_and(|last| Some(last) != nat.address);
            if matches!(self.family, TableFamily::Inet | TableFamily::Bridge)
                || is_concatenation
                || is_prefix
                || is_range
            {
                text += family_name(nat.family);
            }
            if is_prefix {
                text += " prefix";
            }
            text += " to ";
            match (address, &ports) {
                (Some(address), Some(ports)) if is_ipv6 && map.is_none() => {
                    let address: Vec<String> =
                        address.split('-').map(|address| format!("[{address}]")).collect();
                    text += &format!("{}:{ports}", address.join("-"));
                }
                (Some(address), Some(ports)) => text += &format!("{address}:{ports}"),
                (Some(address), None) => text += &address,
                (None, Some(ports)) => text += &format!(":{ports}"),
                (None, None) => {}
            }
        }
        Some(text + &nat_flags(nat.flags))
    }

    /// A range of constant addresses: a prefix if it is one.
    fn address_range(&mut self, first: Register, last: Register, form: Form, text: String) -> Option<String> {
        let constants = [first, last].map(|register| self.operand(register)?.constant().cloned());
        if let [Some(first), Some(last)] = &constants {
            let names = self.context.names;
            let range = super::set::range_text(&form, first.as_bytes(), last.as_bytes(), names);
            return Some(range);
        }
        Some(format!(
            "{text}-{}",
            self.assigned(last, form, form.data_type.length()?)?
        ))
    }

    fn reject(&mut self, reject: &Reject) -> Option<String> {
        let is_mixed = !matches!(self.family, TableFamily::Ip | TableFamily::Ip6);
        let (name, data_type, default) = match (reject.kind, self.network_family()) {
            (RejectKind::TcpReset, _) => {
                let base = if is_mixed {
                    PayloadBase::Network
                } else {
                    PayloadBase::Transport
                };
                let superfluous = self.protocols.superfluous_layer(base);
                self.drop_statement(superfluous);
                return Some("reject with tcp reset".into());
            }
            (RejectKind::Icmpx, _) => ("icmpx", DataType::IcmpxCode, Some(1)),
            (RejectKind::Icmp, TableFamily::Ip) => ("icmp", DataType::IcmpCode, Some(3)),
            (RejectKind::Icmp, TableFamily::Ip6) => ("icmpv6", DataType::Icmpv6Code, Some(4)),
            _ => return None,
        };
        if is_mixed && reject.kind == RejectKind::Icmp {
            let superfluous = self.protocols.superfluous_layer(PayloadBase::Network);
            self.drop_statement(superfluous);
        }
        // In tables of several families the code is always written, because the family is told by it.
        if reject.code == default && (!is_mixed || reject.kind == RejectKind::Icmpx) {
            return Some("reject".into());
        }
        Some(format!(
            "reject with {name} {}",
            Form::of(data_type).text(&[reject.code?])
        ))
    }

    fn queue(&mut self, queue: &Queue) -> Option<String> {
        let names = [(QueueFlags::BYPASS, "bypass"), (QueueFlags::CPU_FANOUT, "fanout")];
        let flags: Vec<&str> = names
            .iter()
            .filter(|(flag, _)| queue.flags.contains(*flag))
            .map(|(_, name)| *name)
            .collect();
        let flags = if flags.is_empty() {
            String::new()
        } else {
            format!(" flags {}", flags.join(","))
        };
        let numbers = match (queue.source, queue.number) {
            (Some(register), _) => self.assigned(register, Form::host_number(), 2)?,
            (None, number) => {
                let first = number.unwrap_or(0);
                match queue.total.unwrap_or(1) {
                    0 | 1 => first.to_string(),
                    total => format!("{first}-{}", u32::from(first) + u32::from(total) - 1),
                }
            }
        };
        Some(format!("queue{flags} to {numbers}"))
    }
}

fn object_verb(kind: ObjectKind) -> String {
    match kind {
        ObjectKind::Helper | ObjectKind::Timeout | ObjectKind::Expectation => format!("{kind} set"),
        ObjectKind::SecurityMark => "meta secmark set".into(),
        kind => format!("{kind} name"),
    }
}

/// The verb of a statement that uses the object which a map has for a key.
pub(super) fn object_map_verb(kind: ObjectKind) -> String {
    object_verb(kind)
}

fn family_name(family: u32) -> &'static str {
    match family {
        NFPROTO_IPV4 => " ip",
        NFPROTO_IPV6 => " ip6",
        _ => "",
    }
}

fn nat_flags(flags: NatFlags) -> String {
    let names = [
        (NatFlags::RANDOM, "random"),
        (NatFlags::FULLY_RANDOM, "fully-random"),
        (NatFlags::PERSISTENT, "persistent"),
    ];
    let names: Vec<&str> = names
        .iter()
        .filter(|(flag, _)| flags.contains(*flag))
        .map(|(_, name)| *name)
        .collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(" {}", names.join(","))
    }
}

fn log(log: &Log) -> String {
    let mut text = "log".to_owned();
    if let Some(prefix) = &log.prefix {
        text += &format!(" prefix {}", quoted(prefix));
    }
    if let Some(group) = log.group {
        text += &format!(" group {group}");
    }
    if let Some(length) = log.snap_length {
        text += &format!(" snaplen {length}");
    }
    if let Some(threshold) = log.queue_threshold {
        text += &format!(" queue-threshold {threshold}");
    }
    if let Some(level) = log.level.filter(|level| *level != LogLevel::Warning) {
        text += &format!(" level {level}");
    }
    let all = LogFlags::TCP_SEQUENCE
        | LogFlags::TCP_OPTIONS
        | LogFlags::IP_OPTIONS
        | LogFlags::USER
        | LogFlags::LINK_ADDRESSES;
    if log.flags.contains(all) {
        return text + " flags all";
    }
    let tcp = [
        (LogFlags::TCP_SEQUENCE, "sequence"),
        (LogFlags::TCP_OPTIONS, "options"),
    ];
    let tcp: Vec<&str> = tcp
        .iter()
        .filter(|(flag, _)| log.flags.contains(*flag))
        .map(|(_, name)| *name)
        .collect();
    if !tcp.is_empty() {
        text += &format!(" flags tcp {}", tcp.join(","));
    }
    for (flag, name) in [
        (LogFlags::IP_OPTIONS, "ip options"),
        (LogFlags::USER, "skuid"),
        (LogFlags::LINK_ADDRESSES, "ether"),
    ] {
        if log.flags.contains(flag) {
            text += &format!(" flags {name}");
        }
    }
    text
}

fn synproxy(synproxy: &Synproxy) -> String {
    let mut text = "synproxy".to_owned();
    if let Some(size) = synproxy
        .maximum_segment
        .filter(|_| synproxy.flags.contains(SynproxyFlags::MAXIMUM_SEGMENT))
    {
        text += &format!(" mss {size}");
    }
    if let Some(scale) = synproxy
        .window_scale
        .filter(|_| synproxy.flags.contains(SynproxyFlags::WINDOW_SCALE))
    {
        text += &format!(" wscale {scale}");
    }
    if synproxy.flags.contains(SynproxyFlags::TIMESTAMP) {
        text += " timestamp";
    }
    if synproxy.flags.contains(SynproxyFlags::SACK) {
        text += " sack-perm";
    }
    text
}
