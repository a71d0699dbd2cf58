//! Flows.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use kernlink_base::{Family, Protocol};

use crate::notation::{ProtocolName, family_name, protocol_name};
use crate::protocol_state::{ProtocolState, TcpState};
use crate::status::Status;
use crate::tuple::{Direction, ProtocolPart, Tuple};
use crate::wire;
use crate::zone::{Zone, ZoneDirection};

/// Packets and bytes of one direction. The kernel counts them if the sysctl `net.netfilter.nf_conntrack_acct` was 1 when the
/// flow began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes, IP headers included.
    pub bytes: u64,
}

/// Labels of a flow (`connlabel`), one bit for each of the numbers 0 to 127. Flows have room for labels only if a rule of the
/// network namespace used labels when they began.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "connlabel")]
pub struct Labels(pub u128);

impl Labels {
    /// Whether the label is set; false for numbers above 127.
    #[must_use]
    pub fn contains(self, label: u8) -> bool {
        label < 128 && self.0 & (1 << label) != 0
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries((0..128).filter(|label| self.contains(*label)))
            .finish()
    }
}

/// Adjustment of the TCP sequence numbers of one direction (`CTA_SEQ_ADJ_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SequenceAdjustment {
    /// Sequence number of the last correction.
    pub correction_position: u32,
    /// Offset before the last correction.
    pub offset_before: u32,
    /// Offset after the last correction.
    pub offset_after: u32,
}

/// Data of SYNPROXY about a connection (`CTA_SYNPROXY`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Synproxy {
    /// Initial sequence number.
    pub initial_sequence: u32,
    /// Initial timestamp.
    pub initial_timestamp: u32,
    /// Offset of timestamps.
    pub timestamp_offset: u32,
}

/// A flow of the table, at the time when it was listed.
///
/// `Display` is the line of `conntrack -L -o extended,id`, without a newline.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flow {
    /// Tuple of the original direction, before address translation.
    pub original: Tuple,
    /// Tuple of the reply direction: the inverse of the original tuple after address translation.
    pub reply: Tuple,
    /// The zone.
    pub zone: Zone,
    /// Id of the flow, constant during its life. 0 if the kernel did not send it.
    ///
    /// The kernel computes it from the flow's address in memory, its original tuple and its master
    /// ([`nf_ct_get_id`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_core.c#L502)). A
    /// flow that begins with the same original tuple after another one ended usually gets the same address and so the same id, even
    /// if its reply tuple differs. `started` distinguishes the two, if the kernel keeps it; [`key_by_reply`](Flow::key_by_reply)
    /// distinguishes them if the reply tuples differ.
    pub id: u32,
    /// Status bits.
    pub status: Status,
    /// Time until the flow ends without a further packet, in whole seconds. `None` in events of ended flows, and for flows that a
    /// flow table forwards.
    pub timeout: Option<Duration>,
    /// The mark that rules compare and set (`connmark`); 0 by default.
    pub mark: u32,
    /// State of TCP, SCTP and DCCP.
    pub protocol_state: Option<ProtocolState>,
    /// Counters of the original and the reply direction, if the kernel counts.
    pub counters: Option<[Counters; 2]>,
    /// Start time, if the sysctl `net.netfilter.nf_conntrack_timestamp` is 1.
    pub started: Option<SystemTime>,
    /// End time; only in events of ended flows.
    pub stopped: Option<SystemTime>,
    /// Time of the event; only in events, Linux 6.14 and later.
    pub event_time: Option<SystemTime>,
    /// Labels; `None` if no label is set, or if the flow has no room for labels.
    pub labels: Option<Labels>,
    /// Name of the helper.
    pub helper: Option<Box<str>>,
    /// Original tuple of the flow that expected this one.
    pub master: Option<Box<Tuple>>,
    /// Security context (SELinux).
    pub security_context: Option<Box<str>>,
    /// Adjustment of sequence numbers in the original and the reply direction.
    pub sequence_adjustment: Option<Box<[SequenceAdjustment; 2]>>,
    /// Data of SYNPROXY.
    pub synproxy: Option<Synproxy>,
    /// Number of references in the kernel.
    pub use_count: u32,
}

