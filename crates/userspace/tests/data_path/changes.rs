//! Changes of Services and endpoints.

use std::time::{Duration, SystemTime};

use kernlink_iptables_restore::{Edit, Iptables, Restore, Table};
use kernlink_services::{Family, Port, Protocol, ServiceType};
use kernlink_userspace::data_path::Operation;

use super::support::*;

#[test]
fn the_listening_port_is_opened_before_rules_lead_to_it_and_closed_after_they_are_gone() {
    let mut fixture = Fixture::new();
    let synced = fixture.services(vec![web("web", 10)]).sync();
    let first = |text_of_step: &str| {
        let mut steps = synced
            .plan
            .steps()
            .map(|(id, step)| (id, step.operation.to_string()));
        steps.find(|(_, text)| text.contains(text_of_step)).unwrap().0
    };
    assert!(first("listen tcp") < first("10.96.0.10"));
    fixture.delete("web");
    let synced = fixture.try_sync();
    let kinds: Vec<&str> = synced
        .plan
        .steps()
        .map(|(_, step)| match step.operation {
            Operation::Write(_) => "rules",
            Operation::Close(_) => "close",
            _ => "other",
        })
        .collect();
    assert_eq!(kinds, ["rules", "close"]);
    let (_, close) = synced.plan.steps().nth(1).unwrap();
    assert_eq!(close.needs.len(), 1);
    assert_eq!(fixture.listening(), [] as [&str; 0]);
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4), [] as [&str; 0]);
}

#[test]
fn a_change_of_endpoints_changes_no_rule() {
    let mut fixture = Fixture::new();
    fixture.services(vec![web("web", 10)]).sync();
    fixture.endpoints("web", &[3]);
    let synced = fixture.try_sync();
    assert_eq!(synced.plan.len(), 1, "{}", synced.plan);
    let listening = fixture.listening();
    assert!(listening[0].ends_with("-> 10.244.0.3:8080"), "{listening:?}");
}

#[test]
fn one_new_service_among_many_costs_as_much_as_alone() {
    let count = |others: u8| {
        let mut fixture = Fixture::new();
        fixture
            .services(
                (0..others)
                    .map(|number| web(&format!("s{number}"), 100 + number))
                    .collect(),
            )
            .sync();
        let synced = fixture.change(web("web", 10)).try_sync();
        let edits: usize = synced
            .plan
            .steps()
            .map(|(_, step)| match &step.operation {
                Operation::Write(write) => write.restore.tables().map(|(_, edits)| edits.len()).sum(),
                _ => 0,
            })
            .sum();
        (synced.plan.len(), edits)
    };
    assert_eq!(count(0), (2, 2));
    assert_eq!(count(40), (2, 2));
}

#[test]
fn a_changed_frontend_keeps_the_listening_port() {
    let mut fixture = Fixture::new();
    fixture.services(vec![web("web", 10)]).sync();
    let before = fixture.listening();
    let mut service = web("web", 20);
    service.external_ips = vec!["203.0.113.5".into()];
    fixture.change(service).sync();
    assert_eq!(fixture.listening(), before);
    let rules = fixture.tables.portal_rules(Family::Ipv4);
    assert_eq!(rules.len(), 5);
    assert!(
        rules.iter().all(|rule| !rule.contains("10.96.0.10")),
        "{rules:#?}"
    );
}

#[test]
fn each_port_of_a_service_has_a_listening_port_of_its_own() {
    let mut fixture = Fixture::new();
    let mut service = web("web", 10);
    let dns = Port::new("dns", 53).with_protocol(Protocol::Udp);
    service.ports = vec![Port::new("http", 80), dns];
    fixture.services(vec![service.clone()]).sync();
    let listening = fixture.listening();
    assert_eq!(listening.len(), 2, "{listening:?}");
    assert!(
        listening[0].starts_with("tcp ") && listening[0].contains(":8080 "),
        "{listening:?}"
    );
    assert!(
        listening[1].starts_with("udp ") && listening[1].contains(":5353 "),
        "{listening:?}"
    );
    service.ports.truncate(1);
    fixture.change(service).sync();
    assert_eq!(fixture.listening(), listening[..1]);
}

#[test]
fn of_two_services_with_one_address_the_older_one_has_it_and_then_the_other() {
    let mut fixture = Fixture::new();
    let with_external_ip = |name: &str, number: u8| {
        let mut service = web(name, number);
        service.external_ips = vec!["192.0.2.10".into()];
        service
    };
    fixture
        .services(vec![with_external_ip("a", 10), with_external_ip("b", 11)])
        .sync();
    let owner = |fixture: &Fixture| {
        let rules = fixture.rules_with(Family::Ipv4, "KUBE-PORTALS-HOST", "-d 192.0.2.10/32 ");
        assert_eq!(rules.len(), 1, "{rules:?}");
        rules[0].contains("default/a:http")
    };
    let of_a = owner(&fixture);
    assert_eq!(fixture.claimed(), ["tcp 192.0.2.10:80"]);
    fixture.delete(if of_a { "a" } else { "b" }).sync();
    assert_ne!(owner(&fixture), of_a);
    assert_eq!(fixture.claimed(), ["tcp 192.0.2.10:80"]);
}

