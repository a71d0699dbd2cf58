//! Scenarios: manifests in, tables out. One file each in `tests/scenarios/desired`, which an operator can read.
//!
//! A file begins with lines `why:` (a sentence) and, where they matter, `node:` (`name=`, `zone=`, `ips=`, `pods=`, `links=`, several
//! values separated by commas). Sections follow, each headed `== NAME`: `config` (a KubeProxyConfiguration without its head),
//! `manifests`, and what must come out: `ipvs`, `entries`, `addresses`, `rules` (what a node without Services does not have),
//! `iptables`, `ip6tables`, `sysctl`, `timeouts`, `events`.
//!
//! `KERNLINK_BLESS=1 cargo test --test desired` writes what comes out into the files; look at the difference before you keep it.
#![cfg(all(feature = "manifest", feature = "kube-proxy-config"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

mod support;

use std::fs;
use std::path::Path;

use kernlink_proxier::config::Config;
use kernlink_proxier::kube_proxy_config;
use kernlink_proxier::source::manifest;
use support::{build, events, lines, listings};

/// A file, taken apart.
struct Scenario {
    /// Everything up to the first section that comes out.
    given: String,
    why: String,
    node: String,
    config: String,
    manifests: String,
    /// Sections that must come out, in the order of the file.
    wanted: Vec<(String, String)>,
}

impl Scenario {
    fn parse(text: &str) -> Self {
        let mut scenario = Scenario {
            given: String::new(),
            why: String::new(),
            node: String::new(),
            config: String::new(),
            manifests: String::new(),
            wanted: Vec::new(),
        };
        let mut section = String::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("== ") {
                section = name.to_owned();
                if !["config", "manifests"].contains(&name) {
                    scenario.wanted.push((name.to_owned(), String::new()));
                }
            } else {
                let of_section = match section.as_str() {
                    "" => {
                        if let Some(why) = line.strip_prefix("why: ") {
                            why.clone_into(&mut scenario.why);
                        } else if let Some(node) = line.strip_prefix("node: ") {
                            node.clone_into(&mut scenario.node);
                        }
                        None
                    }
                    "config" => Some(&mut scenario.config),
                    "manifests" => Some(&mut scenario.manifests),
                    _ => scenario.wanted.last_mut().map(|(_, text)| text),
                };
                if let Some(text) = of_section {
                    *text += &format!("{line}\n");
                }
            }
            if scenario.wanted.is_empty() {
                scenario.given += &format!("{line}\n");
            }
        }
        scenario
    }

    fn node(&self, key: &str) -> Vec<&str> {
        let words = self
            .node
            .split_whitespace()
            .filter_map(|word| word.split_once('='));
        // Links have the sign in their value too.
        let mut values = words.filter(|(name, _)| *name == key).map(|(_, value)| value);
        values.next().map_or_else(Vec::new, |value| {
            value.split(',').filter(|part| !part.is_empty()).collect()
        })
    }

    fn config(&self) -> Config {
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n";
        let quiet = if self.config.contains("conntrack:") {
            ""
        } else {
            QUIET
        };
        let network = if self.config.contains("clusterCIDR:") || self.config.contains("detectLocalMode:") {
            ""
        } else {
            "clusterCIDR: 10.244.0.0/16,fd01::/16\n"
        };
        let text = format!("{head}{quiet}{network}{}", self.config);
        let mut config = kube_proxy_config::read("config", &text).unwrap().config;
        config.node_name = self.node("name").first().copied().unwrap_or("node-a").into();
        config.zone = self.node("zone").first().map(|zone| (*zone).into());
        let or = |given: Vec<&str>, usual: &[&str]| -> Vec<String> {
            if given.is_empty() {
                usual.iter().map(|s| (*s).to_owned()).collect()
            } else {
                given.iter().map(|s| (*s).to_owned()).collect()
            }
        };
        config.node_ips = or(self.node("ips"), &["192.0.2.1", "2001:db8::1"])
            .iter()
            .map(|ip| ip.parse().unwrap())
            .collect();
        config.pod_cidrs = self.node("pods").iter().map(|net| net.parse().unwrap()).collect();
        config
    }

    /// What comes out, section by section.
    fn outcome(&self) -> Vec<(&'static str, String)> {
        let links = self.node("links").join(",");
        let links = if links.is_empty() {
            "lo=127.0.0.1,lo=::1,eth0=192.0.2.1,eth0=2001:db8::1,eth0=fe80::1".to_owned()
        } else {
            links.replace("none", "")
        };
        let objects = manifest::read("manifests", &self.manifests);
        let errors: String = objects.errors.iter().map(|error| format!("{error}\n")).collect();
        let (model, desired) = build(self.config(), &links, objects.into_changes());
        let said: String = events(&model, &desired)
            .iter()
            .map(|event| format!("{event}\n"))
            .collect();
        let listings = listings(&desired);
        let (_, bare) = build(
            Scenario::parse("").config(),
            "eth0=192.0.2.1",
            manifest::read("", "").into_changes(),
        );
        let bare = support::listings(&bare);
        let more = |text: &str, bare: &str| -> String {
            let known = lines(bare);
            let new = lines(text).into_iter().filter(|line| !known.contains(line));
            new.map(|line| format!("{line}\n")).collect()
        };
        let entries = lines(&listings.ipset)
            .into_iter()
            .filter(|line| line.starts_with("add "));
        let mut rules = more(&listings.iptables, &bare.iptables);
        let six = more(&listings.ip6tables, &bare.ip6tables);
        if !six.is_empty() {
            rules += &six
                .lines()
                .map(|line| format!("ip6tables {line}\n"))
                .collect::<String>();
        }
        vec![
            ("ipvs", listings.ipvs),
            ("entries", entries.map(|line| format!("{line}\n")).collect()),
            ("addresses", listings.addresses),
            ("rules", rules),
            ("iptables", listings.iptables),
            ("ip6tables", listings.ip6tables),
            ("jumps", listings.jumps),
            ("sysctl", listings.sysctl),
            ("timeouts", listings.timeouts),
            ("events", errors + &said),
        ]
    }
}

