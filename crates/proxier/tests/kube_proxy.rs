//! Compares the desired state with the kernel state that kube-proxy 1.36.3 wrote: `tests/oracle` has 19 fixtures, see its README.
//!
//! One difference is intended, and the comparison accounts for it: in `KUBE-SERVICES` the jump to `KUBE-NODE-PORT` is the last rule
//! (docs/kube-proxy-parity.md, "node-port numbers").
#![cfg(feature = "kubernetes")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/oracle.rs"]
mod oracle;
mod support;

use std::fs;
use std::path::{Path, PathBuf};

use kernlink_kubernetes::manifest;
use kernlink_proxier::ipvs_mode::Listings;

use crate::oracle::{config, read};
use crate::support::{Desired, build, by_chain, difference, lines, listings};

/// The addresses of the node of the fixtures.
const ADDRESSES: &str =
    "lo=127.0.0.1,lo=::1,eth0=192.0.2.1,eth0=2001:db8::1,eth0=fe80::1,eth1=198.51.100.7,eth1=fe80::2";

fn fixtures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle");
    let entries = fs::read_dir(folder).unwrap();
    let mut fixtures: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    fixtures.sort();
    fixtures
}

fn desired(path: &Path) -> Desired {
    let objects = manifest::read("objects.yaml", &read(&path.join("objects.yaml")));
    assert_eq!(objects.errors, []);
    build(&config(path), ADDRESSES, objects.into_changes().unwrap())
}

/// The rules by chain; with `moved`, the jump to `KUBE-NODE-PORT` is the last rule.
fn rules(text: &str, moved: bool) -> Vec<(String, Vec<String>)> {
    let mut chains = by_chain(text);
    if moved && let Some(services) = chains.get_mut("nat KUBE-SERVICES") {
        services.sort_by_key(|rule| rule.ends_with("-j KUBE-NODE-PORT"));
    }
    // kube-proxy writes these rules in random order.
    if let Some(rules) = chains.get_mut("filter KUBE-IPVS-OUT-FILTER") {
        rules.sort();
    }
    chains.into_iter().collect()
}

fn compare(path: &Path, listings: &Listings) -> String {
    let mut differences = String::new();
    let reference = |file: &str| read(&path.join(file));
    for (file, text) in [
        ("ipvs.txt", &listings.ipvs),
        ("ipset.txt", &listings.ipset),
        ("addresses.txt", &listings.addresses),
        ("jumps.txt", &listings.jumps),
    ] {
        differences += &difference(file, &lines(&reference(file)), &lines(text));
    }
    for (file, text) in [
        ("iptables.txt", &listings.iptables),
        ("ip6tables.txt", &listings.ip6tables),
    ] {
        let expected = rules(&reference(file), true);
        let actual = rules(text, false);
        let names =
            |rules: &[(String, Vec<String>)]| rules.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&expected), names(&actual));
        for ((chain, expected), (_, actual)) in expected.iter().zip(&actual) {
            differences += &difference(&format!("{file} {chain}"), expected, actual);
        }
    }
    // The reference also lists sysctls that kube-proxy does not set.
    for line in lines(&listings.sysctl) {
        if !lines(&reference("sysctl.txt")).contains(&line) {
            differences += &format!("sysctl.txt: extra   {line}\n");
        }
    }
    let reference = reference("timeouts.txt");
    let reference = reference.split_once(": ").map_or("", |(_, numbers)| numbers);
    let numbers = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (expected, actual) = (numbers(reference), numbers(&listings.timeouts));
    // Empty, or three numbers; 0 keeps the kernel's value.
    let same = actual.is_empty()
        || expected.len() == actual.len()
            && expected
                .iter()
                .zip(&actual)
                .all(|(expected, actual)| actual == "0" || expected == actual);
    if !same {
        differences += &format!("timeouts.txt: {reference} and {}\n", listings.timeouts);
    }
    differences
}

#[test]
fn the_desired_state_of_every_fixture_equals_that_of_kube_proxy() {
    let fixtures = fixtures();
    assert_eq!(fixtures.len(), 19);
    let mut differences = String::new();
    for path in fixtures {
        let desired = desired(&path);
        let found = compare(&path, &listings(&desired));
        if !found.is_empty() {
            differences += &format!("{}\n{found}", path.display());
        }
    }
    assert!(differences.is_empty(), "\n{differences}");
}
