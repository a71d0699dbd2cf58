//! Objects as an API server has them.

use kernlink_kernel_tests::traffic::Network;
use serde_json::{Value, json};

/// A Service with this cluster IP, on port 80.
pub(crate) fn api_service(name: &str, address: &str) -> Value {
    json!({
        "kind": "Service", "apiVersion": "v1", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": address, "clusterIPs": [address], "ports": [{"port": 80, "protocol": "TCP"}]},
    })
}

/// The slice of a Service, with this pod on port 8080.
pub(crate) fn api_slice(service: &str, pod: u8) -> Value {
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": format!("{service}-x"), "namespace": "shop", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [Network::pod_ipv4(pod).to_string()], "nodeName": "node-a", "conditions": {"ready": true}}],
    })
}
