//! The files of `tests/scenarios/desired`: manifests in, tables out. `tests/scenarios/README.md` describes their format.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use kernlink_kubernetes::{kube_proxy_config, manifest};
use kernlink_proxier::ipvs_mode::{Config, KernelRelease, Listings};
use kernlink_services::{Change, InterfaceAddress, ObjectChange, ObjectName};

use crate::support::Desired;

/// A parsed file.
#[derive(Default)]
pub(crate) struct Scenario {
    /// The name of the file, without its ending.
    pub(crate) name: String,
    /// The reason for the expected result.
    pub(crate) why: String,
    node: String,
    config: String,
    /// The stages, in order; the first one delivers the initial objects.
    pub(crate) stages: Vec<Stage>,
}

/// The input of a stage, and the expected result.
#[derive(Default)]
pub(crate) struct Stage {
    /// All lines before the first expected section, as in the file.
    pub(crate) given: String,
    links: Option<String>,
    /// The virtual servers in the kernel before the first sync, as `ipvsadm -S -n` prints it.
    pub(crate) present: String,
    manifests: String,
    gone: String,
    /// The expected sections, in the order of the file.
    pub(crate) expected: Vec<(String, String)>,
}

/// The sections that are input; all others are expected.
const GIVEN: [&str; 5] = ["config", "manifests", "links", "present", "gone"];

/// The heading that separates stages; a description of the change follows it.
const THEN: &str = "then: ";

impl Scenario {
    /// All files of a folder, by name.
    pub(crate) fn all(folder: &Path) -> Vec<Self> {
        let mut scenarios: Vec<Self> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_stem().unwrap().to_string_lossy();
                Self::parse(&name, &fs::read_to_string(&path).unwrap())
            })
            .collect();
        scenarios.sort_by(|one, other| one.name.cmp(&other.name));
        scenarios
    }

    pub(crate) fn parse(name: &str, text: &str) -> Self {
        let mut scenario = Scenario {
            name: name.to_owned(),
            ..Scenario::default()
        };
        let mut stage = Stage::default();
        let mut section = String::new();
        for line in text.lines() {
            if let Some(heading) = line.strip_prefix("== ") {
                if heading.starts_with(THEN) {
                    scenario.stages.push(std::mem::take(&mut stage));
                } else if !GIVEN.contains(&heading) {
                    stage.expected.push((heading.to_owned(), String::new()));
                }
                heading.clone_into(&mut section);
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
                    "manifests" => Some(&mut stage.manifests),
                    "links" => Some(stage.links.get_or_insert_default()),
                    "present" => Some(&mut stage.present),
                    "gone" => Some(&mut stage.gone),
                    heading if heading.starts_with(THEN) => None,
                    _ => stage.expected.last_mut().map(|(_, text)| text),
                };
                if let Some(text) = of_section {
                    *text += &format!("{line}\n");
                }
            }
            if stage.expected.is_empty() {
                stage.given += &format!("{line}\n");
            }
        }
        scenario.stages.push(stage);
        scenario
    }

    fn node(&self, key: &str) -> Vec<&str> {
        // The value of `links` contains `=` too.
        let mut words = self
            .node
            .split_whitespace()
            .filter_map(|word| word.split_once('='));
        words
            .find(|(name, _)| *name == key)
            .map_or_else(Vec::new, |(_, value)| {
                value.split(',').filter(|part| !part.is_empty()).collect()
            })
    }

    /// kube-proxy's defaults for `node-a`, changed by the file. The sysctls of connection tracking are not set unless the file sets them.
    pub(crate) fn config(&self) -> Config {
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n";
        let quiet =
            "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\n";
        let network = "clusterCIDR: 10.244.0.0/16,fd01::/16\n";
        let unless = |words: &[&str], text: &'static str| {
            let is_given = words.iter().any(|word| self.config.contains(word));
            if is_given { "" } else { text }
        };
        let text = format!(
            "{head}{}{}{}",
            unless(&["conntrack:"], quiet),
            unless(&["clusterCIDR:", "detectLocalMode:"], network),
            self.config
        );
        let file = kube_proxy_config::read("config", &text).unwrap();
        let mut config = Config::from_kube_proxy(&file).unwrap();
        config.services.node_name = "node-a".into();
        config.services.zone = self.node("zone").first().map(|zone| (*zone).into());
        let parse =
            |texts: Vec<&str>| -> Vec<IpAddr> { texts.iter().map(|ip| ip.parse().unwrap()).collect() };
        config.services.node_ips = match self.node("ips").as_slice() {
            [] => parse(vec!["192.0.2.1", "2001:db8::1"]),
            // Those of the Node object.
            ["node"] => Vec::new(),
            ips => parse(ips.to_vec()),
        };
        config.services.pod_cidrs = self.node("pods").iter().map(|net| net.parse().unwrap()).collect();
        config.random_fully = self.node("random-fully") != ["no"];
        config
    }

    /// The kernel release that the sysctls depend on. Default: that on which the fixtures of kube-proxy were recorded.
    pub(crate) fn kernel(&self) -> KernelRelease {
        self.node("kernel")
            .first()
            .map_or(KernelRelease::new(6, 1), |version| version.parse().unwrap())
    }

    /// Whether the file is about another kernel release or another number of processors than the host's, or about existing virtual servers.
    pub(crate) fn is_of_another_host(&self) -> bool {
        !self.node("kernel").is_empty()
            || !self.node("processors").is_empty()
            || self.stages.iter().any(|stage| !stage.present.is_empty())
    }

    /// The number of processors. Default: 1.
    pub(crate) fn processors(&self) -> u32 {
        self.node("processors")
            .first()
            .map_or(1, |number| number.parse().unwrap())
    }

    /// The addresses of the links of the node from this stage on; `None` if they do not change.
    pub(crate) fn links(&self, stage: usize) -> Option<Vec<(String, IpAddr)>> {
        let text = match &self.stages[stage].links {
            Some(links) => links.trim().to_owned(),
            None if stage > 0 => return None,
            None => match self.node("links").join(",") {
                none if none.is_empty() => {
                    "lo=127.0.0.1,lo=::1,eth0=192.0.2.1,eth0=2001:db8::1,eth0=fe80::1".to_owned()
                }
                links => links,
            },
        };
        let link = |part: &str| {
            let (name, address) = part.split_once('=').unwrap();
            (name.to_owned(), address.parse().unwrap())
        };
        Some(
            text.split(',')
                .filter(|part| !part.is_empty())
                .map(link)
                .collect(),
        )
    }

    /// The changes of a stage, and the errors of its manifests.
    pub(crate) fn changes(&self, stage: usize) -> (Vec<Change>, String) {
        let objects = manifest::read("manifests", &self.stages[stage].manifests);
        let errors = objects.errors.iter().map(|error| format!("{error}\n")).collect();
        if stage == 0 {
            return (objects.into_changes_without_missing(), errors);
        }
        let mut changes: Vec<Change> = Vec::new();
        for line in self.stages[stage].gone.lines() {
            let (kind, name) = line.split_once(' ').unwrap();
            let (namespace, name) = name.split_once('/').unwrap_or(("", name));
            let name = ObjectName::new(namespace, name);
            changes.push(match kind {
                "Service" => Change::Services(ObjectChange::Delete(name)),
                "EndpointSlice" => Change::EndpointSlices(ObjectChange::Delete(name)),
                "Node" => Change::Nodes(ObjectChange::Delete(name)),
                other => panic!("{}: {other} is not a kind", self.name),
            });
        }
        let upserts = |object| Change::Services(ObjectChange::Upsert(object));
        changes.extend(objects.services.into_iter().map(upserts));
        let upserts = |object| Change::EndpointSlices(ObjectChange::Upsert(object));
        changes.extend(objects.endpoint_slices.into_iter().map(upserts));
        let upserts = |object| Change::Nodes(ObjectChange::Upsert(object));
        changes.extend(objects.nodes.into_iter().map(upserts));
        (changes, errors)
    }
}

