//! Reads the fixtures in `tests/oracle` and `tests/oracle_iptables`, for tests in memory and on the kernel. Their `README.md` describe the
//! files.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use kernlink_kubernetes::kube_proxy_config;
use kernlink_proxier::{iptables_mode, ipvs_mode};
use kernlink_services::Config;

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The configuration of a fixture of IPVS mode, with the facts of its Node.
pub(crate) fn config(fixture: &Path) -> ipvs_mode::Config {
    let path = fixture.join("config.yaml");
    let file = kube_proxy_config::read(&path.display().to_string(), &read(&path)).unwrap();
    let mut config = ipvs_mode::Config::from_kube_proxy(&file).unwrap();
    set_node(&mut config.services, fixture);
    config
}

/// The configuration of a fixture of iptables mode, with the facts of the Node in another folder.
pub(crate) fn iptables_config(fixture: &Path, node: &Path) -> iptables_mode::Config {
    let path = fixture.join("config.yaml");
    let file = kube_proxy_config::read(&path.display().to_string(), &read(&path)).unwrap();
    let mut config = iptables_mode::Config::from_kube_proxy(&file).unwrap();
    set_node(&mut config.services, node);
    config
}

fn set_node(config: &mut Config, fixture: &Path) {
    let node: serde_json::Value = serde_json::from_str(&read(&fixture.join("node.json"))).unwrap();
    let texts = |name: &str| -> Vec<&str> {
        let list = node[name].as_array().unwrap().iter();
        list.map(|text| text.as_str().unwrap()).collect()
    };
    config.node_name = Arc::from(node["name"].as_str().unwrap());
    config.zone = node["zone"].as_str().map(Arc::from);
    config.node_ips = texts("ips").iter().map(|text| text.parse().unwrap()).collect();
    config.pod_cidrs = texts("pod_cidrs")
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
}
