//! A load balancer for Services: one that keeps the destination address, as those with BGP or direct server return do. Each Service of type
//! LoadBalancer gets an address of each of its families, and the router sends packets for it to nodes, over routes of equal cost.
//!
//! With `externalTrafficPolicy: Local` only nodes whose health-check node port answers get packets. With session affinity all packets go to
//! one node, because each node remembers only its own clients.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    addresses::load_balancer,
    api::{exchange, get, patch},
    network::BRIDGE,
};
use crate::workspace::output;

/// Keeps a deleted Service until its address is no longer used.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
const INTERVAL: Duration = Duration::from_millis(500);
/// Of a health check.
const TIMEOUT: Duration = Duration::from_millis(500);
/// The numbers of addresses.
const NUMBERS: std::ops::RangeInclusive<u8> = 1..=250;

/// Runs it as long as the cluster exists.
pub(super) fn start() {
    thread::spawn(|| {
        let mut balancer = Balancer::default();
        loop {
            if let Err(error) = balancer.sync() {
                eprintln!("xtask: load balancer: {error:#}");
            }
            thread::sleep(INTERVAL);
        }
    });
}

#[derive(Debug, Default)]
struct Balancer {
    /// The number of each Service, by its UID.
    numbers: BTreeMap<String, u8>,
    /// The nodes that packets for an address are sent to.
    routes: BTreeMap<String, Vec<String>>,
}

impl Balancer {
    fn sync(&mut self) -> Result<()> {
        let nodes = node_addresses(&get("/api/v1/nodes")?);
        let services = get("/api/v1/services")?;
        let mut used = BTreeSet::new();
        for value in services["items"].as_array().into_iter().flatten() {
            let Some(service) = Service::read(value) else {
                continue;
            };
            let result = if service.is_wanted {
                self.serve(&service, &nodes, &mut used)
            } else {
                self.release(&service)
            };
            if let Err(error) = result {
                // It may have changed since it was read: the next pass reads it again.
                eprintln!("xtask: load balancer: {error:#}");
            }
        }
        let unused: Vec<_> = self
            .routes
            .keys()
            .filter(|address| !used.contains(*address))
            .cloned()
            .collect();
        for address in unused {
            self.routes.remove(&address);
            output(Command::new("ip").args(["route", "del", &host_route(&address)]))?;
        }
        Ok(())
    }

    fn serve(&mut self, service: &Service, nodes: &[Vec<String>], used: &mut BTreeSet<String>) -> Result<()> {
        let number = self.number(&service.uid)?;
        let addresses: Vec<_> = service
            .families
            .iter()
            .map(|family| load_balancer(number, family))
            .collect();
        for address in &addresses {
            used.insert(address.clone());
            let is_healthy = |node: &str| service.health_port.is_none_or(|port| is_healthy(node, port));
            let mut targets: Vec<_> = nodes
                .iter()
                .flatten()
                .filter(|node| node.contains(':') == address.contains(':') && is_healthy(node))
                .cloned()
                .collect();
            if service.has_affinity {
                targets.truncate(1);
            }
            self.route(address, targets)?;
        }
        if !service.has_finalizer() {
            let finalizers = service.finalizers.iter().map(String::as_str).chain([FINALIZER]);
            let finalizers: Vec<_> = finalizers.collect();
            patch(&service.path, &json!({"metadata": {"finalizers": finalizers}}))?;
        }
        if service.ingress != addresses {
            let ingress: Vec<_> = addresses
                .iter()
                .map(|address| json!({"ip": address, "ipMode": "VIP"}))
                .collect();
            let status = json!({"status": {"loadBalancer": {"ingress": ingress}}});
            patch(&format!("{}/status", service.path), &status)?;
        }
        Ok(())
    }

    /// Takes the addresses away from a Service that has another type now, or is deleted.
    fn release(&mut self, service: &Service) -> Result<()> {
        if !service.has_finalizer() {
            return Ok(());
        }
        if !service.ingress.is_empty() {
            let status = json!({"status": {"loadBalancer": {"ingress": null}}});
            patch(&format!("{}/status", service.path), &status)?;
        }
        let others: Vec<_> = service
            .finalizers
            .iter()
            .filter(|name| *name != FINALIZER)
            .collect();
        patch(&service.path, &json!({"metadata": {"finalizers": others}}))?;
        self.numbers.remove(&service.uid);
        Ok(())
    }

    /// The number of a Service, which it keeps.
    fn number(&mut self, uid: &str) -> Result<u8> {
        if let Some(number) = self.numbers.get(uid) {
            return Ok(*number);
        }
        let used: BTreeSet<_> = self.numbers.values().collect();
        let free = NUMBERS.into_iter().find(|number| !used.contains(number));
        let number = free.context("all addresses of load balancers are used")?;
        self.numbers.insert(uid.to_owned(), number);
        Ok(number)
    }

    /// Sends packets for an address to these nodes.
    fn route(&mut self, address: &str, targets: Vec<String>) -> Result<()> {
        if self.routes.get(address) == Some(&targets) {
            return Ok(());
        }
        // With IPv6, `replace` would add to the present nodes.
        if self.routes.remove(address).is_some() {
            output(Command::new("ip").args(["route", "del", &host_route(address)]))?;
        }
        output(Command::new("ip").args(route(address, &targets)))?;
        self.routes.insert(address.to_owned(), targets);
        Ok(())
    }
}

/// The arguments that add a route. Without a node packets are dropped.
fn route(address: &str, targets: &[String]) -> Vec<String> {
    let mut arguments = vec!["route".to_owned(), "add".to_owned()];
    if targets.is_empty() {
        arguments.push("blackhole".to_owned());
    }
    arguments.push(host_route(address));
    for target in targets {
        arguments.extend(["nexthop", "via", target, "dev", BRIDGE].map(str::to_owned));
    }
    arguments
}

