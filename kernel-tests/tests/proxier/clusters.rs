//! The manifests of clusters, and a node.

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::tools;

use crate::support::{load_balancer, service, slices};

pub(crate) const WEB_PORTS: &str =
    "[{name: web, port: 8080, protocol: TCP}, {name: ask, port: 5353, protocol: UDP}]";

/// A Service of TCP port 80 and UDP port 53.
pub(crate) fn web(pods: &[(u8, &str)]) -> String {
    let ports = "ports: [{name: web, port: 80, protocol: TCP}, {name: ask, port: 53, protocol: UDP}], type: ClusterIP";
    service("web", 1, ports, "") + &slices("web", WEB_PORTS, pods)
}

/// A node without a network, for tests without packets.
pub(crate) fn node() -> NetNs {
    let node = NetNs::new();
    node.run(|| {
        let batch = "link add eth0 type dummy
link set eth0 up
address add 192.0.2.1/24 dev eth0
address add 2001:db8:1::1/64 dev eth0 nodad
";
        tools::ip_batch(batch);
    });
    node
}

/// Services of every type, with every policy, every protocol and both families.
pub(crate) fn everything() -> String {
    let node_port = "type: NodePort, ports: [{name: web, port: 80, nodePort: 30080, protocol: TCP}, \
                     {name: ask, port: 53, nodePort: 30053, protocol: UDP}]";
    let local = "type: NodePort, externalTrafficPolicy: Local, ports: [{name: web, port: 80, nodePort: 30081, protocol: TCP}]";
    let balanced = "type: LoadBalancer, loadBalancerSourceRanges: ['198.51.100.0/24', '2001:db8:5::/48'], \
                    ports: [{name: web, port: 443, nodePort: 30443, protocol: TCP}]";
    let external = "type: ClusterIP, externalIPs: ['203.0.113.20', '2001:db8:ff::20'], sessionAffinity: ClientIP, \
                    sessionAffinityConfig: {clientIP: {timeoutSeconds: 600}}, ports: [{name: web, port: 80, protocol: TCP}]";
    let sctp = "type: NodePort, ports: [{name: s, port: 99, nodePort: 30099, protocol: SCTP}]";
    [
        service("shop", 11, node_port, ""),
        slices("shop", WEB_PORTS, &[(0, "node-a"), (1, "node-b"), (2, "node-b")]),
        service("near", 12, local, ""),
        slices("near", WEB_PORTS, &[(0, "node-a"), (1, "node-b")]),
        load_balancer("outer", 13, balanced, ["203.0.113.10", "2001:db8:ff::10"]),
        slices("outer", WEB_PORTS, &[(1, "node-b")]),
        service("sticky", 14, external, ""),
        slices("sticky", WEB_PORTS, &[(0, "node-a"), (2, "node-b")]),
        service("stream", 15, sctp, ""),
        slices(
            "stream",
            "[{name: s, port: 9900, protocol: SCTP}]",
            &[(0, "node-a")],
        ),
    ]
    .concat()
}

/// A change of [`everything`]: a Service was deleted, one was added, and the others have other endpoints, ranges, policies and affinity.
pub(crate) fn everything_else() -> String {
    let node_port = "type: NodePort, externalTrafficPolicy: Local, ports: [{name: web, port: 80, nodePort: 30080, protocol: TCP}]";
    let balanced = "type: LoadBalancer, loadBalancerSourceRanges: ['192.0.2.0/24', '2001:db8:5::/48', '2001:db8:6::/48'], \
                    ports: [{name: web, port: 443, nodePort: 30444, protocol: TCP}]";
    let external = "type: ClusterIP, externalIPs: ['203.0.113.21', '2001:db8:ff::20'], sessionAffinity: ClientIP, \
                    sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}, ports: [{name: web, port: 80, protocol: TCP}]";
    let sctp = "type: NodePort, ports: [{name: s, port: 99, nodePort: 30098, protocol: SCTP}]";
    [
        service("shop", 11, node_port, ""),
        slices("shop", WEB_PORTS, &[(1, "node-b"), (3, "node-a")]),
        load_balancer("outer", 13, balanced, ["203.0.113.10", "2001:db8:ff::11"]),
        slices("outer", WEB_PORTS, &[(1, "node-b"), (2, "node-b")]),
        service("sticky", 14, external, ""),
        slices("sticky", WEB_PORTS, &[(0, "node-a"), (3, "node-a")]),
        service("stream", 15, sctp, ""),
        slices(
            "stream",
            "[{name: s, port: 9900, protocol: SCTP}]",
            &[(2, "node-b")],
        ),
        web(&[(0, "node-a"), (1, "node-b")]),
    ]
    .concat()
}
