//! The names and types of the tables, chains and sets.

use std::fmt;
use std::time::Duration;

use kernlink_nftables::{DataType, Set, SetFlags, SetKey, TableKey};
use kernlink_services::Family;

/// The name of the table, in each family.
pub const TABLE: &str = "kernlink";
/// The name of the table that replaces it, or that it replaces, when the rules are others or the elements cannot be read.
pub const SECOND_TABLE: &str = "kernlink-2";
/// The name of the table of kube-proxy's nftables mode.
pub const KUBE_PROXY_TABLE: &str = "kube-proxy";

/// The most clients of Services with session affinity that are remembered in a family. Clients that are deleted or expired count until the
/// kernel collects them.
pub(crate) const MOST_CLIENTS: u32 = 1 << 20;

/// How long a client is remembered whose first connection did not end the rules: its own timeout follows at once.
pub(crate) const FIRST_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Which of the two tables of a family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// [`TABLE`].
    #[default]
    First,
    /// [`SECOND_TABLE`].
    Second,
}

impl Slot {
    /// Both.
    pub const ALL: [Self; 2] = [Slot::First, Slot::Second];

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Slot::First => Slot::Second,
            Slot::Second => Slot::First,
        }
    }

    /// The name of the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Slot::First => TABLE,
            Slot::Second => SECOND_TABLE,
        }
    }

    /// That of a table with this name, if it is one of the two.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Slot::ALL.into_iter().find(|slot| slot.name() == name)
    }

    /// The table.
    #[must_use]
    pub fn table(self, family: Family) -> TableKey {
        TableKey::new(family, self.name())
    }
}

/// A set or map.
///
/// No rule uses the first field of a value as the key of another set, or as the value of an element that it adds: `nft` aborts on such a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SetName {
    /// Frontends with endpoints, and their class.
    Frontends,
    /// The endpoints of frontends by index.
    Endpoints,
    /// Frontends that are no cluster IPs.
    ExternalFrontends,
    /// Those of them with policy `Local`.
    LocalFrontends,
    /// The class of the latter for traffic from pods and from the node.
    ShortCircuits,
    /// The endpoints for such traffic.
    ShortEndpoints,
    /// Every cluster IP.
    ClusterIps,
    /// Frontends without endpoints.
    NoEndpoints,
    /// Frontends without endpoints on this node that need one.
    NoLocalEndpoints,
    /// Endpoints of this node, as source and as destination.
    HairpinEndpoints,
    /// Frontends with source ranges: which chains look for them.
    RestrictedFrontends,
    /// Frontend, prefix length and network of a source range.
    AllowedSources,
    /// The timeout and the number of service ports with session affinity, by frontend.
    AffinityPools,
    /// The clients of service ports with session affinity, and their endpoints. Rules add the elements.
    AffinityClients,
    /// The endpoints of frontends with session affinity, by index.
    AffinityEndpoints,
    /// The same for traffic from pods and from the node to frontends with policy `Local`.
    ShortAffinityEndpoints,
    /// The endpoints of frontends with session affinity.
    AffinityMembers,
    /// The same for traffic from pods and from the node to frontends with policy `Local`.
    ShortAffinityMembers,
    /// The networks that cluster IPs are allocated from.
    ServiceCidrs,
}

impl SetName {
    /// All, those with many elements first: the kernel searches sets by name in this order.
    pub(crate) const ALL: [Self; 19] = [
        SetName::Endpoints,
        SetName::Frontends,
        SetName::ClusterIps,
        SetName::ExternalFrontends,
        SetName::ShortEndpoints,
        SetName::LocalFrontends,
        SetName::ShortCircuits,
        SetName::NoEndpoints,
        SetName::NoLocalEndpoints,
        SetName::HairpinEndpoints,
        SetName::RestrictedFrontends,
        SetName::AllowedSources,
        SetName::AffinityPools,
        SetName::AffinityClients,
        SetName::AffinityEndpoints,
        SetName::ShortAffinityEndpoints,
        SetName::AffinityMembers,
        SetName::ShortAffinityMembers,
        SetName::ServiceCidrs,
    ];

