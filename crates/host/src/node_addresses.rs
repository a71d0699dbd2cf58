//! The addresses of the node.

use kernlink_dummylink::{DummyLinks, Error, Selection};
use kernlink_services::InterfaceAddress;

/// The link of IPVS mode, which carries the virtual IPs.
pub const IPVS_LINK: &str = "kube-ipvs0";

/// The addresses of the interfaces of the node for a data path without a link of its own. Virtual IPs that IPVS mode left on `kube-ipvs0` are
/// not among them.
///
/// # Errors
/// If the addresses cannot be listed.
pub fn node_addresses(links: &mut dyn DummyLinks) -> Result<Vec<InterfaceAddress>, Error> {
    let addresses = links.list(Selection::All)?.into_iter();
    let named = addresses.map(|address| (address.link.to_string(), address.address.key.address()));
    Ok(named
        .filter(|(link, _)| link != IPVS_LINK)
        .map(|(link, address)| InterfaceAddress::new(link, address))
        .collect())
}
