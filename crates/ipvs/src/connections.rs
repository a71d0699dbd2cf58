//! Listing the connection table.

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

/// The file of the calling thread. `/proc/self` has the network namespace of the main thread.
const PATH: &str = "/proc/thread-self/net/ip_vs_conn";

/// Which connections to list. A field that is `None` matches all; the default matches all connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionFilter {
    /// The family of the client.
    pub family: Option<Family>,
    /// The protocol.
    pub protocol: Option<Protocol>,
    /// The virtual server. The table does not contain the mark of a connection: with a virtual server by mark, only its persistence
    /// templates match.
    pub virtual_server: Option<VirtualServerKey>,
    /// The real server.
    pub real_server: Option<RealServerKey>,
    /// The state.
    pub state: Option<ConnectionState>,
}

impl ConnectionFilter {
    /// Matches all connections.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Sets the family of the client.
    #[must_use]
    pub fn with_family(mut self, family: Family) -> Self {
        self.family = Some(family);
        self
    }

    /// Sets the protocol.
    #[must_use]
    pub fn with_protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// Sets the virtual server.
    #[must_use]
    pub fn with_virtual_server(mut self, key: VirtualServerKey) -> Self {
        self.virtual_server = Some(key);
        self
    }

    /// Sets the real server.
    #[must_use]
    pub fn with_real_server(mut self, key: RealServerKey) -> Self {
        self.real_server = Some(key);
        self
    }

    /// Sets the state.
    #[must_use]
    pub fn with_state(mut self, state: ConnectionState) -> Self {
        self.state = Some(state);
        self
    }

