//! The texts and the order of portal rules.

use kernlink_iptables_restore::Table;
use kernlink_services::{
    Family, Ingress, IngressMode, Port, Protocol, Service, ServiceType, SessionAffinity, TrafficPolicy,
};
use kernlink_userspace::data_path::Config;

use super::support::*;

/// All Services get port 40001 of their family and protocol.
fn one_port() -> Config {
    let mut config = config();
    config.port_range = "40001".parse().unwrap();
    config
}

fn rules_of(config: &Config, service: Service) -> Vec<String> {
    let family = if service.cluster_ip.contains(':') {
        Family::Ipv6
    } else {
        Family::Ipv4
    };
    let mut fixture = Fixture::with(config, Tables::default(), Default::default());
    fixture.services(vec![service]).sync();
    fixture.tables.portal_rules(family)
}

fn ingress(address: &str) -> Ingress {
    Ingress {
        ip: address.into(),
        mode: IngressMode::Vip,
    }
}

#[test]
fn a_cluster_ip_and_a_node_port_have_the_rules_of_kube_proxy() {
    let expected = [
        r#"KUBE-PORTALS-CONTAINER -d 10.96.0.10/32 -p tcp -m comment --comment "default/web:http" -m tcp --dport 80 -j REDIRECT --to-ports 40001"#,
        r#"KUBE-PORTALS-HOST -d 10.96.0.10/32 -p tcp -m comment --comment "default/web:http" -m tcp --dport 80 -j DNAT --to-destination 192.0.2.10:40001"#,
        r#"KUBE-NODEPORT-CONTAINER -p tcp -m comment --comment "default/web:http" -m tcp --dport 31080 -j REDIRECT --to-ports 40001"#,
        r#"KUBE-NODEPORT-HOST -p tcp -m comment --comment "default/web:http" -m tcp --dport 31080 -j DNAT --to-destination 192.0.2.10:40001"#,
        r#"KUBE-NODEPORT-NON-LOCAL -p tcp -m comment --comment "default/web:http" -m tcp --dport 40001 -m state --state NEW -j ACCEPT"#,
    ];
    assert_eq!(rules_of(&one_port(), with_node_port("web", 10)), expected);
}

#[test]
fn with_a_bind_address_all_rules_translate_to_it() {
    let mut config = one_port();
    config.services.bind_address = Some([192, 0, 2, 11].into());
    let rules = rules_of(&config, with_node_port("web", 10));
    let translated = rules
        .iter()
        .filter(|rule| rule.ends_with("-j DNAT --to-destination 192.0.2.11:40001"));
    assert_eq!(translated.count(), 4, "{rules:#?}");
    assert_eq!(rules.len(), 5);
}

#[test]
fn with_a_bind_address_external_addresses_of_ipv6_are_translated_to_it_too() {
    let mut config = one_port();
    config.services.bind_address = Some("2001:db8::11".parse().unwrap());
    let mut service = web("web", 10).with_cluster_ip("fd00:10:96::a");
    service.service_type = ServiceType::LoadBalancer;
    service.external_ips = vec!["2001:db8:5::5".into()];
    service.ingress = vec![ingress("2001:db8:7::7")];
    let match_tail = r#"-p tcp -m comment --comment "default/web:http" -m tcp --dport 80"#;
    let to = "-j DNAT --to-destination [2001:db8::11]:40001";
    let local = "-m addrtype --dst-type LOCAL";
    let expected = [
        format!("KUBE-PORTALS-CONTAINER -d fd00:10:96::a/128 {match_tail} {to}"),
        format!("KUBE-PORTALS-CONTAINER -d 2001:db8:5::5/128 {match_tail} -m physdev ! --physdev-is-in {to}"),
        format!("KUBE-PORTALS-CONTAINER -d 2001:db8:5::5/128 {match_tail} {local} {to}"),
        format!("KUBE-PORTALS-CONTAINER -d 2001:db8:7::7/128 {match_tail} {to}"),
        format!("KUBE-PORTALS-HOST -d fd00:10:96::a/128 {match_tail} {to}"),
        format!("KUBE-PORTALS-HOST -d 2001:db8:5::5/128 {match_tail} {local} {to}"),
        format!("KUBE-PORTALS-HOST -d 2001:db8:7::7/128 {match_tail} {to}"),
    ];
    assert_eq!(rules_of(&config, service), expected);
}

