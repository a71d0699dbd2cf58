//! Which members of the workspace may depend on which: the arrows in ARCHITECTURE.md.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use cargo_metadata::DependencyKind;

use crate::workspace::Workspace;

/// A library of the workspace.
struct Layer {
    name: &'static str,
    /// The members that it may depend on.
    below: &'static [&'static str],
}

const fn layer(name: &'static str, below: &'static [&'static str]) -> Layer {
    Layer { name, below }
}

/// The libraries. Other members are programs and test packages: they may depend on any library, and no library may depend on
/// them.
const LAYERS: &[Layer] = &[
    layer(BASE, &[]),
    layer(NETLINK, &[BASE]),
    layer("kernlink-ipvs", &[BASE, NETLINK]),
    layer("kernlink-ipset", &[BASE, NETLINK]),
    layer("kernlink-dummylink", &[BASE, NETLINK]),
    layer("kernlink-conntrack", &[BASE, NETLINK]),
    layer("kernlink-nftables", &[BASE, NETLINK]),
    layer("kernlink-iptables-restore", &[BASE]),
    layer(SERVICES, &[BASE]),
    layer(KUBERNETES, &[BASE, SERVICES]),
    // The sync algorithm: no kernel crate.
    layer(ENGINE, &[BASE, SERVICES]),
    // What every data path needs of the host: no iptables.
    layer(
        HOST,
        &[
            BASE,
            SERVICES,
            // For the feature `kubernetes`, which reads the configuration of kube-proxy.
            KUBERNETES,
            NETLINK,
            ENGINE,
            "kernlink-dummylink",
            "kernlink-conntrack",
        ],
    ),
    // What data paths on iptables share.
    layer(
        NETFILTER,
        &[BASE, SERVICES, ENGINE, HOST, "kernlink-iptables-restore"],
    ),
    // The data paths: none depends on another one.
    layer(
        "kernlink-ipvs-mode",
        &[
            ENGINE,
            HOST,
            NETFILTER,
            "kernlink-ipvs",
            "kernlink-ipset",
            "kernlink-dummylink",
            "kernlink-conntrack",
            "kernlink-iptables-restore",
        ],
    ),
    layer(
        "kernlink-iptables-mode",
        &[
            ENGINE,
            HOST,
            NETFILTER,
            // The addresses of the node.
            "kernlink-dummylink",
            // Stale UDP flows.
            "kernlink-conntrack",
            "kernlink-iptables-restore",
        ],
    ),
    layer(
        "kernlink-userspace",
        &[
            ENGINE,
            HOST,
            NETFILTER,
            // The addresses of the node.
            "kernlink-dummylink",
            // Stale UDP flows.
            "kernlink-conntrack",
            "kernlink-iptables-restore",
        ],
    ),
    layer(
        "kernlink-nftables-mode",
        &[
            ENGINE,
            HOST,
            "kernlink-nftables",
            // The addresses of the node.
            "kernlink-dummylink",
            // Stale UDP flows.
            "kernlink-conntrack",
        ],
    ),
    // What embedding programs add: the engine and the modes that they choose.
    layer(
        PROXIER,
        &[
            ENGINE,
            KUBERNETES,
            HOST,
            NETFILTER,
            "kernlink-ipvs-mode",
            "kernlink-iptables-mode",
            "kernlink-nftables-mode",
            "kernlink-userspace",
        ],
    ),
    layer(
        AGENT,
        &[BASE, SERVICES, KUBERNETES, PROXIER, "kernlink-userspace"],
    ),
];

const BASE: &str = "kernlink-base";
const NETLINK: &str = "kernlink-netlink";
const SERVICES: &str = "kernlink-services";
const KUBERNETES: &str = "kernlink-kubernetes";
const ENGINE: &str = "kernlink-engine";
const HOST: &str = "kernlink-host";
const NETFILTER: &str = "kernlink-netfilter";
const PROXIER: &str = "kernlink-proxier";
const AGENT: &str = "kernlink-agent";

/// What the tests of a package may use in addition: those of the agent share the evaluator of packets and the
/// faulty kernel with those of the proxier.
const FOR_TESTS: &[(&str, &str)] = &[
    (AGENT, "kernlink-ipvs"),
    (AGENT, "kernlink-ipset"),
    (AGENT, NETLINK),
];

/// What a build of a package must not compile, also not as a dependency of a dependency, with any of its features.
const NEVER_COMPILED: &[(&str, &[&str])] = &[
    (
        ENGINE,
        &[
            NETLINK,
            "kernlink-ipvs",
            "kernlink-ipset",
            "kernlink-dummylink",
            "kernlink-conntrack",
            "kernlink-iptables-restore",
            "kernlink-nftables",
        ],
    ),
    (
        HOST,
        &[
            "kernlink-ipvs",
            "kernlink-ipset",
            "kernlink-iptables-restore",
            "kernlink-nftables",
        ],
    ),
    (
        "kernlink-iptables-mode",
        &[
            "kernlink-ipvs",
            "kernlink-ipset",
            "kernlink-ipvs-mode",
            "kernlink-nftables-mode",
            "kernlink-userspace",
        ],
    ),
    (
        "kernlink-nftables-mode",
        &[
            "kernlink-ipvs",
            "kernlink-ipset",
            "kernlink-iptables-restore",
            NETFILTER,
            "kernlink-ipvs-mode",
            "kernlink-iptables-mode",
            "kernlink-userspace",
        ],
    ),
    (
        "kernlink-userspace",
        &[
            "kernlink-ipvs",
            "kernlink-ipset",
            "kernlink-ipvs-mode",
            "kernlink-iptables-mode",
            "kernlink-nftables-mode",
        ],
    ),
    (
        "kernlink-ipvs-mode",
        &[
            "kernlink-iptables-mode",
            "kernlink-nftables-mode",
            "kernlink-userspace",
        ],
    ),
];

/// A dependency of one member on another one.
#[derive(Clone, Copy, Debug)]
struct Dependency<'a> {
    name: &'a str,
    is_for_tests: bool,
}

