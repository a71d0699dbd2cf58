//! The networks: this process is in the network namespace of the router, with a bridge to the nodes. Each node has a namespace, and so has the
//! place where the tests run.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use super::addresses::{LENGTHS, Node, OUTSIDE, OUTSIDE_LENGTHS, OUTSIDE_ROUTER, ROUTER};
use crate::workspace::succeed;

/// The namespace where the tests run.
pub(super) const OUTSIDE_NAME: &str = "outside";
/// The bridge of the nodes.
pub(super) const BRIDGE: &str = "br0";
/// Where `ip` keeps the names of namespaces.
const NAMES: &str = "/run/netns";

/// The file of a named namespace.
pub(super) fn file(name: &str) -> String {
    format!("{NAMES}/{name}")
}

/// Creates the namespaces and connects them.
pub(super) fn create(nodes: usize) -> Result<()> {
    // Names of this mount namespace only: they end with this process.
    fs::create_dir_all(NAMES).with_context(|| format!("creating {NAMES}"))?;
    succeed(Command::new("mount").args(["-t", "tmpfs", "tmpfs", NAMES]))?;
    for (sysctl, value) in [
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        // Load balancers choose a node for each connection.
        ("net/ipv4/fib_multipath_hash_policy", "1"),
        ("net/ipv6/fib_multipath_hash_policy", "1"),
    ] {
        let path = Path::new("/proc/sys").join(sysctl);
        fs::write(&path, value).with_context(|| format!("writing {}", path.display()))?;
    }
    // What passes the router's bridge is not for its rules. Without the module br_netfilter there is no such sysctl.
    for sysctl in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
        let path = Path::new("/proc/sys/net/bridge").join(sysctl);
        if path.exists() {
            fs::write(&path, "0").with_context(|| format!("writing {}", path.display()))?;
        }
    }
    let all = Node::all(nodes);
    ip(None, &router(all.clone()))?;
    for node in all.clone() {
        forward(&node.name())?;
        ip(Some(&node.name()), &of_node(node, all.clone()))?;
    }
    ip(Some(OUTSIDE_NAME), &of_outside())
}

/// Lets a node forward packets of its pods.
fn forward(namespace: &str) -> Result<()> {
    let script = "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding";
    succeed(
        Command::new("nsenter")
            .arg(format!("--net={}", file(namespace)))
            .args(["sh", "-e", "-c", script]),
    )
}

/// Runs commands of `ip`, one a line.
fn ip(namespace: Option<&str>, lines: &str) -> Result<()> {
    let mut command = Command::new("ip");
    if let Some(namespace) = namespace {
        command.args(["-n", namespace]);
    }
    let mut child = command
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .context("starting ip")?;
    let mut input = child.stdin.take().context("the input of ip")?;
    input.write_all(lines.as_bytes()).context("writing to ip")?;
    drop(input);
    let status = child.wait()?;
    ensure!(status.success(), "ip -batch: {status}");
    Ok(())
}

/// Joins the lines of commands.
fn lines(lines: impl IntoIterator<Item = String>) -> String {
    lines.into_iter().fold(String::new(), |mut text, line| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{line}");
        text
    })
}

fn router(nodes: impl Iterator<Item = Node>) -> String {
    let [v4, v6] = ROUTER;
    let [length4, length6] = LENGTHS;
    let mut commands = vec![
        "link set lo up".to_owned(),
        format!("link add {BRIDGE} type bridge"),
        format!("link set {BRIDGE} up"),
        format!("addr add {v4}/{length4} dev {BRIDGE}"),
        format!("addr add {v6}/{length6} dev {BRIDGE} nodad"),
    ];
    for node in nodes {
        let name = node.name();
        commands.extend([
            format!("netns add {name}"),
            format!("link add {name} type veth peer name eth0 netns {name}"),
            format!("link set {name} master {BRIDGE} up"),
        ]);
        commands.extend(to_pods(node));
    }
    let [v4, v6] = OUTSIDE_ROUTER;
    let [length4, length6] = OUTSIDE_LENGTHS;
    commands.extend([
        format!("netns add {OUTSIDE_NAME}"),
        format!("link add {OUTSIDE_NAME} type veth peer name eth0 netns {OUTSIDE_NAME}"),
        format!("link set {OUTSIDE_NAME} up"),
        format!("addr add {v4}/{length4} dev {OUTSIDE_NAME}"),
        format!("addr add {v6}/{length6} dev {OUTSIDE_NAME} nodad"),
    ]);
    lines(commands)
}

fn of_node(node: Node, nodes: impl Iterator<Item = Node>) -> String {
    let own = interface(node.addresses(), LENGTHS, ROUTER);
    let others = nodes.filter(|other| *other != node).flat_map(to_pods);
    lines(own.into_iter().chain(others))
}

fn of_outside() -> String {
    lines(interface(
        OUTSIDE.map(str::to_owned),
        OUTSIDE_LENGTHS,
        OUTSIDE_ROUTER,
    ))
}

/// An interface with an address and a default route of each family.
fn interface([v4, v6]: [String; 2], [length4, length6]: [u8; 2], [via4, via6]: [&str; 2]) -> Vec<String> {
    vec![
        "link set lo up".to_owned(),
        "link set eth0 up".to_owned(),
        format!("addr add {v4}/{length4} dev eth0"),
        format!("addr add {v6}/{length6} dev eth0 nodad"),
        format!("route add default via {via4}"),
        format!("route add ::/0 via {via6}"),
    ]
}

/// The routes to the pods of a node.
fn to_pods(node: Node) -> [String; 2] {
    let ([pods4, pods6], [via4, via6]) = (node.pods(), node.addresses());
    [
        format!("route add {pods4} via {via4}"),
        format!("route add {pods6} via {via6}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_routes_to_the_pods_of_the_others() {
        let text = of_node(Node(2), Node::all(3));
        let routes: Vec<_> = text.lines().filter(|line| line.contains("10.244")).collect();
        assert_eq!(
            routes,
            [
                "route add 10.244.1.0/24 via 172.30.0.11",
                "route add 10.244.3.0/24 via 172.30.0.13"
            ]
        );
        assert!(text.contains("route add default via 172.30.0.1\n"), "{text}");
    }
}
