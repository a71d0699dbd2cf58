//! The connection table: which client is on which real server.
//!
//! Source: [`ip_vs_conn_seq_show` at v6.1](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_conn.c). The
//! kernel offers it in `/proc/net/ip_vs_conn` only.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::iter::FusedIterator;
use std::net::SocketAddr;
use std::time::Duration;

use crate::error::Error;
use crate::real_server::RealServerKey;
use crate::scheduler::PersistenceEngine;
use crate::table::{parse_address, parse_port, parse_protocol, unreadable};
use crate::virtual_server::{Family, Protocol, VirtualServerKey};

/// The thread's own entry: the process's shows the namespace of its main thread.
pub(crate) const PATH: &str = "/proc/thread-self/net/ip_vs_conn";

/// One connection, or a persistence template.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ConnectionEntry {
    /// The protocol. Number 0 in a template of a virtual server by mark, which is for all protocols.
    pub protocol: Protocol,
    /// The client. In a template its network, with port 0. Port 0 also in a connection that waits for its first packet.
    pub client: SocketAddr,
    /// The address and port that the client connects to. In a template of a virtual server by mark the mark stands in
    /// place of the address.
    pub virtual_server: SocketAddr,
    /// The real server; its family may differ from the client's.
    pub real_server: RealServerKey,
    /// The state of the protocol.
    pub state: ConnectionState,
    /// When the entry ends unless packets come, in whole seconds.
    pub expires: Duration,
    /// What the persistence engine found in the packet, if one did.
    pub engine: Option<EngineData>,
}

impl ConnectionEntry {
    /// Whether it is a persistence template, as far as the table tells: the client port is 0 and the state is one that only
    /// templates have after their first use.
    pub fn is_template(&self) -> bool {
        self.client.port() == 0 && matches!(self.state, ConnectionState::None | ConnectionState::Assured)
    }
}

/// A persistence engine and the key it found: for `sip` the Call-ID.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct EngineData {
    /// The engine.
    pub engine: PersistenceEngine,
    /// The key: up to 255 bytes (`IP_VS_PEDATA_MAXLEN`), of whatever came in the packet. May be empty.
    pub data: Box<[u8]>,
}

/// The state of a connection, by the name that the kernel prints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names of the protocols' own states")]
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
    /// UDP has one state.
    Udp,
    /// A persistence template that a connection has been established with.
    Assured,
    /// Any other, most of them SCTP's.
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

/// Which connections to list; the default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionFilter {
    /// Of clients of this family.
    pub family: Option<Family>,
    /// Of this protocol.
    pub protocol: Option<Protocol>,
    /// To this virtual server, by address. The table does not tell by which mark a connection came: with a virtual server by
    /// mark only its templates are listed.
    pub virtual_server: Option<VirtualServerKey>,
    /// On this real server.
    pub real_server: Option<RealServerKey>,
    /// In this state.
    pub state: Option<ConnectionState>,
}

impl ConnectionFilter {
    /// All connections.
    pub fn all() -> Self {
        Self::default()
    }

    /// The same, of clients of this family only.
    pub fn with_family(mut self, family: Family) -> Self {
        self.family = Some(family);
        self
    }

    /// The same, of this protocol only.
    pub fn with_protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// The same, to this virtual server only.
    pub fn with_virtual_server(mut self, key: VirtualServerKey) -> Self {
        self.virtual_server = Some(key);
        self
    }

    /// The same, on this real server only.
    pub fn with_real_server(mut self, key: RealServerKey) -> Self {
        self.real_server = Some(key);
        self
    }

    /// The same, in this state only.
    pub fn with_state(mut self, state: ConnectionState) -> Self {
        self.state = Some(state);
        self
    }

    /// Whether a connection is one of these.
    pub fn matches(&self, entry: &ConnectionEntry) -> bool {
        let to = |key: VirtualServerKey| match key {
            VirtualServerKey::Address {
                address,
                protocol,
                port,
            } => entry.protocol == protocol && entry.virtual_server == SocketAddr::new(address, port),
            VirtualServerKey::Mark { family, mark } => {
                let place = match entry.virtual_server {
                    SocketAddr::V4(v4) => u32::from(*v4.ip()) == mark.get(),
                    // The mark is in the first four bytes.
                    SocketAddr::V6(v6) => u128::from(*v6.ip()) == u128::from(mark.get()) << 96,
                };
                place && entry.is_template() && Family::of(entry.client.ip()) == family
            }
        };
        self.family
            .is_none_or(|family| Family::of(entry.client.ip()) == family)
            && self.protocol.is_none_or(|protocol| entry.protocol == protocol)
            && self.virtual_server.is_none_or(to)
            && self.real_server.is_none_or(|key| entry.real_server == key)
            && self.state.as_ref().is_none_or(|state| entry.state == *state)
    }
}

/// The connections of a network namespace, read from the kernel as the iterator goes on.
///
/// Connections that come or go meanwhile may or may not be among them. An error ends it.
#[derive(Debug)]
pub struct Connections<R = BufReader<File>> {
    reader: Option<R>,
    filter: ConnectionFilter,
    line: Vec<u8>,
    number: usize,
}

impl Connections {
    /// Opens the table of the calling thread's network namespace; from then on the iterator belongs to that namespace.
    pub(crate) fn open(filter: ConnectionFilter) -> Result<Self, Error> {
        let file = File::open(PATH).map_err(|error| unreadable(PATH, &error))?;
        Ok(Self::over(BufReader::with_capacity(64 << 10, file), filter))
    }
}