/// Identifies a flow.
///
/// The kernel finds a flow by tuple and zone. With an `id`, it acts only if the flow has this id. A later flow with the same
/// original tuple usually has the same id ([`Flow::id`]). A key of [`Flow::key_by_reply`] does not match a later flow with another
/// destination. `Display` is `udp src=10.0.0.1 dst=10.0.0.2 sport=4660 dport=53 zone=7 id=9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// The original tuple; a reply tuple finds the flow as well.
    pub tuple: Tuple,
    /// The zone.
    pub zone: Zone,
    /// Id of the flow; `None` is any flow with the tuple.
    pub id: Option<u32>,
}

impl FlowKey {
    /// Any flow with this tuple in zone 0.
    #[must_use]
    pub fn new(tuple: Tuple) -> Self {
        FlowKey {
            tuple,
            zone: Zone::DEFAULT,
            id: None,
        }
    }

    /// Sets the zone.
    #[must_use]
    pub fn with_zone(mut self, zone: Zone) -> Self {
        self.zone = zone;
        self
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, id: u32) -> Self {
        self.id = Some(id);
        self
    }
}

impl Flow {
    /// A confirmed flow in zone 0 with mark 0; every other field is 0 or `None`.
    #[must_use]
    pub fn new(original: Tuple, reply: Tuple) -> Self {
        Flow {
            original,
            reply,
            zone: Zone::DEFAULT,
            id: 0,
            status: Status::CONFIRMED,
            timeout: None,
            mark: 0,
            protocol_state: None,
            counters: None,
            started: None,
            stopped: None,
            event_time: None,
            labels: None,
            helper: None,
            master: None,
            security_context: None,
            sequence_adjustment: None,
            synproxy: None,
            use_count: 0,
        }
    }

    /// The key: original tuple, zone and id.
    #[must_use]
    pub fn key(&self) -> FlowKey {
        FlowKey {
            tuple: self.original,
            zone: self.zone,
            id: (self.id != 0).then_some(self.id),
        }
    }

    /// The key by the reply tuple: reply tuple, zone and id.
    ///
    /// The id depends on the original tuple, so the kernel acts only on a flow with both tuples of this flow. A later flow of the
    /// same client that is translated to another destination does not match.
    #[must_use]
    pub fn key_by_reply(&self) -> FlowKey {
        FlowKey {
            tuple: self.reply,
            ..self.key()
        }
    }

    /// Family of the addresses.
    #[must_use]
    pub fn family(&self) -> Family {
        self.original.family()
    }

