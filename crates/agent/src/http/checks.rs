//! The health-check node ports of Services: a server on every address that accepts node ports.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use kernlink_services::{Config, Family, HealthCheck, NodePortAddresses, Services};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::connections::Connections;
use super::server::{Routes, Server};
use super::{answer, not_found};
use crate::state::{self, State};

/// Sets which ports are served, and for which Service.
#[derive(Clone, Debug)]
pub(crate) struct Checks {
    state: Arc<Mutex<State>>,
    listeners: watch::Sender<Listeners>,
}

/// What is listened on, and the name of each server in the log.
pub(super) type Listeners = BTreeMap<SocketAddr, String>;

impl Checks {
    pub(super) fn new(state: Arc<Mutex<State>>) -> (Self, watch::Receiver<Listeners>) {
        let (listeners, receiver) = watch::channel(Listeners::new());
        (Self { state, listeners }, receiver)
    }

    /// Serves the health-check node ports of these Services.
    pub(crate) fn set(&self, config: &Config, services: &Services) {
        let mut checks = BTreeMap::new();
        for &family in &config.families {
            let found = services.health_checks(family);
            if found.is_empty() {
                continue;
            }
            let addresses = addresses(
                &config.node_port_addresses,
                family,
                services.node_facts().node_port_addresses(family),
            );
            for check in found {
                for &address in &addresses {
                    let address = SocketAddr::new(address, check.port.get());
                    checks.insert(address, HealthCheck::clone(check));
                }
            }
        }
        let listeners: Listeners = checks
            .iter()
            .map(|(address, check)| {
                (
                    *address,
                    format!("health-check node port of Service {}", check.service),
                )
            })
            .collect();
        state::lock(&self.state).checks = checks;
        self.listeners.send_if_modified(|known| {
            let is_changed = *known != listeners;
            *known = listeners;
            is_changed
        });
    }
}

/// The addresses that health-check node ports listen on: all of the family, otherwise those that accept node ports, and loopback
/// addresses in the same networks. As kube-proxy, which does not serve node ports on loopback addresses.
fn addresses(configured: &NodePortAddresses, family: Family, accepting: &[IpAddr]) -> Vec<IpAddr> {
    let (any, loopback): (IpAddr, IpAddr) = match family {
        Family::Ipv4 => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into()),
        Family::Ipv6 => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into()),
    };
    let mut addresses = accepting.to_vec();
    if let NodePortAddresses::Networks(nets) = configured {
        let mut nets = nets
            .iter()
            .filter(|net| Family::of(net.addr()) == family)
            .peekable();
        if nets.peek().is_none() || nets.clone().any(|net| net.prefix_len() == 0) {
            return vec![any];
        }
        if nets.any(|net| net.contains(&loopback)) {
            addresses.push(loopback);
        }
    } else if *configured == NodePortAddresses::All {
        return vec![any];
    }
    addresses
}

/// Opens and closes servers until the other end is dropped.
pub(super) async fn serve(
    mut listeners: watch::Receiver<Listeners>,
    state: Arc<Mutex<State>>,
    connections: Connections,
) {
    let mut servers: BTreeMap<SocketAddr, JoinHandle<()>> = BTreeMap::new();
    loop {
        let desired = listeners.borrow_and_update().clone();
        let closed: Vec<SocketAddr> = servers
            .keys()
            .filter(|address| !desired.contains_key(address))
            .copied()
            .collect();
        for address in closed {
            if let Some(server) = servers.remove(&address) {
                server.abort();
                // Until the socket is closed, the address may be needed again.
                let _ = server.await;
                tracing::info!("health-check node port: {address} is closed");
            }
        }
        for (address, name) in desired {
            if servers.contains_key(&address) {
                continue;
            }
            let server = Server::new(name, address, routes(address, Arc::clone(&state))).one_family();
            servers.insert(address, tokio::spawn(server.serve(connections.clone())));
        }
        if listeners.changed().await.is_err() {
            return;
        }
    }
}

/// The answers of the health-check node port at an address.
pub(super) fn routes(address: SocketAddr, state: Arc<Mutex<State>>) -> Routes {
    Arc::new(move |_| match state::lock(&state).check(address) {
        Some(response) => answer(response),
        // The Service was deleted since the connection was accepted.
        None => not_found(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(configured: &NodePortAddresses, family: Family, accepting: &[&str]) -> Vec<String> {
        let accepting: Vec<IpAddr> = accepting.iter().map(|address| address.parse().unwrap()).collect();
        let addresses = addresses(configured, family, &accepting);
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ports_are_served_on_the_addresses_of_node_ports() {
        let nets = |nets: &[&str]| {
            NodePortAddresses::Networks(nets.iter().map(|net| net.parse().unwrap()).collect())
        };
        let own = ["192.0.2.1", "192.0.2.2"];
        assert_eq!(texts(&NodePortAddresses::All, Family::Ipv4, &own), ["0.0.0.0"]);
        assert_eq!(texts(&NodePortAddresses::All, Family::Ipv6, &[]), ["::"]);
        assert_eq!(
            texts(&NodePortAddresses::Primary, Family::Ipv4, &own[..1]),
            ["192.0.2.1"]
        );
        let configured = nets(&["192.0.2.0/24", "127.0.0.0/8"]);
        assert_eq!(
            texts(&configured, Family::Ipv4, &own),
            ["192.0.2.1", "192.0.2.2", "127.0.0.1"]
        );
        assert_eq!(
            texts(&configured, Family::Ipv6, &["2001:db8::1"]),
            ["::"],
            "no IPv6 network"
        );
        assert_eq!(texts(&nets(&["0.0.0.0/0"]), Family::Ipv4, &own), ["0.0.0.0"]);
        assert!(texts(&nets(&["198.51.100.0/24"]), Family::Ipv4, &[]).is_empty());
    }
}
