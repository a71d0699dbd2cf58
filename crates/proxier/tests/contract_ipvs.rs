//! IPVS mode passes the contract of data paths.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/host.rs"]
mod host;
#[path = "support/requests.rs"]
mod requests;
#[path = "support/tracer.rs"]
mod tracer;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use kernlink_dummylink::{DummyLinks, LinkAddress, LinkName, Selection};
use kernlink_ipset::{self as set, IpSets, SetContents, SetHeader, SetName};
use kernlink_iptables_restore::{Edit, Family as TablesFamily, Iptables, Restore, Save};
use kernlink_ipvs::{self as ipvs, Consistency, Ipvs, Snapshot, VirtualServerKey, Weight};
use kernlink_proxier::contract::{Calls, Fixture, Host, Random, Request, RetireFixture};
use kernlink_proxier::host::{FakeSysctls, Shared};
use kernlink_proxier::ipvs_mode::config::LocalDetection;
use kernlink_proxier::ipvs_mode::retire::Retiring;
use kernlink_proxier::ipvs_mode::{Config, IpvsMode, Kernel};
use kernlink_proxier::netfilter::SharedRules;
use kernlink_proxier::retire::Retire;

use crate::requests::{NODE, served};
use crate::tracer::Tracer;

const FAULT: &str = "a fault of the contract";

/// A fake of a crate whose trait `Shared` does not implement.
#[derive(Clone, Debug)]
struct Of<T>(Shared<T>);

impl Ipvs for Of<ipvs::Fake> {
    fn execute(&mut self, operations: &[ipvs::Operation]) -> Vec<Result<(), ipvs::Error>> {
        self.0.execute_each(
            operations,
            |fake, operations| fake.execute(operations),
            |operation| ipvs::Error::custom(operation.to_string(), FAULT),
            || ipvs::Error::OutcomeMissing,
        )
    }

    fn list_virtual_servers(&mut self) -> Result<Vec<ipvs::VirtualServerStatus>, ipvs::Error> {
        let list = || self.0.lock().list_virtual_servers();
        let failed = || ipvs::Error::custom("list virtual servers", FAULT);
        self.0.calls().read(&"virtual servers", list, failed)
    }

    fn list_real_servers(
        &mut self,
        key: &VirtualServerKey,
    ) -> Result<Vec<ipvs::RealServerStatus>, ipvs::Error> {
        let list = || self.0.lock().list_real_servers(key);
        let failed = || ipvs::Error::custom("list real servers", FAULT);
        self.0.calls().read(key, list, failed)
    }

    fn snapshot(&mut self) -> Result<Snapshot, ipvs::Error> {
        let list = || self.0.lock().snapshot();
        let failed = || ipvs::Error::custom("list all servers", FAULT);
        // Every other virtual server is missing.
        let tear = |mut snapshot: Snapshot| {
            let mut number = 0;
            snapshot.virtual_servers.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            snapshot.consistency = Consistency::Unverified { attempts: 5 };
            snapshot
        };
        self.0.calls().list(&"all servers", list, failed, tear)
    }

    fn timeouts(&mut self) -> Result<ipvs::Timeouts, ipvs::Error> {
        let read = || self.0.lock().timeouts();
        let failed = || ipvs::Error::custom("read timeouts", FAULT);
        self.0.calls().read(&"timeouts", read, failed)
    }
}

impl IpSets for Of<set::Fake> {
    fn execute(&mut self, operations: &[set::Operation]) -> Vec<Result<(), set::Error>> {
        self.0.execute_each(
            operations,
            |fake, operations| fake.execute(operations),
            |operation| set::Error::custom(operation.clone(), FAULT),
            || set::Error::OutcomeMissing,
        )
    }

    fn list_set(&mut self, name: &SetName) -> Result<SetContents, set::Error> {
        let list = || self.0.lock().list_set(name);
        let failed = || set::Error::custom(format!("list {name}"), FAULT);
        self.0.calls().read(name, list, failed)
    }

    fn headers(&mut self) -> Result<Vec<SetHeader>, set::Error> {
        let list = || self.0.lock().headers();
        let failed = || set::Error::custom("list sets", FAULT);
        self.0.calls().read(&"sets", list, failed)
    }
}

