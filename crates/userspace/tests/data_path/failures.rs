//! Ports that cannot be bound and rules that are refused.

use kernlink_iptables_restore::{Edit, Iptables, Restore, Ruleset, Table};
use kernlink_services::{Family, Port, Service, ServiceType};
use kernlink_userspace::data_path::{Key, Synced};
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
    assert_eq!(events.len(), 2, "{events:?}");
    let expected = "configuration: portRange: 40001-40001 has no free tcp port for IPv4; ";
    assert!(events[1].starts_with(expected), "{events:?}");
    let served = fixture.tables.portal_rules(Family::Ipv4)[0].contains("default/web");
    // The rules of the deleted Service lead to the port until it is closed.
    let synced = fixture.delete(if served { "web" } else { "other" }).try_sync();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4).len(), 0);
    let repeated = synced
        .events
        .iter()
        .any(|event| event.to_string().contains("no free"));
    assert!(!repeated, "{:?}", synced.events);
    assert_eq!(synced.next, Some(fixture.now), "the next sync is due at once");
    fixture.sync();
    let rules = fixture.tables.portal_rules(Family::Ipv4);
    assert_eq!(rules.len(), 2);
    assert!(rules[0].contains(if served { "default/other" } else { "default/web" }));
}

/// One text for one cause, and one line that names portals.
#[test]
fn portals_without_a_free_port_are_reported_together() {
    let mut config = config();
    config.port_range = "40001-40002".parse().unwrap();
    let mut fixture = Fixture::with(&config, Tables::default(), Default::default());
    let mut all: Vec<_> = (1..=9)
        .map(|number| web(&format!("web-{number}"), number))
        .collect();
    let synced = fixture.services(all.clone()).sync();
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    let cause = "configuration: portRange: 40001-40002 has no free tcp port for IPv4; portals without a port are not served; \
                 valid: a range with a port for each portal";
    assert_eq!((events.len(), &*events[1]), (2, cause), "{events:?}");
    assert!(
        events[0].ends_with("(IPv4, tcp) and 6 more portals"),
        "{events:?}"
    );
    // A later one is reported alone. The text about the configuration is the same: events on the Node are written once for each text.
    all.push(web("later", 10));
    let synced = fixture.services(all).sync();
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    let portals = "Service default/later: not served, because portRange has no free port: default/later:http (IPv4, tcp)";
    assert_eq!(events, [portals, cause]);
}

#[test]
fn an_address_that_the_node_does_not_have_is_reported_once_with_its_field() {
    let mut config = config();
    config.services.bind_address = "192.0.2.55".parse().ok();
    let mut fixture = Fixture::with(&config, Tables::default(), Default::default());
    let missing = config.services.bind_address.unwrap();
    fixture.sockets.lock().missing.insert(missing);
    let all = (1..=9).map(|number| web(&format!("web-{number}"), number));
    let synced = fixture.services(all.collect()).try_sync();
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    assert_eq!(events.len(), 1, "{events:?}");
    let expected = "bindAddress: 192.0.2.55 is not an address of this node; valid: an address of this node, or 0.0.0.0 or :: for all of \
                    them; 8 more operations, also of other Services, failed for the same reason";
    assert!(events[0].contains(expected), "{events:?}");
    fixture.sockets.lock().missing.clear();
    fixture.now += std::time::Duration::from_secs(10);
    let synced = fixture.try_sync();
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].contains("solved, or no longer needed: "), "{events:?}");
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
fn a_claim_of_an_address_that_fails_withholds_this_address_only_and_is_reported_once() {
    let mut fixture = Fixture::new();
    let claim = ListenerKey {
        transport: Transport::Tcp,
        address: "192.0.2.10:80".parse().unwrap(),
    };
    fixture.sockets.lock().foreign.insert(claim);
    let mut service = with_node_port("web", 10);
    // An address of this node.
    service.external_ips = vec!["192.0.2.10".into(), "203.0.113.5".into()];
    let synced = fixture.services(vec![service]).try_sync();
    let events = |synced: &Synced| -> Vec<String> {
        let texts = synced.events.iter().map(ToString::to_string);
        texts.filter(|text| text.contains("192.0.2.10:80")).collect()
    };
    assert_eq!(events(&synced).len(), 1, "{:?}", synced.events);
    assert!(
        events(&synced)[0].contains("its portal is not served, others are"),
        "{:?}",
        synced.events
    );
    let of = |fixture: &Fixture, text: &str| {
        let rules = fixture.tables.portal_rules(Family::Ipv4);
        rules.iter().filter(|rule| rule.contains(text)).count()
    };
    let others = [
        ("-d 10.96.0.10/32", 2),
        ("-d 203.0.113.5/32", 3),
        ("--dport 31080", 2),
    ];
    for (text, rules) in others {
        assert_eq!(of(&fixture, text), rules, "{text}");
    }
    assert_eq!(of(&fixture, "-d 192.0.2.10/32"), 0);
    // It is tried again, and not reported again.
    for _ in 0..3 {
        let synced = fixture.try_sync();
        assert_eq!(synced.report.counts().failed, 1, "{synced}");
        assert_eq!(events(&synced), [] as [&str; 0]);
    }
    fixture.sockets.lock().foreign.clear();
    let synced = fixture.sync();
    assert!(events(&synced)[0].contains("solved"), "{:?}", synced.events);
    assert_eq!(of(&fixture, "-d 192.0.2.10/32"), 3);
}

