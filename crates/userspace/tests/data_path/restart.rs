//! A new process on a node where another one served, and cleanup.

use std::time::Instant;

use kernlink_engine::retire::{Retire, Round};
use kernlink_iptables_restore::{Edit, Iptables, Restore, Table};
use kernlink_services::Family;
use kernlink_userspace::data_path::remaining;
use kernlink_userspace::data_path::retire::Retiring;

use super::support::*;

#[test]
fn a_new_process_listens_at_the_ports_to_which_the_rules_lead_and_changes_no_rule() {
    let mut earlier = Fixture::new();
    earlier
        .services((0..20).map(|number| web(&format!("s{number}"), number)).collect())
        .sync();
    let rules = earlier.tables.portal_rules(Family::Ipv4);
    let listening = earlier.listening();
    // Its sockets are gone with it; the rules are not. The Services come in another order.
    let mut new = Fixture::with(&config(), earlier.tables.clone(), Default::default());
    let services = (0..20)
        .rev()
        .map(|number| web(&format!("s{number}"), number))
        .collect();
    let synced = new.services(services).try_sync();
    assert!(synced.is_success(), "{synced}");
    let listens = synced
        .plan
        .steps()
        .filter(|(_, step)| step.operation.to_string().starts_with("listen"));
    assert_eq!(listens.count(), synced.plan.len(), "{}", synced.plan);
    assert_eq!(new.listening(), listening);
    assert_eq!(new.tables.portal_rules(Family::Ipv4), rules);
}

#[test]
fn rules_of_services_that_were_deleted_meanwhile_are_removed_and_their_ports_are_free() {
    let mut earlier = Fixture::new();
    earlier.services(vec![web("web", 10), web("gone", 11)]).sync();
    let mut new = Fixture::with(&config(), earlier.tables.clone(), Default::default());
    new.services(vec![web("web", 10)]).sync();
    let rules = new.tables.portal_rules(Family::Ipv4);
    assert_eq!(rules.len(), 2);
    assert!(rules.iter().all(|rule| rule.contains("default/web:http")));
    // All ports of the range but one are free.
    let services = (0..99).map(|number| web(&format!("s{number}"), number + 100));
    let mut services: Vec<_> = services.take(98).collect();
    services.push(web("web", 10));
    new.services(services).sync();
    assert_eq!(new.listening().len(), 99);
}

#[test]
fn until_the_rules_of_a_family_can_be_read_no_port_to_which_they_may_lead_is_given_away() {
    let mut earlier = Fixture::new();
    let services: Vec<_> = (0..20).map(|number| web(&format!("s{number}"), number)).collect();
    earlier.services(services.clone()).sync();
    let rules = earlier.tables.portal_rules(Family::Ipv4);
    let listening = earlier.listening();
    let mut new = Fixture::with(&config(), earlier.tables.clone(), Default::default());
    // The first reading, that of table nat of IPv4, times out.
    earlier.tables.fail_readings(1);
    let first = new.services(services).try_sync();
    assert!(
        first
            .events
            .iter()
            .any(|event| event.reason.to_string().contains("cannot be read")),
        "{:?}",
        first.events
    );
    assert!(new.listening().is_empty(), "{:?}", new.listening());
    assert!(first.next.is_some(), "it is read again");
    let second = new.try_sync();
    assert!(second.is_success(), "{second}");
    assert_eq!(new.listening(), listening);
    assert_eq!(new.tables.portal_rules(Family::Ipv4), rules);
    assert_eq!(second.next, None);
}

#[test]
fn a_recorded_port_outside_the_range_is_replaced() {
    let mut earlier = Fixture::new();
    earlier.services(vec![web("web", 10)]).sync();
    let mut config = config();
    config.port_range = "50000".parse().unwrap();
    let mut new = Fixture::with(&config, earlier.tables.clone(), Default::default());
    new.services(vec![web("web", 10)]).sync();
    assert_eq!(
        new.listening(),
        ["tcp 0.0.0.0:50000 -> 10.244.0.1:8080 10.244.0.2:8080"]
    );
    let rules = new.tables.portal_rules(Family::Ipv4);
    assert_eq!(rules.len(), 2);
    assert!(rules.iter().all(|rule| rule.contains("50000")), "{rules:#?}");
}

