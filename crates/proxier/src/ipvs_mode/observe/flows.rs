//! Reads the UDP flows to virtual servers.

use kernlink_base::ErrorChain;
use kernlink_conntrack::{Error, Filter, Protocol};
use kernlink_ipvs::{Protocol as IpvsProtocol, VirtualServerKey};
use kernlink_services::{Event, Family};

use crate::ipvs_mode::flows::ZONE;
use crate::ipvs_mode::kernel::Kernel;
use crate::ipvs_mode::state::{Reading, State};

/// Reads the flows to UDP virtual servers, at the first listing of this process: an earlier process may have ended between a change and the
/// deletion of the flows that it made stale. Returns an event if they cannot be read; the next listing then tries again.
pub(super) fn observe_flows(state: &mut State, kernel: &mut Kernel) -> Option<Event> {
    for family in Family::ALL {
        state.flows.set_dirty(family);
    }
    if state.flows.reading == Reading::Done {
        return None;
    }
    match read(state, kernel) {
        Ok(()) => {
            state.flows.reading = Reading::Done;
            None
        }
        Err(error) if error.is_module_missing() => {
            state.flows.reading = Reading::Unsupported;
            let text = format!("{}; stale UDP flows are not deleted", ErrorChain(&error));
            Some(Event::host("ConntrackUnsupported", text))
        }
        Err(error) => {
            state.flows.reading = Reading::Due;
            let text = format!(
                "{}; UDP flows that became stale before the start are not deleted",
                ErrorChain(&error)
            );
            Some(Event::host("FlowsUnreadable", text))
        }
    }
}

fn read(state: &mut State, kernel: &mut Kernel) -> Result<(), Error> {
    let mut servers = state.servers.iter_observed();
    let has_udp = servers.any(|(key, _)| key.protocol() == Some(IpvsProtocol::Udp));
    if !has_udp {
        // Whether the kernel has the module.
        return kernel.conntrack.totals().map(drop);
    }
    state.flows.observed.clear();
    let udp = Filter::new().with_protocol(Protocol::UDP).with_zone(ZONE);
    for flow in kernel.conntrack.flows(&udp)? {
        let flow = flow?;
        let destination = flow.original.destination_socket();
        let key = VirtualServerKey::udp(destination.ip(), destination.port());
        if state.servers.is_observed(&key) {
            let reply_source = flow.reply.source_socket();
            state.flows.observed.insert((destination, reply_source));
        }
    }
    Ok(())
}