/// Fails with a list of all dependencies that are not allowed.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let packages = workspace.metadata.workspace_packages();
    let members: Vec<_> = packages.iter().map(|package| package.name.as_str()).collect();
    let violations: Vec<_> = packages
        .iter()
        .flat_map(|package| {
            let named = package.dependencies.iter().map(|dependency| Dependency {
                name: dependency.name.as_str(),
                is_for_tests: dependency.kind == DependencyKind::Development,
            });
            violations(package.name.as_str(), &named.collect::<Vec<_>>(), &members)
        })
        .collect();
    let normal = |package: &str| -> Vec<&str> {
        let package = packages
            .iter()
            .find(|candidate| candidate.name.as_str() == package);
        let dependencies = package.into_iter().flat_map(|package| &package.dependencies);
        dependencies
            .filter(|dependency| dependency.kind != DependencyKind::Development)
            .map(|dependency| dependency.name.as_str())
            .collect()
    };
    let compiled = NEVER_COMPILED.iter().flat_map(|(package, never)| {
        let all = closure(package, &normal);
        let found = never.iter().filter(move |name| all.contains(*name));
        found.map(move |name| format!("a build of {package} must not compile {name}"))
    });
    let violations: Vec<_> = violations.into_iter().chain(compiled).collect();
    if violations.is_empty() {
        return Ok(());
    }
    bail!("{}", violations.join("; "))
}

/// The dependencies of a package, and theirs.
fn closure<'a>(package: &str, dependencies: &dyn Fn(&str) -> Vec<&'a str>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut new = dependencies(package);
    while let Some(name) = new.pop() {
        if found.insert(name) {
            new.extend(dependencies(name));
        }
    }
    found
}

