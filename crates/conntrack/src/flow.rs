//! What the kernel knows of one connection.

use std::fmt;
use std::time::{Duration, SystemTime};

use kernlink_base::{Family, Protocol};

use crate::notation::{ProtocolName, family_name, protocol_name};
use crate::protocol_state::ProtocolState;
use crate::status::Status;
use crate::tuple::{Direction, Tuple};
use crate::wire;
use crate::zone::{Zone, ZoneScope};

/// Packets and bytes of one direction. Counted only if the sysctl
/// `net.netfilter.nf_conntrack_acct` was on when the flow began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes, IP headers included.
    pub bytes: u64,
}

/// Up to 128 labels that rules have put on a flow (`connlabel`), as a bit each. Flows have room
/// for labels only while some rule uses them.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "connlabel")]
pub struct Labels(pub u128);

impl Labels {
    /// Whether the label of this number, from 0 to 127, is set.
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

/// How sequence numbers of one direction are adjusted (`CTA_SEQ_ADJ_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SequenceAdjustment {
    /// Sequence number of the last correction.
    pub correction_position: u32,
    /// Offset before it.
    pub offset_before: u32,
    /// Offset after it.
    pub offset_after: u32,
}

/// What SYNPROXY keeps of a connection (`CTA_SYNPROXY`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Synproxy {
    /// Initial sequence number.
    pub initial_sequence: u32,
    /// Initial time stamp.
    pub initial_timestamp: u32,
    /// Offset of time stamps.
    pub timestamp_offset: u32,
}

/// One flow of the table, as it was when the kernel wrote it down.
///
/// `Display` is the line of `conntrack -L -o extended,id`, without a new line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flow {
    /// As packets of the original direction look before translation.
    pub original: Tuple,
    /// As answers look: the inverse of what the original became by translation.
    pub reply: Tuple,
    /// The zone.
    pub zone: Zone,
    /// Number of the flow, the same as long as it lives. 0 where the kernel left it out.
    ///
    /// The kernel makes it from the flow's place in memory, its original tuple and its master
    /// ([`nf_ct_get_id`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_core.c#L502)). A
    /// flow that begins with the same original tuple after another one ended usually gets the same place and so the
    /// same number, also if its reply tuple is another one. `started` tells the two apart, where it is kept;
    /// [`key_by_reply`](Flow::key_by_reply) does if the reply tuples differ.
    pub id: u32,
    /// What happened to it so far.
    pub status: Status,
    /// When it ends if no packet comes, in whole seconds. `None` in notifications of an end, and
    /// for flows that a flow table forwards.
    pub timeout: Option<Duration>,
    /// The mark that rules compare and set (`connmark`).
    pub mark: u32,
    /// State of protocols that have one.
    pub protocol_state: Option<ProtocolState>,
    /// Packets and bytes of the original and the reply direction, if they are counted.
    pub counters: Option<[Counters; 2]>,
    /// When it began, if the sysctl `net.netfilter.nf_conntrack_timestamp` is on.
    pub started: Option<SystemTime>,
    /// When it ended; only in notifications of an end.
    pub stopped: Option<SystemTime>,
    /// When what a notification tells happened; Linux 6.14 and later.
    pub event_time: Option<SystemTime>,
    /// Labels, if any is set. A flow without room for labels has none.
    pub labels: Option<Labels>,
    /// Name of the helper that reads this flow.
    pub helper: Option<Box<str>>,
    /// Original tuple of the flow that expected this one.
    pub master: Option<Box<Tuple>>,
    /// Security context (SELinux).
    pub security_context: Option<Box<str>>,
    /// Adjustment of sequence numbers in the original and the reply direction.
    pub sequence_adjustment: Option<Box<[SequenceAdjustment; 2]>>,
    /// What SYNPROXY keeps.
    pub synproxy: Option<Synproxy>,
    /// References that the kernel holds.
    pub use_count: u32,
}

/// Which flow, exactly.
///
/// The kernel finds a flow by tuple and zone, and with an `id` it acts on it only if its number is the same. A later flow
/// with the same original tuple usually has the same number ([`Flow::id`]); a key made by
/// [`Flow::key_by_reply`] spares it if it leads to another destination. `Display` is as for the arguments of
/// `conntrack -D`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// The original tuple; a reply tuple finds the flow as well.
    pub tuple: Tuple,
    /// The zone.
    pub zone: Zone,
    /// Number of the flow; `None` takes whatever flow has the tuple.
    pub id: Option<u32>,
}

impl FlowKey {
    /// Whatever flow has this tuple in zone 0.
    pub fn new(tuple: Tuple) -> Self {
        FlowKey {
            tuple,
            zone: Zone::DEFAULT,
            id: None,
        }
    }

    /// In another zone.
    pub fn with_zone(mut self, zone: Zone) -> Self {
        self.zone = zone;
        self
    }

    /// This flow only.
    pub fn with_id(mut self, id: u32) -> Self {
        self.id = Some(id);
        self
    }
}

impl Flow {
    /// A flow of which nothing is known but its tuples: zone 0, confirmed, mark 0.
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

    /// Its identity: original tuple, zone and number.
    pub fn key(&self) -> FlowKey {
        FlowKey {
            tuple: self.original,
            zone: self.zone,
            id: (self.id != 0).then_some(self.id),
        }
    }

    /// Its identity by the reply tuple: reply tuple, zone and number.
    ///
    /// As the number depends on the original tuple, the kernel acts only on a flow that has both tuples and the
    /// place of this one: a later flow of the same client that is translated to another destination is spared.
    pub fn key_by_reply(&self) -> FlowKey {
        FlowKey {
            tuple: self.reply,
            ..self.key()
        }
    }

    /// Family of the addresses.
    pub fn family(&self) -> Family {
        self.original.family()
    }

    /// Transport protocol.
    pub fn protocol(&self) -> Protocol {
        self.original.protocol
    }

    /// The tuple of a direction.
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
        match (self.zone.id, self.zone.scope) {
            (0, _) => {}
            (id, ZoneScope::Both) => write!(f, " zone={id}")?,
            (id, ZoneScope::Original) => write!(f, " zone-orig={id}")?,
            (id, ZoneScope::Reply) => write!(f, " zone-reply={id}")?,
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
        if let (1.., ZoneScope::Original) = (self.zone.id, self.zone.scope) {
            write!(f, "zone-orig={} ", self.zone.id)?;
        }
        counters(f, 0)?;
        if !self.status.contains(Status::SEEN_REPLY) {
            f.write_str("[UNREPLIED] ")?;
        }
        write!(f, "{} ", self.reply)?;
        if let (1.., ZoneScope::Reply) = (self.zone.id, self.zone.scope) {
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
        if let (1.., ZoneScope::Both) = (self.zone.id, self.zone.scope) {
            write!(f, "zone={} ", self.zone.id)?;
        }
        if let Some(helper) = &self.helper {
            write!(f, "helper={helper} ")?;
        }
        write!(f, "use={} id={}", self.use_count, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_prints_what_it_pins_down() {
        let tuple = Tuple::udp("10.0.0.1:4660".parse().unwrap(), "10.0.0.2:53".parse().unwrap());
        let key = FlowKey::new(tuple).with_zone(Zone::new(7)).with_id(9);
        assert_eq!(
            key.to_string(),
            "udp src=10.0.0.1 dst=10.0.0.2 sport=4660 dport=53 zone=7 id=9"
        );
    }
}
