//! The file `/proc/net/ip_vs`: the real servers of all virtual servers in one pass.
//!
//! [`Ipvs::snapshot`](crate::Ipvs::snapshot) reads it; [`parse`] parses a copy, for example from a support bundle.
//!
//! Source: [`ip_vs_info_seq_show` at v6.1](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ctl.c).
//! Only keys and real servers are parsed. The configuration of virtual servers is incomplete in this file (persistence in jiffies,
//! one-packet scheduling for IPv4 only) and is read over netlink.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kernlink_netlink::Errno;

use crate::error::Error;
use crate::real_server::{RealServerKey, Weight};
use crate::snapshot::{ForwardingSummary, RealServerSummary};
use crate::virtual_server::{Protocol, VirtualServerKey};

/// The file of the calling thread. `/proc/self` has the network namespace of the main thread.
pub(crate) const PATH: &str = "/proc/thread-self/net/ip_vs";

/// The key of a virtual server, as its row contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKey {
    /// By address, port and protocol.
    Address(VirtualServerKey),
    /// By mark. The row does not contain the family.
    Mark(u32),
}

/// The row of a virtual server with the rows of its real servers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// The key of the virtual server.
    pub key: RowKey,
    /// The real servers, in the kernel's order.
    pub real_servers: Vec<RealServerSummary>,
}

/// Reads the table of the calling thread's network namespace.
pub(crate) fn read() -> Result<Vec<Row>, Error> {
    let file = File::open(PATH).map_err(|error| unreadable(PATH, &error))?;
    parse(BufReader::with_capacity(64 << 10, file))
}

pub(crate) fn unreadable(path: &str, error: &std::io::Error) -> Error {
    Error::File {
        attempt: "read",
        path: path.to_owned(),
        errno: Errno::from_io(error),
    }
}

/// Parses the content of the file, which begins with three lines of headings.
///
/// # Errors
/// [`Error::Syntax`] for the first invalid row, or the error of the reader as [`Error::File`].
pub fn parse(mut reader: impl BufRead) -> Result<Vec<Row>, Error> {
    let mut rows: Vec<Row> = Vec::new();
    let mut line = String::new();
    for number in 1.. {
        line.clear();
        if reader
            .read_line(&mut line)
            .map_err(|error| unreadable(PATH, &error))?
            == 0
        {
            break;
        }
        // Version and two lines of headings.
        if number <= 3 {
            continue;
        }
        let parsed = match line.trim_start().strip_prefix("->") {
            Some(rest) => parse_real_server(rest).and_then(|real_server| {
                let row = rows
                    .last_mut()
                    .ok_or("real server before the first virtual server")?;
                row.real_servers.push(real_server);
                Ok(())
            }),
            None => parse_virtual_server(&line).map(|key| {
                rows.push(Row {
                    key,
                    real_servers: Vec::new(),
                })
            }),
        };
        parsed.map_err(|problem| Error::Syntax {
            path: PATH,
            line: number,
            problem,
        })?;
    }
    Ok(rows)
}

fn parse_virtual_server(line: &str) -> Result<RowKey, &'static str> {
    let mut words = line.split_ascii_whitespace();
    let (Some(protocol), Some(place)) = (words.next(), words.next()) else {
        return Err("virtual server without protocol or address");
    };
    if protocol == "FWM" {
        let mark = u32::from_str_radix(place, 16)
            .map_err(|_| "invalid firewall mark; expected a hexadecimal number")?;
        return Ok(RowKey::Mark(mark));
    }
    let protocol = parse_protocol(protocol).ok_or("unknown protocol")?;
    let (address, port) = parse_socket(place)?;
    Ok(RowKey::Address(VirtualServerKey::new(address, port, protocol)))
}

fn parse_real_server(rest: &str) -> Result<RealServerSummary, &'static str> {
    let mut words = rest.split_ascii_whitespace();
    let mut next = || words.next().ok_or("truncated row of a real server");
    let (address, port) = parse_socket(next()?)?;
    let forwarding = match next()? {
        "Masq" => ForwardingSummary::MasqueradeOrOther,
        "Local" => ForwardingSummary::Local,
        "Tunnel" => ForwardingSummary::Tunnel,
        "Route" => ForwardingSummary::DirectRoute,
        _ => return Err("unknown forwarding method"),
    };
    let weight = next()?.parse().map_err(|_| "invalid weight; expected a number")?;
    let weight = Weight::new(weight).map_err(|_| "invalid weight; valid: 0 to 2147483647")?;
    // An `atomic_t`, which can be negative temporarily.
    let count = |word: &str| {
        word.parse::<i32>()
            .map(|count| u32::try_from(count).unwrap_or(0))
            .map_err(|_| "invalid number of connections")
    };
    Ok(RealServerSummary {
        key: RealServerKey::new(address, port),
        forwarding,
        weight,
        active_connections: count(next()?)?,
        inactive_connections: count(next()?)?,
    })
}

