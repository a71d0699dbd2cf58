//! Traces of packets.

use std::fmt;

use kernlink_netlink::{Error, Message};

use crate::chain::Policy;
use crate::table::TableKey;
use crate::uapi::{
    NFTA_TRACE_CHAIN, NFTA_TRACE_CT_DIRECTION, NFTA_TRACE_CT_ID, NFTA_TRACE_CT_STATE, NFTA_TRACE_CT_STATUS,
    NFTA_TRACE_ID, NFTA_TRACE_IIF, NFTA_TRACE_IIFTYPE, NFTA_TRACE_LL_HEADER, NFTA_TRACE_MARK,
    NFTA_TRACE_NETWORK_HEADER, NFTA_TRACE_NFPROTO, NFTA_TRACE_OIF, NFTA_TRACE_OIFTYPE, NFTA_TRACE_POLICY,
    NFTA_TRACE_RULE_HANDLE, NFTA_TRACE_TABLE, NFTA_TRACE_TRANSPORT_HEADER, NFTA_TRACE_TYPE,
    NFTA_TRACE_VERDICT,
};
use crate::verdict::Verdict;
use crate::wire::{Field, MISSING, open_enum, parts, text};

open_enum! {
    /// What a step of a traced packet is.
    TraceKind: u32 {
        /// The policy of a base chain decided.
        Policy = NFT_TRACETYPE_POLICY "policy",
        /// A chain returned, by a rule or at its end.
        Return = NFT_TRACETYPE_RETURN "return",
        /// A rule matched.
        Rule = NFT_TRACETYPE_RULE "rule",
    }
}

/// A step of a traced packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trace {
    /// The id of the packet, the same in all its steps.
    pub id: u32,
    /// What the step is.
    pub kind: TraceKind,
    /// The table.
    pub table: TableKey,
    /// The chain.
    pub chain: Box<str>,
    /// The handle of the rule.
    pub rule: Option<u64>,
    /// The `netfilter verdict` of the rule.
    pub verdict: Option<Verdict>,
    /// The policy of the base chain.
    pub policy: Option<Policy>,
    /// The mark of the packet, if it is not 0.
    pub mark: Option<u32>,
    /// The family of the packet (`NFPROTO_*`).
    pub network_protocol: Option<u32>,
    /// Index and hardware type of the input device; only in the first step.
    pub input: Option<(u32, u16)>,
    /// Index and hardware type of the output device; only in the first step.
    pub output: Option<(u32, u16)>,
    /// The header of the link layer; only in the first step.
    pub link_header: Box<[u8]>,
    /// The header of the network layer; only in the first step.
    pub network_header: Box<[u8]>,
    /// The beginning of the header of the transport layer; only in the first step.
    pub transport_header: Box<[u8]>,
    /// Id, direction, status and state of the connection, of those that the kernel sends (Linux 6.16).
    pub connection: TraceConnection,
}

/// The connection of a traced packet (Linux 6.16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceConnection {
    /// Id.
    pub id: Option<u32>,
    /// 0 original, 1 reply.
    pub direction: Option<u8>,
    /// Status, as bits (`IPS_*`).
    pub status: Option<u32>,
    /// State, as bits.
    pub state: Option<u32>,
}

impl Trace {
    pub(crate) fn decode(message: &Message<'_>) -> Result<Self, Error> {
        let (family, attributes) = parts(message)?;
        let (mut id, mut kind, mut table) = (None, None, None);
        let (mut input, mut output) = ((None, 0), (None, 0));
        let mut trace = Trace {
            id: 0,
            kind: TraceKind::Rule,
            table: TableKey::new(family, ""),
            chain: "".into(),
            rule: None,
            verdict: None,
            policy: None,
            mark: None,
            network_protocol: None,
            input: None,
            output: None,
            link_header: Box::default(),
            network_header: Box::default(),
            transport_header: Box::default(),
            connection: TraceConnection::default(),
        };
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind() {
                NFTA_TRACE_ID => id = Some(attribute.be_u32()?),
                NFTA_TRACE_TYPE => kind = Some(TraceKind::read(&attribute)?),
                NFTA_TRACE_TABLE => table = Some(text(&attribute)),
                NFTA_TRACE_CHAIN => trace.chain = text(&attribute),
                NFTA_TRACE_RULE_HANDLE => trace.rule = Some(attribute.be_u64()?),
                NFTA_TRACE_VERDICT => trace.verdict = Some(Verdict::decode(attribute.nested())?),
                NFTA_TRACE_POLICY => trace.policy = Some(Policy::read(&attribute)?),
                NFTA_TRACE_MARK => trace.mark = Some(attribute.be_u32()?),
                NFTA_TRACE_NFPROTO => trace.network_protocol = Some(attribute.be_u32()?),
                NFTA_TRACE_IIF => input.0 = Some(attribute.be_u32()?),
                NFTA_TRACE_IIFTYPE => input.1 = attribute.be_u16()?,
                NFTA_TRACE_OIF => output.0 = Some(attribute.be_u32()?),
                NFTA_TRACE_OIFTYPE => output.1 = attribute.be_u16()?,
                NFTA_TRACE_LL_HEADER => trace.link_header = attribute.bytes().into(),
                NFTA_TRACE_NETWORK_HEADER => trace.network_header = attribute.bytes().into(),
                NFTA_TRACE_TRANSPORT_HEADER => trace.transport_header = attribute.bytes().into(),
                NFTA_TRACE_CT_ID => trace.connection.id = Some(attribute.be_u32()?),
                NFTA_TRACE_CT_DIRECTION => trace.connection.direction = Some(attribute.u8()?),
                NFTA_TRACE_CT_STATUS => trace.connection.status = Some(attribute.be_u32()?),
                NFTA_TRACE_CT_STATE => trace.connection.state = Some(attribute.be_u32()?),
                _ => {}
            }
        }
        trace.id = id.ok_or(MISSING)?;
        trace.kind = kind.ok_or(MISSING)?;
        trace.table.name = table.ok_or(MISSING)?;
        trace.input = input.0.map(|index| (index, input.1));
        trace.output = output.0.map(|index| (index, output.1));
        Ok(trace)
    }
}

/// As `nft monitor trace`: `trace id 4f3c2b1a ip filter input rule handle 4 (verdict accept)`.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "trace id {:08x} {} {} {}",
            self.id, self.table, self.chain, self.kind
        )?;
        if let Some(handle) = self.rule {
            write!(f, " handle {handle}")?;
        }
        if let Some(verdict) = &self.verdict {
            write!(f, " (verdict {verdict})")?;
        }
        if let Some(policy) = self.policy {
            write!(f, " {policy}")?;
        }
        if let Some(mark) = self.mark {
            write!(f, " meta mark 0x{mark:08x}")?;
        }
        Ok(())
    }
}
