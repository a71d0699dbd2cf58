//! Reads the UDP flows to virtual servers.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use kernlink_conntrack::Error;
use kernlink_host::flows::{Reading, read_flows};
use kernlink_ipvs::{Protocol as IpvsProtocol, VirtualServerKey};
use kernlink_services::{Event, Family};

use crate::kernel::Kernel;
use crate::state::State;

/// Reads the flows to UDP virtual servers, at the first listing of this process: an earlier process may have ended between a change and the
/// deletion of the flows that it made stale. Returns an event if they cannot be read; the next listing then tries again.
pub(super) fn observe_flows(state: &mut State, kernel: &mut Kernel) -> Option<Event> {
    for family in Family::ALL {
        state.flows.set_dirty(family);
    }
    if state.flows.reading() == Reading::Done {
        return None;
    }
    let read = read(state, kernel);
    state.flows.record_reading(read)
}

fn read(state: &State, kernel: &mut Kernel) -> Result<BTreeSet<(SocketAddr, SocketAddr)>, Error> {
    let mut servers = state.servers.iter_observed();
    let has_udp = servers.any(|(key, _)| key.protocol() == Some(IpvsProtocol::Udp));
    if !has_udp {
        // Whether the kernel has the module.
        return kernel.conntrack.totals().map(|_| BTreeSet::new());
    }
    read_flows(&mut *kernel.conntrack, |destination| {
        let key = VirtualServerKey::udp(destination.ip(), destination.port());
        state.servers.is_observed(&key)
    })
}
