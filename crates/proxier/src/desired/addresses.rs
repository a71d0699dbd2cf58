//! The addresses that the dummy link must carry, so that the kernel takes packets to them for its own.

use std::net::IpAddr;

use crate::model::{Frontend, FrontendKind};

/// The address to bind for a frontend. Cluster IPs always; external and load-balancer IPs unless another link of this node has
/// them; node ports never, because their addresses are the node's own.
pub(crate) fn of_frontend(frontend: &Frontend) -> Option<IpAddr> {
    let bind = match frontend.kind {
        FrontendKind::ClusterIp => true,
        FrontendKind::ExternalIp | FrontendKind::LoadBalancer => !frontend.on_this_node,
        FrontendKind::NodePort => false,
    };
    bind.then_some(frontend.address)
}