/// The dependencies of one package that are not allowed. Dependencies on other packages than members are ignored.
fn violations(package: &str, dependencies: &[Dependency<'_>], members: &[&str]) -> Vec<String> {
    let find = |name: &str| LAYERS.iter().find(|layer| layer.name == name);
    dependencies
        .iter()
        .filter(|dependency| dependency.name != package && members.contains(&dependency.name))
        .filter(|dependency| !dependency.is_for_tests || !FOR_TESTS.contains(&(package, dependency.name)))
        .filter(|dependency| match find(package) {
            Some(layer) => {
                // Dependencies of an allowed dependency are allowed too: its API may contain their types.
                let below = layer.below.iter().filter_map(|below| find(below));
                !layer
                    .below
                    .iter()
                    .chain(below.flat_map(|layer| layer.below))
                    .any(|allowed| *allowed == dependency.name)
            }
            None => find(dependency.name).is_none() && !SHARED_BY_PROGRAMS.contains(&dependency.name),
        })
        .map(|dependency| {
            let tests = if dependency.is_for_tests {
                ", not even for its tests"
            } else {
                ""
            };
            format!("{package} must not depend on {}{tests}", dependency.name)
        })
        .collect()
}

/// Unpublished libraries that programs and tests of the workspace share.
const SHARED_BY_PROGRAMS: [&str; 1] = ["kernlink-kernel-tests"];

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBERS: &[&str] = &[
        "kernlink-netlink",
        "kernlink-ipvs",
        "kernlink-ipset",
        "kernlink-dummylink",
        "kernlink-conntrack",
        "kernlink-nftables",
        "kernlink-iptables-restore",
        "kernlink-services",
        "kernlink-kubernetes",
        "kernlink-engine",
        "kernlink-host",
        "kernlink-netfilter",
        "kernlink-ipvs-mode",
        "kernlink-iptables-mode",
        "kernlink-nftables-mode",
        "kernlink-userspace",
        "kernlink-proxier",
        "kernlink-agent",
        "kernlink-examples",
        "kernlink-benches",
        "kernlink-kernel-tests",
    ];
    const KERNEL: &[&str] = &[
        "kernlink-netlink",
        "kernlink-ipvs",
        "kernlink-ipset",
        "kernlink-dummylink",
        "kernlink-conntrack",
        "kernlink-nftables",
        "kernlink-iptables-restore",
    ];

    /// Whether a dependency is a violation: as a normal one, and as one of the tests.
    fn violates(package: &str, name: &str) -> [bool; 2] {
        [false, true].map(|is_for_tests| {
            let found = violations(package, &[Dependency { name, is_for_tests }], MEMBERS);
            let text = format!("{package} must not depend on {name}");
            assert!(found.iter().all(|line| line.starts_with(&text)), "{found:?}");
            !found.is_empty()
        })
    }

    #[test]
    fn dependencies_on_lower_layers_are_allowed() {
        for (package, dependency) in [
            ("kernlink-ipvs", "kernlink-netlink"),
            ("kernlink-ipvs", "thiserror"),
            ("kernlink-kubernetes", "kernlink-services"),
            ("kernlink-engine", "kernlink-services"),
            ("kernlink-host", "kernlink-conntrack"),
            ("kernlink-netfilter", "kernlink-engine"),
            ("kernlink-netfilter", "kernlink-host"),
            ("kernlink-ipvs-mode", "kernlink-netfilter"),
            ("kernlink-ipvs-mode", "kernlink-ipvs"),
            ("kernlink-iptables-mode", "kernlink-kubernetes"),
            ("kernlink-nftables-mode", "kernlink-nftables"),
            ("kernlink-userspace", "kernlink-engine"),
            ("kernlink-userspace", "kernlink-iptables-restore"),
            ("kernlink-proxier", "kernlink-ipvs-mode"),
            ("kernlink-proxier", "kernlink-kubernetes"),
            ("kernlink-agent", "kernlink-proxier"),
            ("kernlink-agent", "kernlink-userspace"),
            ("kernlink-examples", "kernlink-agent"),
            ("kernlink-benches", "kernlink-proxier"),
            ("kernlink-benches", "kernlink-kernel-tests"),
        ] {
            assert_eq!(
                violates(package, dependency),
                [false; 2],
                "{package} {dependency}"
            );
        }
    }

    #[test]
    fn dependencies_on_other_layers_are_violations() {
        for (package, dependency) in [
            ("kernlink-ipvs", "kernlink-ipset"),
            ("kernlink-netlink", "kernlink-ipvs"),
            ("kernlink-ipset", "kernlink-proxier"),
            ("kernlink-services", "kernlink-kubernetes"),
            ("kernlink-services", "kernlink-proxier"),
            ("kernlink-kubernetes", "kernlink-proxier"),
            ("kernlink-engine", "kernlink-netlink"),
            ("kernlink-engine", "kernlink-netfilter"),
            ("kernlink-engine", "kernlink-host"),
            ("kernlink-host", "kernlink-iptables-restore"),
            ("kernlink-host", "kernlink-netfilter"),
            ("kernlink-netfilter", "kernlink-ipvs"),
            ("kernlink-ipvs-mode", "kernlink-iptables-mode"),
            ("kernlink-iptables-mode", "kernlink-ipvs-mode"),
            ("kernlink-iptables-mode", "kernlink-ipset"),
            ("kernlink-nftables-mode", "kernlink-iptables-restore"),
            ("kernlink-nftables-mode", "kernlink-iptables-mode"),
            ("kernlink-userspace", "kernlink-iptables-mode"),
            ("kernlink-userspace", "kernlink-proxier"),
            ("kernlink-userspace", "kernlink-agent"),
            ("kernlink-proxier", "kernlink-agent"),
            ("kernlink-agent", "kernlink-examples"),
            ("kernlink-proxier", "kernlink-benches"),
            ("kernlink-proxier", "kernlink-kernel-tests"),
        ] {
            assert_eq!(violates(package, dependency), [true; 2], "{package} {dependency}");
        }
    }

    #[test]
    fn dependencies_of_dependencies_are_found() {
        let dependencies = |name: &str| match name {
            "a" => vec!["b", "c"],
            "b" => vec!["d"],
            "d" => vec!["b"],
            _ => Vec::new(),
        };
        assert_eq!(closure("a", &dependencies), BTreeSet::from(["b", "c", "d"]));
        assert_eq!(closure("c", &dependencies), BTreeSet::new());
    }

    #[test]
    fn services_kubernetes_and_the_engine_must_not_depend_on_kernel_crates() {
        for package in ["kernlink-services", "kernlink-kubernetes", "kernlink-engine"] {
            for dependency in KERNEL {
                assert_eq!(violates(package, dependency), [true; 2], "{package} {dependency}");
            }
        }
    }

    #[test]
    fn layers_allow_only_dependencies_on_layers() {
        for layer in LAYERS {
            for below in layer.below {
                assert!(
                    LAYERS.iter().any(|layer| layer.name == *below),
                    "{} allows {below}",
                    layer.name
                );
            }
        }
    }
}