#[test]
fn external_and_load_balancer_ips_have_the_rules_of_kube_proxy_after_those_of_the_cluster_ip() {
    let mut service = web("web", 10);
    service.service_type = ServiceType::LoadBalancer;
    service.external_ips = vec!["203.0.113.5".into()];
    service.ingress = vec![ingress("198.51.100.7")];
    let match_tail = r#"-p tcp -m comment --comment "default/web:http" -m tcp --dport 80"#;
    let to_port = "-j REDIRECT --to-ports 40001";
    let to_host = "-j DNAT --to-destination 192.0.2.10:40001";
    let expected = [
        format!("KUBE-PORTALS-CONTAINER -d 10.96.0.10/32 {match_tail} {to_port}"),
        format!(
            "KUBE-PORTALS-CONTAINER -d 203.0.113.5/32 {match_tail} -m physdev ! --physdev-is-in {to_port}"
        ),
        format!(
            "KUBE-PORTALS-CONTAINER -d 203.0.113.5/32 {match_tail} -m addrtype --dst-type LOCAL {to_port}"
        ),
        format!("KUBE-PORTALS-CONTAINER -d 198.51.100.7/32 {match_tail} {to_port}"),
        format!("KUBE-PORTALS-HOST -d 10.96.0.10/32 {match_tail} {to_host}"),
        format!("KUBE-PORTALS-HOST -d 203.0.113.5/32 {match_tail} -m addrtype --dst-type LOCAL {to_host}"),
        format!("KUBE-PORTALS-HOST -d 198.51.100.7/32 {match_tail} {to_host}"),
    ];
    assert_eq!(rules_of(&one_port(), service), expected);
}

#[test]
fn udp_and_ipv6_have_the_same_rules() {
    let udp = Port::new("dns", 53).with_protocol(Protocol::Udp);
    let mut service = web("dns", 10);
    service.ports = vec![udp];
    let rules = rules_of(&one_port(), service);
    assert_eq!(
        rules[0],
        r#"KUBE-PORTALS-CONTAINER -d 10.96.0.10/32 -p udp -m comment --comment "default/dns:dns" -m udp --dport 53 -j REDIRECT --to-ports 40001"#
    );
    let service = web("web", 10).with_cluster_ip("fd00:10:96::a");
    assert_eq!(
        rules_of(&one_port(), service),
        [
            r#"KUBE-PORTALS-CONTAINER -d fd00:10:96::a/128 -p tcp -m comment --comment "default/web:http" -m tcp --dport 80 -j REDIRECT --to-ports 40001"#,
            r#"KUBE-PORTALS-HOST -d fd00:10:96::a/128 -p tcp -m comment --comment "default/web:http" -m tcp --dport 80 -j DNAT --to-destination [2001:db8::10]:40001"#,
        ]
    );
}

#[test]
fn portals_are_first_and_node_ports_last_in_the_built_in_chains() {
    let mut fixture = Fixture::new();
    fixture.tables.edit("*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n-A PREROUTING -s 192.0.2.1/32 -j ACCEPT\n-A OUTPUT -s 192.0.2.1/32 -j ACCEPT\nCOMMIT\n*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -s 192.0.2.1/32 -j DROP\nCOMMIT\n");
    fixture.services(vec![web("web", 10)]).sync();
    let target = |rule: &String| rule.rsplit(' ').next().unwrap().to_owned();
    let targets = |table, chain| -> Vec<String> {
        fixture
            .tables
            .chain(Family::Ipv4, table, chain)
            .iter()
            .map(target)
            .collect()
    };
    assert_eq!(
        targets(Table::Nat, "PREROUTING"),
        ["KUBE-PORTALS-CONTAINER", "ACCEPT", "KUBE-NODEPORT-CONTAINER"]
    );
    assert_eq!(
        targets(Table::Nat, "OUTPUT"),
        ["KUBE-PORTALS-HOST", "ACCEPT", "KUBE-NODEPORT-HOST"]
    );
    assert_eq!(
        targets(Table::Filter, "INPUT"),
        ["KUBE-NODEPORT-NON-LOCAL", "DROP"]
    );
}

#[test]
fn frontends_with_other_endpoints_or_restrictions_have_listening_ports_of_their_own() {
    let mut service = with_node_port("web", 10);
    service.service_type = ServiceType::LoadBalancer;
    service.ingress = vec![ingress("198.51.100.7")];
    service.load_balancer_source_ranges = vec!["203.0.113.0/24".into()];
    service.external_traffic_policy = TrafficPolicy::Local;
    service.session_affinity = SessionAffinity::ClientIp(std::time::Duration::from_secs(77));
    let mut fixture = Fixture::new();
    fixture.services(vec![service]).sync();
    let state = fixture.sockets.lock();
    let listeners: Vec<_> = state.listeners.values().collect();
    // The cluster IP has the endpoints of all nodes; the node port and the load balancer those of this node: none.
    assert_eq!(listeners.len(), 3);
    let backends: usize = listeners.iter().map(|serving| serving.backends.len()).sum();
    assert_eq!(backends, 2);
    assert_eq!(
        listeners
            .iter()
            .filter(|serving| serving.source_ranges.len() == 1)
            .count(),
        1
    );
    assert!(
        listeners
            .iter()
            .all(|serving| serving.affinity.unwrap().timeout.as_secs() == 77)
    );
    assert!(listeners.iter().all(|serving| serving.translated_only));
}

