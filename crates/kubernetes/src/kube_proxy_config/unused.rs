//! Fields of kube-proxy's file that have no effect, and whether a value of them was chosen by the user: kubeadm writes every field with an
//! empty value, and kube-proxy with its default.

use kernlink_services::duration::parse_go_duration;
use serde_json::Value;

use super::Warning;
use crate::error::FieldError;

/// A field without effect.
struct Unused {
    field: &'static str,
    reason: &'static str,
    /// kube-proxy's defaults that are not empty, by the path below the field.
    defaults: &'static [(&'static str, &'static str)],
}

const fn unused(
    field: &'static str,
    reason: &'static str,
    defaults: &'static [(&'static str, &'static str)],
) -> Unused {
    Unused {
        field,
        reason,
        defaults,
    }
}

const ENCODING: &str = "not used: the program chooses the encoding";
const NO_LIMIT: &str = "not used: a list and a watch for each kind are all requests";
const LOG: &str = "not used: the program configures its own log";
const FEATURE_GATES: &str = "featureGates";

/// All such fields, with the defaults of
/// [kube-proxy 1.36](https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/proxy/apis/config/v1alpha1/defaults.go).
const UNUSED: [Unused; 15] = [
    unused("clientConnection.acceptContentTypes", ENCODING, &[]),
    unused(
        "clientConnection.contentType",
        ENCODING,
        &[("", "application/vnd.kubernetes.protobuf")],
    ),
    unused("clientConnection.qps", NO_LIMIT, &[("", "5")]),
    unused("clientConnection.burst", NO_LIMIT, &[("", "10")]),
    unused(
        "configSyncPeriod",
        "not used: the program decides when it lists objects again",
        &[("", "15m")],
    ),
    unused(
        "oomScoreAdj",
        "not used: the service manager sets it",
        &[("", "-999")],
    ),
    unused("enableProfiling", "not used: there is no profiling endpoint", &[]),
    unused(FEATURE_GATES, "not used: there are no feature gates", &[]),
    unused(
        "showHiddenMetricsForVersion",
        "not used: there are no hidden metrics",
        &[],
    ),
    unused("logging.format", LOG, &[("", "text")]),
    // Releases before 1.26 write the period in nanoseconds.
    unused("logging.flushFrequency", LOG, &[("", "5s"), ("", "5000000000")]),
    unused("logging.vmodule", LOG, &[]),
    unused("logging.options", LOG, &[]),
    unused("winkernel", "not used: applies to Windows only", &[]),
    unused("windowsRunAsService", "not used: applies to Windows only", &[]),
];

/// The warnings about fields that are not read: each value of a field of kube-proxy that is neither empty nor its default, and each field
/// that kube-proxy does not have.
pub(super) fn warnings(fields: &[String], file: &Value) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for field in fields {
        let Some(unused) = UNUSED.iter().find(|unused| unused.field == field) else {
            warnings.push(Warning {
                field: field.clone(),
                reason: "is not a field of KubeProxyConfiguration".to_owned(),
            });
            continue;
        };
        let value = field.split('.').try_fold(file, |value, name| value.get(name));
        for below in chosen(unused, value.unwrap_or(&Value::Null)) {
            let dot = if below.is_empty() { "" } else { "." };
            warnings.push(Warning {
                field: format!("{field}{dot}{below}"),
                reason: unused.reason.to_owned(),
            });
        }
    }
    warnings
}

/// The errors about fields below `kernlink` that do not exist.
pub(super) fn unknown_restrictions(fields: &[String]) -> impl Iterator<Item = FieldError> {
    let unknown = fields.iter().filter(|field| field.starts_with("kernlink."));
    unknown.map(|field| FieldError {
        field: field.clone(),
        reason: "is not a field; valid: serviceAnnotations, serviceAnnotationNamespaces, serviceSchedulers, ignoreExternalIPs"
            .to_owned(),
    })
}

/// The paths below a field whose values the user chose.
fn chosen(unused: &Unused, value: &Value) -> Vec<String> {
    if unused.field == FEATURE_GATES {
        // Every entry is a choice, also of false.
        return if is_empty(value) {
            Vec::new()
        } else {
            vec![String::new()]
        };
    }
    let mut leaves = Vec::new();
    add_leaves(value, "", &mut leaves);
    let is_default = |path: &str, value: &Value| {
        let mut defaults = unused.defaults.iter().filter(|(below, _)| *below == path);
        defaults.any(|(_, default)| is_equal(value, default))
    };
    leaves.retain(|(path, value)| !is_zero(value) && !is_default(path, value));
    leaves.into_iter().map(|(path, _)| path).collect()
}

fn add_leaves<'a>(value: &'a Value, path: &str, leaves: &mut Vec<(String, &'a Value)>) {
    let Value::Object(fields) = value else {
        leaves.push((path.to_owned(), value));
        return;
    };
    for (name, value) in fields {
        let dot = if path.is_empty() { "" } else { "." };
        add_leaves(value, &format!("{path}{dot}{name}"), leaves);
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Whether a value is empty or zero, also as a duration or a quantity.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Bool(bool) => !bool,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || parse_go_duration(text) == parse_go_duration("0"),
        other => is_empty(other),
    }
}

/// Whether a value of the file or of a flag is the default: the same text, number or duration.
fn is_equal(value: &Value, default: &str) -> bool {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let number = |text: &str| text.parse::<f64>().ok();
    let is_same = |a: Option<f64>, b: Option<f64>| a.is_some() && a == b;
    let duration = parse_go_duration(default);
    text == default
        || is_same(number(&text), number(default))
        || duration.is_some() && parse_go_duration(&text) == duration
}