fn host_route(address: &str) -> String {
    let length = if address.contains(':') { 128 } else { 32 };
    format!("{address}/{length}")
}

fn is_healthy(node: &str, port: u16) -> bool {
    exchange((node, port), "GET", "/healthz", "", TIMEOUT).is_ok_and(|(status, _)| status == 200)
}

/// The addresses of each node that is ready.
fn node_addresses(nodes: &Value) -> Vec<Vec<String>> {
    let is_ready = |node: &&Value| {
        let conditions = node["status"]["conditions"].as_array();
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    let of_node = |node: &Value| {
        let addresses = node["status"]["addresses"].as_array();
        addresses
            .into_iter()
            .flatten()
            .filter(|address| address["type"] == "InternalIP")
            .filter_map(|address| Some(address["address"].as_str()?.to_owned()))
            .collect()
    };
    let items = nodes["items"].as_array();
    items
        .into_iter()
        .flatten()
        .filter(is_ready)
        .map(of_node)
        .collect()
}

/// What the load balancer reads of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Service {
    path: String,
    uid: String,
    /// Whether it has type LoadBalancer, without a class, and is not deleted.
    is_wanted: bool,
    families: Vec<String>,
    finalizers: Vec<String>,
    /// The addresses in its status.
    ingress: Vec<String>,
    /// With `externalTrafficPolicy: Local`.
    health_port: Option<u16>,
    has_affinity: bool,
}

impl Service {
    fn read(value: &Value) -> Option<Self> {
        let (metadata, spec) = (&value["metadata"], &value["spec"]);
        let texts = |list: &Value| {
            let items = list.as_array().into_iter().flatten();
            items.filter_map(|item| Some(item.as_str()?.to_owned())).collect()
        };
        let ingress = value["status"]["loadBalancer"]["ingress"].as_array();
        let is_local = spec["externalTrafficPolicy"] == "Local";
        let health_port = spec["healthCheckNodePort"].as_u64().filter(|_| is_local);
        Some(Self {
            path: format!(
                "/api/v1/namespaces/{}/services/{}",
                metadata["namespace"].as_str()?,
                metadata["name"].as_str()?
            ),
            uid: metadata["uid"].as_str()?.to_owned(),
            is_wanted: spec["type"] == "LoadBalancer"
                && spec["loadBalancerClass"].is_null()
                && metadata["deletionTimestamp"].is_null(),
            families: texts(&spec["ipFamilies"]),
            finalizers: texts(&metadata["finalizers"]),
            ingress: ingress
                .into_iter()
                .flatten()
                .filter_map(|address| Some(address["ip"].as_str()?.to_owned()))
                .collect(),
            health_port: health_port.and_then(|port| port.try_into().ok()),
            has_affinity: spec["sessionAffinity"] == "ClientIP",
        })
    }

    fn has_finalizer(&self) -> bool {
        self.finalizers.iter().any(|name| name == FINALIZER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_read() {
        let value = json!({
            "metadata": {"namespace": "a", "name": "b", "uid": "u", "finalizers": [FINALIZER]},
            "spec": {
                "type": "LoadBalancer", "ipFamilies": ["IPv6", "IPv4"], "sessionAffinity": "ClientIP",
                "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000,
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "172.31.0.1"}]}},
        });
        let service = Service::read(&value).unwrap();
        assert_eq!(service.path, "/api/v1/namespaces/a/services/b");
        assert!(service.is_wanted && service.has_affinity && service.has_finalizer());
        assert_eq!(service.families, ["IPv6", "IPv4"]);
        assert_eq!(service.ingress, ["172.31.0.1"]);
        assert_eq!(service.health_port, Some(31000));
        for (pointer, other) in [
            ("/spec/type", json!("NodePort")),
            ("/spec/loadBalancerClass", json!("c")),
            ("/metadata/deletionTimestamp", json!("2026")),
        ] {
            let mut value = value.clone();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            value.pointer_mut(parent).unwrap()[field] = other;
            assert!(!Service::read(&value).unwrap().is_wanted, "{pointer}");
        }
    }

    #[test]
    fn packets_go_to_all_nodes_or_nowhere() {
        let targets = ["172.30.0.11", "172.30.0.12"].map(str::to_owned);
        assert_eq!(
            route("172.31.0.1", &targets).join(" "),
            "route add 172.31.0.1/32 nexthop via 172.30.0.11 dev br0 nexthop via 172.30.0.12 dev br0"
        );
        assert_eq!(
            route("fd00:31::1", &[]).join(" "),
            "route add blackhole fd00:31::1/128"
        );
    }

    #[test]
    fn a_service_keeps_its_number() {
        let mut balancer = Balancer::default();
        assert_eq!(balancer.number("a").unwrap(), 1);
        assert_eq!(balancer.number("b").unwrap(), 2);
        assert_eq!(balancer.number("a").unwrap(), 1);
        balancer.numbers.remove("a");
        assert_eq!(balancer.number("c").unwrap(), 1);
    }

    #[test]
    fn only_nodes_that_are_ready_get_packets() {
        let node = |ready: &str, address: &str| {
            json!({"status": {
                "conditions": [{"type": "Ready", "status": ready}],
                "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": address}],
            }})
        };
        let nodes = json!({"items": [node("True", "10.0.0.1"), node("Unknown", "10.0.0.2")]});
        assert_eq!(node_addresses(&nodes), [["10.0.0.1"]]);
    }
}