    /// Transport protocol.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.original.protocol
    }

    /// State of a TCP connection; `None` for other protocols, and in events that do not have it.
    #[must_use]
    pub fn tcp_state(&self) -> Option<TcpState> {
        match self.protocol_state {
            Some(ProtocolState::Tcp { state, .. }) => Some(state),
            _ => None,
        }
    }

    /// The tuple of a direction.
    #[must_use]
    pub fn tuple(&self, direction: Direction) -> &Tuple {
        match direction {
            Direction::Original => &self.original,
            Direction::Reply => &self.reply,
        }
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", ProtocolName(self.tuple.protocol), self.tuple)?;
        match (self.zone.id, self.zone.direction) {
            (0, _) => {}
            (id, ZoneDirection::Both) => write!(f, " zone={id}")?,
            (id, ZoneDirection::Original) => write!(f, " zone-orig={id}")?,
            (id, ZoneDirection::Reply) => write!(f, " zone-reply={id}")?,
        }
        match self.id {
            Some(id) => write!(f, " id={id}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = self.family();
        let protocol = self.protocol();
        let name = protocol_name(protocol).unwrap_or("unknown");
        write!(
            f,
            "{:<8} {} {name:<8} {} ",
            family_name(family),
            wire::family_number(family),
            protocol.0
        )?;
        if let Some(timeout) = self.timeout {
            write!(f, "{} ", timeout.as_secs())?;
        }
        match self.protocol_state {
            Some(ProtocolState::Tcp { state, .. }) => write!(f, "{state} ")?,
            Some(ProtocolState::Sctp { state, .. }) => write!(f, "{state} ")?,
            Some(ProtocolState::Dccp { state, .. }) => write!(f, "{state} ")?,
            None => {}
        }
        let counters = |f: &mut fmt::Formatter<'_>, direction: usize| match self
            .counters
            .and_then(|c| c.get(direction).copied())
        {
            Some(Counters { packets, bytes }) => write!(f, "packets={packets} bytes={bytes} "),
            None => Ok(()),
        };
        write!(f, "{} ", self.original)?;
        if let (1.., ZoneDirection::Original) = (self.zone.id, self.zone.direction) {
            write!(f, "zone-orig={} ", self.zone.id)?;
        }
        counters(f, 0)?;
        if !self.status.contains(Status::SEEN_REPLY) {
            f.write_str("[UNREPLIED] ")?;
        }
        write!(f, "{} ", self.reply)?;
        if let (1.., ZoneDirection::Reply) = (self.zone.id, self.zone.direction) {
            write!(f, "zone-reply={} ", self.zone.id)?;
        }
        counters(f, 1)?;
        if self.status.contains(Status::HW_OFFLOAD) {
            f.write_str("[HW_OFFLOAD] ")?;
        } else if self.status.contains(Status::OFFLOAD) {
            f.write_str("[OFFLOAD] ")?;
        } else if self.status.contains(Status::ASSURED) {
            f.write_str("[ASSURED] ")?;
        }
        write!(f, "mark={} ", self.mark)?;
        if let Some(context) = &self.security_context {
            write!(f, "secctx={context} ")?;
        }
        if let (1.., ZoneDirection::Both) = (self.zone.id, self.zone.direction) {
            write!(f, "zone={} ", self.zone.id)?;
        }
        if let Some(helper) = &self.helper {
            write!(f, "helper={helper} ")?;
        }
        write!(f, "use={} id={}", self.use_count, self.id)
    }
}

/// Why a text is not the notation of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid flow key {text:?}: {problem}; expected such as `udp src=10.0.0.1 dst=10.0.0.2 sport=4660 dport=53 zone=7 id=9`"
)]
pub struct ParseFlowKeyError {
    text: Box<str>,
    problem: Box<str>,
}

impl FromStr for FlowKey {
    type Err = ParseFlowKeyError;

    /// Parses what `Display` prints: the name or number of the protocol, and fields in any order, each at most once. Ports are
    /// `sport` and `dport`; keys of GRE `srckey` and `dstkey`; fields of ICMP `type`, `code` and, before the id of the flow, `id`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_key(text).map_err(|problem| ParseFlowKeyError {
            text: text.into(),
            problem: problem.into(),
        })
    }
}

fn parse_key(text: &str) -> Result<FlowKey, String> {
    let mut words = text.split_ascii_whitespace();
    let protocol = words.next().ok_or("it has no protocol")?;
    let protocol = match protocol.parse() {
        // 0 is a number that prints, and that `Protocol` does not read.
        Ok(number) => Protocol(number),
        Err(_) => protocol.parse::<Protocol>().map_err(|error| error.to_string())?,
    };
    let mut fields = Vec::new();
    for word in words {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| format!("{word:?} is not a field NAME=VALUE"))?;
        fields.push((name, value));
    }
    let source = take(&mut fields, "src")?.ok_or("src is missing")?;
    let destination = take(&mut fields, "dst")?.ok_or("dst is missing")?;
    let ports = match protocol {
        Protocol::GRE => (take_key(&mut fields, "srckey")?, take_key(&mut fields, "dstkey")?),
        _ => (take(&mut fields, "sport")?, take(&mut fields, "dport")?),
    };
    let part = if protocol.is_icmp() {
        ProtocolPart::Icmp {
            kind: take(&mut fields, "type")?.ok_or("type is missing")?,
            code: take(&mut fields, "code")?.ok_or("code is missing")?,
            identifier: take(&mut fields, "id")?.ok_or("id is missing")?,
        }
    } else {
        match ports {
            (Some(source), Some(destination)) => ProtocolPart::Ports { source, destination },
            (None, None) => ProtocolPart::None,
            _ => return Err("one of the two ports is missing".to_owned()),
        }
    };
    let tuple = Tuple {
        source,
        destination,
        protocol,
        part,
    };
    tuple.check("tuple").map_err(|problem| problem.to_string())?;
    let mut zone = Zone::DEFAULT;
    for (name, direction) in [
        ("zone", ZoneDirection::Both),
        ("zone-orig", ZoneDirection::Original),
        ("zone-reply", ZoneDirection::Reply),
    ] {
        if let Some(id) = take(&mut fields, name)? {
            if zone != Zone::DEFAULT {
                return Err("more than one zone".to_owned());
            }
            // Zone 0 has no direction.
            zone = if id == 0 {
                Zone::DEFAULT
            } else {
                Zone { id, direction }
            };
        }
    }
    let id = take(&mut fields, "id")?;
    match fields.first() {
        Some((name, _)) => Err(format!("unexpected field {name:?}")),
        None => Ok(FlowKey { tuple, zone, id }),
    }
}