    /// The name. None is a keyword of `nft`.
    pub(crate) fn text(self) -> &'static str {
        match self {
            SetName::Frontends => "frontends",
            SetName::Endpoints => "endpoints",
            SetName::ExternalFrontends => "external-frontends",
            SetName::LocalFrontends => "local-frontends",
            SetName::ShortCircuits => "short-circuits",
            SetName::ShortEndpoints => "short-endpoints",
            SetName::ClusterIps => "cluster-ips",
            SetName::NoEndpoints => "no-endpoints",
            SetName::NoLocalEndpoints => "no-local-endpoints",
            SetName::HairpinEndpoints => "hairpin-endpoints",
            SetName::RestrictedFrontends => "restricted-frontends",
            SetName::AllowedSources => "allowed-sources",
            SetName::AffinityPools => "affinity-pools",
            SetName::AffinityClients => "affinity-clients",
            SetName::AffinityEndpoints => "affinity-endpoints",
            SetName::ShortAffinityEndpoints => "short-affinity-endpoints",
            SetName::AffinityMembers => "affinity-members",
            SetName::ShortAffinityMembers => "short-affinity-members",
            SetName::ServiceCidrs => "service-cidrs",
        }
    }

    /// The set with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        SetName::ALL.into_iter().find(|set| set.text() == name)
    }

    /// Whether its elements belong to frontends: their keys begin with address, protocol and port.
    pub(crate) fn is_of_frontends(self) -> bool {
        !matches!(
            self,
            SetName::ClusterIps
                | SetName::HairpinEndpoints
                | SetName::AffinityClients
                | SetName::ServiceCidrs
        )
    }

    pub(crate) fn key(self, table: &TableKey) -> SetKey {
        table.set(self.text())
    }

    /// The set without elements.
    pub(crate) fn set(self, table: &TableKey, family: Family) -> Set {
        use DataType::{Mark, Protocol, Service};
        let address = match family {
            Family::Ipv4 => DataType::Ipv4Address,
            Family::Ipv6 => DataType::Ipv6Address,
        };
        let key = self.key(table);
        let frontend = [address, Protocol, Service];
        let endpoint = [address, Service];
        match self {
            // A number of 2 bytes in network byte order, which rules compare by `<`.
            SetName::Frontends | SetName::ShortCircuits => Set::map(key, &frontend, &[Service]),
            SetName::Endpoints | SetName::ShortEndpoints => {
                Set::map(key, &[address, Protocol, Service, Mark], &endpoint)
            }
            // The first field, a port of the frontend, is not used by rules.
            SetName::AffinityEndpoints | SetName::ShortAffinityEndpoints => {
                let value = [Service, address, Service];
                Set::map(key, &[address, Protocol, Service, Mark], &value)
            }
            SetName::ClusterIps => Set::new(key, &[address]),
            SetName::ExternalFrontends
            | SetName::LocalFrontends
            | SetName::NoEndpoints
            | SetName::NoLocalEndpoints => Set::new(key, &frontend),
            SetName::HairpinEndpoints => Set::new(key, &[address, address, Protocol, Service]),
            SetName::RestrictedFrontends => Set::map(key, &frontend, &[Mark]),
            SetName::AllowedSources => Set::new(key, &[address, Protocol, Service, Mark, address]),
            SetName::AffinityPools => Set::map(key, &frontend, &[Mark, Mark]),
            SetName::AffinityClients => Set::map(key, &[Mark, address], &[Service, address, Service])
                .with_flags(SetFlags::EVAL)
                .with_timeout(FIRST_TIMEOUT)
                .with_size(MOST_CLIENTS),
            SetName::AffinityMembers | SetName::ShortAffinityMembers => {
                Set::new(key, &[address, Protocol, Service, address, Service])
            }
            SetName::ServiceCidrs => Set::new(key, &[address]).with_intervals(),
        }
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
