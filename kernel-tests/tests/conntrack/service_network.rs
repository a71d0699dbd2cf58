//! A node that translates service addresses by iptables, and connections to them.

use std::net::{IpAddr, SocketAddr};

use kernlink_conntrack::{Client, Conntrack, Filter, Flow, Protocol, ProtocolState, TcpState};
use kernlink_kernel_tests::traffic::{self, Network, Server};
use kernlink_kernel_tests::{tools, wait};

pub(crate) const DNS: u16 = 53;
pub(crate) const WEB: u16 = 80;

/// A service address of each family. The node translates UDP port 53 to pod 0 and TCP port 80 to pod 1, and masquerades.
pub(crate) fn services() -> [IpAddr; 2] {
    ["10.96.0.10", "fd96::10"].map(|address| address.parse().unwrap())
}

pub(crate) fn pod(number: u8, family: IpAddr) -> IpAddr {
    match family {
        IpAddr::V4(_) => Network::pod_ipv4(number).into(),
        IpAddr::V6(_) => Network::pod_ipv6(number).into(),
    }
}

pub(crate) struct ServiceNetwork {
    pub(crate) network: Network,
    _servers: Vec<Server>,
}

impl ServiceNetwork {
    pub(crate) fn new() -> Self {
        let network = Network::new(2);
        network.node.run(|| {
            tools::set_sysctl("net.netfilter.nf_conntrack_acct", "1");
            tools::set_sysctl("net.netfilter.nf_conntrack_timestamp", "1");
            // Flows must not time out between two listings that are compared.
            tools::set_sysctl("net.netfilter.nf_conntrack_udp_timeout", "600");
            tools::set_sysctl("net.netfilter.nf_conntrack_tcp_timeout_time_wait", "600");
            for service in services() {
                let program = if service.is_ipv4() {
                    "iptables"
                } else {
                    "ip6tables"
                };
                let rule = |arguments: &str| {
                    tools::must(
                        program,
                        &[
                            &["-w", "-t", "nat"],
                            arguments.split(' ').collect::<Vec<_>>().as_slice(),
                        ]
                        .concat(),
                    );
                };
                let dns = SocketAddr::new(pod(0, service), 5353);
                let web = SocketAddr::new(pod(1, service), 8080);
                rule(&format!(
                    "-A PREROUTING -d {service} -p udp --dport 53 -j DNAT --to-destination {dns}"
                ));
                rule(&format!(
                    "-A PREROUTING -d {service} -p tcp --dport 80 -j DNAT --to-destination {web}"
                ));
                rule("-A POSTROUTING -o pod+ -j MASQUERADE");
            }
        });
        let mut servers = network.serve(traffic::Protocol::Udp, 5353);
        servers.extend(network.serve(traffic::Protocol::Tcp, 8080));
        ServiceNetwork {
            network,
            _servers: servers,
        }
    }

    /// Makes requests of both protocols and families. When it returns, every TCP connection is closed, and no flow changes any
    /// more.
    pub(crate) fn make_requests(&self, times: usize) {
        for service in services() {
            let request = |protocol, port: u16| {
                let tally = traffic::ask_many(
                    &self.network.client,
                    protocol,
                    SocketAddr::new(service, port),
                    times,
                );
                assert!(tally.failures.is_empty(), "{tally:?}");
            };
            request(traffic::Protocol::Udp, DNS);
            request(traffic::Protocol::Tcp, WEB);
        }
        self.network.node.run(|| {
            let mut client = Client::open().unwrap();
            let tcp = Filter::new().with_protocol(Protocol::TCP);
            let is_closed = |flow: &Flow| {
                let state = flow.protocol_state.as_ref();
                matches!(
                    state,
                    Some(ProtocolState::Tcp {
                        state: TcpState::TIME_WAIT | TcpState::CLOSE,
                        ..
                    })
                )
            };
            wait::until(|| {
                let flows = client.list(&tcp).unwrap();
                if flows.iter().all(is_closed) {
                    Ok(())
                } else {
                    Err(format!("connections that are not closed: {flows:#?}"))
                }
            });
        });
    }
}