#[test]
fn external_ips_of_an_old_service_take_no_cluster_ip_and_node_port_of_a_newer_one() {
    let mut fixture = Fixture::new();
    let created = |second| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(second));
    let mut old = web("old", 10);
    old.created = created(1);
    // The cluster IP of the new Service, and an address of this node.
    old.external_ips = vec!["10.96.0.11".into(), "192.0.2.10".into()];
    old.ports.push(Port::new("high", 31_080));
    let mut new = web("new", 11);
    new.created = created(2);
    new.service_type = ServiceType::NodePort;
    new.ports = vec![Port::new("http", 80).with_node_port(31_080)];
    fixture.services(vec![old.clone()]).sync();
    fixture.change(new).sync();
    let cluster_ip = |fixture: &Fixture| {
        let rules = fixture.rules_with(Family::Ipv4, "KUBE-PORTALS-HOST", "-d 10.96.0.11/32 ");
        let rules = rules.into_iter().filter(|rule| rule.contains("--dport 80 "));
        rules.collect::<Vec<_>>()
    };
    let rules = cluster_ip(&fixture);
    assert!(
        rules.len() == 1 && rules[0].contains("default/new:http"),
        "{rules:?}"
    );
    let rules = fixture.rules_with(Family::Ipv4, "KUBE-PORTALS-HOST", "--dport 31080 ");
    assert!(
        rules.iter().all(|rule| !rule.contains("-d 192.0.2.10/32 ")),
        "{rules:?}"
    );
    assert_eq!(fixture.claimed(), ["tcp 0.0.0.0:31080", "tcp 192.0.2.10:80"]);

    fixture.delete("new").sync();
    let rules = cluster_ip(&fixture);
    assert!(
        rules.iter().all(|rule| rule.contains("default/old:http")),
        "{rules:?}"
    );
    assert_eq!(fixture.claimed(), ["tcp 192.0.2.10:80", "tcp 192.0.2.10:31080"]);
}

#[test]
fn a_service_without_cluster_ip_is_gone_and_comes_back() {
    let mut fixture = Fixture::new();
    fixture.services(vec![web("web", 10)]).sync();
    fixture.change(web("web", 10).with_cluster_ip("None")).sync();
    assert_eq!(fixture.listening(), [] as [&str; 0]);
    fixture.change(web("web", 10)).sync();
    assert_eq!(fixture.listening().len(), 1);
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4).len(), 2);
}

#[test]
fn node_ports_and_ports_of_local_addresses_are_claimed_and_released() {
    let mut fixture = Fixture::new();
    let mut service = web("web", 10);
    service.service_type = ServiceType::NodePort;
    service.ports = vec![Port::new("http", 80).with_node_port(31_080)];
    // An address of this node.
    service.external_ips = vec!["192.0.2.10".into(), "203.0.113.5".into()];
    fixture.services(vec![service.clone()]).sync();
    assert_eq!(fixture.claimed(), ["tcp 0.0.0.0:31080", "tcp 192.0.2.10:80"]);
    service.external_ips.clear();
    fixture.change(service).sync();
    assert_eq!(fixture.claimed(), ["tcp 0.0.0.0:31080"]);
    fixture.delete("web").sync();
    assert_eq!(fixture.claimed(), [] as [&str; 0]);
}

#[test]
fn a_virtual_ip_that_ipvs_mode_left_is_not_claimed() {
    let mut fixture = Fixture::new();
    let mut service = web("web", 10);
    service.external_ips = vec![std::net::IpAddr::from(LEFT).to_string()];
    fixture.services(vec![service]).sync();
    assert_eq!(fixture.claimed(), [] as [&str; 0]);
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4).len(), 5);
}

#[test]
fn after_a_firewall_flush_everything_is_written_again() {
    let mut fixture = Fixture::new();
    fixture.services(vec![web("web", 10), web("other", 11)]).sync();
    let before = fixture.tables.portal_rules(Family::Ipv4);
    let listening = fixture.listening();
    fixture
        .tables
        .0
        .lock()
        .unwrap()
        .set_ruleset(Family::Ipv4, Default::default());
    fixture.proxier.resync();
    fixture.sync();
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4), before);
    assert_eq!(fixture.listening(), listening);
    assert_eq!(
        fixture.tables.chain(Family::Ipv4, Table::Nat, "PREROUTING").len(),
        2
    );
}

#[test]
fn rules_that_another_program_added_to_portal_chains_are_removed_and_duplicates_too() {
    let mut fixture = Fixture::new();
    fixture.services(vec![web("web", 10)]).sync();
    let before = fixture.tables.portal_rules(Family::Ipv4);
    let own = before[0].strip_prefix("KUBE-PORTALS-CONTAINER ").unwrap();
    let mut restore = Restore::new(Family::Ipv4);
    let chain = "KUBE-PORTALS-CONTAINER".parse().unwrap();
    for rule in [own, "-s 192.0.2.1/32 -j ACCEPT"] {
        restore.push(Table::Nat, Edit::append(chain, rule.parse().unwrap()));
    }
    fixture.tables.clone().restore(&restore).unwrap();
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4).len(), 4);
    fixture.proxier.resync();
    fixture.sync();
    let mut after = fixture.tables.portal_rules(Family::Ipv4);
    after.sort();
    let mut expected = before;
    expected.sort();
    assert_eq!(after, expected);
}