#[derive(Clone)]
struct Node {
    ipvs: Shared<ipvs::Fake>,
    sets: Shared<set::Fake>,
    rules: SharedRules<kernlink_iptables_restore::Fake>,
    links: Shared<kernlink_dummylink::Fake>,
    conntrack: Shared<kernlink_conntrack::Fake>,
    sysctls: Shared<FakeSysctls>,
}

impl Node {
    fn new(calls: &Calls) -> Self {
        let eth0 = LinkName::new("eth0").unwrap();
        let addresses = NODE.map(|address| LinkAddress::host(address.parse().unwrap()).unwrap());
        let links = kernlink_dummylink::Fake::new().with_link(eth0, None, &addresses);
        let node = Self {
            ipvs: Shared::new(ipvs::Fake::new(), calls),
            sets: Shared::new(set::Fake::new(), calls),
            rules: SharedRules::new(kernlink_iptables_restore::Fake::new(), calls),
            links: Shared::new(links, calls),
            conntrack: Shared::new(kernlink_conntrack::Fake::new(), calls),
            sysctls: Shared::new(FakeSysctls::default(), calls),
        };
        host::add_foreign(&mut node.without_faults());
        for family in TablesFamily::ALL {
            node.rules.lock().set_ruleset(family, host::foreign_rules(family));
        }
        node
    }

    /// The kernel as a test sees it.
    fn without_faults(&self) -> Kernel {
        let node = Self {
            ipvs: self.ipvs.without_faults(),
            sets: self.sets.without_faults(),
            rules: self.rules.without_faults(),
            links: self.links.without_faults(),
            conntrack: self.conntrack.without_faults(),
            sysctls: self.sysctls.without_faults(),
        };
        node.kernel()
    }
}

fn is_owned_name(name: &str) -> bool {
    name.starts_with("KUBE-") || name.starts_with("KERNLINK-")
}

impl Host for Node {
    type DataPath = IpvsMode;

    fn kernel(&self) -> Kernel {
        Kernel {
            ipvs: Box::new(Of(self.ipvs.clone())),
            sets: Box::new(Of(self.sets.clone())),
            rules: Box::new(self.rules.clone()),
            links: Box::new(self.links.clone()),
            conntrack: Box::new(self.conntrack.clone()),
            sysctls: Box::new(self.sysctls.clone()),
        }
    }

    fn owned(&self) -> String {
        let mut lines = host::listed(&mut self.without_faults());
        for family in TablesFamily::ALL {
            lines.push(format!("{family:?}"));
            let rules = self.rules.lock().ruleset(family);
            lines.extend(requests::chains(&rules, is_owned_name, |_| true));
        }
        lines.join("\n")
    }

    fn foreign(&self) -> String {
        let mut lines = Vec::new();
        for (server, real_servers) in self.ipvs.lock().list_all().unwrap() {
            if host::foreign_servers().contains(&server.key) {
                lines.push(format!("{server} {real_servers:?}"));
            }
        }
        for set in self.sets.lock().list().unwrap() {
            if !is_owned_name(&set.header.set.name.to_string()) {
                lines.push(format!("{set:?}"));
            }
        }
        for address in self.links.lock().list(Selection::All).unwrap() {
            if address.link.to_string() != "kube-ipvs0" {
                lines.push(format!("{} {}", address.link, address.address.key));
            }
        }
        for family in TablesFamily::ALL {
            let rules = self.rules.lock().ruleset(family);
            lines.extend(requests::chains(
                &rules,
                |name| name == "mine",
                |rule| rule.contains("mine"),
            ));
        }
        lines.join("\n")
    }

    fn served(&self, requests: &[Request]) -> Vec<BTreeSet<SocketAddr>> {
        let tracer = Tracer::of_kernel(&mut self.without_faults());
        requests.iter().map(|request| served(&tracer, request)).collect()
    }