/// Settings of connection tracking are the business of one scenario.
const QUIET: &str =
    "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\n";

/// The sections that a blessed file gets where something is in them.
const USUAL: [&str; 5] = ["ipvs", "entries", "addresses", "rules", "events"];

#[test]
fn scenarios() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/desired");
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut wrong = String::new();
    for path in &files {
        let name = path.file_name().unwrap().to_string_lossy();
        let scenario = Scenario::parse(&fs::read_to_string(path).unwrap());
        assert!(!scenario.why.is_empty(), "{name}: says no why");
        let outcome = scenario.outcome();
        if std::env::var_os("KERNLINK_BLESS").is_some() {
            let mut text = scenario
                .given
                .lines()
                .filter(|line| !scenario.wanted.iter().any(|(n, _)| *line == format!("== {n}")))
                .map(|line| format!("{line}\n"))
                .collect::<String>();
            let asked = |name: &str| scenario.wanted.iter().any(|(known, _)| known == name);
            for (section, content) in &outcome {
                if asked(section) || (USUAL.contains(section) && !content.is_empty()) {
                    text += &format!("== {section}\n{content}");
                }
            }
            fs::write(path, text).unwrap();
            continue;
        }
        for (section, content) in &outcome {
            let wanted = scenario
                .wanted
                .iter()
                .find(|(known, _)| known == section)
                .map(|(_, text)| text.as_str());
            let must_be_empty = USUAL.contains(section) && wanted.is_none();
            if wanted.is_some_and(|wanted| wanted != content) || (must_be_empty && !content.is_empty()) {
                let difference =
                    support::difference(section, &lines(wanted.unwrap_or_default()), &lines(content));
                wrong += &format!("{name}: {}\n{difference}", scenario.why);
            }
        }
    }
    assert!(files.len() > 60, "{} scenarios", files.len());
    assert!(wrong.is_empty(), "\n{wrong}");
}
