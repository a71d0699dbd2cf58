//! Conversion of Services.

use std::collections::BTreeMap;
use std::time::Duration;

use kernlink_services::{
    Family, Ingress, IngressMode, Port, Service, ServiceType, SessionAffinity, TrafficPolicy,
};

use super::partial::{self as api, Label, SERVICE_PREFIXES};
use super::{Names, not_a_port, one_of, port, protocol};
use crate::error::FieldErrors;

/// The API server's default for `timeoutSeconds`.
const DEFAULT_AFFINITY: Duration = Duration::from_secs(10_800);

/// Converts all fields. All invalid fields are reported.
pub(super) fn convert(object: &api::Service, names: &mut Names, errors: &mut FieldErrors) -> Option<Service> {
    let default = api::Metadata::default();
    let metadata = object.metadata.as_ref().unwrap_or(&default);
    let name = names.object_name(metadata, errors);
    // Without a name the other fields are checked too.
    let mut service = Service::new(name.clone().unwrap_or_else(|| names.empty_name()));
    service.created = metadata.creation_timestamp.as_ref().and_then(api::Time::time);
    service.labels = relevant(&metadata.labels);
    service.annotations = relevant(&metadata.annotations);
    if let Some(spec) = &object.spec {
        read_spec(&mut service, spec, names, errors);
    }
    let load_balancer = object
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref());
    let ingress = load_balancer.into_iter().flat_map(|status| &status.ingress);
    service.ingress = ingress
        .enumerate()
        .map(|(position, ingress)| read_ingress(ingress, position, errors))
        .collect();
    name.map(|_| service)
}

fn read_spec(service: &mut Service, spec: &api::ServiceSpec, names: &mut Names, errors: &mut FieldErrors) {
    let types = [
        ("ClusterIP", Some(ServiceType::ClusterIp)),
        ("NodePort", Some(ServiceType::NodePort)),
        ("LoadBalancer", Some(ServiceType::LoadBalancer)),
        ("ExternalName", Some(ServiceType::ExternalName)),
    ];
    let expected = "ClusterIP, NodePort, LoadBalancer or ExternalName";
    let service_type = one_of(spec.type_.as_ref(), "spec.type", &types, expected, errors);
    service.service_type = service_type.unwrap_or(ServiceType::ClusterIp);
    service.cluster_ip = spec.cluster_ip.clone().unwrap_or_default();
    service.cluster_ips = spec.cluster_ips.clone();
    for (position, text) in spec.ip_families.iter().enumerate() {
        match text.as_str() {
            "IPv4" => service.ip_families.push(Family::Ipv4),
            "IPv6" => service.ip_families.push(Family::Ipv6),
            text => {
                errors.ignore(
                    format_args!("spec.ipFamilies[{position}]"),
                    format!("{} is not IPv4 or IPv6; ignored", super::quoted(text)),
                );
                // Its cluster IP too: that of each other family is the one at the position of the family.
                let position = service.ip_families.len();
                if position < service.cluster_ips.len() {
                    service.cluster_ips.remove(position);
                }
            }
        }
    }
    let ports = spec.ports.iter().enumerate();
    service.ports = ports
        .filter_map(|(position, port)| read_port(port, position, names, errors))
        .collect();
    service.external_ips = spec.external_ips.clone();
    service.load_balancer_source_ranges = spec.load_balancer_source_ranges.clone();
    let mut policy = |text: Option<&String>, field: &str| {
        let values = [
            ("Cluster", TrafficPolicy::Cluster),
            ("Local", TrafficPolicy::Local),
        ];
        one_of(text, field, &values, "Cluster or Local", errors)
    };
    service.external_traffic_policy = policy(
        spec.external_traffic_policy.as_ref(),
        "spec.externalTrafficPolicy",
    );
    service.internal_traffic_policy = policy(
        spec.internal_traffic_policy.as_ref(),
        "spec.internalTrafficPolicy",
    );
    service.health_check_node_port = port(spec.health_check_node_port, "spec.healthCheckNodePort", errors);
    service.session_affinity = read_affinity(spec, errors);
}

fn read_port(
    object: &api::ServicePort,
    position: usize,
    names: &mut Names,
    errors: &mut FieldErrors,
) -> Option<Port> {
    let field = format_args!("spec.ports[{position}].protocol");
    let protocol = protocol(object.protocol.as_ref(), field, errors)?;
    let given = object.port.unwrap_or_default();
    let number = u16::try_from(given).unwrap_or_default();
    if number == 0 {
        errors.add(format_args!("spec.ports[{position}].port"), not_a_port(given));
    }
    Some(Port {
        name: names.intern(object.name.as_deref().unwrap_or_default()),
        protocol,
        port: number,
        node_port: port(
            object.node_port,
            format_args!("spec.ports[{position}].nodePort"),
            errors,
        ),
    })
}

fn read_affinity(spec: &api::ServiceSpec, errors: &mut FieldErrors) -> SessionAffinity {
    let is_client_ip = one_of(
        spec.session_affinity.as_ref(),
        "spec.sessionAffinity",
        &[("None", false), ("ClientIP", true)],
        "None or ClientIP",
        errors,
    );
    if !is_client_ip {
        return SessionAffinity::None;
    }
    let config = spec.session_affinity_config.as_ref();
    let timeout = config.and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    SessionAffinity::ClientIp(match timeout {
        None => DEFAULT_AFFINITY,
        Some(seconds @ 1..=86_400) => Duration::from_secs(seconds.unsigned_abs().into()),
        Some(seconds) => {
            errors.add(
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
                format!("{seconds} is not a number of seconds from 1 to 86400"),
            );
            DEFAULT_AFFINITY
        }
    })
}

fn read_ingress(object: &api::LoadBalancerIngress, position: usize, errors: &mut FieldErrors) -> Ingress {
    let mode = match object.ip_mode.as_deref().unwrap_or_default() {
        "" | "VIP" => IngressMode::Vip,
        "Proxy" => IngressMode::Proxy,
        // As in kube-proxy: only what is known to be sent to this address is served at it.
        text => {
            let reason = format!(
                "{} is not VIP or Proxy; the address is not served",
                super::quoted(text)
            );
            errors.ignore(
                format_args!("status.loadBalancer.ingress[{position}].ipMode"),
                reason,
            );
            IngressMode::Proxy
        }
    };
    Ingress {
        ip: object.ip.clone().unwrap_or_default(),
        mode,
    }
}

/// The labels or annotations that a service proxy may use.
fn relevant(labels: &[Label]) -> BTreeMap<String, String> {
    let is_relevant = |name: &str| SERVICE_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let labels = labels.iter().filter_map(|label| {
        let name = label.name().filter(|name| is_relevant(name))?;
        Some((name.to_owned(), label.value().into_owned()))
    });
    labels.collect()
}
