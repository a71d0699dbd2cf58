//! The configuration and the facts of the node, on the fake kernel.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/node.rs"]
mod node;

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernlink_dummylink::{LinkAddress, LinkName};
use kernlink_ipvs::Scheduler;
use kernlink_netlink::Errno;
use kernlink_proxier::ipvs_mode::error::{SysctlError, SysctlErrorCause};
use kernlink_proxier::ipvs_mode::kernel::Sysctls;
use kernlink_proxier::ipvs_mode::{Config, Phase, Proxier, SetId, Sysctl};
use kernlink_services::{Change, Family, Node, NodePortAddresses, ObjectChange, ObjectName, ServiceType};

use crate::node::{SOURCE, bound, config, kernel, position, proxier, service, upsert, virtual_servers};

#[test]
fn an_invalid_configuration_is_refused_with_all_invalid_fields() {
    let mut config = config();
    config.dummy_link = "a/b".to_owned();
    config.services.families.clear();
    config.ipvs_timeouts.tcp = Duration::from_secs(u64::MAX);
    let error = Proxier::new(&config, kernel()).unwrap_err().to_string();
    for field in ["dummy_link: ", "services.families: ", "ipvs_timeouts.tcp: "] {
        assert!(error.contains(field), "{error}");
    }
}

#[test]
fn timeouts_are_truncated_to_whole_seconds() {
    let mut config = config();
    config.ipvs_timeouts.tcp = Duration::from_millis(1_500);
    config.ipvs_timeouts.udp = Duration::from_millis(500);
    let mut proxier = proxier(config, kernel());
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    position(&synced.plan, "ipvsadm --set 1 0 0");
    proxier.resync();
    assert!(proxier.sync(Instant::now()).unwrap().plan.is_empty());
}

#[test]
fn every_configured_sysctl_and_timeout_is_written_once() {
    // With the limits of tracked connections, which the other tests do not set.
    let mut config = Config::new("node-a");
    config.strict_arp = true;
    config.ipvs_timeouts.udp = Duration::from_secs(77);
    let mut proxier = proxier(config, kernel());
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let plan = synced.plan.to_string();
    for line in [
        "sysctl -w net.ipv4.conf.all.arp_announce=2",
        "sysctl -w net.netfilter.nf_conntrack_tcp_timeout_established=86400",
        "> /sys/module/nf_conntrack/parameters/hashsize",
        "ipvsadm --set 0 0 77",
    ] {
        assert!(plan.contains(line), "{line} is not in\n{plan}");
    }
    assert!(proxier.sync(Instant::now()).unwrap().plan.is_empty());
    proxier.resync();
    assert!(proxier.sync(Instant::now()).unwrap().plan.is_empty());
}

/// The sysctls as a process with `CAP_NET_ADMIN` that is not root sees them, and the names that were read.
struct NotRoot {
    inner: Box<dyn Sysctls>,
    read: Arc<Mutex<Vec<String>>>,
}

impl Sysctls for NotRoot {
    fn execute(&mut self, sysctls: &[Sysctl]) -> Vec<Result<(), SysctlError>> {
        self.inner.execute(sysctls)
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError> {
        self.read.lock().unwrap().push(name.to_owned());
        if name.starts_with("/sys/module") {
            return Err(SysctlError {
                verb: "read",
                name: name.into(),
                cause: SysctlErrorCause::File(Errno::EACCES),
            });
        }
        self.inner.read(name)
    }
}

#[test]
fn an_unreadable_hash_size_of_connection_tracking_is_reported_only() {
    for max_per_core in [0, 32_768] {
        let mut config = config();
        config.conntrack.max_per_core = max_per_core;
        let read = Arc::new(Mutex::new(Vec::new()));
        let mut kernel = kernel();
        kernel.sysctls = Box::new(NotRoot {
            inner: kernel.sysctls,
            read: Arc::clone(&read),
        });
        let mut proxier = proxier(config, kernel);
        upsert(&mut proxier, service("web", "10.96.0.1"));
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(synced.is_success(), "{synced}");
        assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 1);
        let is_read = read
            .lock()
            .unwrap()
            .iter()
            .any(|name| name.ends_with("/hashsize"));
        assert_eq!(
            (is_read, synced.events.len()),
            (max_per_core > 0, usize::from(max_per_core > 0))
        );
    }
}

