//! Entries of the connection table.
//!
//! Source: [`ip_vs_conn_seq_show` at v6.1](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_conn.c). The
//! kernel provides the table only in `/proc/net/ip_vs_conn`.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::proc_net::{parse_address, parse_port, parse_protocol};
use crate::real_server::RealServerKey;
use crate::scheduler::PersistenceEngine;
use crate::virtual_server::Protocol;

/// A connection or a persistence template.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ConnectionEntry {
    /// The protocol. Number 0 for a template of a virtual server by mark, which applies to all protocols.
    pub protocol: Protocol,
    /// The address and port of the client. For a template, the client network with port 0. The port is also 0 for a connection
    /// without a packet yet.
    pub client: SocketAddr,
    /// The address and port that the client connects to. For a template of a virtual server by mark, the address contains the mark.
    pub virtual_server: SocketAddr,
    /// The real server. Its family may be different from the client's.
    pub real_server: RealServerKey,
    /// The protocol state.
    pub state: ConnectionState,
    /// The remaining time until the entry expires, in whole seconds. Packets of the connection restart it.
    pub expires: Duration,
    /// The key of the persistence engine, if one is used.
    pub engine: Option<EngineData>,
}

impl ConnectionEntry {
    /// Whether this is probably a persistence template: the client port is 0, and the state is one of a template.
    #[must_use]
    pub fn is_template(&self) -> bool {
        self.client.port() == 0 && matches!(self.state, ConnectionState::None | ConnectionState::Assured)
    }
}

/// A persistence engine and the key that it has read from a packet: for `sip` the Call-ID.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct EngineData {
    /// The engine.
    pub engine: PersistenceEngine,
    /// The key: 0 to 255 bytes (`IP_VS_PEDATA_MAXLEN`) with arbitrary values.
    pub data: Box<[u8]>,
}

/// The state of a connection, by its name in the kernel's table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names of protocol states")]
pub enum ConnectionState {
    None,
    Established,
    SynSent,
    SynReceived,
    FinWait,
    TimeWait,
    Close,
    CloseWait,
    LastAck,
    Listen,
    SynAck,
    /// The only state of UDP.
    Udp,
    /// A persistence template of which a connection has been established.
    Assured,
    /// Another state, mostly of SCTP.
    Other(Box<str>),
}

impl ConnectionState {
    fn from_name(name: &str) -> Self {
        let known = KNOWN.iter().find(|(_, known)| *known == name);
        known.map_or_else(|| Self::Other(name.into()), |(state, _)| state.clone())
    }
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Other(name) => name,
            state => KNOWN
                .iter()
                .find(|(known, _)| known == state)
                .map_or("", |(_, name)| name),
        };
        f.pad(name)
    }
}

const KNOWN: [(ConnectionState, &str); 13] = [
    (ConnectionState::None, "NONE"),
    (ConnectionState::Established, "ESTABLISHED"),
    (ConnectionState::SynSent, "SYN_SENT"),
    (ConnectionState::SynReceived, "SYN_RECV"),
    (ConnectionState::FinWait, "FIN_WAIT"),
    (ConnectionState::TimeWait, "TIME_WAIT"),
    (ConnectionState::Close, "CLOSE"),
    (ConnectionState::CloseWait, "CLOSE_WAIT"),
    (ConnectionState::LastAck, "LAST_ACK"),
    (ConnectionState::Listen, "LISTEN"),
    (ConnectionState::SynAck, "SYNACK"),
    (ConnectionState::Udp, "UDP"),
    (ConnectionState::Assured, "ASSURED"),
];

