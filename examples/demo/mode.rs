//! What is particular to a mode: its configuration and its kernel APIs, whether this host has what it needs, and what the kernel holds
//! after a sync.

use std::cmp::Reverse;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use kernlink_iptables_restore::{Match, Rule, Save, Style, Table, TableRules};
use kernlink_proxier::host::Conntrack;
use kernlink_proxier::iptables_mode::{self, IptablesMode};
use kernlink_proxier::ipvs_mode::{self, IpvsMode};
use kernlink_proxier::nftables_mode::nftables::{Commands, Elements, Operation, TableKey};
use kernlink_proxier::nftables_mode::{self, NftablesMode};
use kernlink_proxier::services::{self, Family};
use kernlink_proxier::{DataPath, Proxier};

use crate::network::Namespace;

/// A mode of the demo.
pub(crate) trait Mode: DataPath {
    /// kube-proxy's defaults, except for the connection table, which all network namespaces share and which stays as it is.
    fn config() -> Self::Config;

    fn services_config_mut(config: &mut Self::Config) -> &mut services::Config;

    /// The kernel of the calling thread's network namespace.
    fn open() -> Result<Self::Kernel>;

    /// Fails if the kernel cannot be used for a family, which may be another reason than that [`open`](Self::open) fails.
    fn probe(kernel: &mut Self::Kernel, family: Family) -> Result<()>;

    /// Prints what the kernel holds, read back.
    fn print_kernel(proxier: &mut Proxier<Self>) -> Result<()>;
}

/// A mode that this host can run.
pub(crate) struct Usable<M: Mode> {
    pub(crate) config: M::Config,
    pub(crate) has_ipv6: bool,
}

/// Checks, in a network namespace of its own, that the kernel has what the mode needs. IPv6 is left out if the host lacks it.
pub(crate) fn usable<M: Mode>() -> Result<Usable<M>> {
    let namespace = Namespace::new().map_err(|error| {
        let cause = error.root_cause().downcast_ref::<std::io::Error>();
        if cause.is_some_and(|cause| cause.kind() == ErrorKind::PermissionDenied) {
            error.context("root is needed")
        } else {
            error
        }
    })?;
    let has_ipv6 = namespace.run(|| {
        let mut kernel = M::open()?;
        M::probe(&mut kernel, Family::Ipv4)?;
        if !Path::new("/proc/sys/net/ipv6").exists() {
            print_line!("Without IPv6: the running kernel does not have it.");
            return Ok(false);
        }
        match M::probe(&mut kernel, Family::Ipv6) {
            Ok(()) => Ok(true),
            Err(error) => {
                print_line!("Without IPv6: {error:#}.");
                Ok(false)
            }
        }
    })?;
    let mut config = M::config();
    if !has_ipv6 {
        M::services_config_mut(&mut config).families = [Family::Ipv4].into();
    }
    Ok(Usable { config, has_ipv6 })
}

fn conntrack() -> Conntrack {
    Conntrack {
        max_per_core: 0,
        tcp_established: Duration::ZERO,
        tcp_close_wait: Duration::ZERO,
        ..Conntrack::default()
    }
}

impl Mode for IpvsMode {
    fn config() -> ipvs_mode::Config {
        let mut config = ipvs_mode::Config::new("node-a");
        config.conntrack = conntrack();
        config
    }

    fn services_config_mut(config: &mut ipvs_mode::Config) -> &mut services::Config {
        &mut config.services
    }

    fn open() -> Result<ipvs_mode::Kernel> {
        Ok(ipvs_mode::Kernel::open()?)
    }

    fn probe(_kernel: &mut ipvs_mode::Kernel, _family: Family) -> Result<()> {
        // `open` checks everything.
        Ok(())
    }

    fn print_kernel(proxier: &mut Proxier<Self>) -> Result<()> {
        let kernel = proxier.kernel_mut();
        print_line!("\nVirtual servers and real servers (ipvsadm -S -n):");
        for (virtual_server, real_servers) in kernel.ipvs.list_all()? {
            print_line!("  {virtual_server}");
            for real_server in real_servers {
                print_line!("  -a {} {real_server}", virtual_server.key);
            }
        }
        print_line!("Entries of sets (ipset list):");
        for set in kernel.sets.list()?.iter().filter(|set| !set.entries.is_empty()) {
            print_line!("  {}: {}", set.header.set.name, set.entries.len());
        }
        Ok(())
    }
}

impl Mode for IptablesMode {
    fn config() -> iptables_mode::Config {
        let mut config = iptables_mode::Config::new("node-a");
        config.conntrack = conntrack();
        config
    }

    fn services_config_mut(config: &mut iptables_mode::Config) -> &mut services::Config {
        &mut config.services
    }

    fn open() -> Result<iptables_mode::Kernel> {
        Ok(iptables_mode::Kernel::open()?)
    }

