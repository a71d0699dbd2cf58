//! Whether the kernel has what the example `desired_state` prints for the objects that the API server has.

use std::fs;
use std::path::Path;

use kernlink_kernel_tests::listings::{
    SAVE, State, addresses, load_rules, load_sets, rules, sorted, state, without_accounting, without_sizes,
};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::programs;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::mode::Mode;
use crate::nftables_tables::{commands, tables};
use crate::support::text;

/// The objects that a data path is made of, each with its file.
const OBJECTS: [(&str, &str); 3] = [
    ("services.json", "/api/v1/services"),
    ("endpointslices.json", "/apis/discovery.k8s.io/v1/endpointslices"),
    ("nodes.json", "/api/v1/nodes"),
];
/// The chains in which the order of rules matters. Rules of shared chains are sorted: they are for different Services.
const ORDERED: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-"];
const ADDRESSES: &str = "addresses of kube-ipvs0";

/// The desired state of this node for the present objects, as the standard tools list it.
pub(crate) fn desired(cluster: &Cluster, mode: Mode) -> State {
    let folder = cluster.folder().join("desired");
    fs::create_dir_all(&folder).unwrap();
    let files = OBJECTS.map(|(file, path)| {
        let file = folder.join(file);
        fs::write(&file, cluster.get(path)).unwrap();
        file
    });
    let service_cidrs = service_cidrs(cluster);
    let output = programs::example("desired_state")
        .args(["--service-cidrs", &service_cidrs])
        .args(["--mode", mode.name()])
        .args(["--node-name", "node-a", "--node-addresses", &node_addresses()])
        .arg("--output-dir")
        .arg(&folder)
        .args(files)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    listed(&folder, mode)
}

/// The networks of the ServiceCIDRs, separated by commas.
fn service_cidrs(cluster: &Cluster) -> String {
    let list = cluster.get("/apis/networking.k8s.io/v1/servicecidrs");
    let list: Value = serde_json::from_str(&list).unwrap();
    let objects = list["items"].as_array().unwrap().iter();
    let networks = objects.flat_map(|object| object["spec"]["cidrs"].as_array().unwrap());
    let networks: Vec<&str> = networks.map(|net| net.as_str().unwrap()).collect();
    networks.join(",")
}

/// The addresses on the interfaces of the calling thread's namespace, without those that kernlink adds.
fn node_addresses() -> String {
    let mut all = Vec::new();
    for (section, of_link) in addresses() {
        if section != ADDRESSES {
            let link = section.trim_start_matches("addresses of ");
            let plain = of_link.iter().filter_map(|address| address.split('/').next());
            all.extend(plain.map(|address| format!("{link}={address}")));
        }
    }
    all.join(",")
}

/// The listings in a folder in the form of the tools: those of rules are loaded into another namespace and read from it.
fn listed(folder: &Path, mode: Mode) -> State {
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let is_ipvs = match mode {
        Mode::Nftables => return commands(&(read("nftables-ipv4.txt") + &read("nftables-ipv6.txt"))),
        Mode::Iptables => false,
        Mode::Ipvs => true,
    };
    let sets = if is_ipvs {
        read("ipset.txt") + &read("ledger.txt")
    } else {
        String::new()
    };
    let mut state = NetNs::new().run(|| {
        if is_ipvs {
            load_sets(&sets);
        }
        let [rules_v4, rules_v6] =
            ["iptables.txt", "ip6tables.txt"].map(|name| without_accounting(&read(name)));
        load_rules(&rules_v4, &rules_v6, &read("jumps.txt"));
        rules(SAVE)
    });
    if is_ipvs {
        state.insert("ipvs".to_owned(), sorted(&read("ipvs.txt")));
        state.insert("ipset".to_owned(), without_sizes(&sets));
        state.insert(ADDRESSES.to_owned(), sorted(&read("addresses.txt")));
    }
    without_order(state)
}

/// The state of the kernel in the calling thread's namespace, without real servers that drain and without the canaries of kube-proxy: empty
/// chains by which it notices that a table was flushed, and which only cleanup removes.
pub(crate) fn actual(mode: Mode) -> State {
    match mode {
        Mode::Nftables => return tables(),
        Mode::Iptables => {
            let mut state = rules(SAVE);
            state.retain(|section, lines| !lines.is_empty() || !section.ends_with(" KUBE-PROXY-CANARY"));
            return without_order(state);
        }
        Mode::Ipvs => {}
    }
    let mut state = state();
    state.retain(|section, _| !section.starts_with("addresses of ") || section == ADDRESSES);
    let servers = state.get_mut("ipvs").unwrap();
    servers.retain(|line| !line.ends_with(" -w 0"));
    without_order(state)
}

/// Sorts the rules of chains that Services share, and those of built-in chains.
fn without_order(mut state: State) -> State {
    for (section, lines) in &mut state {
        *lines = without_accounting(&lines.join("\n"))
            .lines()
            .map(str::to_owned)
            .collect();
        let chain = section.split(' ').next_back().unwrap_or_default();
        if !ORDERED.iter().any(|prefix| chain.starts_with(prefix)) {
            lines.sort();
        }
    }
    state
}
