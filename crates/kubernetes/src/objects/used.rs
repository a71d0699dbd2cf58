//! The fields of API objects that a service proxy uses. Nothing in any other field has an effect, of any type: the API server stores
//! objects that the types of a client library refuse, and later versions of Kubernetes have more fields.

use serde_json::Value;

use self::Used::{Fields, Items, Names, Value as All};
use super::service::is_relevant;

/// The part of a value that is used.
pub(super) enum Used {
    /// All of it.
    Value,
    /// These fields.
    Fields(&'static [(&'static str, Used)]),
    /// The items, of each this part.
    Items(&'static Used),
    /// Labels or annotations that a service proxy may use.
    Names,
}

pub(super) const SERVICE: Used = Fields(&[
    ("metadata", METADATA),
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

/// Without the endpoints, which are [`ENDPOINT`] each.
pub(super) const ENDPOINT_SLICE: Used = Fields(&[
    ("metadata", METADATA),
    ("addressType", All),
    ("endpoints", All),
    (
        "ports",
        Items(&Fields(&[("name", All), ("protocol", All), ("port", All)])),
    ),
]);

pub(super) const ENDPOINT: Used = Fields(&[
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
        Fields(&[("name", All), ("labels", Names), ("deletionTimestamp", All)]),
    ),
    (
        "spec",
        Fields(&[
            ("podCIDR", All),
            ("podCIDRs", All),
            ("taints", Items(&Fields(&[("key", All)]))),
        ]),
    ),
    ("status", Fields(&[("addresses", All)])),
]);

pub(super) const NODE_ADDRESS: Used = Fields(&[("type", All), ("address", All)]);

const METADATA: Used = Fields(&[
    ("name", All),
    ("namespace", All),
    ("creationTimestamp", All),
    ("labels", Names),
    ("annotations", Names),
]);

impl Used {
    /// Removes everything else. A value of another type than expected stays, and so causes a type error.
    pub(super) fn reduce(&self, value: &mut Value) {
        match (self, value) {
            (Fields(used), Value::Object(fields)) => fields.retain(|name, value| {
                let field = used.iter().find(|(field, _)| *field == name);
                if let Some((_, used)) = field {
                    used.reduce(value);
                }
                field.is_some()
            }),
            (Items(used), Value::Array(items)) => items.iter_mut().for_each(|item| used.reduce(item)),
            (Names, Value::Object(fields)) => fields.retain(|name, _| is_relevant(name)),
            _ => {}
        }
    }
}
