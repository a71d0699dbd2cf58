//! What the kernel lacks, and what it has too much.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use kernlink_dummylink::{AddressKey, DummyLink, LinkAddress, LinkName, Operation as LinkOperation};
use kernlink_ipset::{Element, Entry, OnRepeat, Operation as SetOperation};
use kernlink_iptables_restore::Operation as RulesOperation;
use kernlink_ipvs::{Operation as IpvsOperation, Timeouts, VirtualServerKey};

use super::{PhaseKind, Plan, SettingOperation, StepId, rules};
use crate::desired::{DesiredState, SetId, WantedServer};
use crate::family::Family;
use crate::observed::{Marked, ObservedSet, ObservedState, marked};

/// The steps from what the kernel holds to what it should hold. Empty if there is nothing to do.
///
/// Only what is ours is changed or removed, see [`ObservedState::is_ours`]; a family whose tables could not be read gets no step
/// about its rules.
#[must_use]
pub fn diff(desired: &DesiredState, observed: &ObservedState) -> Plan {
    let mut planner = Planner {
        desired,
        observed,
        link: LinkName::new(&desired.config().dummy_link).ok(),
        plan: Plan::default(),
        link_step: None,
        set_steps: HashMap::new(),
        unbind_steps: HashMap::new(),
        entry_steps: HashMap::new(),
        rules_steps: BTreeMap::new(),
        server_steps: HashMap::new(),
        removed_servers: HashMap::new(),
    };
    planner.settings();
    planner.link();
    planner.sets();
    planner.unbind_addresses();
    planner.add_entries();
    planner.rules();
    planner.virtual_servers();
    planner.real_servers();
    planner.bind_addresses();
    planner.remove_real_servers();
    planner.remove_virtual_servers();
    planner.remove_entries();
    planner.plan
}

struct Planner<'a> {
    desired: &'a DesiredState,
    observed: &'a ObservedState,
    /// `None` if the configured name is none that a link can have; then nothing is bound.
    link: Option<LinkName>,
    plan: Plan,
    // Steps so far that later ones may need.
    link_step: Option<StepId>,
    set_steps: HashMap<(Family, SetId), StepId>,
    unbind_steps: HashMap<IpAddr, StepId>,
    entry_steps: HashMap<(Family, SetId, &'a Entry), StepId>,
    rules_steps: BTreeMap<Family, StepId>,
    server_steps: HashMap<VirtualServerKey, StepId>,
    removed_servers: HashMap<VirtualServerKey, StepId>,
}

impl<'a> Planner<'a> {
    fn settings(&mut self) {
        let observed = self.observed;
        for wanted in self.desired.sysctls(observed.kernel, observed.processors) {
            let value = wanted.value.to_string();
            if observed.settings.get(wanted.name).map(AsRef::as_ref) != Some(value.as_str()) {
                let operation = SettingOperation {
                    name: wanted.name.into(),
                    value: value.into(),
                };
                self.plan.push(PhaseKind::Settings, operation, Vec::new());
            }
        }
        // More buckets than needed do no harm.
        let buckets = observed
            .conntrack_buckets
            .zip(self.desired.conntrack_buckets(observed.processors));
        if let Some((is, wanted)) = buckets
            && is < wanted
        {
            let name = super::CONNTRACK_BUCKETS.into();
            let operation = SettingOperation {
                name,
                value: wanted.to_string().into(),
            };
            self.plan.push(PhaseKind::Settings, operation, Vec::new());
        }
        let wanted = self.desired.ipvs_timeouts();
        let pick =
            |wanted: std::time::Duration, is: std::time::Duration| if wanted.is_zero() { is } else { wanted };
        let is_so = observed.timeouts.is_some_and(|is| {
            pick(wanted.tcp, is.tcp) == is.tcp
                && pick(wanted.tcp_fin, is.tcp_fin) == is.tcp_fin
                && pick(wanted.udp, is.udp) == is.udp
        });
        if !wanted.is_unset() && !is_so {
            let timeouts = Timeouts::new(wanted.tcp, wanted.tcp_fin, wanted.udp);
            self.plan.push(
                PhaseKind::Settings,
                IpvsOperation::SetTimeouts(timeouts),
                Vec::new(),
            );
        }
    }

    fn link(&mut self) {
        if let Some(link) = self.link
            && !self.observed.has_link
        {
            let operation = LinkOperation::EnsureLink(DummyLink::new(link));
            self.link_step = Some(self.plan.push(PhaseKind::Link, operation, Vec::new()));
        }
    }

    fn sets(&mut self) {
        for family in self.desired.families() {
            for set in self.desired.sets(family) {
                // A set of another make is tried too: the kernel's refusal is the report, and holds back what needs the set.
                if self
                    .observed
                    .sets
                    .get(&(family, set.id))
                    .is_none_or(|is| !is.serves(&set.definition))
                {
                    let operation = SetOperation::ensure_set(set.definition.clone());
                    let step = self.plan.push(PhaseKind::Sets, operation, Vec::new());
                    self.set_steps.insert((family, set.id), step);
                }
            }
        }
    }

