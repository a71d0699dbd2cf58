//! Limits and timeouts of the proxy.

use std::io;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::balance::DEFAULT_CAPACITY;
use crate::flows::FlowTimeouts;

/// The timeouts of the attempts to connect to an endpoint, one after the other, as in kube-proxy.
pub const DIAL_TIMEOUTS: &[Duration] = &[
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// Limits and timeouts of the proxy. What exceeds a limit is refused; the process goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The file descriptors that connections, flows and pipes may use together: two for a TCP connection, one for a UDP flow. `None`: the
    /// limit of the process (`RLIMIT_NOFILE`) when the proxy starts, without those that are open then and a reserve of 64 for the rest
    /// of the process. Listening ports count too.
    pub descriptors: Option<usize>,
    /// The timeouts of the attempts to connect. Each attempt is made to the next endpoint. Default: [`DIAL_TIMEOUTS`].
    pub dial_timeouts: Vec<Duration>,
    /// How much of the descriptors, and of the UDP flows, one listening port may use: at most this multiple of what remains for all other ports. With 7,
    /// one busy port has at most 7/8 of them, and two have at most 7/15 each. 0: no bound, one port may use all. Default: 7.
    pub port_share: usize,
    /// The time without data after which a connection ends of which one direction has ended. Default: 1 hour, the timeout of connection
    /// tracking for such connections.
    pub half_closed_timeout: Duration,
    /// The time without data after which a connection ends that one side has reset. What this side sent before is passed on until then.
    /// 0: it is passed on as far as the other side accepts it at once. Default: 5 seconds.
    pub reset_timeout: Duration,
    /// The time without data after which TCP keepalive probes are sent on both connections. Default: 15 seconds.
    pub keepalive: Duration,
    /// When UDP flows end.
    pub flow_timeouts: FlowTimeouts,
    /// The largest number of UDP flows of a listening port. A further flow replaces the oldest one without a reply; if all have one, its
    /// datagrams are dropped. 0: no flows. Default: 16 384.
    pub flows: usize,
    /// The largest number of UDP flows of all listening ports together. Each flow uses a local UDP port that no other program of the node can
    /// have then. `None`: half of the ports in `net.ipv4.ip_local_port_range` when the proxy starts, in the network namespace of the thread that
    /// calls [`Proxy::new`](crate::Proxy::new); 14 116 with the range of the kernel. 0: no flows.
    pub all_flows: Option<usize>,
    /// The largest number of clients of a listening port whose endpoints are remembered for session affinity. Default: 65 536.
    pub affinity_records: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            descriptors: None,
            dial_timeouts: DIAL_TIMEOUTS.to_vec(),
            port_share: 7,
            half_closed_timeout: Duration::from_secs(3600),
            reset_timeout: Duration::from_secs(5),
            keepalive: Duration::from_secs(15),
            flow_timeouts: FlowTimeouts::default(),
            flows: 16_384,
            all_flows: None,
            affinity_records: DEFAULT_CAPACITY,
        }
    }
}

/// The descriptors that are kept for other parts of the process.
const RESERVE: usize = 64;

/// Raises the limit of open files of the process to the highest permitted one: to at least `desired` with the capability
/// `CAP_SYS_RESOURCE`. Never lowers it. Returns the limit.
///
/// # Errors
/// The limit could not be read or changed.
pub fn raise_descriptor_limit(desired: u64) -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if hard < desired && setrlimit(Resource::RLIMIT_NOFILE, desired, desired).is_ok() {
        return Ok(desired);
    }
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// The descriptors that the process may still open, without the reserve.
pub(crate) fn available_descriptors() -> io::Result<usize> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let open = std::fs::read_dir("/proc/self/fd")?.count();
    let soft = usize::try_from(soft).unwrap_or(usize::MAX);
    Ok(soft.saturating_sub(open).saturating_sub(RESERVE))
}

/// The default range of local ports of the kernel.
const LOCAL_PORTS: (usize, usize) = (32_768, 60_999);

/// Half of the local ports of the calling thread's network namespace. The kernel's default range if the range cannot be read.
pub(crate) fn half_of_local_ports() -> usize {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let (first, last) = parse_range(&text).unwrap_or(LOCAL_PORTS);
    last.saturating_sub(first).div_ceil(2)
}

fn parse_range(text: &str) -> Option<(usize, usize)> {
    let (first, last) = text.trim().split_once(char::is_whitespace)?;
    Some((first.parse().ok()?, last.trim_start().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_local_ports_is_read() {
        assert_eq!(parse_range("32768\t60999\n"), Some(LOCAL_PORTS));
        assert_eq!(parse_range("1024 1223"), Some((1024, 1223)));
        for text in ["", "1024", "a b", "1 -2"] {
            assert_eq!(parse_range(text), None, "{text:?}");
        }
        assert!(half_of_local_ports() > 0);
    }
}
