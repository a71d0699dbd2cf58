//! The endpoint as a Service of userspace mode and as one of iptables mode.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use kernlink_kernel_tests::traffic::Network;
use kernlink_kubernetes::manifest;
use kernlink_proxier::{DataPath, Proxier, iptables_mode};
use kernlink_userspace::{Config, Kernel, Limits, UserspaceMode};
use tokio::runtime::Handle;

use super::Outcome;
use super::endpoint::PORT;

/// A Service with one endpoint.
pub(crate) struct Service {
    name: &'static str,
    cluster_ip: Ipv4Addr,
}

/// The Service of each mode. They are in one network namespace, and their rules do not touch each other.
pub(crate) const USERSPACE: Service = Service {
    name: "userspace",
    cluster_ip: Ipv4Addr::new(10, 96, 0, 10),
};
pub(crate) const IPTABLES: Service = Service {
    name: "iptables",
    cluster_ip: Ipv4Addr::new(10, 96, 0, 20),
};

impl Service {
    pub(crate) fn tcp(&self) -> SocketAddr {
        (self.cluster_ip, 80).into()
    }

    pub(crate) fn udp(&self) -> SocketAddr {
        (self.cluster_ip, 53).into()
    }

    fn manifests(&self) -> String {
        let (name, address, pod) = (self.name, self.cluster_ip, Network::pod_ipv4(0));
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\n\
             spec: {{clusterIP: {address}, ports: [{{name: web, port: 80}}, {{name: ask, port: 53, protocol: UDP}}]}}\n\
             ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: {name}-1, namespace: default, labels: {{kubernetes.io/service-name: {name}}}}}\naddressType: IPv4\n\
             ports: [{{name: web, port: {PORT}}}, {{name: ask, port: {PORT}, protocol: UDP}}]\n\
             endpoints: [{{addresses: ['{pod}']}}]\n"
        )
    }

    /// Serves it in the calling thread's network namespace.
    fn serve<D: DataPath>(&self, mut proxier: Proxier<D>) -> Outcome<Proxier<D>> {
        let objects = manifest::read(self.name, &self.manifests());
        for change in objects.into_changes()? {
            proxier.change(kernlink_proxier::services::SourceId(0), change);
        }
        let synced = proxier.sync(Instant::now())?;
        if synced.is_success() {
            Ok(proxier)
        } else {
            Err(synced.to_string().into())
        }
    }
}

/// Serves the Service of userspace mode until the value is dropped.
pub(crate) fn serve_userspace(runtime: &Handle) -> Outcome<Proxier<UserspaceMode>> {
    let mut config = Config::new("node-a");
    config.services.node_ips = vec![Network::node_ipv4().into()];
    let kernel = Kernel::open(runtime.clone(), Limits::default())?;
    USERSPACE.serve(kernlink_userspace::Proxier::new(&config, kernel)?)
}

/// Writes the rules of the Service of iptables mode.
pub(crate) fn serve_iptables() -> Outcome<()> {
    let mut config = iptables_mode::Config::new("node-a");
    config.services.node_ips = vec![Network::node_ipv4().into()];
    // The limits of the whole machine stay as they are.
    config.conntrack = kernlink_benches::cluster::conntrack();
    let kernel = iptables_mode::Kernel::open()?;
    IPTABLES.serve(iptables_mode::Proxier::new(&config, kernel)?)?;
    Ok(())
}
