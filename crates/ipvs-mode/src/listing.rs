//! The desired state in the notations of the standard tools, to be reviewed and compared line by line.

use std::fmt::Display;

use kernlink_base::KernelRelease;
use kernlink_iptables_restore::{Style, tool};
use kernlink_services::Family;

use super::rules;
use super::sets::SetId;
use super::state::State;
use super::sysctls::sysctls;

/// The desired state as text, one listing for each kind of kernel object. Lines are sorted where their order has no meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listings {
    /// Virtual servers and real servers, as `ipvsadm -S -n` prints them.
    pub ipvs: String,
    /// The sets of kube-proxy and their entries, as `ipset save` prints them, without the sizes of the sets.
    pub ipset: String,
    /// The ledger in the same form: sets that kube-proxy does not have.
    pub ledger: String,
    /// The IPv4 rules as input of `iptables-restore`, in kube-proxy's form.
    pub iptables: String,
    /// The IPv6 rules as input of `ip6tables-restore`, in kube-proxy's form.
    pub ip6tables: String,
    /// The commands that insert the jumps, in order; comments are not quoted.
    pub jumps: String,
    /// The addresses of the dummy link, with prefix length.
    pub addresses: String,
    /// The desired sysctls, as `sysctl` prints them.
    pub sysctl: String,
    /// The three IPVS timeouts as `ipvsadm --set` takes them, in seconds; empty if none is configured.
    pub timeouts: String,
}

impl Listings {
    /// All sets and their entries, those of kube-proxy and the ledger.
    #[must_use]
    pub fn sets(&self) -> String {
        sorted(self.ipset.lines().chain(self.ledger.lines()))
    }

    /// The listings, each with a file name.
    #[must_use]
    pub fn files(&self) -> [(&'static str, &str); 9] {
        [
            ("ipvs.txt", &self.ipvs),
            ("ipset.txt", &self.ipset),
            ("ledger.txt", &self.ledger),
            ("iptables.txt", &self.iptables),
            ("ip6tables.txt", &self.ip6tables),
            ("jumps.txt", &self.jumps),
            ("addresses.txt", &self.addresses),
            ("sysctl.txt", &self.sysctl),
            ("timeouts.txt", &self.timeouts),
        ]
    }
}

impl State {
    /// The whole desired state as text.
    #[must_use]
    pub fn listings(&self, kernel: KernelRelease, processors: u32) -> Listings {
        let families: Vec<Family> = self.families().collect();
        let rules = |family: Family| {
            if families.contains(&family) {
                self.rules(family).render(Style::KUBE_PROXY)
            } else {
                String::new()
            }
        };
        let sets = |sets: &[SetId]| {
            let families = families.iter();
            sorted(families.flat_map(|&family| self.ipset_lines(family, sets)))
        };
        Listings {
            ipvs: sorted(families.iter().flat_map(|&family| self.ipvs_lines(family))),
            ipset: sets(SetId::KUBE_PROXY),
            ledger: sets(&[SetId::Ledger]),
            iptables: rules(Family::Ipv4),
            ip6tables: rules(Family::Ipv6),
            jumps: families.iter().flat_map(|&family| jump_lines(family)).collect(),
            addresses: sorted(families.iter().flat_map(|&family| {
                self.addresses(family)
                    .map(move |address| format!("{address}/{}", family.address_bits()))
            })),
            sysctl: sorted(sysctls(self.config(), kernel, processors)),
            timeouts: self.timeouts_line(),
        }
    }

    fn ipvs_lines(&self, family: Family) -> Vec<String> {
        let mut lines = Vec::new();
        for server in self.virtual_servers(family) {
            lines.push(server.virtual_server.to_string());
            let key = server.virtual_server.key;
            lines.extend(
                server
                    .real_servers
                    .iter()
                    .map(|server| format!("-a {key} {server}")),
            );
        }
        lines
    }

    fn ipset_lines(&self, family: Family, sets: &[SetId]) -> Vec<String> {
        let mut lines = Vec::new();
        for set in sets {
            let mut definition = set.definition(family);
            definition.options.hashsize = None;
            definition.options.maxelem = None;
            lines.push(format!("create {definition}"));
            lines.extend(
                self.entries(*set, family)
                    .map(|entry| format!("add {} {entry}", definition.name)),
            );
        }
        lines
    }

    fn timeouts_line(&self) -> String {
        let timeouts = self.config().ipvs_timeouts.whole_seconds();
        if timeouts.is_unset() {
            return String::new();
        }
        let [tcp, tcp_fin, udp] =
            [timeouts.tcp, timeouts.tcp_fin, timeouts.udp].map(|timeout| timeout.as_secs());
        format!("{tcp} {tcp_fin} {udp}\n")
    }
}

fn jump_lines(family: Family) -> Vec<String> {
    let command = tool(family);
    let line = |jump: rules::Jump| {
        let rule = jump.rule.render(Style::KUBE_PROXY).replace('"', "");
        format!("{command} -I {} -t {} {rule}\n", jump.chain, jump.table)
    };
    rules::jumps().into_iter().map(line).collect()
}

fn sorted(lines: impl IntoIterator<Item = impl Display>) -> String {
    let mut lines: Vec<String> = lines.into_iter().map(|line| format!("{line}\n")).collect();
    lines.sort();
    lines.concat()
}
