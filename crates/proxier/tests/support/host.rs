//! A host with foreign objects on the fake kernel, and the state of the kernel as text.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Instant;

use kernlink_dummylink::{Fake, LinkAddress, LinkName, Selection};
use kernlink_ipset::{Entry, Operation as SetOperation, Set, SetName, SetType};
use kernlink_iptables_restore::{Family as TablesFamily, Ruleset, Save};
use kernlink_ipvs::{
    Family as IpvsFamily, Operation as IpvsOperation, Scheduler, VirtualServer, VirtualServerKey,
};
use kernlink_proxier::ipvs_mode::{Config, Kernel, Operation};

pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The default configuration of `node-a`, without limits of tracked connections.
pub(crate) fn config() -> Config {
    let mut config = Config::new("node-a");
    config.conntrack.max_per_core = 0;
    config
}

/// A host with two addresses, foreign virtual servers by address and by firewall mark, a foreign set and a foreign chain.
pub(crate) fn host() -> Kernel {
    let mut kernel = Kernel::fake();
    let eth0 = LinkName::new("eth0").unwrap();
    let addresses = ["192.0.2.1", "203.0.113.2"].map(|a| LinkAddress::host(a.parse().unwrap()).unwrap());
    kernel.links = Box::new(Fake::new().with_link(eth0, None, &addresses));
    add_foreign(&mut kernel);
    let mut rules = kernlink_iptables_restore::Fake::new();
    for family in TablesFamily::ALL {
        rules.set_ruleset(family, foreign_rules(family));
    }
    kernel.rules = Box::new(rules);
    kernel
}

/// Adds foreign virtual servers and a foreign set.
pub(crate) fn add_foreign(kernel: &mut Kernel) {
    for key in foreign_servers() {
        let server = VirtualServer::new(key, Scheduler::WLC);
        kernel
            .execute(&Operation::Ipvs(IpvsOperation::AddVirtualServer(server)))
            .unwrap();
    }
    let set = Set::new(SetName::new("blocked").unwrap(), SetType::HashIp);
    let entry = Entry::ip("198.51.100.99".parse().unwrap());
    kernel
        .execute(&Operation::Set(SetOperation::create(set.clone())))
        .unwrap();
    kernel
        .execute(&Operation::Set(SetOperation::add(set.name, entry)))
        .unwrap();
}

/// Rules of another program.
pub(crate) fn foreign_rules(family: TablesFamily) -> Ruleset {
    let text = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:mine - [0:0]\n\
                -A INPUT -s 198.51.100.0/24 -j mine\n-A mine -j DROP\nCOMMIT\n";
    let text = if family == TablesFamily::Ipv6 {
        text.replace("198.51.100.0/24", "2001:db8:7::/48")
    } else {
        text.to_owned()
    };
    text.parse().unwrap()
}

pub(crate) fn foreign_servers() -> [VirtualServerKey; 3] {
    let address: IpAddr = "198.51.100.1".parse().unwrap();
    [
        VirtualServerKey::tcp(address, 80),
        // At an address of this node, but not at an owned node port.
        VirtualServerKey::udp("192.0.2.1".parse::<IpAddr>().unwrap(), 5060),
        VirtualServerKey::mark(IpvsFamily::Ipv4, NonZeroU32::new(7).unwrap()),
    ]
}

/// Virtual servers, sets, addresses and rules of the kernel, as text. Chains are sorted.
pub(crate) fn state(kernel: &mut Kernel) -> String {
    let mut lines = listed(kernel);
    for family in TablesFamily::ALL {
        let rules = kernel.rules.save(&Save::all(family)).unwrap();
        for (table, rules) in rules.tables() {
            let mut chains: Vec<_> = rules.chains().collect();
            chains.sort_by_key(|(name, _)| name.to_string());
            for (name, chain) in chains {
                lines.push(format!("{family:?} {table:?} {name}"));
                lines.extend(chain.rules().map(|rule| format!("    {rule}")));
            }
        }
    }
    lines.join("\n")
}

/// Virtual servers, sets and addresses of the kernel, as text.
pub(crate) fn listed(kernel: &mut Kernel) -> Vec<String> {
    let mut lines = Vec::new();
    for (server, real_servers) in kernel.ipvs.list_all().unwrap() {
        lines.push(server.to_string());
        lines.extend(
            real_servers
                .iter()
                .map(|real| format!("-a {} {real}", server.key)),
        );
    }
    for set in kernel.sets.list().unwrap() {
        let mut definition = set.header.set.clone();
        definition.options.hashsize = None;
        definition.options.maxelem = None;
        definition.options.bucketsize = None;
        definition.options.initval = None;
        lines.push(format!("create {definition}"));
        lines.extend(
            set.entries
                .iter()
                .map(|entry| format!("add {} {entry}", set.header.set.name)),
        );
    }
    for address in kernel.links.list(Selection::All).unwrap() {
        lines.push(format!("{} {}", address.link, address.address.key));
    }
    lines.sort();
    lines
}