    fn unbind_addresses(&mut self) {
        let Some(link) = self.link else { return };
        for key in &self.observed.addresses {
            if self.serves(key.address()) && !self.wants_address(key) {
                let operation = LinkOperation::DeleteAddress(link, *key);
                let step = self.plan.push(PhaseKind::UnbindAddresses, operation, Vec::new());
                self.unbind_steps.insert(key.address(), step);
            }
        }
    }

    fn add_entries(&mut self) {
        let desired = self.desired;
        for family in desired.families() {
            for id in NARROWING_FIRST {
                let known = self.observed.sets.get(&(family, id)).map(|set| &set.entries);
                for entry in desired.set(id, family).entries() {
                    if known.is_none_or(|known| !known.contains(entry)) {
                        let operation = SetOperation::ensure(id.name(family), entry.clone());
                        let needs = self.set_steps.get(&(family, id)).copied().into_iter().collect();
                        let step = self.plan.push(PhaseKind::AddEntries, operation, needs);
                        self.entry_steps.insert((family, id, entry), step);
                    }
                }
            }
        }
    }

    fn rules(&mut self) {
        for family in self.desired.families() {
            let Some(saved) = self.observed.rules.get(&family) else {
                continue;
            };
            let Some(restore) = rules::restore(self.desired, family, saved) else {
                continue;
            };
            let mut needs: Vec<_> = self
                .set_steps
                .iter()
                .filter(|((of_family, _), _)| *of_family == family)
                .map(|(_, step)| *step)
                .collect();
            needs.sort_unstable();
            let step = self
                .plan
                .push(PhaseKind::Rules, RulesOperation::from(restore), needs);
            self.rules_steps.insert(family, step);
        }
    }

    fn virtual_servers(&mut self) {
        let desired = self.desired;
        for family in desired.families() {
            for wanted in desired.virtual_servers(family) {
                let server = wanted.virtual_server;
                let operation = match self.observed.virtual_servers.get(&server.key) {
                    None => IpvsOperation::AddVirtualServer(server.clone()),
                    Some(is) if is.virtual_server != *server => {
                        IpvsOperation::UpdateVirtualServer(server.clone())
                    }
                    Some(_) => continue,
                };
                let needs = self.needs_of(family, &wanted);
                let step = self.plan.push(PhaseKind::VirtualServers, operation, needs);
                self.server_steps.insert(server.key, step);
            }
        }
    }

    /// A virtual server needs its entries, which show that it is ours; one with restricted sources also needs the rules.
    fn needs_of(&self, family: Family, wanted: &WantedServer<'a>) -> Vec<StepId> {
        let mut needs: Vec<StepId> = wanted
            .entries
            .iter()
            .filter_map(|(set, entry)| self.entry_steps.get(&(family, *set, entry)).copied())
            .collect();
        let is_restricted = wanted
            .entries
            .iter()
            .any(|(set, _)| *set == SetId::LoadBalancerFirewall);
        needs.extend(self.rules_steps.get(&family).filter(|_| is_restricted));
        needs
    }

    fn real_servers(&mut self) {
        let desired = self.desired;
        for family in desired.families() {
            for wanted in desired.virtual_servers(family) {
                let key = wanted.virtual_server.key;
                let known = self
                    .observed
                    .virtual_servers
                    .get(&key)
                    .map(|server| &server.real_servers);
                for server in wanted.real_servers.iter() {
                    let operation = match known.and_then(|known| known.get(&server.key)) {
                        None => IpvsOperation::AddRealServer {
                            virtual_server: key,
                            real_server: server.clone(),
                        },
                        Some(is) if is != server => IpvsOperation::UpdateRealServer {
                            virtual_server: key,
                            real_server: server.clone(),
                        },
                        Some(_) => continue,
                    };
                    let needs = match known {
                        None => self.server_steps.get(&key).copied().into_iter().collect(),
                        Some(_) => Vec::new(),
                    };
                    self.plan.push(PhaseKind::RealServers, operation, needs);
                }
            }
        }
    }

    fn bind_addresses(&mut self) {
        let Some(link) = self.link else { return };
        let desired = self.desired;
        for family in desired.families() {
            // An address with one virtual server is of no use without it; with several, each has a right to it.
            let mut only_server: HashMap<IpAddr, Option<StepId>> = HashMap::new();
            for wanted in desired.virtual_servers(family) {
                let key = wanted.virtual_server.key;
                if let Some(address) = key.address() {
                    let step = self.server_steps.get(&key).copied();
                    only_server
                        .entry(address)
                        .and_modify(|step| *step = None)
                        .or_insert(step);
                }
            }
            for address in desired.addresses(family) {
                let Ok(host) = LinkAddress::host(address) else {
                    continue;
                };
                if self.observed.addresses.contains(&host.key) {
                    continue;
                }
                let entry = Entry::ip(address);
                let filter_entry = self.entry_steps.get(&(family, SetId::IpvsIps, &entry)).copied();
                let needs = [
                    self.link_step,
                    only_server.get(&address).copied().flatten(),
                    filter_entry,
                ];
                let operation = LinkOperation::EnsureAddress(link, host);
                let needs = needs.into_iter().flatten().collect();
                self.plan.push(PhaseKind::BindAddresses, operation, needs);
            }
        }
    }

