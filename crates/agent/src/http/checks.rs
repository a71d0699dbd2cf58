//! The health-check node ports of Services: a server on every address that accepts node ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernlink_services::{Config, Family, HealthCheck, NodePortAddresses, Services};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::connections::Connections;
use super::server::{Routes, Server};
use super::{answer, not_found};
use crate::state::{self, State};

/// Sets which ports are served, and for which Service.
#[derive(Debug)]
pub(crate) struct Checks {
    state: Arc<Mutex<State>>,
    listeners: Arc<Listeners>,
    /// The addresses that the ports of each family listen on.
    addresses: BTreeMap<Family, Vec<IpAddr>>,
}

/// What the servers have to change.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    /// The name of each server in the log. `None`: it is to be closed.
    changes: Mutex<BTreeMap<SocketAddr, Option<String>>>,
    changed: Notify,
}

impl Listeners {
    /// A thread that panicked leaves them valid.
    fn changes(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, Option<String>>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Checks {
    pub(super) fn new(state: Arc<Mutex<State>>, listeners: Arc<Listeners>) -> Self {
        Self {
            state,
            listeners,
            addresses: BTreeMap::new(),
        }
    }

    /// Serves the health-check node ports of these Services. `changed` are the ports that changed since the last call; the others are read
    /// only if the addresses of the family changed.
    pub(crate) fn set(&mut self, config: &Config, services: &Services, changed: &BTreeSet<(Family, u16)>) {
        let mut checks = BTreeMap::new();
        let mut rebuilt = BTreeSet::new();
        for &family in &config.families {
            let accepting = services.node_facts().node_port_addresses(family);
            let addresses = addresses(&config.node_port_addresses, family, accepting);
            let of_port = |port: u16, check: Option<&HealthCheck>| -> Vec<_> {
                let listened = addresses.iter().map(|address| SocketAddr::new(*address, port));
                listened.map(|address| (address, check.cloned())).collect()
            };
            if self.addresses.get(&family) == Some(&addresses) {
                let ports = changed.iter().filter(|(of, _)| *of == family);
                for &(_, port) in ports {
                    checks.extend(of_port(port, services.health_check(family, port)));
                }
            } else {
                rebuilt.insert(family);
                for check in services.health_checks(family) {
                    checks.extend(of_port(check.port.get(), Some(check)));
                }
                self.addresses.insert(family, addresses);
            }
        }
        let mut state = state::lock(&self.state);
        if !rebuilt.is_empty() {
            for address in state.checks.keys() {
                if rebuilt.contains(&Family::of(address.ip())) {
                    checks.entry(*address).or_insert(None);
                }
            }
        }
        if checks.is_empty() {
            return;
        }
        let mut listeners = self.listeners.changes();
        for (address, check) in checks {
            let name = check
                .as_ref()
                .map(|check| format!("health-check node port of Service {}", check.service));
            listeners.insert(address, name);
            match check {
                Some(check) => _ = state.checks.insert(address, check),
                None => _ = state.checks.remove(&address),
            }
        }
        self.listeners.changed.notify_one();
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

/// Opens and closes servers until the future is dropped.
pub(super) async fn serve(listeners: Arc<Listeners>, state: Arc<Mutex<State>>, connections: Connections) {
    let mut servers: BTreeMap<SocketAddr, JoinHandle<()>> = BTreeMap::new();
    loop {
        listeners.changed.notified().await;
        let changes = std::mem::take(&mut *listeners.changes());
        let (opened, closed): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(_, name)| name.is_some());
        for (address, _) in closed {
            if let Some(server) = servers.remove(&address) {
                server.abort();
                // Until the socket is closed, the address may be needed again.
                let _ = server.await;
                tracing::info!("health-check node port: {address} is closed");
            }
        }
        for (address, name) in opened {
            if servers.contains_key(&address) {
                continue;
            }
            let routes = routes(address, Arc::clone(&state));
            let server = Server::new(name.unwrap_or_default(), address, routes).one_family();
            servers.insert(address, tokio::spawn(server.serve(connections.clone())));
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
    use std::fs;
    use std::time::Instant;

    use kernlink_proxier::iptables_mode::{Kernel, Proxier};

    use super::*;
    use crate::flags::Flags;
    use crate::folder::Folder;
    use crate::modes;
    use crate::once::{FOLDER, synced};
    use crate::settings::Settings;

    /// A Service with the health-check node port 32 000 and its number.
    fn service(number: u16) -> String {
        format!(
            "apiVersion: v1
kind: Service
metadata: {{name: s{number}}}
spec: {{type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: {}, clusterIP: 10.96.0.{number}, ports: [{{port: 80, nodePort: {}}}]}}
---
",
            32_000 + number,
            30_000 + number
        )
    }

    #[test]
    fn a_change_of_one_service_changes_its_own_health_check_node_port_only() {
        let folder = tempfile::tempdir().unwrap();
        let write = |numbers: std::ops::Range<u16>| {
            fs::write(
                folder.path().join("a.yaml"),
                numbers.map(service).collect::<String>(),
            )
            .unwrap();
        };
        let line = [
            "--watch",
            "/m",
            "--node-name",
            "n",
            "--nodeport-addresses",
            "0.0.0.0/0",
        ];
        let flags = Flags::parse(line.map(Into::into)).unwrap();
        let config = Settings::new(&flags).unwrap().config;
        let modes::Config::Iptables(of_mode) = &config else {
            panic!("another mode")
        };
        let mut proxier = Proxier::new(&of_mode.config, Kernel::fake()).unwrap();
        let state = Arc::new(Mutex::new(State::new(&config).unwrap()));
        let listeners = Arc::new(Listeners::default());
        let mut checks = Checks::new(Arc::clone(&state), Arc::clone(&listeners));
        let mut reader = Folder::new(folder.path());
        // The changes of the servers after the folder has these Services.
        let mut changed = |numbers: std::ops::Range<u16>| {
            write(numbers);
            for change in reader.read().changes.into_iter().chain(synced(false)) {
                proxier.change(FOLDER, change);
            }
            let synced = proxier.sync(Instant::now()).unwrap();
            checks.set(config.services(), proxier.services(), &synced.health_checks);
            let changes = std::mem::take(&mut *listeners.changes());
            let ipv4 = changes.into_iter().filter(|(address, _)| address.is_ipv4());
            ipv4.map(|(address, name)| (address.port(), name.is_some()))
                .collect::<Vec<_>>()
        };
        assert_eq!(changed(1..4), [(32_001, true), (32_002, true), (32_003, true)]);
        assert_eq!(changed(1..4), []);
        assert_eq!(changed(1..5), [(32_004, true)]);
        assert_eq!(changed(2..5), [(32_001, false)]);
        assert_eq!(state::lock(&state).checks.len(), 3);
    }

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
