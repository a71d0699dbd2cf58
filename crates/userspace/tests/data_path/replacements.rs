//! Rules that replace others: what they replace stays until they are written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kernlink_engine::retire::{Kept, Retire, Retired, Round};
use kernlink_services::{Family, NodePortAddresses, TrafficPolicy};

use super::support::*;

/// The rules of all chains that lead to a listening port other than that of `before`.
fn changed(fixture: &Fixture, before: &[String]) -> Vec<String> {
    let rules = fixture.tables.portal_rules(Family::Ipv4).into_iter();
    rules.filter(|rule| !before.contains(rule)).collect()
}

#[test]
fn rules_of_a_former_process_stay_until_their_successors_are_written() {
    let mut earlier = Fixture::new();
    earlier.services(vec![with_node_port("web", 10)]).sync();
    let before = earlier.tables.portal_rules(Family::Ipv4);
    assert_eq!(before.len(), 5);
    // Another range: all ports change.
    let mut config = config();
    config.port_range = "50000-50099".parse().unwrap();
    let mut new = Fixture::with(&config, earlier.tables.clone(), earlier.sockets.clone());
    new.tables.refuse(Some("10.96.0.10"));
    assert!(
        !new.services(vec![with_node_port("web", 10)])
            .try_sync()
            .is_success()
    );
    // The node port is led to the new listening port, the cluster IP still to the earlier one.
    let rules = new.tables.portal_rules(Family::Ipv4);
    for chain in ["KUBE-PORTALS-CONTAINER", "KUBE-PORTALS-HOST"] {
        let is_of = |rule: &&String| rule.starts_with(chain);
        assert_eq!(
            rules.iter().filter(is_of).collect::<Vec<_>>(),
            before.iter().filter(is_of).collect::<Vec<_>>()
        );
    }
    for chain in ["KUBE-NODEPORT-CONTAINER", "KUBE-NODEPORT-HOST"] {
        let of = new.rules_with(Family::Ipv4, chain, ":http");
        assert_eq!(of.len(), 1);
        assert!(!before.contains(&of[0]), "{of:?}");
    }
    new.tables.refuse(None);
    new.sync();
    let rules = new.tables.portal_rules(Family::Ipv4);
    assert_eq!(rules.len(), 5);
    assert_eq!(changed(&new, &before), rules);
}

#[test]
fn without_a_listening_port_for_their_successors_rules_stay_and_so_does_their_port() {
    let mut fixture = Fixture::new();
    fixture.services(vec![with_node_port("web", 10)]).sync();
    let before = fixture.tables.portal_rules(Family::Ipv4);
    let listening = fixture.listening();
    let mut config = config();
    config.port_range = "50000-50000".parse().unwrap();
    let foreign = kernlink_userspace::ListenerKey {
        transport: kernlink_userspace::Transport::Tcp,
        address: "0.0.0.0:50000".parse().unwrap(),
    };
    fixture.sockets.lock().foreign.insert(foreign);
    fixture.set_config(&config);
    for _ in 0..3 {
        assert!(!fixture.try_sync().is_success());
        assert_eq!(fixture.tables.portal_rules(Family::Ipv4), before);
        assert_eq!(fixture.listening(), listening);
    }
    fixture.sockets.lock().foreign.clear();
    fixture.sync();
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4).len(), 5);
    assert_eq!(changed(&fixture, &before).len(), 5);
    assert_eq!(fixture.listening().len(), 1);
}

#[test]
fn a_listening_port_stays_open_as_long_as_a_rule_leads_to_it() {
    let mut fixture = Fixture::new();
    fixture.services(vec![web("web", 10)]).sync();
    let before = fixture.tables.portal_rules(Family::Ipv4);
    let listening = fixture.listening();
    // Frontends with another policy have another listening port.
    let mut service = web("web", 10);
    service.internal_traffic_policy = TrafficPolicy::Local;
    fixture.tables.refuse(Some("10.96.0.10"));
    fixture.endpoints_on("node-a", "web", &[1]).change(service);
    assert!(!fixture.try_sync().is_success());
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4), before);
    assert!(
        fixture.listening().contains(&listening[0]),
        "{:?}",
        fixture.listening()
    );
    fixture.tables.refuse(None);
    fixture.sync();
    assert_eq!(fixture.listening().len(), 1);
    assert_ne!(fixture.listening(), listening);
}

#[test]
fn the_rules_of_a_node_port_for_every_address_stay_until_those_for_single_addresses_are_written() {
    let mut fixture = Fixture::new();
    fixture.services(vec![with_node_port("web", 10)]).sync();
    let chain = "KUBE-NODEPORT-CONTAINER";
    let every = fixture.rules_with(Family::Ipv4, chain, "--dport 31080 ");
    assert!(!every[0].contains("-d "), "{every:?}");
    let mut single = config();
    single.services.node_port_addresses = NodePortAddresses::Networks(vec!["192.0.2.0/24".parse().unwrap()]);
    fixture.tables.refuse(Some("-d 192.0.2.10/32"));
    assert!(!fixture.set_config(&single).try_sync().is_success());
    assert_eq!(fixture.rules_with(Family::Ipv4, chain, "--dport 31080 "), every);
    fixture.tables.refuse(None);
    fixture.sync();
    let rules = fixture.rules_with(Family::Ipv4, chain, "--dport 31080 ");
    assert_eq!(rules.len(), 1);
    assert!(rules[0].contains("-d 192.0.2.10/32"), "{rules:?}");
    // The other way round.
    fixture.tables.refuse(Some("KUBE-NODEPORT-CONTAINER"));
    assert!(!fixture.set_config(&config()).try_sync().is_success());
    assert_eq!(fixture.rules_with(Family::Ipv4, chain, "--dport 31080 "), rules);
    fixture.tables.refuse(None);
    fixture.sync();
    assert_eq!(fixture.rules_with(Family::Ipv4, chain, "--dport 31080 "), every);
}

