//! Reads which virtual IPs connections of this node have as their source.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use kernlink_conntrack::{Error, Filter};

use crate::kernel::Kernel;
use crate::state::State;

/// The largest number of addresses for which the kernel selects the flows of one after the other.
const MOST_FILTERS: usize = 8;

/// Reads the connections from addresses of the dummy link that have no virtual server any more.
///
/// The kernel selects the virtual IP as the source of the connections that processes of this node open to it, also of those that the rules of
/// another mode translate. Such a connection ends with its address. If the connections cannot be read, the addresses stay; if the kernel does not
/// show any, the addresses do not wait for them.
pub(super) fn observe_sources(state: &mut State, kernel: &mut Kernel) {
    if state.retired.is_none() {
        return;
    }
    let addresses = state.unserved_addresses();
    let sources = match read(&addresses, kernel) {
        Ok(sources) => Some(sources),
        Err(error) if error.is_module_missing() => Some(BTreeSet::new()),
        Err(_) => None,
    };
    if let Some(retired) = &mut state.retired {
        retired.sources = sources;
    }
}

fn read(addresses: &BTreeSet<IpAddr>, kernel: &mut Kernel) -> Result<BTreeSet<IpAddr>, Error> {
    let mut sources = BTreeSet::new();
    if addresses.len() <= MOST_FILTERS {
        for address in addresses {
            let from_address = Filter::new().with_source(IpNet::from(*address));
            if let Some(flow) = kernel.conntrack.flows(&from_address)?.next() {
                sources.insert(flow?.original.source_socket().ip());
            }
        }
        return Ok(sources);
    }
    for flow in kernel.conntrack.flows(&Filter::new())? {
        let source = flow?.original.source_socket().ip();
        if addresses.contains(&source) {
            sources.insert(source);
        }
    }
    Ok(sources)
}