#[test]
fn an_unknown_configured_scheduler_is_reported_once_and_replaced() {
    let mut config = config();
    config.defaults.scheduler = Scheduler::new("zz").unwrap();
    let mut proxier = proxier(config, kernel());
    upsert(&mut proxier, service("a", "10.96.0.1"));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    assert_eq!(
        events,
        [
            "configuration: scheduler: invalid value \"zz\": unknown scheduler; known: dh, fo, lblc, lblcr, lc, mh, nq, ovf, rr, sed, sh, twos, \
             wlc, wrr; rr is used"
        ]
    );
    upsert(&mut proxier, service("b", "10.96.0.2"));
    assert_eq!(proxier.sync(Instant::now()).unwrap().events, []);
}

#[test]
fn the_first_sync_resolves_node_ports_once() {
    let mut proxier = proxier(config(), kernel());
    let mut node_port = service("web", "10.96.0.1");
    node_port.service_type = ServiceType::NodePort;
    node_port.ports[0].node_port = 30_080;
    upsert(&mut proxier, node_port);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.events, []);
    assert_eq!(proxier.cost().resolved, 1);
}

#[test]
fn no_address_of_a_family_without_a_primary_one_accepts_node_ports() {
    let mut config = config();
    config.services.node_ips = vec![[192, 0, 2, 1].into()];
    config.services.node_port_addresses = NodePortAddresses::Primary;
    let mut kernel = kernel();
    let addresses: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    let addresses = addresses.map(|address| LinkAddress::host(address).unwrap());
    let eth0 = LinkName::new("eth0").unwrap();
    kernel.links = Box::new(kernlink_dummylink::Fake::new().with_link(eth0, None, &addresses));
    let mut proxier = proxier(config, kernel);
    let mut node_port = service("web", "10.96.0.1");
    node_port.cluster_ips = vec!["10.96.0.1".into(), "fd00::1".into()];
    node_port.ip_families = Family::ALL.into();
    node_port.service_type = ServiceType::NodePort;
    node_port.ports[0].node_port = 30_080;
    upsert(&mut proxier, node_port);
    let synced = proxier.sync(Instant::now()).unwrap();
    let texts: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    let expected =
        "nodePortAddresses: primary: the node has no IPv6 address; no IPv6 address accepts node ports";
    assert!(texts.iter().any(|text| text.contains(expected)), "{texts:?}");
    assert_eq!(
        virtual_servers(proxier.kernel_mut()),
        ["-t 10.96.0.1:80", "-t 192.0.2.1:30080", "-t [fd00::1]:80"]
    );
}

#[test]
fn node_ports_at_the_primary_address_need_the_node_and_remain_after_its_deletion() {
    let mut config = config();
    config.services.node_ips = Vec::new();
    config.services.node_port_addresses = NodePortAddresses::Primary;
    let mut kernel = kernel();
    let eth1 = LinkName::new("eth1").unwrap();
    let public = LinkAddress::host([198, 51, 100, 7].into()).unwrap();
    kernel.links = Box::new(
        kernlink_dummylink::Fake::new()
            .with_link(
                LinkName::new("eth0").unwrap(),
                None,
                &[LinkAddress::host([192, 0, 2, 1].into()).unwrap()],
            )
            .with_link(eth1, None, &[public]),
    );
    let mut proxier = proxier(config, kernel);
    let mut node_port = service("web", "10.96.0.1");
    node_port.service_type = ServiceType::NodePort;
    node_port.ports[0].node_port = 30_080;
    upsert(&mut proxier, node_port);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(
        synced
            .events
            .iter()
            .any(|event| event.to_string().contains("no address of this node is known yet"))
    );
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"]);
    let node = Node::new("node-a").with_internal_address([192, 0, 2, 1].into());
    proxier.change(SOURCE, Change::Nodes(ObjectChange::Upsert(node)));
    proxier.change(SOURCE, Change::Nodes(ObjectChange::Synced));
    proxier.sync(Instant::now()).unwrap();
    let with_node = ["-t 10.96.0.1:80", "-t 192.0.2.1:30080"];
    assert_eq!(virtual_servers(proxier.kernel_mut()), with_node);
    proxier.change(
        SOURCE,
        Change::Nodes(ObjectChange::Delete(ObjectName::new("", "node-a"))),
    );
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.plan.is_empty(), "{}", synced.plan);
    assert_eq!(virtual_servers(proxier.kernel_mut()), with_node);
}