#[test]
fn a_taken_listening_port_is_replaced_at_once() {
    let mut probe = Fixture::new();
    probe.services(vec![web("web", 10)]).sync();
    let first = port_of(&probe);
    let mut fixture = Fixture::new();
    fixture.sockets.lock().foreign.insert(first);
    let failed = fixture
        .services(vec![web("web", 10), web("other", 11)])
        .try_sync();
    // The other Service is served in the meantime.
    let served = fixture.rules_with(Family::Ipv4, "KUBE-PORTALS-CONTAINER", "default/");
    assert_eq!(served.len(), 1, "{served:?}");
    assert_eq!(failed.next, Some(fixture.now));
    let synced = fixture.proxier.sync(fixture.now).unwrap();
    assert!(synced.is_success(), "{synced}");
    let served = fixture.rules_with(Family::Ipv4, "KUBE-PORTALS-CONTAINER", "default/");
    assert_eq!(served.len(), 2, "{served:?}");
    assert_eq!(synced.next, None);
}

#[test]
fn if_all_listening_ports_are_taken_they_are_tried_again_with_delays() {
    let mut config = config();
    config.port_range = "40001-40002".parse().unwrap();
    let mut fixture = Fixture::with(&config, Tables::default(), Default::default());
    for port in [40_001, 40_002] {
        let address = ([0, 0, 0, 0], port).into();
        let transport = Transport::Tcp;
        fixture
            .sockets
            .lock()
            .foreign
            .insert(ListenerKey { transport, address });
    }
    fixture.services(vec![web("web", 10)]).try_sync();
    let now = fixture.now;
    let mut next = Some(now);
    let mut attempts = 0;
    while next == Some(now) {
        attempts += 1;
        next = fixture.proxier.sync(now).unwrap().next;
    }
    assert!(attempts <= 2, "{attempts}");
    assert!(next.is_some());
    fixture.sockets.lock().foreign.clear();
    fixture.sync();
    assert_eq!(fixture.listening().len(), 1);
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

#[test]
fn a_service_that_is_added_while_rules_cannot_be_read_is_served_after_a_short_delay() {
    let mut fixture = Fixture::new();
    fixture.services(vec![web("web", 10)]).sync();
    fixture.change(web("added", 11));
    fixture.proxier.resync();
    // The first reading, that of table nat of IPv4, fails.
    fixture.tables.fail_readings(1);
    let synced = fixture.proxier.sync(fixture.now).unwrap();
    assert_eq!(
        fixture
            .rules_with(Family::Ipv4, "KUBE-PORTALS-CONTAINER", "added")
            .len(),
        0
    );
    assert_eq!((synced.unread, synced.is_success()), (1, false));
    let next = synced.next.expect("the tables are read again");
    let synced = fixture.proxier.sync(next).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(
        fixture
            .rules_with(Family::Ipv4, "KUBE-PORTALS-CONTAINER", "added")
            .len(),
        1
    );
    assert_eq!(synced.next, None);
}

#[test]
fn a_table_that_the_tool_cannot_print_is_not_in_sync_and_is_read_again() {
    let mut fixture = Fixture::new();
    fixture.tables.set_unreadable(&[Family::Ipv4]);
    let synced = fixture.services(vec![web("web", 10)]).try_sync();
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4).len(), 0);
    assert_eq!((synced.unread, synced.is_success()), (1, false));
    // It is read again until it can be printed.
    let next = synced.next.expect("the table is read again");
    let synced = fixture.proxier.sync(next).unwrap();
    assert_eq!((synced.unread, synced.is_success()), (1, false));
    let next = synced.next.expect("the table is read again");
    fixture.tables.set_unreadable(&[]);
    let synced = fixture.proxier.sync(next).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4).len(), 2);
    assert_eq!(synced.next, None);
}

