//! The numbers of desired objects, kept up to date with each service port that changes.

use kernlink_services::{
    ChosenEndpoints, Family, FrontendKind, NameMap, ObjectName, ServicePort, TrafficPolicy,
};

use super::compile::Compiled;
use super::sets::SetId;

/// The numbers of desired objects of IPVS mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// By [`Family::index`].
    pub families: [FamilyTotals; 2],
    /// Virtual servers of both families that are foreign, as last listed.
    pub foreign_virtual_servers: usize,
}

impl Totals {
    /// The numbers of one family.
    #[must_use]
    pub fn family(&self, family: Family) -> &FamilyTotals {
        &self.families[family.index()]
    }
}

/// The numbers of desired objects of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FamilyTotals {
    /// Ports of Services.
    pub service_ports: usize,
    /// Endpoints that were chosen for service ports. An endpoint of several service ports is counted for each of them.
    pub endpoints: usize,
    /// Virtual servers.
    pub virtual_servers: usize,
    /// Real servers of all virtual servers.
    pub real_servers: usize,
    /// Addresses of the dummy link.
    pub addresses: usize,
    /// Entries of each set, by [`SetId::index`].
    pub entries: [usize; SetId::ALL.len()],
    /// Services with `internalTrafficPolicy: Local` that have endpoints, but none on this node.
    pub no_local_internal: usize,
    /// Services with `externalTrafficPolicy: Local` that have endpoints, but none on this node.
    pub no_local_external: usize,
}

/// What a service port adds to the totals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortTotals {
    endpoints: usize,
    virtual_servers: usize,
    real_servers: usize,
    lacks_local: LacksLocal,
}

/// For which traffic a service port has endpoints, but none on this node although its policy is `Local`.
#[derive(Clone, Copy, Debug, Default)]
struct LacksLocal {
    internal: bool,
    external: bool,
}

impl PortTotals {
    pub(super) fn of(port: &ServicePort, compiled: &Compiled) -> Self {
        let real_servers = compiled.frontends.iter();
        Self {
            endpoints: chosen(&port.endpoints),
            virtual_servers: compiled.frontends.len(),
            real_servers: real_servers.map(|frontend| frontend.real_servers.len()).sum(),
            lacks_local: LacksLocal::of(port),
        }
    }
}

impl LacksLocal {
    fn of(port: &ServicePort) -> Self {
        if !port.endpoints.has_any || !port.endpoints.local.is_empty() {
            return Self::default();
        }
        let has = |internal: bool| {
            let local = port
                .frontends
                .iter()
                .filter(|frontend| frontend.policy == TrafficPolicy::Local);
            local
                .into_iter()
                .any(|frontend| (frontend.kind == FrontendKind::ClusterIp) == internal)
        };
        Self {
            internal: has(true),
            external: has(false),
        }
    }
}

/// The number of endpoints that are chosen for at least one policy. Both lists are sorted by address and port.
fn chosen(endpoints: &ChosenEndpoints) -> usize {
    let ChosenEndpoints { cluster, local, .. } = endpoints;
    let key = |endpoint: &kernlink_services::ChosenEndpoint| (endpoint.address, endpoint.port);
    let only_local = local
        .iter()
        .filter(|endpoint| cluster.binary_search_by_key(&key(endpoint), key).is_err());
    cluster.len() + only_local.count()
}

/// The sums of the totals of all service ports of a family.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    service_ports: usize,
    ports: PortTotals,
    /// The number of service ports without local endpoints, of each Service that has any: for internal and for external traffic.
    lacks_local: NameMap<(usize, usize)>,
    internal: usize,
    external: usize,
}

impl Sums {
    pub(super) fn add(&mut self, service: &ObjectName, port: &PortTotals) {
        self.service_ports += 1;
        self.ports.endpoints += port.endpoints;
        self.ports.virtual_servers += port.virtual_servers;
        self.ports.real_servers += port.real_servers;
        let LacksLocal { internal, external } = port.lacks_local;
        if internal || external {
            let (of_internal, of_external) = self.lacks_local.entry(service.clone()).or_default();
            self.internal += usize::from(internal && *of_internal == 0);
            self.external += usize::from(external && *of_external == 0);
            *of_internal += usize::from(internal);
            *of_external += usize::from(external);
        }
    }

    /// Removes what [`add`](Self::add) added.
    pub(super) fn remove(&mut self, service: &ObjectName, port: &PortTotals) {
        self.service_ports -= 1;
        self.ports.endpoints -= port.endpoints;
        self.ports.virtual_servers -= port.virtual_servers;
        self.ports.real_servers -= port.real_servers;
        let LacksLocal { internal, external } = port.lacks_local;
        if let Some((of_internal, of_external)) = self.lacks_local.get_mut(service)
            && (internal || external)
        {
            *of_internal -= usize::from(internal);
            *of_external -= usize::from(external);
            self.internal -= usize::from(internal && *of_internal == 0);
            self.external -= usize::from(external && *of_external == 0);
            if (*of_internal, *of_external) == (0, 0) {
                self.lacks_local.remove(service);
            }
        }
    }

    /// The totals of a family with so many entries in its sets.
    pub(super) fn totals(&self, entries: [usize; SetId::ALL.len()]) -> FamilyTotals {
        FamilyTotals {
            service_ports: self.service_ports,
            endpoints: self.ports.endpoints,
            virtual_servers: self.ports.virtual_servers,
            real_servers: self.ports.real_servers,
            // Each address of the dummy link is an entry of this set.
            addresses: entries[SetId::IpvsIps.index()],
            entries,
            no_local_internal: self.internal,
            no_local_external: self.external,
        }
    }
}
