//! A node in iptables mode on the fake kernel, with foreign rules, and numbered Services.
#![allow(dead_code, reason = "each test target uses a part")]

use std::time::Instant;

use kernlink_dummylink::{LinkAddress, LinkName};
use kernlink_iptables_restore::{Ruleset, Save, Table};
use kernlink_proxier::DataPath;
use kernlink_proxier::iptables_mode::{Config, Kernel, Proxier, Synced};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Kind, ObjectChange, ObjectName, Port, Service,
    SourceId,
};

pub(crate) const SOURCE: SourceId = SourceId(0);

/// Rules of other programs, one of which jumps to a chain of kube-proxy.
pub(crate) const FOREIGN: &str = "*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:FOREIGN - [0:0]
-A INPUT -j FOREIGN
-A INPUT -j KUBE-FIREWALL
-A FOREIGN -s 192.0.2.66/32 -j DROP
-A KUBE-FIREWALL -m comment --comment \"of the kubelet\" -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT - [0:0]
-A PREROUTING -j CNI-HOSTPORT
-A CNI-HOSTPORT -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.244.0.9:80
COMMIT
";

pub(crate) fn config() -> Config {
    let mut config = Config::new("node-a");
    config.conntrack.max_per_core = 0;
    config
}

pub(crate) fn kernel() -> Kernel {
    let mut kernel = Kernel::fake();
    let eth0 = LinkName::new("eth0").unwrap();
    let addresses =
        ["192.0.2.1", "2001:db8::1"].map(|text| LinkAddress::host(text.parse().unwrap()).unwrap());
    kernel.links = Box::new(kernlink_dummylink::Fake::new().with_link(eth0, None, &addresses));
    let mut rules = kernlink_iptables_restore::Fake::new();
    rules.set_ruleset(Family::Ipv4, FOREIGN.parse().unwrap());
    kernel.rules = Box::new(rules);
    kernel
}

pub(crate) fn proxier_on(kernel: Kernel) -> Proxier {
    Proxier::new(&config(), kernel).unwrap()
}

pub(crate) fn saved(proxier: &mut Proxier, family: Family) -> Ruleset {
    let mut rules = Ruleset::new();
    for table in [Table::Filter, Table::Nat] {
        rules.merge(
            proxier
                .kernel_mut()
                .rules
                .save(&Save::table(family, table))
                .unwrap(),
        );
    }
    rules
}

pub(crate) fn sync(proxier: &mut Proxier) -> Synced {
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    synced
}

pub(crate) fn service(number: u16) -> Service {
    let [high, low] = number.to_be_bytes();
    Service::new(ObjectName::new("ns", format!("s{number}")))
        .with_cluster_ip(format!("10.96.{high}.{low}"))
        .with_port(Port::new("web", 80))
}

/// `number` is less than 3 072.
pub(crate) fn slice(number: u16, endpoints: &[u8]) -> EndpointSlice {
    let [high, low] = number.to_be_bytes();
    let network = 244 + high;
    let mut slice = EndpointSlice::new(
        ObjectName::new("ns", format!("s{number}-x")),
        format!("s{number}"),
        Family::Ipv4,
    );
    slice.ports = vec![EndpointPort::new("web", 8080)];
    slice.endpoints = endpoints
        .iter()
        .map(|endpoint| Endpoint::new(format!("10.{network}.{low}.{endpoint}").parse().unwrap()))
        .collect();
    slice
}

/// Delivers the full lists.
pub(crate) fn deliver<M: DataPath>(
    proxier: &mut kernlink_proxier::Proxier<M>,
    services: Vec<Service>,
    slices: Vec<EndpointSlice>,
) {
    for change in [
        Change::Services(ObjectChange::ReplaceAll(services)),
        Change::EndpointSlices(ObjectChange::ReplaceAll(slices)),
        Change::synced(Kind::Service),
        Change::synced(Kind::EndpointSlice),
        Change::synced(Kind::Node),
    ] {
        proxier.change(SOURCE, change);
    }
}

/// Delivers numbered Services with these endpoints each.
pub(crate) fn deliver_numbered<M: DataPath>(
    proxier: &mut kernlink_proxier::Proxier<M>,
    services: u16,
    endpoints: &[u8],
) {
    let slices = (0..services).map(|number| slice(number, endpoints));
    deliver(proxier, (0..services).map(service).collect(), slices.collect());
}

/// A proxier in the desired state with Services of two endpoints each.
pub(crate) fn filled(services: u16) -> Proxier {
    let mut proxier = proxier_on(kernel());
    deliver_numbered(&mut proxier, services, &[1, 2]);
    sync(&mut proxier);
    proxier
}

pub(crate) fn change_endpoints(proxier: &mut Proxier, number: u16, endpoints: &[u8]) {
    let change = ObjectChange::Upsert(slice(number, endpoints));
    proxier.change(SOURCE, Change::EndpointSlices(change));
}