    fn remove_real_servers(&mut self) {
        let desired = self.desired;
        for family in desired.families() {
            for wanted in desired.virtual_servers(family) {
                let key = wanted.virtual_server.key;
                let Some(known) = self.observed.virtual_servers.get(&key) else {
                    continue;
                };
                for server in known.real_servers.keys() {
                    if wanted
                        .real_servers
                        .binary_search_by_key(server, |server| server.key)
                        .is_err()
                    {
                        let operation = IpvsOperation::DeleteRealServer {
                            virtual_server: key,
                            real_server: *server,
                        };
                        self.plan
                            .push(PhaseKind::RemoveRealServers, operation, Vec::new());
                    }
                }
            }
        }
    }

    fn remove_virtual_servers(&mut self) {
        for key in self.observed.virtual_servers.keys() {
            let Some(address) = key.address() else { continue };
            let is_excluded = self
                .desired
                .config()
                .exclude_cidrs
                .iter()
                .any(|net| net.contains(&address));
            if !self.serves(address)
                || is_excluded
                || self.desired.virtual_server(key).is_some()
                || !self.observed.is_ours(key)
            {
                continue;
            }
            let needs = self.unbind_steps.get(&address).copied().into_iter().collect();
            let operation = IpvsOperation::DeleteVirtualServer(*key);
            let step = self.plan.push(PhaseKind::RemoveVirtualServers, operation, needs);
            self.removed_servers.insert(*key, step);
        }
    }

    fn remove_entries(&mut self) {
        // Steps that lift the restriction of a frontend, which must come before the list of its sources goes.
        let mut lifted: HashMap<(IpAddr, kernlink_ipset::ProtocolPort), StepId> = HashMap::new();
        for family in self.desired.families() {
            for id in NARROWING_FIRST.into_iter().rev() {
                let Some(ObservedSet { entries, .. }) = self.observed.sets.get(&(family, id)) else {
                    continue;
                };
                let wanted = self.desired.set(id, family);
                for entry in entries.iter().filter(|entry| !wanted.contains(entry)) {
                    let mut needs: Vec<StepId> = Vec::new();
                    match (id, entry.element()) {
                        (SetId::IpvsIps, Element::Ip(address)) => {
                            needs.extend(self.unbind_steps.get(address));
                        }
                        (
                            SetId::LoadBalancerSourceCidr | SetId::LoadBalancerSourceIp,
                            Element::IpPortNet { ip, port, .. } | Element::IpPortIp { ip, port, .. },
                        ) => needs.extend(lifted.get(&(*ip, *port))),
                        _ => {}
                    }
                    match marked(id, entry) {
                        Some(Marked::Server(key)) => needs.extend(self.removed_servers.get(&key)),
                        Some(Marked::NodePort(protocol, port)) => {
                            let servers = self.removed_servers.iter().filter(|(key, _)| {
                                key.protocol() == Some(protocol) && key.port() == Some(port)
                            });
                            needs.extend(servers.map(|(_, step)| *step));
                            needs.sort_unstable();
                        }
                        None => {}
                    }
                    let operation = SetOperation::Delete {
                        set: id.name(family),
                        entry: entry.clone(),
                        on_repeat: OnRepeat::Succeed,
                    };
                    let step = self.plan.push(PhaseKind::RemoveEntries, operation, needs);
                    if let (SetId::LoadBalancerFirewall, Element::IpPort { ip, port }) = (id, entry.element())
                    {
                        lifted.insert((*ip, *port), step);
                    }
                }
            }
        }
    }

    fn serves(&self, address: IpAddr) -> bool {
        self.desired
            .families()
            .any(|family| family == Family::of(address))
    }

    /// Whether an address on the link is wanted there: with the full prefix length only.
    fn wants_address(&self, key: &AddressKey) -> bool {
        AddressKey::host(key.address()) == Ok(*key) && self.desired.has_address(key.address())
    }
}

/// The sets in an order in which entries can be added without ever letting in what must stay out or shutting out what may come
/// in: who may use a frontend comes before the entry that asks, local policy before the frontend. Removal goes backwards.
const NARROWING_FIRST: [SetId; 17] = [
    SetId::LoadBalancerSourceCidr,
    SetId::LoadBalancerSourceIp,
    SetId::LoadBalancerFirewall,
    SetId::LoadBalancerLocal,
    SetId::LoadBalancer,
    SetId::ExternalIpLocal,
    SetId::ExternalIp,
    SetId::NodePortLocalTcp,
    SetId::NodePortLocalUdp,
    SetId::NodePortLocalSctp,
    SetId::NodePortTcp,
    SetId::NodePortUdp,
    SetId::NodePortSctp,
    SetId::HealthCheckNodePort,
    SetId::LoopBack,
    SetId::ClusterIp,
    SetId::IpvsIps,
];
