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

fn with_node_port() -> Service {
    let mut service = web("web", 10);
    service.service_type = ServiceType::NodePort;
    service.ports = vec![Port::new("http", 80).with_node_port(31_080)];
    service
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
    assert_eq!(rules_of(&one_port(), with_node_port()), expected);
}

#[test]
fn with_a_bind_address_all_rules_translate_to_it() {
    let mut config = one_port();
    config.services.bind_address = Some([192, 0, 2, 11].into());
    let rules = rules_of(&config, with_node_port());
    let translated = rules
        .iter()
        .filter(|rule| rule.ends_with("-j DNAT --to-destination 192.0.2.11:40001"));
    assert_eq!(translated.count(), 4, "{rules:#?}");
    assert_eq!(rules.len(), 5);
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
    let mut service = with_node_port();
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
