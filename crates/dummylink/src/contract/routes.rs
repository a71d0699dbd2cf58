//! Checks of routes.

use super::{Links, address, ensured, key, keys, route, set};
use crate::{DummyLink, LinkState, Operation};

/// An IPv4 route over a link that is down.
pub(super) fn a_local_route_is_added_listed_and_deleted(links: &mut Links) {
    let (link, other) = (ensured(links, "contract18"), ensured(links, "contract19"));
    assert_eq!(links.routes(&link).unwrap(), []);
    // The route that the kernel adds for an address is not listed.
    links.add(&link, &address("10.1.18.1/32")).unwrap();
    let (range, small) = (route("10.96.0.0/12"), route("10.1.19.0/30"));
    links.add_route(&link, &range).unwrap();
    assert!(links.add_route(&link, &range).unwrap_err().is_already_exists());
    links.ensure_route(&link, &range).unwrap();
    links.ensure_route(&link, &small).unwrap();
    assert!(
        links
            .ensure_route(&other, &range)
            .unwrap_err()
            .is_already_exists()
    );
    assert_eq!(links.routes(&link).unwrap(), [small, range]);
    assert_eq!(links.routes(&other).unwrap(), []);
    assert!(links.delete_route(&other, &range).unwrap_err().is_not_found());
    // It conflicts with a local route to the same IPv4 prefix.
    for operation in [Operation::AddRoute, Operation::EnsureRoute] {
        let outcome = links.execute_one(operation(other, route("10.1.18.1/32")));
        assert!(outcome.unwrap_err().is_already_exists());
    }
    let error = links.delete_route(&link, &route("10.1.18.1/32")).unwrap_err();
    assert!(
        error.is_not_found(),
        "the route that the kernel added was found: {error:?}"
    );
    links.delete_route(&link, &range).unwrap();
    assert!(links.delete_route(&link, &range).unwrap_err().is_not_found());
    assert_eq!(links.routes(&link).unwrap(), [small]);
    assert_eq!(keys(links, link), set(["10.1.18.1/32"]));
    links.delete_link(&link).unwrap();
    links.delete_link(&other).unwrap();
}

/// It is deleted when the link is set down.
pub(super) fn an_ipv6_local_route_requires_the_link_to_be_up(links: &mut Links) {
    let link = ensured(links, "contract20");
    let range = route("fd00:20::/112");
    assert!(links.add_route(&link, &range).is_err());
    links
        .ensure_link(&DummyLink::new(link).with_state(LinkState::Up))
        .unwrap();
    links.add_route(&link, &range).unwrap();
    assert!(links.add_route(&link, &range).unwrap_err().is_already_exists());
    links.ensure_route(&link, &range).unwrap();
    assert_eq!(links.routes(&link).unwrap(), [range]);
    links.delete_route(&link, &range).unwrap();
    assert!(links.delete_route(&link, &range).unwrap_err().is_not_found());
    links.add_route(&link, &range).unwrap();
    links
        .ensure_link(&DummyLink::new(link).with_state(LinkState::Down))
        .unwrap();
    assert_eq!(links.routes(&link).unwrap(), []);
    links.delete_link(&link).unwrap();
}

/// IPv6 routes remain.
pub(super) fn deleting_the_last_ipv4_address_deletes_the_ipv4_routes(links: &mut Links) {
    let link = ensured(links, "contract22");
    links
        .ensure_link(&DummyLink::new(link).with_state(LinkState::Up))
        .unwrap();
    let (range, range6) = (route("10.96.0.0/12"), route("fd00:22::/112"));
    // Routes can be added without an address on the link.
    for route in [&range, &range6] {
        links.add_route(&link, route).unwrap();
    }
    for text in ["10.1.22.1/32", "10.1.22.2/24", "fd00::22/128"] {
        links.add(&link, &address(text)).unwrap();
    }
    links.delete(&link, &key("10.1.22.1/32")).unwrap();
    links.delete(&link, &key("fd00::22/128")).unwrap();
    assert_eq!(links.routes(&link).unwrap(), [range, range6]);
    links.delete(&link, &key("10.1.22.2/24")).unwrap();
    assert_eq!(links.routes(&link).unwrap(), [range6]);
    // They can be added again in the same batch.
    links.add(&link, &address("10.1.22.1/32")).unwrap();
    links.add_route(&link, &range).unwrap();
    let outcomes = links.execute(&[
        Operation::DeleteAddress(link, key("10.1.22.1/32")),
        Operation::EnsureRoute(link, range),
    ]);
    assert_eq!(outcomes, [Ok(()), Ok(())]);
    assert_eq!(links.routes(&link).unwrap(), [range, range6]);
    links.delete_link(&link).unwrap();
}