#[test]
fn cleanup_removes_portal_chains_and_their_jumps_only() {
    let mut fixture = Fixture::new();
    fixture.tables.edit("*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n-A KUBE-SERVICES -d 10.96.0.99/32 -j ACCEPT\nCOMMIT\n*filter\n:INPUT DROP [0:0]\n-A INPUT -s 192.0.2.1/32 -j ACCEPT\nCOMMIT\n");
    let before = fixture.tables.0.lock().unwrap().ruleset(Family::Ipv4).to_string();
    fixture.services(vec![web("web", 10)]).sync();
    let mut tables = fixture.tables.clone();
    let removal = remaining(&mut tables, &Family::ALL);
    assert_eq!(removal.errors, []);
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4).len(), 2);
    assert!(
        removal.execute(&mut tables).iter().all(Result::is_ok),
        "{removal}"
    );
    let nat = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect()
    };
    let after = fixture.tables.0.lock().unwrap().ruleset(Family::Ipv4).to_string();
    let after = nat(&after);
    for line in nat(&before) {
        assert!(after.contains(&line), "{line}");
    }
    assert!(
        after
            .iter()
            .all(|line| !line.contains("PORTALS") && !line.contains("NODEPORT")),
        "{after:#?}"
    );
    assert_eq!(remaining(&mut tables, &[Family::Ipv4]).operations, []);
}

#[test]
fn cleanup_keeps_a_chain_that_a_foreign_rule_uses() {
    let mut fixture = Fixture::new();
    fixture.services(vec![web("web", 10)]).sync();
    let mut tables = fixture.tables.clone();
    let rule = "-s 192.0.2.1/32 -j KUBE-NODEPORT-NON-LOCAL".parse().unwrap();
    let foreign = Edit::append("FORWARD".parse().unwrap(), rule);
    tables
        .restore(&Restore::new(Family::Ipv4).with(Table::Filter, foreign))
        .unwrap();
    let removal = remaining(&mut tables, &[Family::Ipv4]);
    assert!(
        removal.execute(&mut tables).iter().all(Result::is_ok),
        "{removal}"
    );
    assert_eq!(removal.kept_chains.len(), 1);
    assert_eq!(
        fixture.tables.chain(Family::Ipv4, Table::Filter, "FORWARD").len(),
        1
    );
    assert_eq!(remaining(&mut tables, &[Family::Ipv4]).operations, []);
}

#[test]
fn a_table_that_cannot_be_read_does_not_prevent_the_removal_from_the_others() {
    let mut service = web("web", 10);
    service.cluster_ips = vec![service.cluster_ip.clone(), "fd00:96::1".to_owned()];
    service.ip_families = vec![Family::Ipv4, Family::Ipv6];
    let mut fixture = Fixture::new();
    fixture.services(vec![service]).sync();
    let tables = fixture.tables.clone();
    let mut retiring = Retiring::new(Box::new(tables.clone()));
    // Table `nat` of IPv4.
    tables.fail_readings(1);
    let retired = retiring.retire(&Round::without_serving_mode(Instant::now()));
    let problem = "cannot read tables: the program did not end in time";
    assert_eq!(
        (retired.problems, retired.is_gone),
        (vec![problem.to_owned()], false)
    );
    assert_eq!(retired.steps.len(), 3);
    assert!(!tables.portal_rules(Family::Ipv4).is_empty());
    assert_eq!(tables.portal_rules(Family::Ipv6), Vec::<String>::new());
    // The next round removes the rest.
    tables.fail_readings(0);
    let retired = retiring.retire(&Round::without_serving_mode(Instant::now()));
    assert_eq!((retired.problems, retired.steps.len()), (Vec::new(), 1));
    assert_eq!(tables.portal_rules(Family::Ipv4), Vec::<String>::new());
}

#[test]
fn a_family_that_an_earlier_process_served_and_this_one_does_not_has_no_portal_rules() {
    let mut service = web("web", 10);
    service.cluster_ips = vec![service.cluster_ip.clone(), "fd00:96::1".to_owned()];
    service.ip_families = vec![Family::Ipv4, Family::Ipv6];
    let mut earlier = Fixture::new();
    earlier.services(vec![service.clone()]).sync();
    assert!(!earlier.tables.portal_rules(Family::Ipv6).is_empty());
    let mut without = config();
    without.services.families = [Family::Ipv4].into();
    let mut new = Fixture::with(&without, earlier.tables.clone(), Default::default());
    new.services(vec![service]).sync();
    assert!(new.tables.portal_rules(Family::Ipv6).is_empty());
    assert!(!new.tables.portal_rules(Family::Ipv4).is_empty());
}

#[test]
fn a_family_that_is_not_served_is_searched_until_its_tables_can_be_printed() {
    let mut service = web("web", 10);
    service.cluster_ips = vec![service.cluster_ip.clone(), "fd00:96::1".to_owned()];
    service.ip_families = vec![Family::Ipv4, Family::Ipv6];
    let mut earlier = Fixture::new();
    earlier.services(vec![service.clone()]).sync();
    let mut without = config();
    without.services.families = [Family::Ipv4].into();
    earlier.tables.set_unreadable(&[Family::Ipv6]);
    let mut new = Fixture::with(&without, earlier.tables.clone(), Default::default());
    new.services(vec![service]).sync();
    assert!(!new.tables.portal_rules(Family::Ipv6).is_empty());
    new.tables.set_unreadable(&[]);
    new.proxier.resync();
    new.sync();
    assert!(new.tables.portal_rules(Family::Ipv6).is_empty());
}
