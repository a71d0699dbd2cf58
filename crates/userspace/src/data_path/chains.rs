//! The chains with portal rules, and the jumps to them.

use std::fmt;

use kernlink_iptables_restore::{ChainName, Edit, Rule, Table};

/// A chain with portal rules, as in kube-proxy's userspace mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortalChain {
    /// Traffic that arrives at an interface: cluster IPs, external IPs, load-balancer IPs.
    PortalsContainer,
    /// Traffic of programs of the node to the same addresses.
    PortalsHost,
    /// Traffic that arrives at an interface: node ports.
    NodeportContainer,
    /// Traffic of programs of the node to node ports.
    NodeportHost,
    /// Admits traffic of node ports after its translation.
    NodeportNonLocal,
}

impl PortalChain {
    /// All of them, in the order in which they and their jumps are created.
    pub const ALL: &[PortalChain] = &[
        PortalChain::PortalsContainer,
        PortalChain::PortalsHost,
        PortalChain::NodeportContainer,
        PortalChain::NodeportHost,
        PortalChain::NodeportNonLocal,
    ];

    /// The table.
    #[must_use]
    pub fn table(self) -> Table {
        match self {
            PortalChain::NodeportNonLocal => Table::Filter,
            _ => Table::Nat,
        }
    }

    /// The name in the kernel.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PortalChain::PortalsContainer => "KUBE-PORTALS-CONTAINER",
            PortalChain::PortalsHost => "KUBE-PORTALS-HOST",
            PortalChain::NodeportContainer => "KUBE-NODEPORT-CONTAINER",
            PortalChain::NodeportHost => "KUBE-NODEPORT-HOST",
            PortalChain::NodeportNonLocal => "KUBE-NODEPORT-NON-LOCAL",
        }
    }

    /// The name in the kernel.
    #[must_use]
    pub fn name(self) -> ChainName {
        #[expect(clippy::expect_used, reason = "constants that a test checks")]
        ChainName::new(self.as_str()).expect("a chain name that fits the kernel")
    }

    /// The built-in chain with the jump, the jump, and whether it is the first rule of that chain; otherwise it is the last one.
    #[must_use]
    pub fn jump(self) -> (ChainName, Rule, bool) {
        const PORTALS: &str = "handle ClusterIPs; NOTE: this must be before the NodePort rules";
        const NODE_PORTS: &str = "handle service NodePorts; NOTE: this must be the last rule in the chain";
        const NON_LOCAL: &str = "Ensure that non-local NodePort traffic can flow";
        let (from, matches, comment, is_first) = match self {
            PortalChain::PortalsContainer => ("PREROUTING", "", PORTALS, true),
            PortalChain::PortalsHost => ("OUTPUT", "", PORTALS, true),
            PortalChain::NodeportContainer => {
                ("PREROUTING", "-m addrtype --dst-type LOCAL ", NODE_PORTS, false)
            }
            PortalChain::NodeportHost => ("OUTPUT", "-m addrtype --dst-type LOCAL ", NODE_PORTS, false),
            PortalChain::NodeportNonLocal => ("INPUT", "", NON_LOCAL, true),
        };
        let text = format!("{matches}-m comment --comment \"{comment}\" -j {self}");
        #[expect(clippy::expect_used, reason = "constants that a test checks")]
        let jump = (
            ChainName::new(from).expect("the name of a built-in chain"),
            text.parse().expect("a valid rule"),
            is_first,
        );
        jump
    }

    /// The edit that adds the jump.
    pub(super) fn add_jump(self) -> Edit {
        match self.jump() {
            (from, rule, true) => Edit::insert(from, rule),
            (from, rule, false) => Edit::append(from, rule),
        }
    }
}

impl fmt::Display for PortalChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_are_those_of_kube_proxy() {
        let jumps: Vec<String> = PortalChain::ALL
            .iter()
            .copied()
            .map(|chain| {
                let (from, rule, is_first) = chain.jump();
                let option = if is_first { "-I" } else { "-A" };
                assert_eq!(chain.name().as_str(), chain.as_str());
                format!("{} {option} {from} {rule}", chain.table())
            })
            .collect();
        assert_eq!(
            jumps,
            [
                r#"nat -I PREROUTING -m comment --comment "handle ClusterIPs; NOTE: this must be before the NodePort rules" -j KUBE-PORTALS-CONTAINER"#,
                r#"nat -I OUTPUT -m comment --comment "handle ClusterIPs; NOTE: this must be before the NodePort rules" -j KUBE-PORTALS-HOST"#,
                r#"nat -A PREROUTING -m addrtype --dst-type LOCAL -m comment --comment "handle service NodePorts; NOTE: this must be the last rule in the chain" -j KUBE-NODEPORT-CONTAINER"#,
                r#"nat -A OUTPUT -m addrtype --dst-type LOCAL -m comment --comment "handle service NodePorts; NOTE: this must be the last rule in the chain" -j KUBE-NODEPORT-HOST"#,
                r#"filter -I INPUT -m comment --comment "Ensure that non-local NodePort traffic can flow" -j KUBE-NODEPORT-NON-LOCAL"#,
            ]
        );
    }
}