/// Parses a row of the table, with or without a line feed.
pub(crate) fn parse(line: &[u8]) -> Result<ConnectionEntry, &'static str> {
    let mut rest = line.strip_suffix(b"\n").unwrap_or(line);
    let mut next = || {
        let start = rest
            .iter()
            .position(|byte| *byte != b' ')
            .ok_or("truncated row of a connection")?;
        let word = rest.get(start..).unwrap_or_default();
        let end = word.iter().position(|byte| *byte == b' ').unwrap_or(word.len());
        let (word, remainder) = word
            .split_at_checked(end)
            .ok_or("truncated row of a connection")?;
        rest = remainder;
        std::str::from_utf8(word).map_err(|_| "invalid UTF-8 in the row of a connection")
    };
    let protocol = parse_protocol(next()?).ok_or("unknown protocol")?;
    let client = SocketAddr::new(parse_address(next()?)?, parse_port(next()?)?);
    let virtual_server = SocketAddr::new(parse_address(next()?)?, parse_port(next()?)?);
    let real_server = RealServerKey::new(parse_address(next()?)?, parse_port(next()?)?);
    let state = ConnectionState::from_name(next()?);
    let seconds = next()?
        .parse()
        .map_err(|_| "invalid remaining time; expected a number")?;
    Ok(ConnectionEntry {
        protocol,
        client,
        virtual_server,
        real_server,
        state,
        expires: Duration::from_secs(seconds),
        engine: parse_engine(rest)?,
    })
}

/// ` sip a84b4c76e66710`. The data can be any bytes.
fn parse_engine(rest: &[u8]) -> Result<Option<EngineData>, &'static str> {
    let Some(rest) = rest.strip_prefix(b" ") else {
        return Ok(None);
    };
    let mut parts = rest.splitn(2, |byte| *byte == b' ');
    let name = parts.next().unwrap_or_default();
    if name.is_empty() {
        return Ok(None);
    }
    let engine = std::str::from_utf8(name)
        .ok()
        .and_then(|name| PersistenceEngine::new(name).ok())
        .ok_or("invalid persistence engine name")?;
    Ok(Some(EngineData {
        engine,
        data: parts.next().unwrap_or_default().into(),
    }))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `cat /proc/net/ip_vs_conn` of Linux 6.1.0-56-amd64, with a template of mark 9 and a real server of another family as
    /// `ip_vs_conn_seq_show` prints them.
    pub(crate) const TABLE: &str = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
UDP 0A600001 0000 0A600001 13C4 7F000002 13C5 NONE             58 sip a84b4c76e66710
TCP 0A600001 A39A 0A600001 0050 7F000002 1F90 ESTABLISHED    4658
TCP 2001:0db8:0000:0000:0000:0000:0000:0001 C15A 2001:0db8:0000:0000:0000:0000:0000:0002 0050 0000:0000:0000:0000:0000:0000:0000:0001 1F90 SYN_RECV         47
IP  0A600100 0000 00000009 0000 7F000002 0000 ASSURED          98
SCTP 0A600001 A39A 0A600001 0050 [2001:0db8:0000:0000:0000:0000:0000:0007] 1F90 SHUTDOWN_ACK_SENT       3
";

    #[test]
    fn rows_are_parsed() {
        let rows = TABLE.lines().skip(1);
        let all: Vec<_> = rows.map(|row| parse(row.as_bytes()).unwrap()).collect();
        let [sip, tcp, six, template, sctp] = &all[..] else {
            panic!()
        };
        assert!(sip.is_template());
        let engine = sip.engine.as_ref().unwrap();
        assert_eq!(
            (engine.engine, &*engine.data),
            (PersistenceEngine::SIP, &b"a84b4c76e66710"[..])
        );
        assert_eq!(tcp.client, "10.96.0.1:41882".parse().unwrap());
        assert_eq!(tcp.virtual_server, "10.96.0.1:80".parse().unwrap());
        assert_eq!(tcp.real_server.to_string(), "127.0.0.2:8080");
        assert_eq!(
            (&tcp.state, tcp.expires),
            (&ConnectionState::Established, Duration::from_secs(4658))
        );
        assert_eq!(six.virtual_server, "[2001:db8::2]:80".parse().unwrap());
        assert_eq!(six.state, ConnectionState::SynReceived);
        assert_eq!(template.protocol, Protocol::from_number(0));
        assert!(template.is_template());
        assert_eq!(sctp.real_server.to_string(), "[2001:db8::7]:8080");
        assert_eq!(sctp.state.to_string(), "SHUTDOWN_ACK_SENT");
    }
}