impl<R: BufRead> Connections<R> {
    /// Reads a table that was copied from `/proc/net/ip_vs_conn`.
    pub fn over(reader: R, filter: ConnectionFilter) -> Self {
        Self {
            reader: Some(reader),
            filter,
            line: Vec::new(),
            number: 0,
        }
    }

    fn step(&mut self) -> Result<Option<ConnectionEntry>, Error> {
        while let Some(reader) = &mut self.reader {
            self.line.clear();
            self.number += 1;
            let length = reader
                .read_until(b'\n', &mut self.line)
                .map_err(|error| unreadable(PATH, &error))?;
            if length == 0 {
                break;
            }
            // The headings.
            if self.number == 1 {
                continue;
            }
            let entry = parse(&self.line).map_err(|problem| Error::Syntax {
                path: PATH,
                line: self.number,
                problem,
            })?;
            if self.filter.matches(&entry) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}

impl<R: BufRead> Iterator for Connections<R> {
    type Item = Result<ConnectionEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.step().transpose();
        if !matches!(item, Some(Ok(_))) {
            self.reader = None;
        }
        item
    }
}

impl<R: BufRead> FusedIterator for Connections<R> {}

fn parse(line: &[u8]) -> Result<ConnectionEntry, &'static str> {
    let mut rest = line.strip_suffix(b"\n").unwrap_or(line);
    let mut next = || {
        let start = rest
            .iter()
            .position(|byte| *byte != b' ')
            .ok_or("a connection's row is cut")?;
        let word = rest.get(start..).unwrap_or_default();
        let end = word.iter().position(|byte| *byte == b' ').unwrap_or(word.len());
        let (word, behind) = word.split_at_checked(end).ok_or("a connection's row is cut")?;
        rest = behind;
        std::str::from_utf8(word).map_err(|_| "a connection's row is not text")
    };
    let protocol = parse_protocol(next()?).ok_or("the protocol is none that the kernel prints")?;
    let client = SocketAddr::new(parse_address(next()?)?, parse_port(next()?)?);
    let virtual_server = SocketAddr::new(parse_address(next()?)?, parse_port(next()?)?);
    let real_server = RealServerKey::new(parse_address(next()?)?, parse_port(next()?)?);
    let state = ConnectionState::from_name(next()?);
    let seconds = next()?.parse().map_err(|_| "the time left is not a number")?;
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

/// ` sip a84b4c76e66710`, the data being any bytes.
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
        .ok_or("the persistence engine's name cannot be")?;
    Ok(Some(EngineData {
        engine,
        data: parts.next().unwrap_or_default().into(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    /// `cat /proc/net/ip_vs_conn` of Linux 6.1.0-56-amd64, with a template of mark 9 and a real server of another family as
    /// `ip_vs_conn_seq_show` prints them.
    const TABLE: &str = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
UDP 0A600001 0000 0A600001 13C4 7F000002 13C5 NONE             58 sip a84b4c76e66710
TCP 0A600001 A39A 0A600001 0050 7F000002 1F90 ESTABLISHED    4658
TCP 2001:0db8:0000:0000:0000:0000:0000:0001 C15A 2001:0db8:0000:0000:0000:0000:0000:0002 0050 0000:0000:0000:0000:0000:0000:0000:0001 1F90 SYN_RECV         47
IP  0A600100 0000 00000009 0000 7F000002 0000 ASSURED          98
SCTP 0A600001 A39A 0A600001 0050 [2001:0db8:0000:0000:0000:0000:0000:0007] 1F90 SHUTDOWN_ACK_SENT       3
";

    fn entries(filter: ConnectionFilter) -> Vec<ConnectionEntry> {
        Connections::over(TABLE.as_bytes(), filter)
            .map(Result::unwrap)
            .collect()
    }

    #[test]
    fn rows_are_read() {
        let all = entries(ConnectionFilter::all());
        assert_eq!(all.len(), 5);
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

    #[test]
    fn filters_let_through_what_they_name() {
        let count = |filter: ConnectionFilter| entries(filter).len();
        let all = ConnectionFilter::all;
        assert_eq!(count(all().with_family(Family::Ipv6)), 1);
        assert_eq!(count(all().with_protocol(Protocol::Tcp)), 2);
        assert_eq!(count(all().with_state(ConnectionState::Assured)), 1);
        let web = VirtualServerKey::tcp("10.96.0.1".parse::<std::net::IpAddr>().unwrap(), 80);
        assert_eq!(count(all().with_virtual_server(web)), 1);
        let mark = |number| VirtualServerKey::mark(Family::Ipv4, NonZeroU32::new(number).unwrap());
        assert_eq!(count(all().with_virtual_server(mark(9))), 1);
        assert_eq!(count(all().with_virtual_server(mark(8))), 0);
        let real = RealServerKey::new("127.0.0.2".parse::<std::net::IpAddr>().unwrap(), 8080);
        assert_eq!(count(all().with_real_server(real)), 1);
    }

    #[test]
    fn an_error_names_the_line_and_ends_the_iterator() {
        let wrong = TABLE.replace("4658", "soon");
        let mut connections = Connections::over(wrong.as_bytes(), ConnectionFilter::all());
        assert!(connections.next().unwrap().is_ok());
        assert_eq!(
            connections.next().unwrap().unwrap_err().to_string(),
            "/proc/thread-self/net/ip_vs_conn, line 3: the time left is not a number"
        );
        assert!(connections.next().is_none());
    }
}
