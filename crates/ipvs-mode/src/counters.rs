//! The kernel's counters of each virtual server and real server, as metrics. Read and written at the time of a scrape, on request only:
//! the number of samples grows with the cluster.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::net::SocketAddr;

use kernlink_engine::plan::Subject;
use kernlink_ipvs::{Error, Ipvs, RealServerStatus, Stats, VirtualServerKey, VirtualServerStatus};

use super::state::State;

/// For which objects counters are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterDetail {
    /// One listing. 5 samples for each virtual server: 50 000 for 10 000 Services with one port.
    VirtualServers,
    /// One more listing for each virtual server. 8 more samples for each of its real servers: 800 000 for 10 000 virtual servers with 10 real
    /// servers each.
    RealServers,
}

/// The counters of the virtual servers in the kernel, with their real servers, if these were read.
#[derive(Clone, Debug, Default)]
pub struct IpvsCounters(Vec<(VirtualServerStatus, Vec<RealServerStatus>)>);

impl IpvsCounters {
    /// Reads the counters. A virtual server that disappears in between is left out.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn read(ipvs: &mut dyn Ipvs, detail: CounterDetail) -> Result<Self, Error> {
        let mut counters = Vec::new();
        for server in ipvs.list_virtual_servers()? {
            let real_servers = match detail {
                CounterDetail::VirtualServers => Vec::new(),
                CounterDetail::RealServers => match ipvs.list_real_servers(&server.server.key) {
                    Ok(real_servers) => real_servers,
                    Err(error) if error.is_not_found() => continue,
                    Err(error) => return Err(error),
                },
            };
            counters.push((server, real_servers));
        }
        Ok(Self(counters))
    }
}

/// The Services of virtual servers, for the labels of their counters.
#[derive(Clone, Debug, Default)]
pub struct VirtualServerOwners(BTreeMap<VirtualServerKey, String>);

impl VirtualServerOwners {
    /// The virtual servers that Services desire, each with the name of the first Service.
    #[must_use]
    pub fn of(state: &State) -> Self {
        let families = kernlink_services::Family::ALL.into_iter();
        let servers = families.flat_map(|family| state.virtual_servers(family));
        let owners = servers.filter_map(|server| match server.subject {
            Subject::Service(name) => Some((server.virtual_server.key, name.to_string())),
            _ => None,
        });
        Self(owners.collect())
    }
}

/// A counter of a virtual server or real server.
type Counter = (&'static str, &'static str, fn(&Stats) -> u64);

const COUNTERS: [Counter; 5] = [
    ("connections_total", "Scheduled connections", |stats| {
        stats.connections
    }),
    ("incoming_packets_total", "Packets from clients", |stats| {
        stats.incoming_packets
    }),
    ("outgoing_packets_total", "Packets to clients", |stats| {
        stats.outgoing_packets
    }),
    ("incoming_bytes_total", "Bytes from clients", |stats| {
        stats.incoming_bytes
    }),
    ("outgoing_bytes_total", "Bytes to clients", |stats| {
        stats.outgoing_bytes
    }),
];

/// A number of a real server.
type Gauge = (&'static str, &'static str, fn(&RealServerStatus) -> u32);

const GAUGES: [Gauge; 3] = [
    ("active_connections", "Active connections", |server| {
        server.connections.active
    }),
    ("inactive_connections", "Inactive connections", |server| {
        server.connections.inactive
    }),
    ("weight", "The weight", |server| server.server.weight.get()),
];

/// Writes the counters in the text format of Prometheus, to follow [`Metrics::encode`](kernlink_engine::metrics::Metrics::encode) on a page.
///
/// The labels of a virtual server are `service` (`NAMESPACE/NAME`), `protocol` (`TCP`, `UDP`, `SCTP`), and `address` and `port` of the
/// frontend; a real server has in addition `endpoint`. Only virtual servers in `owners` are written. The names begin with `kernlink_ipvs_`
/// and `kernlink_ipvs_real_server_`.
///
/// # Errors
/// Those of `out`.
pub fn write_ipvs_counters(
    out: &mut impl Write,
    counters: &IpvsCounters,
    owners: &VirtualServerOwners,
) -> fmt::Result {
    let servers: Vec<_> = counters
        .0
        .iter()
        .filter_map(|(server, real_servers)| {
            Some((labels(&server.server.key, owners)?, server, real_servers))
        })
        .collect();
    for (name, help, value) in COUNTERS {
        let name = format!("kernlink_ipvs_{name}");
        let samples = servers
            .iter()
            .map(|(labels, server, _)| (labels, None, value(&server.stats)));
        write_metric(
            out,
            &name,
            &format!("{help} of a virtual server"),
            "counter",
            samples,
        )?;
    }
    let real_servers = || {
        servers.iter().flat_map(|(labels, _, real_servers)| {
            real_servers.iter().map(move |server| {
                let key = server.server.key;
                (labels, SocketAddr::new(key.address, key.port), server)
            })
        })
    };
    for (name, help, value) in COUNTERS {
        let name = format!("kernlink_ipvs_real_server_{name}");
        let samples =
            real_servers().map(|(labels, endpoint, server)| (labels, Some(endpoint), value(&server.stats)));
        write_metric(
            out,
            &name,
            &format!("{help} of a real server"),
            "counter",
            samples,
        )?;
    }
    for (name, help, value) in GAUGES {
        let name = format!("kernlink_ipvs_real_server_{name}");
        let samples = real_servers()
            .map(|(labels, endpoint, server)| (labels, Some(endpoint), u64::from(value(server))));
        write_metric(out, &name, &format!("{help} of a real server"), "gauge", samples)?;
    }
    Ok(())
}

