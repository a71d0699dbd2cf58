//! Reads the dummy link, its addresses, and the addresses of the node.

use std::collections::HashSet;
use std::net::IpAddr;

use kernlink_base::ErrorChain;
use kernlink_dummylink::{AddressKey, HostAddress, LinkName, Selection};
use kernlink_engine::unreadable::LINKS_UNREADABLE;
use kernlink_services::{Event, InterfaceAddress};

use super::fail;
use crate::error::Error;
use crate::kernel::Kernel;
use crate::state::{Part, State};

/// Reads all of them. Returns an event if that fails; the recorded values stay then.
pub(super) fn observe(state: &mut State, kernel: &mut Kernel) -> Option<Event> {
    state.has_read_addresses = true;
    match read(state, kernel) {
        Ok(()) => {
            state.readings.has_links = true;
            None
        }
        Err(error) => {
            let consequence = if state.retired.is_some() {
                "what IPVS mode has there stays"
            } else if state.readings.has_links {
                "changes by other programs are not found until they can be read"
            } else {
                "Services are not programmed until they can be read"
            };
            let text = format!("links and addresses: {}; {consequence}", ErrorChain(&error));
            fail(state, Part::Links, Some(error));
            Some(Event::host(LINKS_UNREADABLE, text))
        }
    }
}

fn read(state: &mut State, kernel: &mut Kernel) -> Result<(), Error> {
    let link = state.config().link();
    let has_link = match &link {
        Some(link) => kernel.links.exists(link)?,
        None => false,
    };
    let listed = kernel.links.list(Selection::All)?;
    if let Some(link) = link {
        state.links.observe(link, has_link.then_some(()));
    }
    state.links.set_all_dirty();
    let addresses: Vec<AddressKey> = of_link(&listed, link).collect();
    state.interfaces = interfaces(state, &listed);
    state
        .addresses
        .observe_all(addresses.into_iter().map(|key| (key, ())));
    Ok(())
}

/// Reads the addresses of the node, unless [`observe`] did since the last call. If that fails, the recorded ones stay, and the whole kernel
/// is read after a delay.
pub(crate) fn observe_addresses(state: &mut State, kernel: &mut Kernel) {
    if std::mem::take(&mut state.has_read_addresses) {
        return;
    }
    match kernel.links.list(Selection::All) {
        Ok(listed) => state.interfaces = interfaces(state, &listed),
        Err(error) => fail(state, Part::Links, Some(error.into())),
    }
}

/// Reads single links and addresses of the dummy link again.
pub(super) fn observe_keys(
    state: &mut State,
    kernel: &mut Kernel,
    links: &[LinkName],
    addresses: Vec<AddressKey>,
) -> Result<(), Error> {
    for name in links {
        let exists = kernel.links.exists(name)?;
        state.links.observe(*name, exists.then_some(()));
    }
    if addresses.is_empty() {
        return Ok(());
    }
    let listed = kernel.links.list(Selection::All)?;
    let bound: HashSet<AddressKey> = of_link(&listed, state.config().link()).collect();
    for key in addresses {
        state.addresses.observe(key, bound.contains(&key).then_some(()));
    }
    Ok(())
}

/// The addresses of a link, without the IPv6 link-local one that the kernel adds to every link that is up.
fn of_link(listed: &[HostAddress], link: Option<LinkName>) -> impl Iterator<Item = AddressKey> {
    let of_link = listed.iter().filter(move |address| Some(address.link) == link);
    of_link
        .map(|address| address.address.key)
        .filter(|key| !is_link_local_v6(key.address()))
}

/// The addresses of the interfaces of this node, without those of the dummy links.
fn interfaces(state: &State, listed: &[HostAddress]) -> Vec<InterfaceAddress> {
    let others = listed
        .iter()
        .filter(|address| !state.is_dummy_link(&address.link));
    others
        .map(|address| InterfaceAddress::new(address.link.to_string(), address.address.key.address()))
        .collect()
}

/// Whether an address is IPv6 link-local.
fn is_link_local_v6(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
