//! Whether the kernel has what the example `desired_state` prints for the objects that the API server has.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kernlink_kernel_tests::listings::{
    SAVE, State, addresses, load_rules, load_sets, rules, sorted, state, without_accounting, without_sizes,
};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{programs, wait};
use kernlink_nftables::{Client, Commands, Nftables, SetFlags, TableFlags};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::mode::{Mode, TABLES};
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
        Mode::Nftables => return nftables_tables(),
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

/// The tables of nftables mode in the calling thread's namespace, as [`commands`]. Which process owns them, and which of the two names they have, is
/// not compared, nor are clients with session affinity, which rules add.
pub(crate) fn nftables_tables() -> State {
    let mut client = Client::open().unwrap();
    // Changes interrupt a listing.
    let mut ruleset = wait::until(|| client.ruleset());
    ruleset
        .tables
        .retain(|contents| TABLES.contains(&&*contents.table.key.name));
    for contents in &mut ruleset.tables {
        contents.table.flags = TableFlags::empty();
        contents.sets.iter_mut().for_each(|set| {
            if set.set.flags.contains(SetFlags::EVAL) {
                set.elements.clear();
            }
        });
    }
    let text = Commands::new(&ruleset.operations())
        .with_sets(
            ruleset
                .tables
                .iter()
                .flat_map(|contents| &contents.sets)
                .map(|set| set.set.clone()),
        )
        .to_string();
    commands(&text.replace(&format!(" {} ", TABLES[1]), &format!(" {} ", TABLES[0])))
}

/// Commands that make tables: the elements of each map and set, the rules of each chain in order, and all other ones of each table.
fn commands(text: &str) -> State {
    let mut state = State::new();
    let mut add = |section: String, line: &str| state.entry(section).or_default().push(line.to_owned());
    for line in text.lines() {
        let (command, rest) = line.split_once(" { ").unwrap_or((line, ""));
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["add", "element", family, table, set] => {
                let elements = rest.strip_suffix(" }").unwrap().split(", ");
                elements.for_each(|element| add(format!("{family} {table} {set}"), element));
            }
            ["add", "rule", family, table, chain, ..] => {
                add(format!("rules of {family} {table} {chain}"), line)
            }
            ["add", _, family, table, ..] => add(format!("{family} {table}"), line),
            _ => panic!("{line}"),
        }
    }
    for (section, lines) in &mut state {
        if !section.starts_with("rules of ") {
            lines.sort();
            // Two Services with the same endpoint have one element for it, and each adds it.
            lines.dedup();
        }
    }
    state
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

/// The lines in which two states differ; empty if they are equal.
pub(crate) fn difference(actual: &State, desired: &State) -> String {
    let mut text = String::new();
    for (what, one, other) in [("missing", desired, actual), ("extra", actual, desired)] {
        for (section, lines) in one {
            match other.get(section) {
                None => text += &format!("{what}: {section}: {lines:?}\n"),
                Some(others) if others != lines => {
                    let others: BTreeSet<&String> = others.iter().collect();
                    let mut differ = lines.iter().filter(|line| !others.contains(line)).peekable();
                    if differ.peek().is_none() {
                        text += &format!("{section}: other order or number: {lines:?}\n");
                    }
                    differ.for_each(|line| text += &format!("{what}: {section}: {line}\n"));
                }
                Some(_) => {}
            }
        }
    }
    text
}
