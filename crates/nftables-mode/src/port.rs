//! What a port of a Service means in one family: its frontends and endpoints.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use kernlink_services::{
    ChosenEndpoint, Family, Frontend, FrontendKey, FrontendKind, ObjectName, Protocol, ServicePort,
    ServicePortName, TrafficPolicy,
};

use crate::class::{Kind, MOST_ENDPOINTS};
use crate::item::{Endpoint, Shared};
use crate::rules::is_destination;
use crate::timeouts;

/// A port of a Service as it should be in the kernel, apart from the indices of its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortSpec {
    pub(crate) service: ObjectName,
    pub(crate) family: Family,
    pub(crate) protocol: Protocol,
    /// The name of the port, for comments of elements.
    pub(crate) comment: Arc<str>,
    /// The endpoints for policy `Cluster`, sorted. One with a greater weight than others occurs several times.
    pub(crate) cluster: Box<[Endpoint]>,
    /// Those for policy `Local`.
    pub(crate) local: Box<[Endpoint]>,
    /// Whether any endpoint, on any node, accepts traffic.
    pub(crate) has_any: bool,
    /// Whether there are more endpoints than a frontend can have.
    pub(crate) is_limited: bool,
    pub(crate) affinity: Option<Affinity>,
    /// Whether clients are to have their endpoint together with others of a network, which is not possible.
    pub(crate) has_affinity_mask: bool,
    /// The frontends that it owns, sorted by key, each once.
    pub(crate) frontends: Box<[(FrontendKey, FrontendSpec)]>,
    /// Endpoints on this node.
    pub(crate) hairpin: Box<[Endpoint]>,
    /// Its cluster IPs.
    pub(crate) cluster_ips: Box<[IpAddr]>,
    /// Whether internal traffic is dropped because no endpoint is on this node.
    pub(crate) lacks_local_internal: bool,
    /// The same for external traffic.
    pub(crate) lacks_local_external: bool,
}

/// Session affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Affinity {
    /// In seconds.
    pub(crate) timeout: u32,
    /// The number of the service port, which its frontends have in common.
    pub(crate) pool: u32,
}

/// What is different for the frontends of a service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrontendSpec {
    pub(crate) kind: Kind,
    /// Whether the policy is `Local`.
    pub(crate) is_local: bool,
    /// The sources that are admitted; if empty, all are.
    pub(crate) ranges: Arc<[IpNet]>,
    /// Whether the node is admitted.
    pub(crate) admits_node: bool,
}

