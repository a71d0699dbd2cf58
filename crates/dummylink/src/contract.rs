//! Checks that every implementation of [`DummyLinks`] must pass: the kernel client, [`Fake`](crate::Fake) and others.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a check fails by panicking")]

mod addresses;
mod links;
mod replace;
mod routes;

use std::collections::BTreeSet;

use kernlink_base::contract::{self, Check, Failures};

use self::addresses::*;
use self::links::*;
use self::replace::*;
use self::routes::*;
use crate::{AddressKey, DummyLink, DummyLinks, LinkAddress, LinkName, LocalRoute, Selection};

/// Calls `each` with every check and collects all failures. `each` must call [`Check::run`] with an implementation for a fresh network
/// namespace, which has only the loopback link; the check leaves arbitrary state.
///
/// # Errors
///
/// The checks for which `each` panicked, in order.
///
/// ```
/// use kernlink_dummylink::{Fake, contract};
///
/// contract::run(|check| (check.run)(&mut Fake::new()))?;
/// # Ok::<(), kernlink_base::contract::Failures>(())
/// ```
pub fn run(each: impl FnMut(&Check<dyn DummyLinks>)) -> Result<(), Failures> {
    contract::run(CHECKS, each)
}

/// A trait object without borrowed data, which [`Check::run`] takes.
type Links = dyn DummyLinks;

const CHECKS: &[Check<Links>] = kernlink_base::checks!(
    Links:
    a_link_is_ensured_once_and_deleted_once,
    ensuring_a_link_changes_only_the_given_attributes,
    a_link_of_another_kind_is_refused_and_not_changed,
    operations_on_a_missing_link_fail,
    addresses_are_added_listed_and_deleted,
    an_address_is_identified_by_address_prefix_length_and_link,
    an_ipv6_address_has_one_prefix_length_per_link,
    attributes_of_an_address_are_listed_as_they_were_set,
    invalid_addresses_are_refused,
    listings_select_addresses_by_link,
    each_operation_of_a_batch_has_its_outcome,
    a_batch_can_contain_thousands_of_operations,
    deleting_a_link_deletes_its_addresses,
    replacing_makes_the_smallest_change,
    replacing_changes_a_prefix_length,
    replacing_does_not_change_foreign_addresses,
    replacing_restores_secondary_addresses,
    a_local_route_is_added_listed_and_deleted,
    an_ipv6_local_route_requires_the_link_to_be_up,
    deleting_the_last_ipv4_address_deletes_the_ipv4_routes,
    replacing_keeps_the_local_routes,
    a_peer_is_part_of_the_key,
    replacing_deletes_and_changes_peers,
    setting_a_link_down_deletes_its_ipv6_addresses_and_routes,
    a_small_mtu_deletes_the_addresses,
    replacing_deletes_owned_link_local_addresses,
    an_address_is_changed_in_place,
    an_empty_batch_has_no_outcomes,
);

fn name(text: &str) -> LinkName {
    text.parse().unwrap()
}

fn key(text: &str) -> AddressKey {
    text.parse().unwrap()
}

fn address(text: &str) -> LinkAddress {
    LinkAddress::new(key(text))
}

fn route(text: &str) -> LocalRoute {
    LocalRoute::new(text.parse().unwrap())
}

/// Adds a dummy link.
fn ensured(links: &mut Links, text: &str) -> LinkName {
    let link = name(text);
    links.ensure_link(&DummyLink::new(link)).unwrap();
    link
}

fn keys(links: &mut Links, link: LinkName) -> BTreeSet<AddressKey> {
    let listed = links.list(Selection::On(link)).unwrap();
    let keys: BTreeSet<_> = listed.iter().map(|seen| seen.address.key).collect();
    assert_eq!(keys.len(), listed.len(), "duplicate addresses: {listed:?}");
    keys
}

fn set<const N: usize>(texts: [&str; N]) -> BTreeSet<AddressKey> {
    texts.into_iter().map(key).collect()
}