#[test]
fn a_headless_service_has_no_rules_and_sctp_is_reported() {
    let mut fixture = Fixture::new();
    let headless = web("headless", 10).with_cluster_ip("None");
    let mut sctp = web("sctp", 11);
    sctp.ports = vec![Port::new("s", 80).with_protocol(Protocol::Sctp)];
    let synced = fixture.services(vec![headless, sctp]).sync();
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4), [] as [&str; 0]);
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    assert!(
        events
            .iter()
            .any(|event| event.contains("default/sctp:s has protocol SCTP")),
        "{events:?}"
    );
}

#[test]
fn an_external_ip_that_is_also_the_address_of_a_load_balancer_has_the_rules_of_the_latter_once() {
    let mut service = web("web", 10);
    service.service_type = ServiceType::LoadBalancer;
    service.external_ips = vec!["198.51.100.7".into()];
    service.ingress = vec![ingress("198.51.100.7")];
    let rules = rules_of(&one_port(), service);
    let of_both = rules.iter().filter(|rule| rule.contains("-d 198.51.100.7/32 "));
    assert_eq!(of_both.count(), 2, "{rules:#?}");
    assert!(rules.iter().all(|rule| !rule.contains("physdev")), "{rules:#?}");
}

#[test]
fn policy_local_without_an_endpoint_on_this_node_drops_new_connections() {
    let mut service = with_node_port("web", 10);
    service.service_type = ServiceType::LoadBalancer;
    service.ingress = vec![ingress("198.51.100.7")];
    service.external_ips = vec!["203.0.113.5".into()];
    service.external_traffic_policy = TrafficPolicy::Local;
    let mut fixture = Fixture::new();
    fixture.services(vec![service]).sync();
    // The rule is about the listening port of all frontends with this policy.
    let port = |fixture: &Fixture, text: &str| {
        let rules = fixture.tables.portal_rules(Family::Ipv4);
        let rule = rules
            .iter()
            .find(|rule| rule.contains(text) && rule.contains("--to-ports "));
        rule.unwrap().rsplit(' ').next().unwrap().to_owned()
    };
    let local = port(&fixture, "--dport 31080 ");
    assert_eq!(port(&fixture, "-d 198.51.100.7/32 "), local);
    assert_eq!(port(&fixture, "-d 203.0.113.5/32 "), local);
    assert_ne!(port(&fixture, "-d 10.96.0.10/32 "), local);
    let chain = "KUBE-NODEPORT-NON-LOCAL";
    let name = "default/web:http";
    let rule = |comment: &str, target: &str| {
        format!(
            "{chain} -p tcp -m comment --comment \"{comment}\" -m tcp --dport {local} -m state --state NEW -j {target}"
        )
    };
    let dropped = [rule("default/web:http has no local endpoints", "DROP")];
    assert_eq!(fixture.rules_with(Family::Ipv4, chain, name), dropped);
    // With an endpoint on this node: the earlier rule is replaced in the same input.
    let synced = fixture.endpoints_on("node-a", "web", &[1]).sync();
    let writes: Vec<String> = synced
        .plan
        .steps()
        .map(|(_, step)| step.operation.to_string())
        .collect();
    let admits = |text: &&String| text.contains("-j ACCEPT") && text.contains("-j DROP");
    assert_eq!(writes.iter().filter(admits).count(), 1, "{writes:#?}");
    assert_eq!(
        fixture.rules_with(Family::Ipv4, chain, name),
        [rule(name, "ACCEPT")]
    );
    // With no endpoint on any node, connections are refused as with policy `Cluster`.
    fixture.endpoints("web", &[]).sync();
    assert_eq!(
        fixture.rules_with(Family::Ipv4, chain, name),
        [rule(name, "ACCEPT")]
    );
    fixture.endpoints("web", &[2]).sync();
    assert_eq!(fixture.rules_with(Family::Ipv4, chain, name), dropped);
}

#[test]
fn internal_policy_local_without_an_endpoint_on_this_node_drops_new_connections() {
    let mut service = web("web", 10);
    service.internal_traffic_policy = TrafficPolicy::Local;
    let rules = rules_of(&one_port(), service);
    assert_eq!(rules.len(), 3);
    assert_eq!(
        rules[2],
        r#"KUBE-NODEPORT-NON-LOCAL -p tcp -m comment --comment "default/web:http has no local endpoints" -m tcp --dport 40001 -m state --state NEW -j DROP"#
    );
}