    fn probe(kernel: &mut iptables_mode::Kernel, family: Family) -> Result<()> {
        for table in [Table::Nat, Table::Filter] {
            let read = kernel.rules.save(&Save::table(family, table));
            read.with_context(|| format!("{family} rules cannot be read (package iptables)"))?;
        }
        Ok(())
    }

    /// Prints the numbers of chains and rules, and the rules of the service port with the most endpoints.
    fn print_kernel(proxier: &mut Proxier<Self>) -> Result<()> {
        let ports = proxier.services().ports().map(|(_, port)| port);
        let of_ipv4 = ports.filter(|port| port.key.family == Family::Ipv4);
        let largest = of_ipv4.min_by_key(|port| (Reverse(port.endpoints.cluster.len()), &port.key.name));
        let label = largest.map(|port| port.key.name.to_string());
        let families = proxier.state().config().services.families.clone();
        let kernel = proxier.kernel_mut();
        print_line!("\nChains and rules (iptables-save, ip6tables-save):");
        for family in families {
            for table in [Table::Nat, Table::Filter] {
                let rules = kernel.rules.save(&Save::table(family, table))?;
                let chains = rules.table(table).map_or(0, |table| table.chains().len());
                print_line!(
                    "  {family}, table {table}: {chains} chains, {} rules",
                    rules.rule_count()
                );
            }
        }
        let Some(label) = label else { return Ok(()) };
        let rules = kernel.rules.save(&Save::table(Family::Ipv4, Table::Nat))?;
        print_line!("Rules of {label} in table nat:");
        let chains = rules.table(Table::Nat).into_iter().flat_map(TableRules::chains);
        let mut lines: Vec<_> = chains
            .flat_map(|(name, chain)| chain.rules().map(move |rule| (name, rule)))
            .filter(|(_, rule)| is_of(rule, &label))
            .map(|(name, rule)| format!("  -A {name} {}", rule.render(Style::SAVE)))
            .collect();
        // In the order in which a packet meets them; rules of one chain keep their order.
        lines.sort_by_key(|line| ["-A KUBE-SEP-", "-A KUBE-SVC-"].map(|chain| line.contains(chain)));
        print_line!("{}", lines.join("\n"));
        Ok(())
    }
}

impl Mode for NftablesMode {
    fn config() -> nftables_mode::Config {
        let mut config = nftables_mode::Config::new("node-a");
        config.conntrack = conntrack();
        // By default node ports are served at these addresses only.
        config.services.node_ips = ["192.0.2.1".parse(), "2001:db8::1".parse()]
            .into_iter()
            .flatten()
            .collect();
        config
    }

    fn services_config_mut(config: &mut nftables_mode::Config) -> &mut services::Config {
        &mut config.services
    }

    fn open() -> Result<nftables_mode::Kernel> {
        Ok(nftables_mode::Kernel::open()?)
    }

    fn probe(kernel: &mut nftables_mode::Kernel, family: Family) -> Result<()> {
        let read = kernel.tables.tables(Some(family.into()));
        read.with_context(|| format!("{family} tables of nf_tables cannot be read"))?;
        Ok(())
    }

    /// Prints the numbers of elements, and the elements of the frontend with the most endpoints.
    fn print_kernel(proxier: &mut Proxier<Self>) -> Result<()> {
        let frontends = proxier.services().frontends();
        let of_ipv4 = frontends.filter(|frontend| frontend.key.address.is_ipv4());
        let largest =
            of_ipv4.min_by_key(|frontend| (Reverse(frontend.owner.endpoints.cluster.len()), frontend.key));
        let largest = largest.map(|frontend| {
            (
                frontend.owner.key.name.to_string(),
                frontend.key.address.to_string(),
            )
        });
        let families = proxier.state().config().services.families.clone();
        let tables = &mut proxier.kernel_mut().tables;
        print_line!("\nElements of maps and sets (nft list ruleset):");
        let mut lines = Vec::new();
        for family in families {
            let table = TableKey::new(family, nftables_mode::layout::TABLE);
            for set in tables.sets(&table)? {
                let elements = tables.list_elements(&set.key)?;
                if elements.is_empty() {
                    continue;
                }
                print_line!("  {family}, {}: {}", set.key.name, elements.len());
                for element in elements {
                    let operation = [Operation::add(Elements::new(set.key.clone(), [element]))];
                    lines.push(Commands::new(&operation).with_sets([set.clone()]).to_string());
                }
            }
        }
        let Some((name, address)) = largest else {
            return Ok(());
        };
        print_line!("Elements of {name} at {address}:");
        lines.retain(|line| line.contains(&format!("{{ {address} ")));
        lines.sort();
        lines.iter().for_each(|line| print_line!("  {}", line.trim_end()));
        Ok(())
    }
}

/// Whether the comment of a rule begins with the name of a service port.
fn is_of(rule: &Rule, label: &str) -> bool {
    rule.matches.iter().any(|test| match test {
        Match::Comment(comment) => comment.as_str().split(' ').next() == Some(label),
        _ => false,
    })
}
