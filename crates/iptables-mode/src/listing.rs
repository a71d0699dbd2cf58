//! The desired state in kube-proxy's notation, to be reviewed and compared line by line.

use std::fmt::Write;

use ipnet::IpNet;
use kernlink_iptables_restore::matches::{RecentAction, Statistic};
use kernlink_iptables_restore::{Condition, Match, Network, Rule, Style, Table, tool};
use kernlink_services::Family;

use super::chains::{FixedChain, jumps};
use super::state::State;
use super::sysctls::sysctls;

/// The desired state as text, one listing for each kind of kernel object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listings {
    /// The IPv4 rules as input of `iptables-restore`, in kube-proxy's form. Service ports are in the order of their names.
    pub iptables: String,
    /// The IPv6 rules as input of `ip6tables-restore`, in kube-proxy's form.
    pub ip6tables: String,
    /// The commands that insert the jumps, in order; comments are not quoted.
    pub jumps: String,
    /// The desired sysctls, as `sysctl` prints them.
    pub sysctl: String,
}

impl Listings {
    /// The listings, each with a file name.
    #[must_use]
    pub fn files(&self) -> [(&'static str, &str); 4] {
        [
            ("iptables.txt", &self.iptables),
            ("ip6tables.txt", &self.ip6tables),
            ("jumps.txt", &self.jumps),
            ("sysctl.txt", &self.sysctl),
        ]
    }
}

impl State {
    /// The whole desired state as text.
    #[must_use]
    pub fn listings(&self, processors: u32) -> Listings {
        let families: Vec<Family> = self.families().collect();
        let rules = |family: Family| {
            if families.contains(&family) {
                self.rules_text(family)
            } else {
                String::new()
            }
        };
        let mut sysctl = String::new();
        for value in sysctls(self.config(), processors) {
            // Writing to a string cannot fail.
            let _ = writeln!(sysctl, "{value}");
        }
        Listings {
            iptables: rules(Family::Ipv4),
            ip6tables: rules(Family::Ipv6),
            jumps: families.iter().flat_map(|&family| jump_lines(family)).collect(),
            sysctl,
        }
    }

    fn rules_text(&self, family: Family) -> String {
        let mut out = String::new();
        for table in [Table::Filter, Table::Nat] {
            let fixed: Vec<FixedChain> = FixedChain::of(self.config(), family)
                .filter(|chain| chain.table() == table)
                .collect();
            let port_chains = if table == Table::Nat {
                self.port_chains(family)
            } else {
                Vec::new()
            };
            let mut line = |text: String| {
                out.push_str(&text);
                out.push('\n');
            };
            line(format!("*{table}"));
            for chain in &fixed {
                line(format!(":{} - [0:0]", chain.text()));
            }
            for (name, _) in &port_chains {
                line(format!(":{name} - [0:0]"));
            }
            for chain in fixed {
                for rule in self.shared_rules(chain, family) {
                    line(format!(
                        "-A {} {}",
                        chain.text(),
                        kube_proxy_text(&in_order(rule))
                    ));
                }
                for rule in self.configured_rules(chain, family) {
                    line(format!("-A {} {}", chain.text(), kube_proxy_text(&rule)));
                }
            }
            for (name, rules) in port_chains {
                for rule in rules {
                    line(format!("-A {name} {}", kube_proxy_text(&rule)));
                }
            }
            line("COMMIT".to_owned());
        }
        out
    }
}

fn jump_lines(family: Family) -> Vec<String> {
    let command = tool(family);
    let jumps = jumps().iter();
    jumps
        .map(|jump| {
            let rule = jump.rule.render(Style::KUBE_PROXY).replace('"', "");
            format!("{command} -I {} -t {} {rule}\n", jump.chain, jump.table)
        })
        .collect()
}

/// A rule of a service port with its matches in kube-proxy's order: comment, type of the address, protocol, address, port, others.
fn in_order(mut rule: Rule) -> Rule {
    for test in &mut rule.matches {
        // The normal form of an address has the prefix length of a single host; kube-proxy writes addresses without it.
        if let Match::Destination(Condition::Is(network)) = test
            && is_host(network)
        {
            *network = Network::host(network.address);
        }
    }
    rule.matches.sort_by_key(|test| match test {
        Match::Comment(_) => 0,
        Match::Addrtype(_) => 1,
        Match::Protocol(_) => 2,
        Match::Destination(_) => 3,
        Match::Tcp(_) | Match::Udp(_) | Match::Sctp(_) => 4,
        _ => 5,
    });
    rule
}

fn is_host(network: &Network) -> bool {
    *network == Network::from(IpNet::from(network.address)) || *network == Network::host(network.address)
}

/// A rule as kube-proxy writes it: the match of the protocol before the protocol and the address, comments without a blank not quoted,
/// probabilities with ten decimals.
fn kube_proxy_text(rule: &Rule) -> String {
    let mut out = String::new();
    let mut push = |text: &str| {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(text);
    };
    for test in &rule.matches {
        let text = Rule::new().with(test.clone()).render(Style::KUBE_PROXY);
        match test {
            Match::Comment(comment) if !comment.as_str().contains(' ') => {
                push(&format!("-m comment --comment {}", comment.as_str()));
            }
            Match::Protocol(_) => {
                let name = text.trim_start_matches("-p ");
                push(&format!("-m {name} -p {name}"));
            }
            Match::Tcp(_) | Match::Udp(_) | Match::Sctp(_) => {
                // `-m tcp` is written with the protocol.
                if let Some((_, port)) = text.split_once(" --dport ") {
                    push(&format!("--dport {port}"));
                }
            }
            Match::Statistic(test) => {
                if let Statistic::Random(probability) = test.value() {
                    let value = f64::from(probability.parts()) / f64::from(1_u32 << 31);
                    push(&format!(
                        "-m statistic --mode random --probability {}",
                        ten_decimals(value)
                    ));
                }
            }
            Match::Recent(recent) => {
                let name = recent.name.as_ref().map_or("DEFAULT", |name| name.as_str());
                match (recent.action.value(), recent.seconds) {
                    (RecentAction::Check, Some(seconds)) => push(&format!(
                        "-m recent --name {name} --rcheck --seconds {seconds} --reap"
                    )),
                    _ => push(&format!("-m recent --name {name} --set")),
                }
            }
            // The tools print two spaces before a name.
            Match::Verbatim(_) => push(&text.replace("  ", " ")),
            _ => push(&text),
        }
    }
    if let Some(target) = &rule.target {
        let text = Rule::new().with_target(target.clone()).render(Style::KUBE_PROXY);
        // The default is not written.
        push(text.split(" --reject-with").next().unwrap_or(&text));
    }
    out
}

/// The fraction with ten decimals of which the kernel stores `value`. The kernel stores 31 bits, so several decimals are possible; a
/// fraction 1/n is preferred.
fn ten_decimals(value: f64) -> String {
    let whole = (1.0 / value).round();
    let candidate = 1.0 / whole;
    if (candidate - value).abs() < 1e-9 {
        format!("{candidate:.10}")
    } else {
        format!("{value:.10}")
    }
}