/// `TCP`, `UDP`, `SCTP`, and for protocols that IPVS does not schedule `IP`, `ICMP`, `ICMPv6`, or `IP_` and the number.
pub(crate) fn parse_protocol(name: &str) -> Option<Protocol> {
    Some(match name {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        "IP" => Protocol::from_number(0),
        "ICMP" => Protocol::from_number(1),
        "ICMPv6" => Protocol::from_number(58),
        _ => Protocol::from_number(name.strip_prefix("IP_")?.parse().ok()?),
    })
}

/// `0A000001:0050` or `[2001:0db8:0000:0000:0000:0000:0000:0001]:0050`.
fn parse_socket(word: &str) -> Result<(IpAddr, u16), &'static str> {
    let (address, port) = word.rsplit_once(':').ok_or("address without a port")?;
    Ok((parse_address(address)?, parse_port(port)?))
}

/// `0A000001` or `2001:0db8:...`; the latter with or without brackets.
pub(crate) fn parse_address(word: &str) -> Result<IpAddr, &'static str> {
    if !word.contains(':') {
        return u32::from_str_radix(word, 16)
            .map(|bits| Ipv4Addr::from(bits).into())
            .map_err(|_| "invalid IPv4 address; expected a hexadecimal number");
    }
    word.strip_prefix('[')
        .and_then(|inner| inner.strip_suffix(']'))
        .unwrap_or(word)
        .parse::<Ipv6Addr>()
        .map(IpAddr::from)
        .map_err(|_| "invalid IPv6 address")
}

pub(crate) fn parse_port(word: &str) -> Result<u16, &'static str> {
    u16::from_str_radix(word, 16).map_err(|_| "invalid port; expected a hexadecimal number")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cat /proc/net/ip_vs` of Linux 6.1.0-56-amd64.
    const TABLE: &str = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:0050 rr  persistent 25000 FFFFFFFF
  -> 7F000002:1F90      Masq    1      1          23        \x20
UDP  0A600001:13C4 rr ops  persistent 15000 FFFFFFFF
TCP  [2001:0db8:0000:0000:0000:0000:0000:0001]:0050 rr\x20
  -> [0000:0000:0000:0000:0000:0000:0000:0001]:1F90      Route   70000  1          0        \x20
FWM  B2D05E00 rr\x20
";

    #[test]
    fn rows_are_parsed() {
        let rows = parse(TABLE.as_bytes()).unwrap();
        let shown: Vec<_> = rows.iter().map(|row| (row.key, row.real_servers.len())).collect();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(
            shown,
            [
                (
                    RowKey::Address(VirtualServerKey::tcp(address("10.96.0.1"), 80)),
                    1
                ),
                (
                    RowKey::Address(VirtualServerKey::udp(address("10.96.0.1"), 5060)),
                    0
                ),
                (
                    RowKey::Address(VirtualServerKey::tcp(address("2001:db8::1"), 80)),
                    1
                ),
                (RowKey::Mark(3_000_000_000), 0),
            ]
        );
        let first = rows[0].real_servers[0];
        assert_eq!(first.key, RealServerKey::new(address("127.0.0.2"), 8080));
        assert_eq!((first.active_connections, first.inactive_connections), (1, 23));
        assert_eq!(first.forwarding, ForwardingSummary::MasqueradeOrOther);
        let last = rows[2].real_servers[0];
        assert_eq!(
            (last.weight.get(), last.forwarding),
            (70_000, ForwardingSummary::DirectRoute)
        );
    }

    #[test]
    fn a_negative_count_is_zero() {
        let table = TABLE.replace("1      1          23 ", "1      -1         -23");
        let rows = parse(table.as_bytes()).unwrap();
        let first = rows[0].real_servers[0];
        assert_eq!((first.active_connections, first.inactive_connections), (0, 0));
        assert_eq!(first.weight, Weight::ONE);
    }

    #[test]
    fn the_error_of_an_invalid_row_names_the_line() {
        let invalid = TABLE.replace("Route", "Detour");
        assert_eq!(
            parse(invalid.as_bytes()).unwrap_err().to_string(),
            "/proc/thread-self/net/ip_vs, line 8: unknown forwarding method"
        );
        let headless = TABLE.replace("TCP  0A600001:0050 rr  persistent 25000 FFFFFFFF\n", "");
        assert!(
            parse(headless.as_bytes())
                .unwrap_err()
                .to_string()
                .contains("line 4: real server before")
        );
    }
}
