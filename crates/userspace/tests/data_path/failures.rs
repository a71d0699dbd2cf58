//! Ports that cannot be bound and rules that are refused.

use kernlink_iptables_restore::{Edit, Iptables, Restore, Table};
use kernlink_services::{Family, Port, ServiceType};
use kernlink_userspace::{ListenerKey, Transport};

use super::support::*;

fn port_of(fixture: &Fixture) -> ListenerKey {
    *fixture.sockets.lock().listeners.keys().next().unwrap()
}

#[test]
fn a_port_that_another_program_has_is_replaced_and_not_lost() {
    let mut probe = Fixture::new();
    probe.services(vec![web("web", 10)]).sync();
    let first = port_of(&probe);
    // The next process would choose the same port.
    let mut fixture = Fixture::new();
    fixture.sockets.lock().foreign.insert(first);
    let synced = fixture.services(vec![web("web", 10)]).try_sync();
    assert!(!synced.is_success());
    assert!(fixture.tables.portal_rules(Family::Ipv4).is_empty());
    assert!(synced.next.is_some());
    fixture.sync();
    assert_ne!(port_of(&fixture), first);
    let rules = fixture.tables.portal_rules(Family::Ipv4);
    let port = port_of(&fixture).address.port().to_string();
    assert_eq!(rules.len(), 2);
    assert!(rules.iter().all(|rule| rule.contains(&port)), "{rules:#?}");
}

#[test]
fn without_a_free_port_a_service_is_reported_and_served_as_soon_as_one_is_free() {
    let mut config = config();
    config.port_range = "40001".parse().unwrap();
    let mut fixture = Fixture::with(&config, Tables::default(), Default::default());
    let synced = fixture.services(vec![web("web", 10), web("other", 11)]).sync();
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    assert!(
        events
            .iter()
            .any(|event| event.contains("no free tcp port in 40001-40001")),
        "{events:?}"
    );
    let served = fixture.tables.portal_rules(Family::Ipv4)[0].contains("default/web");
    fixture.delete(if served { "web" } else { "other" }).sync();
    let rules = fixture.tables.portal_rules(Family::Ipv4);
    assert_eq!(rules.len(), 2);
    assert!(rules[0].contains(if served { "default/other" } else { "default/web" }));
}

#[test]
fn a_claim_that_fails_withholds_the_node_port_only() {
    let mut fixture = Fixture::new();
    let claim = ListenerKey {
        transport: Transport::Tcp,
        address: "0.0.0.0:31080".parse().unwrap(),
    };
    fixture.sockets.lock().foreign.insert(claim);
    let mut service = web("web", 10);
    service.service_type = ServiceType::NodePort;
    service.ports = vec![Port::new("http", 80).with_node_port(31_080)];
    let synced = fixture.services(vec![service, web("other", 11)]).try_sync();
    assert!(!synced.is_success());
    let rules = fixture.tables.portal_rules(Family::Ipv4);
    assert_eq!(
        rules
            .iter()
            .filter(|rule| rule.starts_with("KUBE-PORTALS"))
            .count(),
        4
    );
    assert_eq!(
        rules
            .iter()
            .filter(|rule| rule.starts_with("KUBE-NODEPORT-CONTAINER"))
            .count(),
        0
    );
    // The other program ends.
    fixture.sockets.lock().foreign.clear();
    fixture.sync();
    let rules = fixture.tables.portal_rules(Family::Ipv4);
    assert_eq!(
        rules
            .iter()
            .filter(|rule| rule.starts_with("KUBE-NODEPORT-CONTAINER"))
            .count(),
        1
    );
}

#[test]
fn a_refused_restore_does_not_withhold_other_services_and_is_retried() {
    let mut fixture = Fixture::new();
    fixture.services(vec![web("web", 10), web("other", 11)]).sync();
    // Another program removes a rule; the deletion of the rule is refused.
    let rules = fixture.tables.portal_rules(Family::Ipv4);
    let rule = rules.iter().find(|rule| rule.contains("10.96.0.10")).unwrap();
    let (chain, rule) = rule.split_once(' ').unwrap();
    let mut restore = Restore::new(Family::Ipv4);
    restore.push(
        Table::Nat,
        Edit::delete(chain.parse().unwrap(), rule.parse().unwrap()),
    );
    fixture.tables.clone().restore(&restore).unwrap();
    fixture.delete("web").change(web("new", 12));
    let synced = fixture.try_sync();
    assert!(!synced.is_success());
    let rules = fixture.tables.portal_rules(Family::Ipv4);
    assert_eq!(rules.iter().filter(|rule| rule.contains("10.96.0.12")).count(), 2);
    // The port is closed only after the last rule that leads to it.
    assert_eq!(fixture.listening().len(), 3);
    fixture.sync();
    assert_eq!(fixture.listening().len(), 2);
    assert!(
        fixture
            .tables
            .portal_rules(Family::Ipv4)
            .iter()
            .all(|rule| !rule.contains("10.96.0.10"))
    );
}

#[test]
fn a_loopback_bind_address_is_refused() {
    let mut config = config();
    for address in ["127.0.0.1", "127.0.0.2", "::1"] {
        config.services.bind_address = Some(address.parse().unwrap());
        let error = config.validate().unwrap_err().to_string();
        assert!(
            error.contains(&format!("services.bind_address: {address} is a loopback address")),
            "{error}"
        );
    }
}
