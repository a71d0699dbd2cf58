//! Reads the kernel objects that serve a frontend, one by one, on another thread than that of the proxier.

use std::error::Error;
use std::time::Duration;

use kernlink_base::ErrorChain;
use kernlink_proxier::ipvs_mode::iptables_restore::Client as Tool;
use kernlink_proxier::ipvs_mode::ipvs::{self, Ipvs};
use kernlink_proxier::{Found, KernelObject, iptables_mode, ipvs_mode, nftables_mode};
use kernlink_services::{FrontendKey, ServicePortId};

/// Reads kernel objects.
pub type Find = Box<dyn FnOnce() -> Vec<KernelObject> + Send>;

/// The longest time of an iptables tool.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The longest time that one waits for the lock of the tables.
const WAIT: Duration = Duration::from_secs(1);

fn unknown(what: impl Into<String>, error: &(dyn Error + 'static)) -> KernelObject {
    KernelObject::unknown(what, ErrorChain(error).to_string())
}

/// The chains and rules of a service port.
pub(super) fn of_iptables(state: &iptables_mode::State, port: ServicePortId) -> Find {
    let rules = state.port_rules(port);
    Box::new(move || {
        let mut tool = Tool::new().with_timeout(TIMEOUT).with_wait(WAIT);
        rules.map_or_else(Vec::new, |rules| rules.find(&mut tool))
    })
}

/// The elements of a frontend.
pub(super) fn of_nftables(state: &nftables_mode::State, frontend: &FrontendKey) -> Find {
    let elements = state.frontend_elements(frontend);
    Box::new(move || match nftables_mode::nftables::Client::open() {
        Ok(mut client) => elements.find(&mut client),
        Err(error) => vec![unknown("nf_tables", &error)],
    })
}

/// The virtual server of a frontend, with its real servers and their connections.
pub(super) fn of_ipvs(state: &ipvs_mode::State, frontend: &FrontendKey) -> Find {
    let key = ipvs_mode::virtual_servers::key_of(frontend);
    let desired = state.virtual_server(&key).map(|desired| {
        let servers = desired.real_servers.to_vec();
        (desired.virtual_server.clone(), servers)
    });
    Box::new(move || {
        let Some((server, real_servers)) = desired else {
            return Vec::new();
        };
        let name = server.to_string();
        let found = ipvs::Client::open().and_then(|mut client| {
            let found = client.find_virtual_server(&key)?;
            let real_servers = match &found {
                Some(_) => client.list_real_servers(&key)?,
                None => Vec::new(),
            };
            Ok((found, real_servers))
        });
        let (found, found_servers) = match found {
            Ok((Some(found), servers)) => (found, servers),
            Ok((None, _)) => return vec![KernelObject::missing(name)],
            Err(error) => return vec![unknown(name, &error)],
        };
        let mut objects = vec![match found.server.to_string() {
            same if same == name => KernelObject::same(name),
            other => KernelObject::different(name, other),
        }];
        for desired in real_servers {
            let name = format!("-a {key} {desired}");
            let Some(found) = found_servers.iter().find(|found| found.server.key == desired.key) else {
                objects.push(KernelObject::missing(name));
                continue;
            };
            let text = format!("-a {key} {}", found.server);
            objects.push(if text == name {
                let counts = found.connections;
                KernelObject {
                    desired: name,
                    found: Found::Same(format!(
                        "{} active and {} inactive connections",
                        counts.active, counts.inactive
                    )),
                }
            } else {
                KernelObject::different(name, text)
            });
        }
        objects
    })
}