impl PortSpec {
    /// A service port with the frontends whose keys it owns.
    pub(crate) fn new<'a>(
        port: &ServicePort,
        owned: impl Iterator<Item = &'a Frontend>,
        pool: impl FnOnce() -> u32,
    ) -> Self {
        let owned: Vec<&Frontend> = owned.collect();
        let (cluster, cluster_is_limited) = slots(&port.endpoints.cluster);
        let (local, local_is_limited) = slots(&port.endpoints.local);
        // All endpoints may have the weight 0.
        let have_weight = !cluster.is_empty() || port.endpoints.cluster.is_empty();
        let has_any = port.endpoints.has_any && have_weight;
        let mut frontends: BTreeMap<FrontendKey, FrontendSpec> = BTreeMap::new();
        for frontend in &owned {
            let spec = frontends.entry(FrontendKey::of(frontend)).or_insert_with(|| {
                let is_local = frontend.policy == TrafficPolicy::Local;
                FrontendSpec {
                    kind: match (frontend.kind, is_local) {
                        (FrontendKind::ClusterIp, _) => Kind::Internal,
                        (_, false) => Kind::External,
                        (_, true) => Kind::Local,
                    },
                    is_local,
                    ranges: Arc::clone(&frontend.source_ranges),
                    admits_node: frontend.admits_node,
                }
            });
            // A load-balancer IP may be an external IP too: the ranges apply.
            if spec.ranges.is_empty() && !frontend.source_ranges.is_empty() {
                spec.ranges = Arc::clone(&frontend.source_ranges);
                spec.admits_node = frontend.admits_node;
            }
        }
        let lacks_local = |is_internal: bool| {
            let mut frontends = frontends.values();
            has_any
                && local.is_empty()
                && frontends
                    .any(|frontend| frontend.is_local && (frontend.kind == Kind::Internal) == is_internal)
        };
        let affinity = owned.iter().find_map(|frontend| frontend.affinity);
        let mut cluster_ips: Vec<IpAddr> = owned
            .iter()
            .filter(|frontend| frontend.kind == FrontendKind::ClusterIp)
            .map(|frontend| frontend.address)
            .collect();
        cluster_ips.sort_unstable();
        cluster_ips.dedup();
        Self {
            service: port.key.name.service.clone(),
            family: port.key.family,
            protocol: port.key.name.protocol,
            comment: comment(&port.key.name).into(),
            has_any,
            is_limited: cluster_is_limited || local_is_limited,
            affinity: affinity.map(|timeout| Affinity {
                timeout: timeouts::rounded(timeout),
                pool: pool(),
            }),
            has_affinity_mask: affinity.is_some()
                && port.options.affinity_mask.of(port.key.family) < port.key.family.address_bits(),
            hairpin: port
                .local_endpoints
                .iter()
                .map(|(address, port)| Endpoint {
                    address: *address,
                    port: *port,
                })
                .collect(),
            cluster_ips: cluster_ips.into(),
            lacks_local_internal: lacks_local(true),
            lacks_local_external: lacks_local(false),
            frontends: frontends.into_iter().collect(),
            cluster: cluster.into(),
            local: local.into(),
        }
    }

    pub(crate) fn frontend(&self, key: &FrontendKey) -> Option<&FrontendSpec> {
        let position = self
            .frontends
            .binary_search_by(|(known, _)| known.cmp(key))
            .ok()?;
        self.frontends.get(position).map(|(_, frontend)| frontend)
    }

    /// The elements that it may have in common with others.
    pub(crate) fn shared(&self) -> impl Iterator<Item = Shared> + '_ {
        let cluster_ips = self.cluster_ips.iter().map(|address| Shared::ClusterIp(*address));
        let hairpin = self.hairpin.iter();
        let hairpin = hairpin.map(|endpoint| Shared::Hairpin(endpoint.address, self.protocol, endpoint.port));
        cluster_ips.chain(hairpin)
    }
}

/// The longest comment that `nft` can load, in bytes.
const LONGEST_COMMENT: usize = 128;

/// The comment of the elements of a service port: its name. If that is too long, first the name of the port is shortened, then that of the Service.
fn comment(name: &ServicePortName) -> String {
    let complete = name.to_string();
    if complete.len() <= LONGEST_COMMENT {
        return complete;
    }
    let end = LONGEST_COMMENT - OMITTED.len();
    let end = (0..=end).rev().find(|end| complete.is_char_boundary(*end));
    complete
        .get(..end.unwrap_or_default())
        .unwrap_or_default()
        .to_owned()
        + OMITTED
}

/// What the rest of a shortened comment is replaced by.
const OMITTED: &str = "...";

/// The endpoints that receive connections, sorted, each as often as its weight requires, and whether there are more than a frontend can have.
fn slots(chosen: &[ChosenEndpoint]) -> (Vec<Endpoint>, bool) {
    let usable = chosen.iter().filter(|endpoint| {
        // A translation to port 0, or to no host, is accepted by the kernel.
        endpoint.weight > 0 && endpoint.port != 0 && is_destination(endpoint.address)
    });
    let mut endpoints: Vec<(Endpoint, u16)> = usable
        .map(|endpoint| {
            let of = Endpoint {
                address: endpoint.address,
                port: endpoint.port,
            };
            (of, endpoint.weight)
        })
        .collect();
    endpoints.sort_unstable();
    let is_limited = endpoints.len() > MOST_ENDPOINTS;
    endpoints.truncate(MOST_ENDPOINTS);
    let divisor = endpoints
        .iter()
        .fold(0, |divisor, (_, weight)| gcd(divisor, *weight))
        .max(1);
    let total: u64 = endpoints
        .iter()
        .map(|(_, weight)| u64::from(weight / divisor))
        .sum();
    let most = (MOST_WEIGHTED.max(endpoints.len())) as u64;
    let slots = endpoints.into_iter().flat_map(|(endpoint, weight)| {
        let weight = u64::from(weight / divisor);
        // At least one.
        let count = if total > most {
            (weight * most / total).max(1)
        } else {
            weight
        };
        std::iter::repeat_n(endpoint, usize::try_from(count).unwrap_or(1))
    });
    let mut slots: Vec<Endpoint> = slots.collect();
    slots.truncate(MOST_ENDPOINTS);
    (slots, is_limited)
}