/// The value of the first field of this name, which is removed.
fn take<T: FromStr>(fields: &mut Vec<(&str, &str)>, name: &str) -> Result<Option<T>, String> {
    let Some(index) = fields.iter().position(|(field, _)| *field == name) else {
        return Ok(None);
    };
    let (_, value) = fields.remove(index);
    value
        .parse()
        .map(Some)
        .map_err(|_| format!("invalid value {value:?} of {name}"))
}

/// As [`take`], for a hexadecimal number after `0x`.
fn take_key(fields: &mut Vec<(&str, &str)>, name: &str) -> Result<Option<u16>, String> {
    let Some(text) = take::<String>(fields, name)? else {
        return Ok(None);
    };
    let digits = text.strip_prefix("0x").filter(|digits| !digits.starts_with('+'));
    let number = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
    number
        .map(Some)
        .ok_or_else(|| format!("invalid value {text:?} of {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_tcp_connection_is_at_the_flow() {
        let tuple = Tuple::tcp("10.0.0.1:4660".parse().unwrap(), "10.0.0.2:53".parse().unwrap());
        let mut flow = Flow::new(tuple, tuple.inverted().unwrap());
        assert_eq!(flow.tcp_state(), None);
        flow.protocol_state = Some(ProtocolState::Tcp {
            state: TcpState::TIME_WAIT,
            window_scale: [0; 2],
            flags: [0; 2],
        });
        assert_eq!(flow.tcp_state(), Some(TcpState::TIME_WAIT));
    }

    #[test]
    fn a_text_that_is_no_key_is_refused_with_its_problem() {
        for (text, problem) in [
            ("", "it has no protocol"),
            ("tcp", "src is missing"),
            ("nope src=10.0.0.1 dst=10.0.0.2", "invalid protocol \"nope\""),
            (
                "tcp src=10.0.0.1 dst=10.0.0.2 sport=1",
                "one of the two ports is missing",
            ),
            (
                "tcp src=10.0.0.1 dst=10.0.0.2 sport=1 dport=65536",
                "invalid value \"65536\" of dport",
            ),
            (
                "tcp src=10.0.0.1 dst=10.0.0.2",
                "ports or ICMP fields do not match protocol tcp",
            ),
            (
                "udp src=10.0.0.1 dst=::1 sport=1 dport=2",
                "addresses of different families",
            ),
            (
                "udp src=10.0.0.1 dst=10.0.0.2 sport=1 dport=2 dport=3",
                "unexpected field \"dport\"",
            ),
            (
                "udp src=10.0.0.1 dst=10.0.0.2 sport=1 dport=2 zone=1 zone-orig=2",
                "more than one zone",
            ),
            (
                "gre src=10.0.0.1 dst=10.0.0.2 srckey=0x+1 dstkey=0x2",
                "invalid value \"0x+1\" of srckey",
            ),
        ] {
            let error = text.parse::<FlowKey>().unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn a_key_prints_its_fields() {
        let tuple = Tuple::udp("10.0.0.1:4660".parse().unwrap(), "10.0.0.2:53".parse().unwrap());
        let key = FlowKey::new(tuple).with_zone(Zone::new(7)).with_id(9);
        assert_eq!(
            key.to_string(),
            "udp src=10.0.0.1 dst=10.0.0.2 sport=4660 dport=53 zone=7 id=9"
        );
    }
}
