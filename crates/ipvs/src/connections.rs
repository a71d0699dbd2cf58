//! Listing the connection table: which connections, and one after the other.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::iter::FusedIterator;
use std::net::SocketAddr;

use crate::connection::{ConnectionEntry, ConnectionState, parse};
use crate::error::Error;
use crate::real_server::RealServerKey;
use crate::table::unreadable;
use crate::virtual_server::{Family, Protocol, VirtualServerKey};

/// The thread's own entry: the process's shows the namespace of its main thread.
const PATH: &str = "/proc/thread-self/net/ip_vs_conn";

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::tests::TABLE;
    use std::num::NonZeroU32;

    fn entries(filter: ConnectionFilter) -> Vec<ConnectionEntry> {
        Connections::over(TABLE.as_bytes(), filter)
            .map(Result::unwrap)
            .collect()
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