/// A mode with virtual IPs of IPv4 until a call says that it has none.
#[derive(Debug)]
struct WithVirtualIps(Arc<AtomicBool>);

impl Retire for WithVirtualIps {
    fn mode(&self) -> &'static str {
        "another mode"
    }

    fn read(&mut self, _now: Instant, _kept: Kept<'_>) -> Result<bool, String> {
        Ok(self.0.load(Ordering::Relaxed))
    }

    fn is_serving(&mut self) -> Result<bool, String> {
        Ok(false)
    }

    fn has_virtual_ips(&self, family: Family) -> bool {
        family == Family::Ipv4
    }

    fn retire(&mut self, _round: &Round<'_>) -> Retired {
        Retired {
            is_gone: !self.0.load(Ordering::Relaxed),
            ..Retired::default()
        }
    }
}

#[test]
fn while_a_retiring_mode_has_virtual_ips_node_ports_are_at_the_addresses_of_other_links() {
    let mut fixture = Fixture::new();
    let mut service = with_node_port("web", 10);
    service.cluster_ips = vec!["10.96.0.10".to_owned(), "fd00:96::10".to_owned()];
    service.ip_families = vec![Family::Ipv4, Family::Ipv6];
    let has_any = Arc::new(AtomicBool::new(true));
    let retiring = WithVirtualIps(Arc::clone(&has_any));
    fixture.proxier.set_retiring(vec![Box::new(retiring)]);
    fixture.services(vec![service]).sync();
    let rules = |fixture: &Fixture, family| -> Vec<String> {
        let chains = ["KUBE-NODEPORT-CONTAINER", "KUBE-NODEPORT-HOST"].into_iter();
        chains
            .flat_map(|chain| fixture.rules_with(family, chain, "--dport 31080 "))
            .collect()
    };
    let named = rules(&fixture, Family::Ipv4);
    assert_eq!(named.len(), 4, "{named:#?}");
    for address in ["-d 192.0.2.10/32 ", "-d 127.0.0.1/32 "] {
        let of_address = named.iter().filter(|rule| rule.contains(address));
        assert_eq!(of_address.count(), 2, "{named:#?}");
    }
    let all = |fixture: &Fixture, family| {
        let rules = rules(fixture, family);
        rules.len() == 2 && rules.iter().all(|rule| !rule.contains("-d "))
    };
    assert!(all(&fixture, Family::Ipv6));
    let claimed = ["tcp 0.0.0.0:31080", "tcp [::]:31080"];
    assert_eq!(fixture.claimed(), claimed);
    let listening = fixture.listening();
    has_any.store(false, Ordering::Relaxed);
    fixture.proxier.resync();
    // The sync that finds it, and the one after it.
    fixture.try_sync();
    fixture.sync();
    assert!(all(&fixture, Family::Ipv4) && all(&fixture, Family::Ipv6));
    assert_eq!(
        (fixture.claimed(), fixture.listening()),
        (claimed.map(str::to_owned).into(), listening)
    );
}

#[test]
fn traffic_of_a_listening_port_is_admitted_as_long_as_a_rule_leads_to_it() {
    let mut fixture = Fixture::new();
    fixture.services(vec![with_node_port("web", 10)]).sync();
    let chain = "KUBE-NODEPORT-NON-LOCAL";
    let admission = fixture.rules_with(Family::Ipv4, chain, "ACCEPT");
    assert_eq!(admission.len(), 1);
    let mut config = config();
    config.port_range = "50000-50099".parse().unwrap();
    fixture.tables.refuse(Some("--dport 31080 "));
    assert!(!fixture.set_config(&config).try_sync().is_success());
    let both = fixture.rules_with(Family::Ipv4, chain, "ACCEPT");
    assert!(both.len() == 2 && both.contains(&admission[0]), "{both:?}");
    fixture.tables.refuse(None);
    fixture.sync();
    let after = fixture.rules_with(Family::Ipv4, chain, "ACCEPT");
    assert!(after.len() == 1 && after != admission, "{after:?}");
}

#[test]
fn rules_that_another_service_replaces_are_replaced_in_one_input() {
    let mut fixture = Fixture::new();
    fixture.services(vec![web("web", 10)]).sync();
    let synced = fixture.delete("web").change(web("other", 10)).sync();
    let writes = synced.plan.steps().filter(|(_, step)| {
        let text = step.operation.to_string();
        text.contains("-D KUBE-PORTALS-HOST") || text.contains("-A KUBE-PORTALS-HOST")
    });
    assert_eq!(writes.count(), 1, "{}", synced.plan);
    let rules = fixture.tables.portal_rules(Family::Ipv4);
    assert_eq!(rules.len(), 2);
    assert!(
        rules.iter().all(|rule| rule.contains("default/other:http")),
        "{rules:#?}"
    );
}