impl Scenario {
    /// Applies the stages in order. Calls `each` after every stage with its number, the desired state and the errors of its manifests.
    pub(crate) fn run(&self, config: &Config, mut each: impl FnMut(usize, &Desired, String)) {
        let mut desired = Desired::new(config);
        for stage in 0..self.stages.len() {
            if let Some(links) = self.links(stage) {
                let links = links
                    .into_iter()
                    .map(|(link, ip)| InterfaceAddress::new(link, ip));
                desired.set_interface_addresses(links.collect());
            }
            let (changes, errors) = self.changes(stage);
            for change in changes {
                desired.change(0, change);
            }
            assert!(desired.services.has_synced());
            desired.update();
            each(stage, &desired, errors);
        }
    }
}

impl Stage {
    /// The expected content of a section, if the file has it.
    pub(crate) fn expected(&self, section: &str) -> Option<&str> {
        let mut sections = self.expected.iter();
        sections
            .find(|(known, _)| known == section)
            .map(|(_, text)| text.as_str())
    }
}

/// The listings as sections of a file. `bare` are the listings of a node without Services.
pub(crate) fn sections(listings: &Listings, bare: &Listings) -> Vec<(&'static str, String)> {
    let more = |text: &str, bare: &str, program: &str| -> String {
        let new = text
            .lines()
            .filter(|line| !bare.lines().any(|known| known == *line));
        new.map(|line| format!("{program}{line}\n")).collect()
    };
    let beginning = |word: &str| -> String {
        let lines = listings.ipset.lines().filter(|line| line.starts_with(word));
        lines.map(|line| format!("{line}\n")).collect()
    };
    let rules = more(&listings.iptables, &bare.iptables, "")
        + &more(&listings.ip6tables, &bare.ip6tables, "ip6tables ");
    vec![
        ("ipvs", listings.ipvs.clone()),
        ("sets", beginning("create ")),
        ("entries", beginning("add ")),
        ("addresses", listings.addresses.clone()),
        ("rules", rules),
        ("iptables", listings.iptables.clone()),
        ("ip6tables", listings.ip6tables.clone()),
        ("jumps", listings.jumps.clone()),
        ("sysctl", listings.sysctl.clone()),
        ("timeouts", listings.timeouts.clone()),
    ]
}
