//! Which member may depend on which: the arrows of ARCHITECTURE.md, so that a crate stays usable alone.

use anyhow::{Result, bail};

use crate::workspace::Workspace;

/// A library and the members it may name in its manifest, for tests too. Whoever is not listed is a program or a test
/// package: it may name any library, and no library may name it.
const LAYERS: [(&str, &[&str]); 7] = [
    ("kernlink-netlink", &[]),
    ("kernlink-ipvs", &[NETLINK]),
    ("kernlink-ipset", &[NETLINK]),
    ("kernlink-dummylink", &[NETLINK]),
    ("kernlink-conntrack", &[NETLINK]),
    ("kernlink-iptables-restore", &[]),
    ("kernlink-proxier", &KERNEL),
];

const NETLINK: &str = "kernlink-netlink";
/// The kernel crates, and what their connections are made of.
const KERNEL: [&str; 6] = [
    NETLINK,
    "kernlink-ipvs",
    "kernlink-ipset",
    "kernlink-dummylink",
    "kernlink-conntrack",
    "kernlink-iptables-restore",
];

/// Fails with every dependency that points the wrong way.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let packages = workspace.metadata.workspace_packages();
    let members: Vec<_> = packages.iter().map(|package| package.name.as_str()).collect();
    let wrong: Vec<_> = packages
        .iter()
        .flat_map(|package| {
            let named = package
                .dependencies
                .iter()
                .map(|dependency| dependency.name.as_str());
            wrong(package.name.as_str(), &named.collect::<Vec<_>>(), &members)
        })
        .collect();
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("{}", wrong.join("; "))
}

/// What is wrong with the dependencies of one package; those that are no members are nobody's business here.
fn wrong(package: &str, dependencies: &[&str], members: &[&str]) -> Vec<String> {
    let layer = |name: &str| {
        LAYERS
            .iter()
            .find(|(layer, _)| *layer == name)
            .map(|(_, allowed)| *allowed)
    };
    dependencies
        .iter()
        .filter(|name| **name != package && members.contains(name))
        .filter(|name| match layer(package) {
            // What a library below may name is visible through it anyway.
            Some(allowed) => {
                !allowed.contains(name)
                    && !allowed
                        .iter()
                        .filter_map(|below| layer(below))
                        .flatten()
                        .any(|below| below == *name)
            }
            None => layer(name).is_none() && !HELD_BY_PROGRAMS.contains(name),
        })
        .map(|name| format!("{package} must not depend on {name}"))
        .collect()
}

/// Not libraries for users, but what programs and tests of the workspace share.
const HELD_BY_PROGRAMS: [&str; 1] = ["kernlink-kernel-tests"];

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBERS: [&str; 5] = [
        "kernlink-netlink",
        "kernlink-ipvs",
        "kernlink-ipset",
        "kernlink-proxier",
        "kernlink-benches",
    ];

    #[test]
    fn arrows_point_down_only() {
        assert_eq!(
            wrong("kernlink-ipvs", &["kernlink-netlink", "thiserror"], &MEMBERS),
            [""; 0]
        );
        assert_eq!(
            wrong("kernlink-proxier", &["kernlink-ipvs", "kernlink-ipset"], &MEMBERS),
            [""; 0]
        );
        assert_eq!(
            wrong(
                "kernlink-benches",
                &["kernlink-ipvs", "kernlink-proxier"],
                &MEMBERS
            ),
            [""; 0]
        );
        for (package, dependency) in [
            ("kernlink-ipvs", "kernlink-ipset"),
            ("kernlink-netlink", "kernlink-ipvs"),
            ("kernlink-ipset", "kernlink-proxier"),
            ("kernlink-proxier", "kernlink-benches"),
        ] {
            let said = wrong(package, &[dependency], &MEMBERS);
            assert_eq!(said, [format!("{package} must not depend on {dependency}")]);
        }
    }

    #[test]
    fn every_layer_allows_only_layers() {
        for (name, allowed) in LAYERS {
            for below in allowed {
                assert!(
                    LAYERS.iter().any(|(layer, _)| layer == below),
                    "{name} allows {below}"
                );
            }
        }
    }
}