/// A Service of both families.
fn dual_stack(name: &str, number: u8) -> Service {
    let mut service = web(name, number);
    service.cluster_ips = vec![service.cluster_ip.clone(), format!("fd00:96::{number}")];
    service.ip_families = Family::ALL.into();
    service
}

#[test]
fn tables_of_one_family_that_cannot_be_read_before_a_retry_do_not_prevent_changes_of_the_other_one() {
    let mut fixture = Fixture::new();
    fixture.tables.refuse(Some("fd00:96::10"));
    let synced = fixture.services(vec![dual_stack("web", 10)]).try_sync();
    assert!(!synced.is_success());
    fixture.tables.refuse(None);
    fixture.tables.fail_readings(1);
    fixture.change(web("added", 11));
    let synced = fixture.proxier.sync(synced.next.unwrap()).unwrap();
    let added = fixture.rules_with(Family::Ipv4, "KUBE-PORTALS-CONTAINER", "added");
    assert_eq!((added.len(), synced.unread), (1, 1));
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    let text = "IPv6 tables cannot be read, portal rules are not changed";
    assert!(events.iter().any(|event| event.contains(text)), "{events:?}");
    assert_eq!(fixture.tables.portal_rules(Family::Ipv6).len(), 0);
    let synced = fixture.proxier.sync(synced.next.unwrap()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(fixture.tables.portal_rules(Family::Ipv6).len(), 2);
}

#[test]
fn damaged_tables_of_one_family_that_cannot_be_read_do_not_prevent_changes_of_the_other_one() {
    let mut fixture = Fixture::new();
    fixture.services(vec![dual_stack("web", 10)]).sync();
    // Another program flushes the tables of IPv6.
    let empty = Ruleset::new();
    fixture.tables.0.lock().unwrap().set_ruleset(Family::Ipv6, empty);
    // The reading of a built-in chain shows it.
    fixture.tables.fail_readings_after(1, 1);
    fixture.change(web("added", 11));
    let damaged = Key::Chains(Family::Ipv6, Table::Nat);
    assert!(fixture.proxier.recheck([damaged]));
    let synced = fixture.proxier.sync(fixture.now).unwrap();
    let added = fixture.rules_with(Family::Ipv4, "KUBE-PORTALS-CONTAINER", "added");
    assert_eq!((added.len(), synced.unread), (1, 1));
    let synced = fixture.proxier.sync(synced.next.unwrap()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(fixture.tables.portal_rules(Family::Ipv6).len(), 2);
}

#[test]
fn many_refused_portals_do_not_cost_a_run_of_the_tool_each() {
    let mut fixture = Fixture::new();
    fixture.services(Vec::new()).sync();
    fixture.tables.refuse(Some("-d 10.96."));
    fixture.tables.take_inputs();
    let services = (0..90).map(|number| web(&format!("s{number}"), number));
    let synced = fixture.services(services.collect()).try_sync();
    assert_eq!(synced.report.counts().failed, 90, "{synced}");
    assert!(fixture.tables.take_inputs() < 40);
    fixture.tables.refuse(None);
    fixture.sync();
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4).len(), 180);
}