#[test]
fn a_family_that_is_no_longer_served_and_a_renamed_link_leave_no_objects() {
    let mut proxier = proxier(config(), kernel());
    let mut dual = service("web", "10.96.0.1");
    dual.cluster_ips = vec!["10.96.0.1".into(), "fd00::1".into()];
    dual.ip_families = vec![Family::Ipv4, Family::Ipv6];
    upsert(&mut proxier, dual);
    let mut node_port = service("port", "10.96.0.2");
    node_port.service_type = ServiceType::NodePort;
    node_port.ports[0].node_port = 30_080;
    upsert(&mut proxier, node_port);
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    let mut without = config();
    without.services.families = [Family::Ipv4].into();
    proxier.set_config(&without).unwrap();
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    let of_v4 = ["-t 10.96.0.1:80", "-t 10.96.0.2:80", "-t 192.0.2.1:30080"];
    assert_eq!(virtual_servers(proxier.kernel_mut()), of_v4);
    assert_eq!(bound(proxier.kernel_mut()).len(), 2);
    let sets = proxier
        .kernel_mut()
        .sets
        .list_set(&SetId::ClusterIp.name(Family::Ipv6))
        .unwrap();
    assert!(sets.entries.is_empty());
    without.dummy_link = "virtual0".to_owned();
    proxier.set_config(&without).unwrap();
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    // No node port is served at a cluster IP, and the earlier link was deleted.
    assert_eq!(virtual_servers(proxier.kernel_mut()), of_v4);
    assert_eq!(bound(proxier.kernel_mut()), [""; 0]);
    let link = LinkName::new("kube-ipvs0").unwrap();
    assert!(!proxier.kernel_mut().links.exists(&link).unwrap());
    let last = synced.plan.phases().last().unwrap();
    assert_eq!(last.kind, Phase::RemoveLink);
    proxier.resync();
    assert!(proxier.sync(Instant::now()).unwrap().plan.is_empty());
}

#[test]
fn a_family_that_an_earlier_process_served_and_this_one_does_not_leaves_no_objects() {
    let mut before = proxier(config(), kernel());
    let mut dual = service("web", "10.96.0.1");
    dual.cluster_ips = vec!["10.96.0.1".into(), "fd00::1".into()];
    dual.ip_families = vec![Family::Ipv4, Family::Ipv6];
    upsert(&mut before, dual.clone());
    assert!(before.sync(Instant::now()).unwrap().is_success());
    assert_eq!(virtual_servers(before.kernel_mut()).len(), 2);
    let mut without = config();
    without.services.families = [Family::Ipv4].into();
    let mut proxier = proxier(without, before.into_kernel());
    upsert(&mut proxier, dual);
    let mut synced = proxier.sync(Instant::now()).unwrap();
    while synced.is_partial {
        synced = proxier.sync(Instant::now()).unwrap();
    }
    assert!(synced.is_success(), "{synced}");
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"]);
    assert_eq!(bound(proxier.kernel_mut()), ["10.96.0.1/32"]);
    proxier.resync();
    let again = proxier.sync(Instant::now()).unwrap();
    assert!(again.plan.is_empty(), "{}", again.plan);
}

#[test]
fn nothing_is_created_in_a_family_that_is_not_configured() {
    let mut without = config();
    without.services.families = [Family::Ipv4].into();
    let mut proxier = proxier(without, kernel());
    upsert(&mut proxier, service("web", "10.96.0.1"));
    let synced = proxier.sync(Instant::now()).unwrap();
    let plan = synced.plan.to_string();
    assert!(!plan.contains("KUBE-6-") && !plan.contains("ip6tables"), "{plan}");
}
