//! Support for tests of iptables mode: a network, a proxier on it, and Services as manifests.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kernlink_iptables_restore::{Client, Variant};
use kernlink_kernel_tests::expectations::on_node_of;
use kernlink_kernel_tests::tools;
use kernlink_kernel_tests::traffic::{Network, Protocol, Server};
use kernlink_kubernetes::manifest;
use kernlink_proxier::host::{Conntrack, LocalDetection};
use kernlink_proxier::iptables_mode::{Config, Kernel, Proxier, Synced};
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

/// The kernel of the calling thread's namespace, through one variant of the tools.
pub(crate) fn kernel(variant: Variant) -> Kernel {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("test").replace("::", "-");
    // On a tmpfs, and of its own: the namespace is private.
    let lock = PathBuf::from(format!(
        "/dev/shm/kernlink-iptables-mode-{}-{name}",
        std::process::id()
    ));
    let client = Client::new()
        .with_variant(variant)
        .with_wait(Duration::from_secs(30))
        .with_timeout(Duration::from_secs(300))
        .with_lock_file(lock);
    let mut kernel = Kernel::open().unwrap();
    kernel.rules = Box::new(client);
    kernel
}

pub(crate) fn proxier(variant: Variant, manifests: &str) -> Proxier {
    let mut proxier = Proxier::new(&config(), kernel(variant)).unwrap();
    replace_objects(&mut proxier, manifests);
    proxier
}

/// The changes that replace all objects by those of these manifests.
pub(crate) fn changes(manifests: &str) -> Vec<Change> {
    let objects = manifest::read("test", manifests);
    assert_eq!(objects.errors, []);
    objects.into_changes().unwrap()
}

/// Replaces all objects by those of these manifests.
pub(crate) fn replace_objects(proxier: &mut Proxier, manifests: &str) {
    for change in changes(manifests) {
        proxier.change(SourceId(0), change);
    }
}

/// The name of a tool of a variant, such as `iptables-legacy-save` for `iptables-save`.
pub(crate) fn tool(variant: Variant, name: &str) -> String {
    let variant = match variant {
        Variant::Legacy => "legacy",
        Variant::Nft => "nft",
    };
    name.replacen("tables", &format!("tables-{variant}"), 1)
}

/// The tables `nat` and `filter` of both families as the tools save them, without counters, and the lines of chains sorted: the place of a
/// jump is not restored.
pub(crate) fn saved_rules(variant: Variant) -> Vec<(String, String)> {
    let mut saved = Vec::new();
    for program in ["iptables-save", "ip6tables-save"] {
        for table in ["nat", "filter"] {
            let text = tools::must(&tool(variant, program), &["-t", table]);
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let mut lines: Vec<&str> = lines
                .map(|line| line.split(" [").next().unwrap_or(line))
                .collect();
            lines.sort_unstable();
            saved.push((lines.join("\n"), format!("{program} {table}")));
        }
    }
    saved
}

/// Syncs; every step must succeed, and a second process must find nothing to do.
pub(crate) fn sync(proxier: &mut Proxier) -> Synced {
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    proxier.resync();
    let plan = proxier.plan(Instant::now()).unwrap();
    assert!(plan.is_empty(), "{plan}");
    synced
}

/// Runs a test for each variant of the tools, on the node of a new network of pods that all serve [`PORTS`].
pub(crate) fn for_each_variant(pods: u8, test: impl Fn(Variant, &Network)) {
    for variant in [Variant::Legacy, Variant::Nft] {
        eprintln!("{variant}");
        let network = Network::new(pods);
        let mut servers: Vec<Server> = network.serve(Protocol::Tcp, 8080);
        servers.extend(network.serve(Protocol::Udp, 5353));
        let _on_node = on_node_of(&network);
        test(variant, &network);
    }
}
