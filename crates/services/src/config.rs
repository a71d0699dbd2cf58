//! The configuration that is common to all data paths.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use kernlink_base::Family;

use crate::model::{AnnotationPolicy, Options};

/// Which Services are served, on which node, and with which defaults. [`Config::new`] has kube-proxy's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The name of this node, compared with `nodeName` of endpoints. If it is empty, no endpoint is local.
    pub node_name: Arc<str>,
    /// The address families to serve. Default: both.
    pub families: BTreeSet<Family>,
    /// The zone of this node. `None`: the label `topology.kubernetes.io/zone` of the Node object.
    pub zone: Option<Arc<str>>,
    /// The addresses of this node; the first one is primary. Empty: the addresses of the Node object.
    pub node_ips: Vec<IpAddr>,
    /// The pod networks of this node. Empty: those of the Node object.
    pub pod_cidrs: Vec<IpNet>,
    /// The address of this node in the family of this address, which becomes the primary family. `None` and the unspecified address
    /// have no effect.
    pub bind_address: Option<IpAddr>,
    /// Serves only Services whose label `service.kubernetes.io/service-proxy-name` has this value. `None`: only Services
    /// without the label.
    pub service_proxy_name: Option<String>,
    /// The options of Services without annotations.
    pub defaults: Options,
    /// The options that Services may set by annotations. Default: all, in every namespace.
    pub annotations: AnnotationPolicy,
    /// Whether `externalIPs` of Services are ignored, with an event: any user who may create a Service can receive the traffic to an address
    /// of another host by them, on every node (CVE-2020-8554). Default: false, as in kube-proxy.
    pub ignore_external_ips: bool,
    /// The addresses of this node that accept node ports.
    pub node_port_addresses: NodePortAddresses,
}

impl Config {
    /// kube-proxy's defaults for the node with this name.
    #[must_use]
    pub fn new(node_name: impl Into<Arc<str>>) -> Self {
        Self {
            node_name: node_name.into(),
            families: Family::ALL.into(),
            zone: None,
            node_ips: Vec::new(),
            pod_cidrs: Vec::new(),
            bind_address: None,
            service_proxy_name: None,
            defaults: Options::default(),
            annotations: AnnotationPolicy::default(),
            ignore_external_ips: false,
            node_port_addresses: NodePortAddresses::All,
        }
    }

    /// What is invalid in these fields for every proxy: for each problem the field, named as in the field `services` of a proxy's
    /// configuration, and what is wrong with it. Empty: nothing.
    #[must_use]
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if self.families.is_empty() {
            problems.push((
                "services.families",
                "no address family; valid: IPv4, IPv6 or both".to_owned(),
            ));
        }
        if let Err(problem) = self.annotations.validate() {
            problems.push(("services.annotations.names", problem));
        }
        let mapped = |address: &&IpAddr| address.to_canonical() != **address;
        if let Some(address) = self.node_ips.iter().find(mapped) {
            problems.push((
                "services.node_ips",
                format!("{address} is an IPv4-mapped address; use the IPv4 address"),
            ));
        }
        problems
    }
}

/// The addresses of this node that accept node ports. Loopback addresses do not accept them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All addresses.
    #[default]
    All,
    /// The addresses in these networks. In a family without a network: all addresses.
    Networks(Vec<IpNet>),
    /// The node's address in each family, and none in a family in which it has none. If all that it has are loopback addresses: all addresses.
    /// None at all until an address of the node is known.
    Primary,
}
