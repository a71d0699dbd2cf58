//! Limits and timeouts of the proxy.

use std::io;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::balance::DEFAULT_CAPACITY;
use crate::flows::FlowTimeouts;

/// The timeouts of the attempts to connect to an endpoint, one after the other, as in kube-proxy.
pub const DIAL_TIMEOUTS: [Duration; 4] = [
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
    /// The largest number of UDP flows of a listening port. Datagrams of further flows are dropped. Default: 16 384.
    pub flows: usize,
    /// The largest number of clients of a listening port whose endpoints are remembered for session affinity. Default: 65 536.
    pub affinity_records: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            descriptors: None,
            dial_timeouts: DIAL_TIMEOUTS.to_vec(),
            half_closed_timeout: Duration::from_secs(3600),
            reset_timeout: Duration::from_secs(5),
            keepalive: Duration::from_secs(15),
            flow_timeouts: FlowTimeouts::default(),
            flows: 16_384,
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