/// The number of elements that weights are approximated with, if more are needed to represent them exactly.
const MOST_WEIGHTED: usize = 1_024;

fn gcd(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A service port as it was written: with the indices of its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) spec: Arc<PortSpec>,
    cluster: Order,
    local: Order,
}

/// The positions of endpoints in the sorted list, by index. `None`: the index is the position.
type Order = Option<Box<[u16]>>;

impl Written {
    /// As it is written if these endpoints have the indices 0 and so on: each that stays keeps its index, if that is less than their number.
    pub(crate) fn after(spec: Arc<PortSpec>, cluster: &[Endpoint], local: &[Endpoint]) -> Self {
        Self {
            cluster: order(cluster, &spec.cluster),
            local: order(local, &spec.local),
            spec,
        }
    }

    /// The endpoints by index: those for policy `Local`, or those for `Cluster`.
    pub(crate) fn endpoints(&self, is_local: bool) -> impl ExactSizeIterator<Item = Endpoint> + '_ {
        let (list, order) = if is_local {
            (&self.spec.local, &self.local)
        } else {
            (&self.spec.cluster, &self.cluster)
        };
        (0..list.len()).map(move |index| {
            let position = match order {
                Some(order) => order.get(index).map_or(index, |position| usize::from(*position)),
                None => index,
            };
            // An order has each position once.
            list.get(position).copied().unwrap_or(NOWHERE)
        })
    }
}

const NOWHERE: Endpoint = Endpoint {
    address: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
    port: 0,
};

