//! When the Nodes are synced: as in kube-proxy, not before the Node of this node has what the agent needs.

use std::sync::Arc;
use std::time::Duration;

use kernlink_services::{Change, Kind, ObjectChange};

use super::Options;

/// The longest time to wait for an address after the first list, as in kube-proxy. A cloud provider may need Services to assign one.
pub(super) const ADDRESS_TIMEOUT: Duration = Duration::from_secs(30);

/// Withholds `Synced`.
#[derive(Debug)]
pub(super) struct NodeGate {
    name: Arc<str>,
    needs_address: bool,
    needs_pod_cidr: bool,
    has_address: bool,
    has_pod_cidr: bool,
    exists: bool,
    /// Whether the first list was read.
    is_listed: bool,
    is_synced: bool,
}

impl NodeGate {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            name: Arc::clone(&options.node_name),
            needs_address: options.needs_address,
            needs_pod_cidr: options.needs_pod_cidr,
            has_address: false,
            has_pod_cidr: false,
            exists: false,
            is_listed: false,
            is_synced: false,
        }
    }

    /// Removes `Synced` from changes of Nodes, or adds it.
    pub(super) fn pass(&mut self, changes: &mut Vec<Change>) {
        for change in &*changes {
            match change {
                Change::Nodes(ObjectChange::Upsert(node)) if node.name.name == self.name => {
                    self.exists = true;
                    self.has_address = !node.addresses.is_empty();
                    self.has_pod_cidr = !node.pod_cidrs.is_empty();
                }
                Change::Nodes(ObjectChange::Synced) => self.is_listed = true,
                _ => {}
            }
        }
        changes.retain(|change| !matches!(change, Change::Nodes(ObjectChange::Synced)));
        if self.is_listed && !self.is_synced && self.problem().is_none() {
            self.is_synced = true;
            changes.push(Change::synced(Kind::Node));
        }
    }

    /// What the Node lacks. `None` if it has everything that is needed.
    pub(super) fn problem(&self) -> Option<String> {
        let name = &self.name;
        if !self.exists && (self.needs_address || self.needs_pod_cidr) {
            Some(format!("the Node {name} does not exist"))
        } else if self.needs_address && !self.has_address {
            Some(format!("the Node {name} has no address"))
        } else if self.needs_pod_cidr && !self.has_pod_cidr {
            Some(format!("the Node {name} has no pod network"))
        } else {
            None
        }
    }

    /// Whether the first list was read, and `Synced` is withheld.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_listed && !self.is_synced
    }

    /// The time has passed. True if the Nodes are synced now, without the address. Without a pod network that is needed they are not.
    pub(super) fn on_timeout(&mut self) -> bool {
        self.needs_address = false;
        let is_synced = self.is_waiting() && (self.has_pod_cidr || !self.needs_pod_cidr);
        self.is_synced |= is_synced;
        is_synced
    }
}

#[cfg(test)]
mod tests {
    use kernlink_services::Node;

    use super::*;

    fn gate(needs_address: bool, needs_pod_cidr: bool) -> NodeGate {
        NodeGate::new(&Options {
            access: super::super::Access::default(),
            node_name: "n".into(),
            service_proxy_name: None,
            has_all_nodes: false,
            has_service_cidrs: false,
            needs_address,
            needs_pod_cidr,
        })
    }

    fn upsert(node: Node) -> Change {
        Change::Nodes(ObjectChange::Upsert(node))
    }

    fn pass(gate: &mut NodeGate, changes: &[&Change]) -> Vec<Change> {
        let mut changes: Vec<Change> = changes.iter().map(|&change| change.clone()).collect();
        gate.pass(&mut changes);
        changes
    }

    #[test]
    fn nodes_are_synced_when_this_node_has_an_address() {
        let synced = Change::synced(Kind::Node);
        let with_address = upsert(Node::new("n").with_internal_address([192, 0, 2, 1].into()));
        let mut ready = gate(true, false);
        let changes = [with_address.clone(), synced.clone()];
        assert_eq!(pass(&mut ready, &[&with_address, &synced]), changes);

        let mut later = gate(true, false);
        let other = upsert(Node::new("m").with_internal_address([192, 0, 2, 2].into()));
        assert_eq!(pass(&mut later, &[&other, &synced]), [other]);
        assert_eq!(later.problem().unwrap(), "the Node n does not exist");
        let without = upsert(Node::new("n"));
        assert_eq!(pass(&mut later, &[&without]), [without]);
        assert_eq!(later.problem().unwrap(), "the Node n has no address");
        assert_eq!(pass(&mut later, &[&with_address]), [with_address, synced.clone()]);
        assert!(!later.on_timeout());

        assert_eq!(
            pass(&mut gate(false, false), &[&synced]),
            [synced],
            "the addresses are configured"
        );
    }

    #[test]
    fn after_the_time_the_address_does_not_matter_but_the_pod_network_does() {
        let synced = Change::synced(Kind::Node);
        let mut without_address = gate(true, false);
        pass(&mut without_address, &[&synced]);
        assert!(without_address.is_waiting());
        assert!(without_address.on_timeout());
        assert!(!without_address.is_waiting());

        let mut without_network = gate(true, true);
        pass(&mut without_network, &[&upsert(Node::new("n")), &synced]);
        assert!(!without_network.on_timeout());
        assert_eq!(
            without_network.problem().unwrap(),
            "the Node n has no pod network"
        );
        let node = upsert(Node::new("n").with_pod_cidr("10.244.1.0/24".parse().unwrap()));
        assert_eq!(pass(&mut without_network, &[&node]), [node, synced]);
    }
}
