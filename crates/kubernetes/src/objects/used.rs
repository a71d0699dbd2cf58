//! The fields of API objects that a service proxy uses. Nothing in any other field has an effect, of any type: the API server stores
//! objects that the types of a client library refuse, and later versions of Kubernetes have more fields.

#[cfg(feature = "watch")]
mod read;

use serde_json::Value;

use self::Used::{Fields, Items, Names, Value as All};
use super::partial::SERVICE_PREFIXES;

/// The part of a value that is used.
pub(super) enum Used {
    /// All of it.
    Value,
    /// These fields.
    Fields(&'static [(&'static str, Used)]),
    /// The items, of each this part.
    Items(&'static Used),
    /// Labels or annotations with these names, or with these prefixes, which end with a slash.
    Names(&'static [&'static str]),
}

pub(super) const SERVICE: Used = Fields(&[
    (
        "metadata",
        Fields(&[
            ("name", All),
            ("namespace", All),
            ("creationTimestamp", All),
            ("labels", Names(SERVICE_PREFIXES)),
            ("annotations", Names(SERVICE_PREFIXES)),
        ]),
    ),
    (
        "spec",
        Fields(&[
            ("type", All),
            ("clusterIP", All),
            ("clusterIPs", All),
            ("ipFamilies", All),
            (
                "ports",
                Items(&Fields(&[
                    ("name", All),
                    ("protocol", All),
                    ("port", All),
                    ("nodePort", All),
                ])),
            ),
            ("externalIPs", All),
            ("loadBalancerSourceRanges", All),
            ("externalTrafficPolicy", All),
            ("internalTrafficPolicy", All),
            ("healthCheckNodePort", All),
            ("sessionAffinity", All),
            (
                "sessionAffinityConfig",
                Fields(&[("clientIP", Fields(&[("timeoutSeconds", All)]))]),
            ),
        ]),
    ),
    (
        "status",
        Fields(&[(
            "loadBalancer",
            Fields(&[("ingress", Items(&Fields(&[("ip", All), ("ipMode", All)])))]),
        )]),
    ),
]);

pub(super) const ENDPOINT_SLICE: Used = Fields(&[
    (
        "metadata",
        Fields(&[
            ("name", All),
            ("namespace", All),
            (
                "labels",
                Names(&["kubernetes.io/service-name", "service.kubernetes.io/headless"]),
            ),
            (
                "annotations",
                Names(&["endpoints.kubernetes.io/last-change-trigger-time"]),
            ),
        ]),
    ),
    ("addressType", All),
    ("endpoints", Items(&ENDPOINT)),
    (
        "ports",
        Items(&Fields(&[("name", All), ("protocol", All), ("port", All)])),
    ),
]);

const ENDPOINT: Used = Fields(&[
    ("addresses", All),
    (
        "conditions",
        Fields(&[("ready", All), ("serving", All), ("terminating", All)]),
    ),
    ("nodeName", All),
    ("zone", All),
    (
        "hints",
        Fields(&[
            ("forZones", Items(&Fields(&[("name", All)]))),
            ("forNodes", Items(&Fields(&[("name", All)]))),
        ]),
    ),
]);

pub(super) const NODE: Used = Fields(&[
    (
        "metadata",
        Fields(&[
            ("name", All),
            ("labels", Names(&["topology.kubernetes.io/zone"])),
            ("deletionTimestamp", All),
        ]),
    ),
    (
        "spec",
        Fields(&[
            ("podCIDR", All),
            ("podCIDRs", All),
            ("taints", Items(&Fields(&[("key", All)]))),
        ]),
    ),
    (
        "status",
        Fields(&[("addresses", Items(&Fields(&[("type", All), ("address", All)])))]),
    ),
]);

/// The version of an object of any kind.
#[cfg(feature = "watch")]
pub(super) const VERSION: Used = Fields(&[("metadata", Fields(&[("resourceVersion", All)]))]);

impl Used {
    /// The part of a field; `None` if the field is not used.
    fn of_field(&self, name: &str) -> Option<&Self> {
        match self {
            Fields(used) => used
                .iter()
                .find(|(field, _)| *field == name)
                .map(|(_, used)| used),
            Names(names) => names
                .iter()
                .any(|used| *used == name || (used.ends_with('/') && name.starts_with(used)))
                .then_some(&All),
            All | Items(_) => None,
        }
    }

    /// Removes everything else. A value of another type than expected stays, and so causes a type error.
    pub(super) fn reduce(&self, value: &mut Value) {
        match (self, value) {
            (Fields(_) | Names(_), Value::Object(fields)) => fields.retain(|name, value| {
                let used = self.of_field(name);
                if let Some(used) = used {
                    used.reduce(value);
                }
                used.is_some()
            }),
            (Items(used), Value::Array(items)) => items.iter_mut().for_each(|item| used.reduce(item)),
            _ => {}
        }
    }
}
