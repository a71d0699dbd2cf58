//! Services and their endpoints in the pods of a [`Network`], as manifests, for tests of every data path.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::traffic::Network;

/// The ports of the endpoints of every Service in these tests.
pub const PORTS: &str = "[{name: web, port: 8080, protocol: TCP}, {name: ask, port: 5353, protocol: UDP}]";

/// The cluster IPs of a [`service`] with a number, one of each family.
#[must_use]
pub fn cluster_ips(number: u8) -> [IpAddr; 2] {
    [
        Ipv4Addr::new(10, 96, 0, number).into(),
        Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, number.into()).into(),
    ]
}

/// A dual-stack Service with ports 80/TCP and 53/UDP. `spec` is the rest of the specification, as fields of a map; `ports` are further
/// fields of the two ports.
#[must_use]
pub fn service(name: &str, number: u8, spec: &str, ports: [&str; 2], ingress: &[&str]) -> String {
    let [v4, v6] = cluster_ips(number);
    let [tcp, udp] = ports;
    let ingress: Vec<String> = ingress.iter().map(|ip| format!("{{ip: '{ip}'}}")).collect();
    let ingress = ingress.join(", ");
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: default, creationTimestamp: '2026-01-01T00:00:00Z'}}
spec: {{clusterIP: '{v4}', clusterIPs: ['{v4}', '{v6}'], ipFamilies: [IPv4, IPv6], {spec},
  ports: [{{name: web, port: 80, protocol: TCP{tcp}}}, {{name: ask, port: 53, protocol: UDP{udp}}}]}}
status: {{loadBalancer: {{ingress: [{ingress}]}}}}
"
    )
}

/// The endpoints of a Service: pods of [`Network`] by number, each with the name of its node; a slice for each family.
#[must_use]
pub fn slices(service: &str, pods: &[(u8, &str)]) -> String {
    let address = |family: &str, pod: u8| -> IpAddr {
        match family {
            "IPv4" => Network::pod_ipv4(pod).into(),
            _ => Network::pod_ipv6(pod).into(),
        }
    };
    let slice = |family: &str| {
        let endpoints: Vec<String> = pods
            .iter()
            .map(|(pod, node)| format!("{{addresses: ['{}'], nodeName: {node}}}", address(family, *pod)))
            .collect();
        format!(
            "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: {family}
metadata: {{name: {service}-{}, namespace: default, labels: {{kubernetes.io/service-name: {service}}}}}
ports: {PORTS}
endpoints: [{}]
",
            family.to_lowercase(),
            endpoints.join(", ")
        )
    };
    slice("IPv4") + &slice("IPv6")
}
