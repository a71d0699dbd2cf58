//! Reads the fixtures in `tests/oracle`, for tests in memory and on the kernel. `tests/oracle/README.md` describes the files.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use kernlink_kubernetes::kube_proxy_config;
use kernlink_proxier::ipvs_mode::Config;

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The configuration of a fixture, with the facts of its Node.
pub(crate) fn config(fixture: &Path) -> Config {
    let path = fixture.join("config.yaml");
    let read_config = kube_proxy_config::read(&path.display().to_string(), &read(&path));
    let mut config = Config::from_kube_proxy(&read_config.unwrap()).unwrap();
    let node: serde_json::Value = serde_json::from_str(&read(&fixture.join("node.json"))).unwrap();
    let texts = |name: &str| -> Vec<&str> {
        let list = node[name].as_array().unwrap().iter();
        list.map(|text| text.as_str().unwrap()).collect()
    };
    config.services.node_name = Arc::from(node["name"].as_str().unwrap());
    config.services.zone = node["zone"].as_str().map(Arc::from);
    config.services.node_ips = texts("ips").iter().map(|text| text.parse().unwrap()).collect();
    config.services.pod_cidrs = texts("pod_cidrs")
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    config
}