/// The labels of a virtual server. `None` if no Service desires it, or it has a firewall mark.
fn labels(key: &VirtualServerKey, owners: &VirtualServerOwners) -> Option<String> {
    let service = owners.0.get(key)?;
    let VirtualServerKey::Address {
        address,
        protocol,
        port,
    } = key
    else {
        return None;
    };
    // Names of Services and addresses contain no character that the format requires to be escaped; a source may deliver others.
    let mut escaped = String::with_capacity(service.len());
    for character in service.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            other => escaped.push(other),
        }
    }
    Some(format!(
        "service=\"{escaped}\",protocol=\"{protocol}\",address=\"{address}\",port=\"{port}\""
    ))
}

/// Writes a metric with its samples: labels, the endpoint, and the value. Without samples it is left out.
fn write_metric<'a>(
    out: &mut impl Write,
    name: &str,
    help: &str,
    metric_type: &str,
    samples: impl Iterator<Item = (&'a String, Option<SocketAddr>, u64)>,
) -> fmt::Result {
    let mut samples = samples.peekable();
    if samples.peek().is_some() {
        writeln!(out, "# HELP {name} {help}\n# TYPE {name} {metric_type}")?;
    }
    for (labels, endpoint, value) in samples {
        match endpoint {
            Some(endpoint) => writeln!(out, "{name}{{{labels},endpoint=\"{endpoint}\"}} {value}")?,
            None => writeln!(out, "{name}{{{labels}}} {value}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use kernlink_ipvs::{Protocol, RealServer, RealServerKey, Scheduler, VirtualServer};

    use super::*;

    fn stats(first: u64) -> Stats {
        let mut stats = Stats::default();
        stats.connections = first;
        stats.incoming_packets = first + 1;
        stats.outgoing_packets = first + 2;
        stats.incoming_bytes = first + 3;
        stats.outgoing_bytes = u64::MAX - first;
        stats
    }

    fn page(counters: &IpvsCounters, owners: &VirtualServerOwners) -> String {
        let mut page = String::new();
        write_ipvs_counters(&mut page, counters, owners).unwrap();
        page
    }

    #[test]
    fn the_counters_of_owned_virtual_servers_are_written() {
        let key = VirtualServerKey::new([10, 96, 0, 1], 53, Protocol::Udp);
        let foreign = VirtualServerKey::new([198, 51, 100, 7], 80, Protocol::Tcp);
        let server = |key, first| {
            let mut server = VirtualServerStatus::new(VirtualServer::new(key, Scheduler::RR));
            server.stats = stats(first);
            server
        };
        let endpoint = RealServerKey::new("fd00::1".parse::<IpAddr>().unwrap(), 8080);
        let mut real_server = RealServerStatus::new(RealServer::new(endpoint));
        real_server.stats = stats(20);
        real_server.connections.active = 3;
        real_server.connections.inactive = 4;
        let counters = IpvsCounters(vec![
            (server(key, 10), vec![real_server]),
            (server(foreign, 30), Vec::new()),
        ]);
        let owners = VirtualServerOwners([(key, "ns/\"dns\\".to_owned())].into());
        let page = page(&counters, &owners);
        let labels = r#"service="ns/\"dns\\",protocol="UDP",address="10.96.0.1",port="53""#;
        let samples: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        let of_server = |name: &str, value: u64| format!("kernlink_ipvs_{name}{{{labels}}} {value}");
        let of_real_server = |name: &str, value: u64| {
            format!("kernlink_ipvs_real_server_{name}{{{labels},endpoint=\"[fd00::1]:8080\"}} {value}")
        };
        let expected = [
            of_server("connections_total", 10),
            of_server("incoming_packets_total", 11),
            of_server("outgoing_packets_total", 12),
            of_server("incoming_bytes_total", 13),
            of_server("outgoing_bytes_total", u64::MAX - 10),
            of_real_server("connections_total", 20),
            of_real_server("incoming_packets_total", 21),
            of_real_server("outgoing_packets_total", 22),
            of_real_server("incoming_bytes_total", 23),
            of_real_server("outgoing_bytes_total", u64::MAX - 20),
            of_real_server("active_connections", 3),
            of_real_server("inactive_connections", 4),
            of_real_server("weight", 1),
        ];
        assert_eq!(samples, expected);
        assert!(page.starts_with(
            "# HELP kernlink_ipvs_connections_total Scheduled connections of a virtual server\n\
             # TYPE kernlink_ipvs_connections_total counter\n"
        ));
        assert!(page.contains("# TYPE kernlink_ipvs_real_server_weight gauge\n"));
    }

    #[test]
    fn without_owned_virtual_servers_nothing_is_written() {
        assert_eq!(
            page(&IpvsCounters::default(), &VirtualServerOwners::default()),
            ""
        );
    }
}
