//! Support for tests of the proxier: clusters in YAML, proxiers, and whether the kernel is in their desired state.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::Network;
use kernlink_kernel_tests::{tools, wait};
use kernlink_kubernetes::manifest;
use kernlink_proxier::ipvs_mode::config::{Conntrack, LocalDetection};
use kernlink_proxier::ipvs_mode::{Config, Kernel, KernelRelease, Listings, Proxier, Synced};
use kernlink_services::SourceId;

pub(crate) use kernlink_kernel_tests::listings::{
    SAVE, State, assert_same, chains, feed, jump, load, load_rules, load_sets, rules, rules_of, sorted,
    state, state_without_rules, without_sizes,
};

pub(crate) use crate::desired::Desired;

/// The cluster IPs of a [`service`] with a number, one of each family.
pub(crate) fn cluster_ips(number: u8) -> [IpAddr; 2] {
    [
        Ipv4Addr::new(10, 96, 0, number).into(),
        Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, number.into()).into(),
    ]
}

/// A dual-stack Service with the cluster IPs of a number. `spec` is the rest of the specification, as fields of a map in braces; `more` is
/// further metadata in the same form, with a leading comma.
pub(crate) fn service(name: &str, number: u8, spec: &str, more: &str) -> String {
    let [v4, v6] = cluster_ips(number);
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: default, creationTimestamp: '2026-01-01T00:00:00Z'{more}}}
spec: {{clusterIP: '{v4}', clusterIPs: ['{v4}', '{v6}'], ipFamilies: [IPv4, IPv6], {spec}}}
"
    )
}

/// The same with load-balancer addresses.
pub(crate) fn load_balancer(name: &str, number: u8, spec: &str, ingress: [&str; 2]) -> String {
    let [v4, v6] = ingress;
    let service = service(name, number, spec, "");
    format!("{service}status: {{loadBalancer: {{ingress: [{{ip: '{v4}'}}, {{ip: '{v6}'}}]}}}}\n")
}

/// The endpoints of a Service: pods of [`Network`] by number, each with the name of its node; a slice for each family.
pub(crate) fn slices(service: &str, ports: &str, pods: &[(u8, &str)]) -> String {
    let mut text = String::new();
    for (family, of_pod) in [("IPv4", pod_v4 as fn(u8) -> IpAddr), ("IPv6", pod_v6)] {
        let endpoints: Vec<String> = pods
            .iter()
            .map(|(pod, node)| format!("{{addresses: ['{}'], nodeName: {node}}}", of_pod(*pod)))
            .collect();
        text += &format!(
            "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: {family}
metadata: {{name: {service}-{}, namespace: default, labels: {{kubernetes.io/service-name: {service}}}}}
ports: {ports}
endpoints: [{}]
",
            family.to_lowercase(),
            endpoints.join(", ")
        );
    }
    text
}

fn pod_v4(number: u8) -> IpAddr {
    Network::pod_ipv4(number).into()
}

fn pod_v6(number: u8) -> IpAddr {
    Network::pod_ipv6(number).into()
}

/// [`draining_config`] with removed endpoints deleted at once, for tests that are not about draining: one sync reaches the desired state.
pub(crate) fn config() -> Config {
    let mut config = draining_config();
    config.services.defaults.drain_timeout = Some(Duration::ZERO);
    config
}

/// kube-proxy's defaults for `node-a` of a cluster with the pods of [`Network`], without sysctls of connection tracking: all namespaces
/// share them.
pub(crate) fn draining_config() -> Config {
    let mut config = Config::new("node-a");
    config.conntrack = Conntrack {
        max_per_core: 0,
        tcp_established: Duration::ZERO,
        tcp_close_wait: Duration::ZERO,
        ..Conntrack::default()
    };
    let pods = ["10.244.0.0/16", "fd00:10:244::/48"].map(|net| net.parse().unwrap());
    config.local_detection = LocalDetection::ClusterCidr(pods.into());
    config
}

/// A proxier with these manifests on the kernel, in the calling thread's namespace.
pub(crate) fn proxier(manifests: &str) -> Proxier {
    proxier_on(Kernel::open().unwrap(), manifests)
}

/// A proxier with these manifests on kernel APIs.
pub(crate) fn proxier_on(kernel: Kernel, manifests: &str) -> Proxier {
    proxier_with(config(), kernel, manifests)
}

/// A proxier with these manifests on kernel APIs.
pub(crate) fn proxier_with(config: Config, kernel: Kernel, manifests: &str) -> Proxier {
    let mut proxier = Proxier::new(&config, kernel).unwrap();
    replace_objects(&mut proxier, manifests);
    proxier
}

/// Replaces all objects by those of these manifests.
pub(crate) fn replace_objects(proxier: &mut Proxier, manifests: &str) {
    let objects = manifest::read("test", manifests);
    assert_eq!(objects.errors, []);
    for change in objects.into_changes().unwrap() {
        proxier.change(SourceId(0), change);
    }
}

/// Syncs; every step must succeed. Returns after the addresses can receive packets.
pub(crate) fn sync(proxier: &mut Proxier) -> Synced {
    sync_at(proxier, Instant::now())
}

/// [`sync`] at a given time, such as that of the next retry.
pub(crate) fn sync_at(proxier: &mut Proxier, now: Instant) -> Synced {
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success(), "{synced}");
    wait::for_ipv6_addresses();
    synced
}

/// A new proxier, as after a restart, on the kernel APIs of an earlier one.
pub(crate) fn restarted(earlier: Proxier, manifests: &str) -> Proxier {
    proxier_on(earlier.into_kernel(), manifests)
}

/// The listings of the desired state of a synced proxier for the running kernel.
pub(crate) fn desired(proxier: &Proxier) -> Listings {
    let release = tools::sysctl("kernel.osrelease");
    let kernel: KernelRelease = release.parse().unwrap();
    proxier.state().listings(kernel, 1)
}

/// Panics unless the owned objects, as the standard tools list them, are in the desired state of the proxier.
pub(crate) fn assert_in_desired_state(proxier: &Proxier) {
    assert_is_desired(proxier, &state());
}

/// The same without the real servers that have weight 0.
pub(crate) fn assert_in_desired_state_while_draining(proxier: &Proxier) {
    let mut actual = state();
    let servers = actual.get_mut("ipvs").unwrap();
    servers.retain(|line| !line.ends_with(" -w 0"));
    assert_is_desired(proxier, &actual);
}

fn assert_is_desired(proxier: &Proxier, actual: &State) {
    let desired = desired(proxier);
    let listed = |section: &str| actual.get(section).cloned().unwrap_or_default();
    assert_eq!(listed("ipvs"), sorted(&desired.ipvs), "ipvsadm -Sn");
    assert_eq!(listed("ipset"), sorted(&desired.sets()), "ipset save");
    assert_eq!(
        listed("addresses of kube-ipvs0"),
        sorted(&desired.addresses),
        "ip addr show kube-ipvs0"
    );
    // The tools print rules in their own form, so the expected listing comes from the same tools in another namespace.
    let elsewhere = NetNs::new().run(|| {
        load_sets(&desired.ipset);
        load_rules(&desired.iptables, &desired.ip6tables, &desired.jumps);
        rules(SAVE)
    });
    assert_same(&rules_of(actual), &elsewhere, "iptables-save and ip6tables-save");
}
