//! Listing the connection table: which connections, and one after the other.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::iter::FusedIterator;
use std::net::SocketAddr;

use kernlink_base::Family;

use crate::connection::{ConnectionEntry, ConnectionState, EngineData, parse};
use crate::error::Error;
use crate::proc_net::unreadable;
use crate::real_server::RealServerKey;
use crate::virtual_server::{Protocol, VirtualServerKey};

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

/// The connections of a network namespace, read from the kernel as the iterator goes on. An error ends it.
///
/// The kernel hands its table out a page at a time, some 60 rows of IPv4, and finds where the next page begins by counting
/// rows from the start, those of other network namespaces included (`ip_vs_conn_array` in
/// [`ip_vs_conn.c` at v6.1](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_conn.c)). What comes or goes
/// anywhere on the host between two pages shifts the rest of the table:
///
/// - A connection that came pushes rows into the next page that were in the last one. They are recognised and left out, by
///   their protocol, addresses, ports and engine data, so that no connection is there twice. For this the last 1024 to 2048
///   rows are remembered, of those that the filter lets through: only if more connections than that came between two pages
///   could a row come again.
/// - A connection that went pulls rows into the page that is over, unseen: a connection that was there all the time can be
///   missing, and the kernel does not say so. A second listing will seldom lack the same ones. To know how many there are,
///   take the counters: [`ConnectionCounts`](crate::ConnectionCounts) of a real server do not depend on this table.
/// - A connection that comes or goes meanwhile may or may not be among them, with the state and time left that it had when
///   its page was read.
#[derive(Debug)]
pub struct Connections<R = BufReader<File>> {
    reader: Option<R>,
    filter: ConnectionFilter,
    recent: Recent,
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
    /// Reads a table that was copied from `/proc/net/ip_vs_conn`; a copy has the same gaps and repeats, and the repeats are left
    /// out of it too.
    pub fn over(reader: R, filter: ConnectionFilter) -> Self {
        Self {
            reader: Some(reader),
            filter,
            recent: Recent::default(),
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
            if self.filter.matches(&entry) && self.recent.is_new(&entry) {
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

/// The rows that came lately, to know them when they come again: the last [`ROWS`](Self::ROWS) at least, twice as many at most.
#[derive(Debug, Default)]
struct Recent {
    /// Fewer than [`ROWS`](Self::ROWS).
    latest: HashSet<Identity>,
    /// None, or as many, from before those.
    earlier: HashSet<Identity>,
}

impl Recent {
    const ROWS: usize = 1024;

    /// Whether it is not among them; it is from now on.
    fn is_new(&mut self, entry: &ConnectionEntry) -> bool {
        let identity = Identity::of(entry);
        if self.earlier.contains(&identity) || !self.latest.insert(identity) {
            return false;
        }
        if self.latest.len() == Self::ROWS {
            // Both keep their memory.
            std::mem::swap(&mut self.latest, &mut self.earlier);
            self.latest.clear();
        }
        true
    }
}

/// What tells a connection from all others: its row without state and time left. Templates of a persistence engine differ by
/// its data alone.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Identity {
    protocol: Protocol,
    client: SocketAddr,
    virtual_server: SocketAddr,
    real_server: RealServerKey,
    engine: Option<EngineData>,
}

impl Identity {
    fn of(entry: &ConnectionEntry) -> Self {
        Self {
            protocol: entry.protocol,
            client: entry.client,
            virtual_server: entry.virtual_server,
            real_server: entry.real_server,
            engine: entry.engine.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::num::NonZeroU32;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::connection::tests::TABLE;

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

    /// The kernel's file: rows, some of them other namespaces', of which each read gives a page from where the last one ended by
    /// position, the table having changed since.
    struct Table {
        rows: Vec<Row>,
        position: usize,
        /// One taken off before each read.
        changes: Vec<Change>,
        next_port: u16,
        has_headings: bool,
        /// Of the page, what the buffer of the last read was too small for.
        rest: Vec<u8>,
    }

    #[derive(Clone, Debug)]
    struct Row {
        port: u16,
        is_ours: bool,
    }

    /// What comes and goes between two reads: where, and whether it is ours.
    #[derive(Clone, Debug, Default)]
    struct Change {
        come: Vec<(usize, bool)>,
        go: Vec<usize>,
    }

    impl Table {
        /// Those there at first have ports from 1, those that come have ports from 20000.
        fn new(are_ours: impl IntoIterator<Item = bool>, mut changes: Vec<Change>) -> Self {
            changes.reverse();
            let rows = (1..).zip(are_ours);
            Self {
                rows: rows.map(|(port, is_ours)| Row { port, is_ours }).collect(),
                position: 0,
                changes,
                next_port: 20_000,
                has_headings: false,
                rest: Vec::new(),
            }
        }

        /// The client ports in the order of the listing.
        fn listed(self) -> Vec<u16> {
            Connections::over(BufReader::with_capacity(64 << 10, self), ConnectionFilter::all())
                .map(|entry| entry.unwrap().client.port())
                .collect()
        }
    }

    impl Read for Table {
        fn read(&mut self, mut buffer: &mut [u8]) -> std::io::Result<usize> {
            if self.rest.is_empty() {
                self.rest = self.page().into_bytes();
            }
            let written = buffer.write(&self.rest)?;
            self.rest.drain(..written);
            Ok(written)
        }
    }

    impl Table {
        fn page(&mut self) -> String {
            let change = self.changes.pop().unwrap_or_default();
            for place in change.go {
                if let Some(place) = place.checked_rem(self.rows.len()) {
                    self.rows.remove(place);
                }
            }
            for (place, is_ours) in change.come {
                let port = self.next_port;
                self.next_port += 1;
                self.rows
                    .insert(place % (self.rows.len() + 1), Row { port, is_ours });
            }
            let mut given = String::new();
            if !std::mem::replace(&mut self.has_headings, true) {
                given += TABLE.split_inclusive('\n').next().unwrap();
            }
            while let Some(row) = self.rows.get(self.position) {
                let text = format!(
                    "TCP 0A600001 {:04X} 0A600001 0050 7F000002 1F90 ESTABLISHED    {:4}\n",
                    row.port, self.position
                );
                if row.is_ours {
                    if given.len() + text.len() > 4096 {
                        break;
                    }
                    given += &text;
                }
                self.position += 1;
            }
            given
        }
    }

    fn ours(number: usize) -> impl Iterator<Item = bool> {
        std::iter::repeat_n(true, number)
    }

    /// Others' connections that come to the top of the table.
    fn push(number: usize) -> Change {
        Change {
            come: vec![(0, false); number],
            go: Vec::new(),
        }
    }

    #[test]
    fn rows_that_others_push_into_the_next_page_are_not_listed_again() {
        // Ten rows in the first read; the second, which would find the end, finds the last row again.
        let table = Table::new(ours(10), vec![push(0), push(1)]);
        assert_eq!(table.listed(), Vec::from_iter(1..=10));
        // More of them than a page has.
        let table = Table::new(ours(1000), vec![push(0), push(1), push(200), push(0), push(7)]);
        assert_eq!(table.listed(), Vec::from_iter(1..=1000));
        // In a copy, where pages no longer show.
        let mut copy = String::new();
        Table::new(ours(300), vec![push(0), push(9), push(30)])
            .read_to_string(&mut copy)
            .unwrap();
        assert!(copy.lines().count() > 301);
        let listed = Connections::over(copy.as_bytes(), ConnectionFilter::all());
        assert_eq!(listed.count(), 300);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let table = Table::new(ours(60_000), Vec::new());
        let mut connections = Connections::over(BufReader::new(table), ConnectionFilter::all());
        let mut count = 0;
        while let Some(entry) = connections.next() {
            entry.unwrap();
            count += 1;
            let remembered = connections.recent.latest.len() + connections.recent.earlier.len();
            assert!(remembered >= count.min(Recent::ROWS) && remembered < 2 * Recent::ROWS);
        }
        assert_eq!(count, 60_000);
    }

    #[test]
    fn templates_of_a_persistence_engine_differ_by_its_data() {
        let row = TABLE.lines().nth(1).unwrap();
        let text = format!("headings\n{row}\n{row}1\n{row}\n");
        let all: Vec<_> = Connections::over(text.as_bytes(), ConnectionFilter::all())
            .map(|entry| entry.unwrap().engine.unwrap().data)
            .collect();
        assert_eq!(all, [b"a84b4c76e66710"[..].into(), b"a84b4c76e667101"[..].into()]);
    }

    fn changes(most_going: usize) -> impl Strategy<Value = Vec<Change>> {
        let come = vec(any::<(usize, bool)>(), 0..40);
        let go = vec(any::<usize>(), 0..=most_going);
        vec((come, go).prop_map(|(come, go)| Change { come, go }), 0..20)
    }

    proptest! {
        #[test]
        fn whoever_comes_meanwhile_nobody_is_missing_or_there_twice(
            rows in vec(any::<bool>(), 0..500),
            changes in changes(0),
        ) {
            let listed = Table::new(rows.clone(), changes).listed();
            let distinct: HashSet<u16> = listed.iter().copied().collect();
            prop_assert_eq!(distinct.len(), listed.len());
            for (port, is_ours) in (1..).zip(rows) {
                prop_assert_eq!(distinct.contains(&port), is_ours);
            }
        }

        #[test]
        fn whoever_comes_and_goes_meanwhile_nobody_is_there_twice(
            rows in vec(any::<bool>(), 0..500),
            changes in changes(20),
        ) {
            let listed = Table::new(rows, changes).listed();
            let distinct: HashSet<u16> = listed.iter().copied().collect();
            prop_assert_eq!(distinct.len(), listed.len());
        }
    }
}
