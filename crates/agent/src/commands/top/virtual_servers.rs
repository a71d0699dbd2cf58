//! Reads the connections and counters of virtual servers.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use kernlink_base::{ErrorChain, Modules};
use kernlink_proxier::ipvs_mode::ipvs::{
    self, Client, ForwardingMethod, Ipvs, RealServerKey, RealServerStatus, VirtualServerKey,
};
use kernlink_proxier::ipvs_mode::virtual_servers::{frontend_of, key_of};

use super::flows::Found;
use super::reading::{Counted, CountedTarget, directions};
use super::targets::Target;

/// What a reading counted.
#[derive(Clone, Debug, Default)]
struct Before {
    /// The bytes of both directions.
    bytes: HashMap<(VirtualServerKey, RealServerKey), [u64; 2]>,
    /// The virtual servers whose real servers it counted.
    keys: HashSet<VirtualServerKey>,
}

/// Reads virtual servers, and keeps their counters until the next reading.
#[derive(Debug, Default)]
pub(super) struct VirtualServers {
    /// The counters of the reading before. `None`: there is none.
    before: Option<Before>,
}

impl VirtualServers {
    /// Reads the virtual servers of these targets. `has_bytes`: whether the kernel sums its counters.
    pub(super) fn read(&mut self, targets: &[Target], has_bytes: bool) -> Found {
        let read = self.read_all(targets, has_bytes);
        read.unwrap_or_else(|error| {
            self.before = None;
            Found {
                counted: targets.iter().map(CountedTarget::unknown).collect(),
                notes: vec![format!("connections are not known: {}", ErrorChain(&error))],
            }
        })
    }

    fn read_all(&mut self, targets: &[Target], has_bytes: bool) -> Result<Found, ipvs::Error> {
        let mut client = Client::open()?;
        let before = self.before.take();
        let mut now = Before::default();
        let mut counted = Vec::with_capacity(targets.len());
        for target in targets {
            let mut found = CountedTarget::none(target);
            for frontend in &target.frontends {
                let key = key_of(frontend);
                now.keys.insert(key);
                let servers = match client.list_real_servers(&key) {
                    Ok(servers) => servers,
                    // It is not served yet, or any more.
                    Err(error) if error.is_not_found() => continue,
                    Err(error) => return Err(error),
                };
                for server in servers {
                    add(&mut found, &key, &server, before.as_ref(), &mut now);
                }
            }
            if !has_bytes || before.is_none() {
                found.forget_bytes();
            }
            counted.push(found);
        }
        // Without sums nothing is known of this reading.
        self.before = has_bytes.then_some(now);
        let mut notes = Vec::new();
        if !has_bytes {
            notes.push("bytes are not known: net.ipv4.vs.run_estimation is 0".to_owned());
        }
        Ok(Found { counted, notes })
    }
}

fn add(
    found: &mut CountedTarget,
    key: &VirtualServerKey,
    server: &RealServerStatus,
    before: Option<&Before>,
    now: &mut Before,
) {
    let of_server = server.server.key;
    let bytes = [server.stats.incoming_bytes, server.stats.outgoing_bytes];
    now.bytes.insert((*key, of_server), bytes);
    let difference = before.and_then(|before| {
        let last = match before.bytes.get(&(*key, of_server)) {
            Some(last) => *last,
            // It was added after the reading before.
            None if before.keys.contains(key) => [0, 0],
            // It may be older: that reading did not count this virtual server.
            None => return None,
        };
        Some([bytes[0].saturating_sub(last[0]), bytes[1].saturating_sub(last[1])])
    });
    let mut bytes = directions(difference);
    // Replies do not pass this host.
    if matches!(
        server.server.forwarding,
        ForwardingMethod::DirectRoute | ForwardingMethod::Tunnel | ForwardingMethod::Bypass
    ) {
        bytes[1] = None;
    }
    let counted = Counted {
        active: Some(u64::from(server.connections.active)),
        inactive: Some(u64::from(server.connections.inactive)),
        bytes,
    };
    found.add(SocketAddr::new(of_server.address, of_server.port), counted);
}

/// All virtual servers of the kernel with an address, without asking an agent. No module is loaded for it.
///
/// # Errors
/// Why they cannot be listed.
pub(super) fn all() -> Result<Vec<Target>, String> {
    if !Modules::of_running_kernel().is_loaded("ip_vs") {
        return Err("the kernel has no virtual servers: the module ip_vs is not loaded".to_owned());
    }
    let listed = Client::open().and_then(|mut client| client.list_virtual_servers());
    let listed = listed.map_err(|error| ErrorChain(&error).to_string())?;
    let mut targets: Vec<Target> = listed
        .iter()
        .filter_map(|status| {
            let frontend = frontend_of(&status.server.key)?;
            Some(Target {
                name: frontend.to_string(),
                frontends: vec![frontend],
                endpoints: Vec::new(),
            })
        })
        .collect();
    targets.sort_by(|one, other| one.frontends.cmp(&other.frontends));
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use kernlink_proxier::ipvs_mode::ipvs::RealServer;
    use kernlink_services::{FrontendKey, Protocol};

    use super::*;

    #[test]
    fn connections_and_bytes_are_those_of_real_servers() {
        let target = Target {
            name: "a/a".to_owned(),
            frontends: vec![FrontendKey {
                address: "10.96.0.1".parse().unwrap(),
                protocol: Protocol::Tcp,
                port: 80,
            }],
            endpoints: vec!["10.0.0.1:8080".parse().unwrap()],
        };
        let key = key_of(&target.frontends[0]);
        let server = |active, bytes: [u64; 2]| {
            let mut status = RealServerStatus::new(RealServer::new(RealServerKey::new(
                "10.0.0.1".parse::<std::net::IpAddr>().unwrap(),
                8080,
            )));
            status.connections.active = active;
            status.stats.incoming_bytes = bytes[0];
            status.stats.outgoing_bytes = bytes[1];
            status
        };
        let (mut first, mut bytes) = (CountedTarget::none(&target), Before::default());
        add(&mut first, &key, &server(3, [10, 20]), None, &mut bytes);
        assert_eq!((first.total.active, first.total.bytes), (Some(3), [None; 2]));
        let (mut second, mut now) = (CountedTarget::none(&target), Before::default());
        add(&mut second, &key, &server(4, [15, 27]), Some(&bytes), &mut now);
        assert_eq!(
            (second.total.active, second.total.bytes),
            (Some(4), [Some(5), Some(7)])
        );
        // It was deleted and added again: its counters begin at 0.
        let (mut third, mut later) = (CountedTarget::none(&target), Before::default());
        add(&mut third, &key, &server(0, [1, 1]), Some(&now), &mut later);
        assert_eq!(third.total.bytes, [Some(0); 2]);
        // A reading that did not count the virtual server says nothing of a real server; one that did, that it is new.
        let mut before = Before::default();
        for expected in [[None; 2], [Some(1); 2]] {
            let mut found = CountedTarget::none(&target);
            add(&mut found, &key, &server(0, [1, 1]), Some(&before), &mut later);
            assert_eq!(found.total.bytes, expected);
            before.keys.insert(key);
        }
        // Replies of a real server that is reached directly do not pass this host.
        let mut direct = server(0, [1, 0]);
        direct.server.forwarding = ForwardingMethod::DirectRoute;
        let mut found = CountedTarget::none(&target);
        add(&mut found, &key, &direct, Some(&before), &mut later);
        assert_eq!(found.total.bytes, [Some(1), None]);
    }
}