/// The order of a sorted list that differs from another list in as few indices as possible: what is removed is replaced by what is new, and
/// then by the last ones.
fn order(before: &[Endpoint], now: &[Endpoint]) -> Order {
    // For each endpoint the positions that have no index yet.
    let mut free: Vec<bool> = vec![true; now.len()];
    let mut take = |endpoint: &Endpoint| -> Option<usize> {
        let first = now.partition_point(|known| known < endpoint);
        let mut position = first;
        while now.get(position) == Some(endpoint) {
            if let Some(is_free) = free.get_mut(position).filter(|is_free| **is_free) {
                *is_free = false;
                return Some(position);
            }
            position += 1;
        }
        None
    };
    let mut slots: Vec<Option<usize>> = before.iter().map(&mut take).collect();
    let new: Vec<usize> = (0..now.len())
        .filter(|position| free.get(*position) == Some(&true))
        .collect();
    let mut new = new.into_iter();
    for slot in &mut slots {
        if slot.is_none() {
            *slot = new.next();
        }
    }
    slots.extend(new.map(Some));
    // More were removed than added: the last ones get the indices of the others.
    let mut index = 0;
    while index < slots.len() {
        while slots.last() == Some(&None) {
            slots.pop();
        }
        if slots.get(index) == Some(&None) {
            slots.swap_remove(index);
        }
        index += 1;
    }
    let order: Vec<u16> = slots
        .into_iter()
        .flatten()
        .filter_map(|position| u16::try_from(position).ok())
        .collect();
    let is_sorted = order
        .iter()
        .enumerate()
        .all(|(index, position)| index == usize::from(*position));
    (!is_sorted).then(|| order.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(last: u8) -> Endpoint {
        Endpoint {
            address: [10, 0, 0, last].into(),
            port: 80,
        }
    }

    fn after(before: &[u8], now: &[u8]) -> Vec<u8> {
        let [before, now] =
            [before, now].map(|list| list.iter().map(|last| endpoint(*last)).collect::<Vec<_>>());
        let order = order(&before, &now).map_or_else(|| (0..now.len() as u16).collect(), Vec::from);
        order
            .into_iter()
            .map(|position| match now[usize::from(position)].address {
                IpAddr::V4(address) => address.octets()[3],
                IpAddr::V6(_) => 0,
            })
            .collect()
    }

    #[test]
    fn endpoints_keep_their_indices_and_the_last_one_replaces_a_removed_one() {
        assert_eq!(after(&[], &[1, 2, 3]), [1, 2, 3]);
        assert_eq!(after(&[3, 1, 2], &[1, 2, 3]), [3, 1, 2]);
        assert_eq!(after(&[3, 1, 2], &[1, 2]), [2, 1]);
        assert_eq!(after(&[3, 1, 2], &[1, 2, 4]), [4, 1, 2]);
        assert_eq!(after(&[3, 1, 2], &[2, 3]), [3, 2]);
        assert_eq!(after(&[3, 1, 2], &[]), Vec::<u8>::new());
        assert_eq!(after(&[1, 2, 3, 4, 5], &[5]), [5]);
        assert_eq!(after(&[1, 2, 3, 4, 5], &[1, 5, 6]), [1, 6, 5]);
        // Twice the weight.
        assert_eq!(after(&[1, 2], &[1, 1, 2]), [1, 2, 1]);
        assert_eq!(after(&[1, 2, 1], &[1, 2]), [1, 2]);
    }

    #[test]
    fn a_comment_is_never_longer_than_nft_loads() {
        let of = |namespace: &str, service: &str, port: &str| {
            comment(&ServicePortName {
                service: ObjectName::new(namespace, service),
                port: port.into(),
                protocol: Protocol::Tcp,
            })
        };
        assert_eq!(of("default", "web", "http"), "default/web:http");
        let [namespace, service] = ["n", "s"].map(|letter| letter.repeat(60));
        assert_eq!(
            of(&namespace, &service, "metric"),
            format!("{namespace}/{service}:metric")
        );
        let shortened = of(&namespace, &service, "metrics");
        assert_eq!(shortened, format!("{namespace}/{service}:met..."));
        assert_eq!(shortened.len(), 128);
        // Names that Kubernetes does not permit.
        for length in 120..140 {
            let comment = of("n", &"\u{e9}".repeat(length), "http");
            assert!((127..=128).contains(&comment.len()), "{comment}");
        }
    }

    #[test]
    fn weights_are_numbers_of_indices_and_harmful_endpoints_have_none() {
        let chosen = |last, port, weight| ChosenEndpoint {
            address: [10, 0, 0, last].into(),
            port,
            weight,
            is_local: false,
        };
        let of = |list: &[ChosenEndpoint]| slots(list).0;
        assert_eq!(
            of(&[chosen(1, 80, 50), chosen(2, 80, 100)]),
            [endpoint(1), endpoint(2), endpoint(2)]
        );
        assert_eq!(
            of(&[chosen(1, 80, 1), chosen(2, 0, 1), chosen(3, 80, 0)]),
            [endpoint(1)]
        );
        let nowhere = ChosenEndpoint {
            address: [0, 0, 0, 0].into(),
            ..chosen(0, 80, 1)
        };
        assert_eq!(of(&[nowhere]), []);
        let many = of(&[chosen(1, 80, 65_535), chosen(2, 80, 1)]);
        assert_eq!(many.len(), MOST_WEIGHTED);
        assert_eq!(many.last(), Some(&endpoint(2)));
        let all: Vec<ChosenEndpoint> = (0..20_000_u32)
            .map(|number| ChosenEndpoint {
                address: std::net::Ipv4Addr::from(0x0a00_0000 + number).into(),
                ..chosen(0, 80, 1)
            })
            .collect();
        let (slots, is_limited) = slots(&all);
        assert_eq!((slots.len(), is_limited), (MOST_ENDPOINTS, true));
    }
}
