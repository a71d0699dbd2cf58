//! The desired state beside what kube-proxy 1.36.3 itself wrote: `tests/oracle` has 19 worlds, see its README.
//!
//! One difference is meant, and the comparison names it: in `KUBE-SERVICES` the jump to `KUBE-NODE-PORT` is the last rule
//! (docs/kube-proxy-parity.md, "node-port numbers").
#![cfg(feature = "kubernetes")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

#[path = "support/oracle.rs"]
mod oracle;
mod support;

use std::fs;
use std::path::{Path, PathBuf};

use kernlink_kubernetes::manifest;
use kernlink_proxier::ipvs_mode::Listings;
use oracle::{config, read};
use support::{Desired, build, by_chain, difference, lines, listings};

/// What the worlds' node had on its links.
const ADDRESSES: &str =
    "lo=127.0.0.1,lo=::1,eth0=192.0.2.1,eth0=2001:db8::1,eth0=fe80::1,eth1=198.51.100.7,eth1=fe80::2";

fn worlds() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle");
    let entries = fs::read_dir(folder).unwrap();
    let mut worlds: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    worlds.sort();
    worlds
}

fn world(path: &Path) -> Desired {
    let objects = manifest::read("objects.yaml", &read(&path.join("objects.yaml")));
    assert_eq!(objects.errors, []);
    build(&config(path), ADDRESSES, objects.into_changes().unwrap())
}

/// The rules by chain, kube-proxy's with the jump to the node ports where we have it.
fn rules(text: &str, moved: bool) -> Vec<(String, Vec<String>)> {
    let mut chains = by_chain(text);
    if moved && let Some(services) = chains.get_mut("nat KUBE-SERVICES") {
        services.sort_by_key(|rule| rule.ends_with("-j KUBE-NODE-PORT"));
    }
    // The order among virtual servers is chance there.
    if let Some(rules) = chains.get_mut("filter KUBE-IPVS-OUT-FILTER") {
        rules.sort();
    }
    chains.into_iter().collect()
}

fn compare(path: &Path, ours: &Listings) -> String {
    let mut differences = String::new();
    let theirs = |file: &str| read(&path.join(file));
    for (file, text) in [
        ("ipvs.txt", &ours.ipvs),
        ("ipset.txt", &ours.ipset),
        ("addresses.txt", &ours.addresses),
        ("jumps.txt", &ours.jumps),
    ] {
        differences += &difference(file, &lines(&theirs(file)), &lines(text));
    }
    for (file, text) in [
        ("iptables.txt", &ours.iptables),
        ("ip6tables.txt", &ours.ip6tables),
    ] {
        let want = rules(&theirs(file), true);
        let have = rules(text, false);
        let names =
            |rules: &[(String, Vec<String>)]| rules.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&want), names(&have));
        for ((chain, want), (_, have)) in want.iter().zip(&have) {
            differences += &difference(&format!("{file} {chain}"), want, have);
        }
    }
    // kube-proxy's listing has settings too that it left alone.
    for line in lines(&ours.sysctl) {
        if !lines(&theirs("sysctl.txt")).contains(&line) {
            differences += &format!("sysctl.txt: extra   {line}\n");
        }
    }
    let theirs = theirs("timeouts.txt");
    let theirs = theirs.split_once(": ").map_or("", |(_, numbers)| numbers);
    let numbers = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (want, have) = (numbers(theirs), numbers(&ours.timeouts));
    // None, or three of which a 0 leaves what the kernel has.
    let same = have.is_empty()
        || want.len() == have.len()
            && want
                .iter()
                .zip(&have)
                .all(|(want, have)| have == "0" || want == have);
    if !same {
        differences += &format!("timeouts.txt: {theirs} and {}\n", ours.timeouts);
    }
    differences
}

#[test]
fn all_worlds_of_kube_proxy_are_the_same_here() {
    let worlds = worlds();
    assert_eq!(worlds.len(), 19);
    let mut differences = String::new();
    for path in worlds {
        let desired = world(&path);
        let found = compare(&path, &listings(&desired));
        if !found.is_empty() {
            differences += &format!("{}\n{found}", path.display());
        }
    }
    assert!(differences.is_empty(), "\n{differences}");
}
