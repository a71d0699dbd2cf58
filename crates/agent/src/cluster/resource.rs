//! The paths of lists and watches.

use std::fmt::Write;

use kernlink_services::Kind;

/// The number of objects on a page of a list.
const PAGE: u32 = 500;

/// The label that names the proxy of a Service.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// Objects of a kind that are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) kind: Kind,
    path: &'static str,
    /// The selectors, encoded, each with a leading `&`.
    selectors: String,
}

impl Resource {
    /// The Services of this proxy that have an address, as in kube-proxy.
    pub(super) fn services(proxy_name: Option<&str>) -> Self {
        let labels = match proxy_name {
            None => format!("!{PROXY_NAME}"),
            Some(name) => format!("{PROXY_NAME}={name}"),
        };
        Self::new(Kind::Service, "/api/v1/services", &labels, "spec.clusterIP!=None")
    }

    /// The EndpointSlices of Services that have an address, as in kube-proxy.
    pub(super) fn endpoint_slices() -> Self {
        let path = "/apis/discovery.k8s.io/v1/endpointslices";
        Self::new(Kind::EndpointSlice, path, "!service.kubernetes.io/headless", "")
    }

    /// One Node.
    pub(super) fn node(name: &str) -> Self {
        Self::new(Kind::Node, "/api/v1/nodes", "", &format!("metadata.name={name}"))
    }

    /// All Nodes.
    pub(super) fn nodes() -> Self {
        Self::new(Kind::Node, "/api/v1/nodes", "", "")
    }

    /// The name in roles.
    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            Kind::Service => "services",
            Kind::EndpointSlice => "endpointslices.discovery.k8s.io",
            Kind::Node => "nodes",
        }
    }

    fn new(kind: Kind, path: &'static str, labels: &str, fields: &str) -> Self {
        let mut selectors = String::new();
        for (name, value) in [("labelSelector", labels), ("fieldSelector", fields)] {
            if !value.is_empty() {
                selectors += &parameter(name, value);
            }
        }
        Self {
            kind,
            path,
            selectors,
        }
    }

    /// The first page of the latest list, or with a token another one.
    pub(super) fn page(&self, token: &str) -> String {
        let token = match token {
            "" => String::new(),
            token => parameter("continue", token),
        };
        format!("{}?limit={PAGE}{token}{}", self.path, self.selectors)
    }

    /// The latest list without pages.
    pub(super) fn list(&self) -> String {
        let query = self.selectors.trim_start_matches('&');
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{}{mark}{query}", self.path)
    }

    /// A watch of what changes after a version.
    pub(super) fn watch(&self, version: &str, seconds: u64) -> String {
        format!(
            "{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}{}{}",
            self.path,
            parameter("resourceVersion", version),
            self.selectors
        )
    }

    /// A watch that begins with the latest list.
    pub(super) fn streamed_list(&self, seconds: u64) -> String {
        format!(
            "{}?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds={seconds}{}",
            self.path, self.selectors
        )
    }
}

/// `&name=value` with the value encoded.
fn parameter(name: &str, value: &str) -> String {
    let mut text = format!("&{name}=");
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(byte.into()),
            // Writing to a text does not fail.
            other => _ = write!(text, "%{other:02X}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_the_selectors_of_kube_proxy() {
        assert_eq!(
            Resource::services(None).list(),
            "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name&fieldSelector=spec.clusterIP%21%3DNone"
        );
        assert!(
            Resource::services(Some("other"))
                .list()
                .contains("labelSelector=service.kubernetes.io%2Fservice-proxy-name%3Dother&")
        );
        assert_eq!(
            Resource::endpoint_slices().page("a+b/c="),
            "/apis/discovery.k8s.io/v1/endpointslices?limit=500&continue=a%2Bb%2Fc%3D&labelSelector=%21service.kubernetes.io%2Fheadless"
        );
        assert_eq!(
            Resource::node("n").page(""),
            "/api/v1/nodes?limit=500&fieldSelector=metadata.name%3Dn"
        );
        assert_eq!(Resource::nodes().list(), "/api/v1/nodes");
    }

    #[test]
    fn watches_begin_at_a_version_or_with_the_list() {
        assert_eq!(
            Resource::node("n").watch("17", 300),
            "/api/v1/nodes?watch=1&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=17&fieldSelector=metadata.name%3Dn"
        );
        assert_eq!(
            Resource::nodes().streamed_list(300),
            "/api/v1/nodes?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=300"
        );
    }
}
