//! The addresses of the other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::source::{Node, ObjectName};

/// The nodes other than this one, by address.
#[derive(Clone, Debug, Default)]
pub(super) struct OtherNodes {
    by_address: BTreeMap<IpAddr, BTreeSet<ObjectName>>,
}

impl OtherNodes {
    /// The node that has an address; the first one by name if there are several.
    pub(super) fn with_address(&self, address: IpAddr) -> Option<&ObjectName> {
        self.by_address.get(&address)?.first()
    }

    pub(super) fn add(&mut self, node: &Node) {
        for address in &node.addresses {
            let names = self.by_address.entry(address.address).or_default();
            names.insert(node.name.clone());
        }
    }

    pub(super) fn remove(&mut self, node: &Node) {
        for address in &node.addresses {
            if let Some(names) = self.by_address.get_mut(&address.address) {
                names.remove(&node.name);
                if names.is_empty() {
                    self.by_address.remove(&address.address);
                }
            }
        }
    }
}
