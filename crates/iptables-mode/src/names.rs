//! The names of the chains of a service port and of its endpoints.
//!
//! Source: `servicePortPolicyClusterChain` and its neighbours in `pkg/proxy/iptables/proxier.go` of Kubernetes v1.36.3.

use std::fmt::Write;
use std::net::SocketAddr;

use data_encoding::BASE32;
use kernlink_iptables_restore::ChainName;
use kernlink_services::{Protocol, ServicePortName};
use sha2::{Digest, Sha256};

/// The kinds of chains of a service port. The names of a kind begin with its prefix; other programs must not use these prefixes in
/// table `nat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ChainKind {
    /// Traffic from outside the cluster.
    External,
    /// Source ranges of a load balancer.
    Firewall,
    /// Selects one of the endpoints for the policy `Cluster`.
    Cluster,
    /// Selects one of the endpoints for the policy `Local`.
    Local,
    /// Rewrites the destination to an endpoint.
    Endpoint,
}

impl ChainKind {
    pub(super) const ALL: [Self; 5] = [
        Self::External,
        Self::Firewall,
        Self::Cluster,
        Self::Local,
        Self::Endpoint,
    ];

    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::External => "KUBE-EXT-",
            Self::Firewall => "KUBE-FW-",
            Self::Cluster => "KUBE-SVC-",
            Self::Local => "KUBE-SVL-",
            Self::Endpoint => "KUBE-SEP-",
        }
    }
}

/// The names of the chains of one service port, in either family.
#[derive(Clone, Debug)]
pub(super) struct ChainNames {
    /// The text of which the names are hashes.
    text: String,
    hash: String,
}

impl ChainNames {
    pub(super) fn new(port: &ServicePortName) -> Self {
        let protocol = match port.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        };
        let text = format!("{port}{protocol}");
        let hash = hash(&text);
        Self { text, hash }
    }

    /// A chain of the service port. [`ChainKind::Endpoint`] needs an endpoint: [`endpoint`](Self::endpoint).
    pub(super) fn of(&self, kind: ChainKind) -> ChainName {
        name(kind, &self.hash)
    }

    /// The chain of an endpoint.
    pub(super) fn endpoint(&self, endpoint: SocketAddr) -> ChainName {
        let mut text = self.text.clone();
        // Writing to a string cannot fail.
        let _ = write!(text, "{endpoint}");
        name(ChainKind::Endpoint, &hash(&text))
    }
}

fn hash(text: &str) -> String {
    let mut encoded = BASE32.encode(&Sha256::digest(text.as_bytes()));
    encoded.truncate(16);
    encoded
}

fn name(kind: ChainKind, hash: &str) -> ChainName {
    // A prefix of 9 characters at most and 16 characters; the limit is 28.
    #[expect(clippy::expect_used, reason = "a length that a test checks")]
    ChainName::new(&format!("{}{hash}", kind.prefix())).expect("a chain name of at most 25 characters")
}

#[cfg(test)]
mod tests {
    use kernlink_services::ObjectName;

    use super::*;

    fn names(namespace: &str, service: &str, port: &str) -> ChainNames {
        ChainNames::new(&ServicePortName {
            service: ObjectName::new(namespace, service),
            port: port.into(),
            protocol: Protocol::Tcp,
        })
    }

    #[test]
    fn names_equal_those_of_kube_proxy() {
        let port = names("ns1", "svc1", "p80");
        assert_eq!(port.of(ChainKind::Cluster).as_str(), "KUBE-SVC-XPGD46QRK7WJZT7O");
        assert_eq!(port.of(ChainKind::Local).as_str(), "KUBE-SVL-XPGD46QRK7WJZT7O");
        assert_eq!(port.of(ChainKind::External).as_str(), "KUBE-EXT-XPGD46QRK7WJZT7O");
        assert_eq!(port.of(ChainKind::Firewall).as_str(), "KUBE-FW-XPGD46QRK7WJZT7O");
        let endpoint = port.endpoint("10.180.0.1:80".parse().unwrap());
        assert_eq!(endpoint.as_str(), "KUBE-SEP-SXIVWICOYRO3J4NJ");
        let kubernetes = names("default", "kubernetes", "https");
        assert_eq!(
            kubernetes.of(ChainKind::Cluster).as_str(),
            "KUBE-SVC-NPX46M4PTMTKRN6Y"
        );
    }

    #[test]
    fn a_port_without_a_name_has_no_colon_in_the_text() {
        let port = names("ns1", "svc1", "");
        assert_eq!(port.of(ChainKind::Cluster).as_str(), "KUBE-SVC-AQI2S6QIMU7PVVRP");
    }

    #[test]
    fn an_ipv6_endpoint_is_in_brackets_in_the_text() {
        let endpoint = names("ns1", "svc1", "p80").endpoint("[fd00:10:180::1]:80".parse().unwrap());
        assert_eq!(endpoint.as_str(), "KUBE-SEP-OGYCNMB4EMRUSJ6N");
    }
}