    /// Whether a connection matches all fields.
    #[must_use]
    pub fn matches(&self, entry: &ConnectionEntry) -> bool {
        let to = |key: VirtualServerKey| match key {
            VirtualServerKey::Address {
                address,
                protocol,
                port,
            } => entry.protocol == protocol && entry.virtual_server == SocketAddr::new(address, port),
            VirtualServerKey::Mark { family, mark } => {
                let is_mark = match entry.virtual_server {
                    SocketAddr::V4(v4) => u32::from(*v4.ip()) == mark.get(),
                    // The mark is in the first four bytes.
                    SocketAddr::V6(v6) => u128::from(*v6.ip()) == u128::from(mark.get()) << 96,
                };
                is_mark && entry.is_template() && Family::of(entry.client.ip()) == family
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

/// An iterator over the connections of a network namespace. It reads from the kernel while it advances, and ends after an error.
///
/// The kernel returns its table in pages of about 60 rows of IPv4. It finds the start of the next page by counting the rows from
/// the start of the table, including those of other network namespaces (`ip_vs_conn_array` in [`ip_vs_conn.c` at
/// v6.1](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_conn.c)). So connections that are created or end
/// between two pages, anywhere on the host, shift the rest of the table:
///
/// - After a connection was created, the next page can repeat rows of the previous one. The iterator skips repeated rows, which it
///   recognises by protocol, addresses, ports and engine data. It keeps the last 1024 to 2048 rows that match the filter for this.
///   A row is repeated only if more connections than that were created between two pages.
/// - After a connection ended, the next page can skip rows. So a connection that exists during the whole listing can be missing,
///   and the kernel does not report this. A second listing rarely skips the same rows. For the number of connections use
///   [`ConnectionCounts`](crate::ConnectionCounts) of a real server, which do not depend on this table.
/// - A connection that is created or ends during the listing may or may not be included. Its state and remaining time are those at
///   the time when its page was read.
#[derive(Debug)]
pub struct Connections<R = BufReader<File>> {
    reader: Option<R>,
    filter: ConnectionFilter,
    recent: Recent,
    line: Vec<u8>,
    number: usize,
}

impl Connections {
    /// Opens the table of the calling thread's network namespace. The iterator reads this table on any thread.
    pub(crate) fn open(filter: ConnectionFilter) -> Result<Self, Error> {
        let file = File::open(PATH).map_err(|error| unreadable(PATH, &error))?;
        Ok(Self::from_reader(
            BufReader::with_capacity(64 << 10, file),
            filter,
        ))
    }
}

impl<R: BufRead> Connections<R> {
    /// Reads a copy of `/proc/net/ip_vs_conn`. A copy has the same skipped and repeated rows; repeated rows are skipped.
    pub fn from_reader(reader: R, filter: ConnectionFilter) -> Self {
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
            // The first line has the headings.
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

/// The last rows, to recognise repeated ones: at least [`ROWS`](Self::ROWS), and less than twice as many.
#[derive(Debug, Default)]
struct Recent {
    /// Fewer than [`ROWS`](Self::ROWS) rows.
    latest: HashSet<Identity>,
    /// The [`ROWS`](Self::ROWS) rows before `latest`; empty at first.
    earlier: HashSet<Identity>,
}

impl Recent {
    const ROWS: usize = 1024;

    /// Adds a row, and returns whether it was not contained.
    fn is_new(&mut self, entry: &ConnectionEntry) -> bool {
        let identity = Identity::of(entry);
        if self.earlier.contains(&identity) || !self.latest.insert(identity) {
            return false;
        }
        if self.latest.len() == Self::ROWS {
            // Both sets keep their allocations.
            std::mem::swap(&mut self.latest, &mut self.earlier);
            self.latest.clear();
        }
        true
    }
}

/// Identifies a connection: its row without state and remaining time. Templates of a persistence engine differ only by its data.
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
        Connections::from_reader(TABLE.as_bytes(), filter)
            .map(Result::unwrap)
            .collect()
    }

    #[test]
    fn a_filter_matches_its_fields() {
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
    fn an_error_contains_the_line_and_ends_the_iterator() {
        let invalid = TABLE.replace("4658", "soon");
        let mut connections = Connections::from_reader(invalid.as_bytes(), ConnectionFilter::all());
        assert!(connections.next().unwrap().is_ok());
        assert_eq!(
            connections.next().unwrap().unwrap_err().to_string(),
            "/proc/thread-self/net/ip_vs_conn, line 3: invalid remaining time; expected a number"
        );
        assert!(connections.next().is_none());
    }

    /// A model of the kernel's file. Some rows belong to other namespaces. Each read applies a change and returns the page that
    /// starts at the position where the last page ended.
    struct Table {
        rows: Vec<Row>,
        position: usize,
        /// One is applied before each read.
        changes: Vec<Change>,
        next_port: u16,
        has_headings: bool,
        /// The part of the page that did not fit into the buffer of the last read.
        rest: Vec<u8>,
    }

    #[derive(Clone, Debug)]
    struct Row {
        port: u16,
        is_listed: bool,
    }

    /// The connections that are created and end between two reads: their positions, and whether this namespace lists them.
    #[derive(Clone, Debug, Default)]
    struct Change {
        created: Vec<(usize, bool)>,
        ended: Vec<usize>,
    }

    impl Table {
        /// The rows at the start have ports from 1, those that are created later have ports from 20000.
        fn new(are_listed: impl IntoIterator<Item = bool>, mut changes: Vec<Change>) -> Self {
            changes.reverse();
            let rows = (1..).zip(are_listed);
            Self {
                rows: rows.map(|(port, is_listed)| Row { port, is_listed }).collect(),
                position: 0,
                changes,
                next_port: 20_000,
                has_headings: false,
                rest: Vec::new(),
            }
        }

        /// The client ports in the order of the listing.
        fn listed(self) -> Vec<u16> {
            Connections::from_reader(BufReader::with_capacity(64 << 10, self), ConnectionFilter::all())
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
            for position in change.ended {
                if let Some(position) = position.checked_rem(self.rows.len()) {
                    self.rows.remove(position);
                }
            }
            for (position, is_listed) in change.created {
                let port = self.next_port;
                self.next_port += 1;
                self.rows
                    .insert(position % (self.rows.len() + 1), Row { port, is_listed });
            }
            let mut page = String::new();
            if !std::mem::replace(&mut self.has_headings, true) {
                page += TABLE.split_inclusive('\n').next().unwrap();
            }
            while let Some(row) = self.rows.get(self.position) {
                let text = format!(
                    "TCP 0A600001 {:04X} 0A600001 0050 7F000002 1F90 ESTABLISHED    {:4}\n",
                    row.port, self.position
                );
                if row.is_listed {
                    if page.len() + text.len() > 4096 {
                        break;
                    }
                    page += &text;
                }
                self.position += 1;
            }
            page
        }
    }

    fn listed_rows(number: usize) -> impl Iterator<Item = bool> {
        std::iter::repeat_n(true, number)
    }

    /// Connections of other namespaces that are created at the start of the table.
    fn insert_foreign(number: usize) -> Change {
        Change {
            created: vec![(0, false); number],
            ended: Vec::new(),
        }
    }

    #[test]
    fn rows_that_the_next_page_repeats_are_listed_once() {
        // Ten rows in the first read. The second read would be empty, but repeats the last row.
        let table = Table::new(listed_rows(10), vec![insert_foreign(0), insert_foreign(1)]);
        assert_eq!(table.listed(), Vec::from_iter(1..=10));
        // More rows than fit into a page.
        let table = Table::new(
            listed_rows(1000),
            vec![
                insert_foreign(0),
                insert_foreign(1),
                insert_foreign(200),
                insert_foreign(0),
                insert_foreign(7),
            ],
        );
        assert_eq!(table.listed(), Vec::from_iter(1..=1000));
        // In a copy, which has no page boundaries.
        let mut copy = String::new();
        Table::new(
            listed_rows(300),
            vec![insert_foreign(0), insert_foreign(9), insert_foreign(30)],
        )
        .read_to_string(&mut copy)
        .unwrap();
        assert!(copy.lines().count() > 301);
        let listed = Connections::from_reader(copy.as_bytes(), ConnectionFilter::all());
        assert_eq!(listed.count(), 300);
    }

    #[test]
    fn the_number_of_kept_rows_is_bounded() {
        let table = Table::new(listed_rows(60_000), Vec::new());
        let mut connections = Connections::from_reader(BufReader::new(table), ConnectionFilter::all());
        let mut count = 0;
        while let Some(entry) = connections.next() {
            entry.unwrap();
            count += 1;
            let kept = connections.recent.latest.len() + connections.recent.earlier.len();
            assert!(kept >= count.min(Recent::ROWS) && kept < 2 * Recent::ROWS);
        }
        assert_eq!(count, 60_000);
    }

    #[test]
    fn templates_of_a_persistence_engine_differ_by_its_data() {
        let row = TABLE.lines().nth(1).unwrap();
        let text = format!("headings\n{row}\n{row}1\n{row}\n");
        let all: Vec<_> = Connections::from_reader(text.as_bytes(), ConnectionFilter::all())
            .map(|entry| entry.unwrap().engine.unwrap().data)
            .collect();
        assert_eq!(all, [b"a84b4c76e66710"[..].into(), b"a84b4c76e667101"[..].into()]);
    }

    fn changes(max_ended: usize) -> impl Strategy<Value = Vec<Change>> {
        let created = vec(any::<(usize, bool)>(), 0..40);
        let ended = vec(any::<usize>(), 0..=max_ended);
        vec(
            (created, ended).prop_map(|(created, ended)| Change { created, ended }),
            0..20,
        )
    }

    proptest! {
        #[test]
        fn connections_that_are_created_cause_no_missing_and_no_repeated_rows(
            rows in vec(any::<bool>(), 0..500),
            changes in changes(0),
        ) {
            let listed = Table::new(rows.clone(), changes).listed();
            let distinct: HashSet<u16> = listed.iter().copied().collect();
            prop_assert_eq!(distinct.len(), listed.len());
            for (port, is_listed) in (1..).zip(rows) {
                prop_assert_eq!(distinct.contains(&port), is_listed);
            }
        }

        #[test]
        fn connections_that_are_created_and_end_cause_no_repeated_rows(
            rows in vec(any::<bool>(), 0..500),
            changes in changes(20),
        ) {
            let listed = Table::new(rows, changes).listed();
            let distinct: HashSet<u16> = listed.iter().copied().collect();
            prop_assert_eq!(distinct.len(), listed.len());
        }
    }
}