    fn damage(&self, random: &mut Random) -> String {
        let mut kernel = self.without_faults();
        let mut servers = kernel.ipvs.list_all().unwrap();
        servers.retain(|(server, _)| !host::foreign_servers().contains(&server.key));
        let real_servers = servers.iter().flat_map(|(server, real_servers)| {
            let key = server.key;
            real_servers.iter().map(move |real_server| (key, real_server.key))
        });
        let real_servers: Vec<_> = real_servers.collect();
        let mut sets = kernel.sets.list().unwrap();
        sets.retain(|set| is_owned_name(&set.header.set.name.to_string()));
        let link = "kube-ipvs0".parse().unwrap();
        let damage = match random.below(16) {
            0..=2 => random.choose(servers).map(|(server, _)| {
                kernel.ipvs.delete_virtual_server(&server.key).unwrap();
                format!("{} is deleted", server.key)
            }),
            3..=5 => random.choose(real_servers).map(|(server, real_server)| {
                kernel.ipvs.delete_real_server(&server, &real_server).unwrap();
                format!("{real_server} of {server} is deleted")
            }),
            // Weight 0 as if a process had ended while the real server drained.
            6..=8 => random.choose(real_servers).map(|(server, real_server)| {
                let weight = Weight::new(u32::try_from(random.below(3)).unwrap()).unwrap();
                kernel.ipvs.set_weight(&server, &real_server, weight).unwrap();
                format!("{real_server} of {server} has weight {weight}")
            }),
            9..=10 => {
                let entries = sets.into_iter().flat_map(|set| {
                    let name = set.header.set.name;
                    set.entries.into_iter().map(move |entry| (name, entry))
                });
                random.choose(entries.collect()).map(|(set, entry)| {
                    kernel.sets.delete(&set, &entry).unwrap();
                    format!("{entry} of {set} is deleted")
                })
            }
            11 => random.choose(sets).map(|set| {
                kernel.sets.flush(&set.header.set.name).unwrap();
                format!("{} is empty", set.header.set.name)
            }),
            12..=13 => {
                // The link may be gone.
                let addresses = kernel.links.list(Selection::On(link)).unwrap_or_default();
                random.choose(addresses).map(|address| {
                    kernel.links.delete(&link, &address.address.key).unwrap();
                    format!("{} is released", address.address.key)
                })
            }
            14 => {
                let is_deleted = kernel.links.delete_link(&link).is_ok();
                is_deleted.then(|| "the link is deleted".to_owned())
            }
            _ => {
                let mut chains = Vec::new();
                for family in TablesFamily::ALL {
                    let rules = kernel.rules.save(&Save::all(family)).unwrap();
                    for (table, of_table) in rules.tables() {
                        let owned = of_table.chains().filter(|(name, _)| is_owned_name(name.as_str()));
                        chains.extend(owned.map(|(name, _)| (family, table, *name)));
                    }
                }
                random.choose(chains).map(|(family, table, chain)| {
                    let flush = Restore::new(family).with(table, Edit::declare(chain));
                    kernel.rules.restore(&flush).unwrap();
                    format!("{family:?} {table:?} {chain} is empty")
                })
            }
        };
        damage.unwrap_or_default()
    }
}

/// IPVS mode.
#[derive(Clone, Copy, Debug)]
struct IpvsFixture;

impl Fixture for IpvsFixture {
    type DataPath = IpvsMode;
    type Host = Node;

    fn config(&self) -> Config {
        let mut config = host::config();
        config.services.node_ips = NODE.map(|address| address.parse().unwrap()).into();
        let pods = ["10.244.0.0/16", "fd00:244::/64"].map(|net| net.parse().unwrap());
        config.local_detection = LocalDetection::ClusterCidr(pods.into());
        config
    }

    fn host(&self, calls: &Calls) -> Node {
        Node::new(calls)
    }
}

kernlink_proxier::contract_tests!(
    IpvsFixture;
    a_second_sync_plans_nothing,
    a_new_process_plans_nothing,
    changes_in_turn_equal_a_new_node,
    a_plan_printed_twice_is_the_same,
    foreign_objects_are_unchanged,
    all_but_a_refused_change_is_executed,
    lost_replies_are_read_again,
    lost_requests_are_sent_again,
    any_change_may_be_the_last_of_a_process,
    any_first_change_may_be_the_last_of_a_process,
    after_random_faults_the_kernel_reaches_the_desired_state,
    damage_by_another_program_is_repaired_by_one_sync,
    a_failed_reading_removes_nothing,
    a_torn_listing_is_not_used_as_complete,
    a_change_costs_the_same_at_any_size,
);

kernlink_proxier::retire_tests!(IpvsFixture);

impl RetireFixture for IpvsFixture {
    fn retiring(&self, host: &Node) -> Box<dyn Retire> {
        let retiring = Retiring::new(self.config(), Box::new(host.links.clone())).unwrap();
        Box::new(retiring.with_kernel(host.kernel()))
    }

    /// Sysctls stay.
    fn stays(&self, line: &str) -> bool {
        line.contains(" = ")
    }
}
