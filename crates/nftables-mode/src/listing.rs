//! The desired state in the notation of `nft`, to be reviewed and compared line by line.

use std::fmt::Write as _;

use kernlink_host::CONNTRACK_BUCKETS;
use kernlink_nftables::{Commands, Operation as TableOperation, TableFlags};
use kernlink_services::{Family, ObjectName};

use crate::layout::{SetName, Slot};
use crate::operation::Create;
use crate::state::State;

/// The desired state as text, one listing for each kind of kernel object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listings {
    /// The commands of `nft` that make the IPv4 table on an empty kernel: the table with its chains and rules, then the elements of each
    /// Service, by name, and the networks of cluster IPs. Empty if the family is not served.
    pub ipv4: String,
    /// Those of the IPv6 table.
    pub ipv6: String,
    /// The desired sysctls, as `sysctl` prints them.
    pub sysctl: String,
}

impl Listings {
    /// The listings, each with a file name.
    #[must_use]
    pub fn files(&self) -> [(&'static str, &str); 3] {
        [
            ("nftables-ipv4.txt", &self.ipv4),
            ("nftables-ipv6.txt", &self.ipv6),
            ("sysctl.txt", &self.sysctl),
        ]
    }
}

impl State {
    /// The whole desired state as text.
    #[must_use]
    pub fn listings(&self, processors: u32) -> Listings {
        let mut sysctl = String::new();
        for value in self.config().conntrack.sysctls(processors) {
            // Writing to a string cannot fail.
            let _ = writeln!(sysctl, "{} = {}", value.name, value.value);
        }
        if let Some(buckets) = self.config().conntrack.buckets(processors) {
            let _ = writeln!(sysctl, "{CONNTRACK_BUCKETS} = {buckets}");
        }
        Listings {
            ipv4: self.commands(Family::Ipv4),
            ipv6: self.commands(Family::Ipv6),
            sysctl,
        }
    }

    fn commands(&self, family: Family) -> String {
        let of_family = self.family(family);
        if !of_family.is_served {
            return String::new();
        }
        let (slot, parameters) = (Slot::First, self.parameters(family));
        let creation = Create {
            slot,
            parameters: parameters.clone(),
            replaces: false,
            has_base_chains: true,
        };
        let mut operations: Vec<TableOperation> = creation.operations(TableFlags::empty());
        let mut names: Vec<&ObjectName> = of_family.services().collect();
        names.sort_unstable();
        for name in names {
            let write = of_family.write(name, self.ports(), slot);
            operations.extend(write.iter().flat_map(|write| write.operations()));
        }
        let networks = of_family.write_networks(slot);
        operations.extend(networks.iter().flat_map(|write| write.operations()));
        let table = slot.table(family);
        let sets = SetName::ALL.iter().map(|name| name.set(&table, family));
        Commands::new(&operations).with_sets(sets).to_string()
    }
}
