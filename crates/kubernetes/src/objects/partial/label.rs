//! Labels and annotations.

use std::borrow::Cow;

use bytes::Bytes;
use prost::Message;

/// The prefixes of the labels and annotations of Services that a service proxy may use.
pub(crate) const SERVICE_PREFIXES: &[&str] = &["kernlink.io/", "service.kubernetes.io/"];

/// The others that it uses, of all kinds.
const NAMES: [&str; 3] = [
    "kubernetes.io/service-name",
    "topology.kubernetes.io/zone",
    "endpoints.kubernetes.io/last-change-trigger-time",
];

/// A label or an annotation. From JSON only those are read that may be used.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Label {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

impl Label {
    pub(crate) fn new(name: String, value: String) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
        }
    }

    /// The name. `None` if it is not UTF-8, as each valid name is.
    pub(crate) fn name(&self) -> Option<&str> {
        std::str::from_utf8(&self.name).ok()
    }

    /// The value. As in JSON of the API server, what is not UTF-8 is replaced.
    pub(crate) fn value(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.value)
    }

    /// The value of the label with a name.
    pub(crate) fn find<'a>(labels: &'a [Self], name: &str) -> Option<Cow<'a, str>> {
        let label = labels.iter().rev().find(|label| label.name == name);
        label.map(Self::value)
    }

    /// Whether labels or annotations with this name may be used.
    pub(super) fn is_used(name: &str) -> bool {
        NAMES.contains(&name) || SERVICE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    }
}
