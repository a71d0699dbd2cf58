//! The sysctls that iptables mode sets.

use kernlink_host::Sysctl;

use super::config::Config;

/// Lets packets with a loopback source or destination pass interfaces of the node.
pub(super) const ROUTE_LOCALNET: &str = "net.ipv4.conf.all.route_localnet";
/// Packets outside the window of a TCP connection are not invalid.
pub(super) const TCP_BE_LIBERAL: &str = "net.netfilter.nf_conntrack_tcp_be_liberal";

/// The desired sysctls, sorted by name; no other sysctl is changed. The limit of tracked connections is proportional to `processors`.
#[must_use]
pub fn sysctls(config: &Config, processors: u32) -> Vec<Sysctl> {
    let mut sysctls = config.conntrack.sysctls(processors);
    if config.serves_loopback_node_ports()
        && config
            .services
            .families
            .contains(&kernlink_services::Family::Ipv4)
    {
        // Packets to node ports on loopback addresses leave with a loopback source until they are masqueraded.
        sysctls.push(Sysctl::new(ROUTE_LOCALNET, "1"));
    }
    sysctls.sort();
    sysctls
}
