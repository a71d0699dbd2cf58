//! Support for tests of nftables mode: a network, a proxier on it, and the Services that every cluster has.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use kernlink_kernel_tests::expectations::on_node_of;
use kernlink_kernel_tests::manifests::{cluster_ips, service, slices};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, Server};
use kernlink_kernel_tests::{tools, wait};
use kernlink_kubernetes::manifest;
use kernlink_nftables::{Client, Nftables, TableFlags};
use kernlink_proxier::host::{Conntrack, LocalDetection};
use kernlink_proxier::nftables_mode::{Config, Kernel, Proxier, Synced};
use kernlink_services::{Change, SourceId};

/// kube-proxy's defaults for `node-a` of a cluster with the pods of [`Network`], without sysctls of connection tracking: all namespaces
/// share some of them.
pub(crate) fn config() -> Config {
    let mut config = Config::new("node-a");
    config.conntrack = Conntrack {
        max_per_core: 0,
        tcp_established: Duration::ZERO,
        tcp_close_wait: Duration::ZERO,
        ..Conntrack::default()
    };
    let pods = ["10.244.0.0/16", "fd00:10:244::/48"].map(|net| net.parse().unwrap());
    config.local_detection = LocalDetection::ClusterCidr(pods.into());
    config.services.node_ips = vec![Network::node_ipv4().into(), Network::node_ipv6().into()];
    config
}

/// What every cluster has: the API server and the DNS.
fn standard_services() -> String {
    let [api, _] = cluster_ips(254);
    let endpoint = Network::pod_ipv4(0);
    let in_system = |manifest: String| manifest.replace("namespace: default", "namespace: kube-system");
    let dns = in_system(service("kube-dns", 253, "type: ClusterIP", ["", ""], &[]));
    let dns_slices = in_system(slices("kube-dns", &[(0, "node-a"), (1, "node-b")]));
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: kubernetes, namespace: default, creationTimestamp: '2026-01-01T00:00:00Z'}}
spec: {{clusterIP: '{api}', clusterIPs: ['{api}'], ipFamilies: [IPv4], type: ClusterIP,
  ports: [{{name: https, port: 443, protocol: TCP, targetPort: 8080}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {{name: kubernetes, namespace: default, labels: {{kubernetes.io/service-name: kubernetes}}}}
ports: [{{name: https, port: 8080, protocol: TCP}}]
endpoints: [{{addresses: ['{endpoint}']}}]
{dns}{dns_slices}"
    )
}

/// The changes that replace all objects by those of these manifests and those that every cluster has.
pub(crate) fn changes(manifests: &str) -> Vec<Change> {
    let objects = manifest::read("test", &(standard_services() + manifests));
    assert_eq!(objects.errors, []);
    objects.into_changes().unwrap()
}

/// Replaces all objects by those of these manifests and those that every cluster has.
pub(crate) fn replace_objects(proxier: &mut Proxier, manifests: &str) {
    for change in changes(manifests) {
        proxier.change(SourceId(0), change);
    }
}

/// Waits until the previous proxier of the calling thread's namespace, which was dropped, has no tables any more: a program that another test
/// starts at that moment has its socket too, until it is executed.
pub(crate) fn await_end_of_owner() {
    let mut client = Client::open().unwrap();
    wait::until(|| {
        let mut tables = client.tables(None).unwrap().into_iter();
        match tables.find(|table| table.flags.contains(TableFlags::OWNER | TableFlags::PERSIST)) {
            None => Ok(()),
            Some(table) => Err(format!("the table has an owner: {table:?}")),
        }
    });
}

/// The proxier of a new process, in the calling thread's namespace, without objects. The one before must have been dropped.
pub(crate) fn empty_proxier(config: &Config) -> Proxier {
    await_end_of_owner();
    Proxier::new(config, Kernel::open().unwrap()).unwrap()
}

/// As [`empty_proxier`], with these objects and those that every cluster has.
pub(crate) fn proxier(manifests: &str) -> Proxier {
    proxier_with(&config(), manifests)
}

pub(crate) fn proxier_with(config: &Config, manifests: &str) -> Proxier {
    let mut proxier = empty_proxier(config);
    replace_objects(&mut proxier, manifests);
    proxier
}

/// Syncs; every step must succeed.
pub(crate) fn sync_once(proxier: &mut Proxier) -> Synced {
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    synced
}

/// Syncs; every step must succeed, and after the kernel was read again there must be nothing to do.
pub(crate) fn sync(proxier: &mut Proxier) -> Synced {
    let synced = sync_once(proxier);
    proxier.resync();
    let plan = proxier.plan(Instant::now()).unwrap();
    assert!(plan.is_empty(), "{plan}");
    synced
}

/// Replaces all objects, and syncs.
pub(crate) fn change(proxier: &mut Proxier, manifests: &str) {
    replace_objects(proxier, manifests);
    sync_once(proxier);
}

/// Runs a test on the node of a new network of pods that serve port 8080/TCP and 5353/UDP.
pub(crate) fn on_network(pods: u8, test: impl FnOnce(&Network)) {
    let network = Network::new(pods);
    let mut servers: Vec<Server> = network.serve(Protocol::Tcp, 8080);
    servers.extend(network.serve(Protocol::Udp, 5353));
    let _on_node = on_node_of(&network);
    tools::permit_icmp_errors();
    test(&network);
}

/// The servers that answer so many requests, each with the source address that it sees.
pub(crate) fn answers(
    from: &NetNs,
    protocol: Protocol,
    target: SocketAddr,
    requests: usize,
) -> BTreeSet<(String, IpAddr)> {
    let ask = |_| {
        let answer = Connection::open(from, protocol, target).and_then(|mut connection| connection.ask());
        let answer = answer.unwrap_or_else(|error| panic!("{protocol} {target}: {error}"));
        (answer.server, answer.source.ip())
    };
    (0..requests).map(ask).collect()
}

/// What `nft` prints, without the table of nftables mode in both families. Every version of `nft` must be able to list it.
pub(crate) fn foreign_ruleset() -> String {
    let listed = tools::must("nft", &["list", "ruleset"]);
    let mut text = String::new();
    let mut is_own = false;
    for line in listed.lines() {
        if line.starts_with("table ") {
            is_own = line.contains(" kernlink ");
        }
        if !is_own {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}
