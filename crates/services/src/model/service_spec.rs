//! From a Service to its service ports.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use kernlink_base::Family;

use super::options::{self, Options};
use super::port_spec::{PortSpec, ServicePortName, ServiceSpec};
use crate::address::{parse_address, parse_net};
use crate::event::{Event, Reason};
use crate::source::{IngressMode, Service, ServiceType, SessionAffinity, TrafficPolicy};

/// The ports of a Service.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServicePorts {
    /// Its ports in each family, in the order of the Service, IPv4 first.
    pub(crate) ports: Box<[PortSpec]>,
    /// Events about the Service by itself.
    pub(crate) events: Vec<Event>,
    /// Why it has no ports, if that is intended.
    pub(crate) excluded: Option<ExclusionReason>,
}

/// Why a service proxy does not serve a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ExclusionReason {
    /// It has no cluster IP.
    Headless,
    /// It is of type `ExternalName`.
    ExternalName,
    /// Another service proxy takes care of it.
    OtherProxy,
}

impl fmt::Display for ExclusionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExclusionReason::Headless => "headless",
            ExclusionReason::ExternalName => "of type ExternalName",
            ExclusionReason::OtherProxy => "of another proxy",
        })
    }
}

/// The longest session affinity that Kubernetes allows: a day, in seconds.
const MAX_AFFINITY: u64 = 86_400;

/// The label that assigns a Service to another service proxy.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";

/// Reads a Service for the given families. `proxy_name` is the value of the label that a Service must have; `None`: only
/// Services without the label are served.
pub(crate) fn service_ports(
    service: &Service,
    families: &[Family],
    proxy_name: Option<&str>,
    defaults: &Arc<Options>,
) -> ServicePorts {
    let excluded = |reason| ServicePorts {
        ports: Box::default(),
        events: Vec::new(),
        excluded: Some(reason),
    };
    if service.labels.get(PROXY_NAME_LABEL).map(String::as_str) != proxy_name {
        return excluded(ExclusionReason::OtherProxy);
    }
    if service.service_type == ServiceType::ExternalName {
        return excluded(ExclusionReason::ExternalName);
    }
    let cluster_ip = match service.cluster_ip.as_str() {
        "" => service.cluster_ips.first().map_or("", String::as_str),
        cluster_ip => cluster_ip,
    };
    if matches!(cluster_ip, "" | "None") {
        return excluded(ExclusionReason::Headless);
    }
    let mut reader = Reader {
        service,
        cluster_ip,
        events: Vec::new(),
    };
    let options = options::options(service, defaults, |reason| {
        reader.events.push(Event::service(service.name.clone(), reason));
    });
    let mut ports = Vec::with_capacity(service.ports.len());
    let mut served = [false; 2];
    for &family in families {
        let Some(cluster_ip) = reader.cluster_ip(family) else {
            continue;
        };
        served[family.index()] = true;
        let spec = Arc::new(reader.spec(family, &options));
        let mut seen: BTreeSet<ServicePortName> = BTreeSet::new();
        for (position, port) in service.ports.iter().enumerate() {
            let Some(number) = NonZeroU16::new(port.port) else {
                let problem = "not a port (1 to 65535); left out";
                reader.invalid(format!("ports[{position}].port"), "0", problem);
                continue;
            };
            let name = ServicePortName {
                service: service.name.clone(),
                port: Arc::clone(&port.name),
                protocol: port.protocol,
            };
            if service.ports.len() > 1 && !seen.insert(name.clone()) {
                reader.report(Reason::DuplicatePort(name));
                continue;
            }
            ports.push(PortSpec {
                name,
                cluster_ip,
                port: number,
                node_port: NonZeroU16::new(port.node_port),
                service: Arc::clone(&spec),
            });
        }
    }
    if served.contains(&true) {
        reader.addresses_of_other_families(families, served);
    }
    let mut events = reader.events;
    events.sort();
    events.dedup();
    ServicePorts {
        ports: ports.into_boxed_slice(),
        events,
        excluded: None,
    }
}

struct Reader<'a> {
    service: &'a Service,
    /// `clusterIP`, or the first of `clusterIPs` without it.
    cluster_ip: &'a str,
    events: Vec<Event>,
}

impl Reader<'_> {
    fn report(&mut self, reason: Reason) {
        self.events
            .push(Event::service(self.service.name.clone(), reason));
    }

    fn invalid(&mut self, field: String, value: &str, problem: &str) {
        self.report(Reason::Invalid {
            field,
            value: value.to_owned(),
            problem: problem.to_owned(),
        });
    }

    /// The cluster IP of a family: the one at the family's position in `ipFamilies`, or `clusterIP` where the API server left
    /// that list empty.
    fn cluster_ip(&mut self, family: Family) -> Option<IpAddr> {
        let service = self.service;
        let (position, text) = if service.ip_families.is_empty() {
            (None, self.cluster_ip)
        } else {
            let position = service.ip_families.iter().position(|&f| f == family)?;
            match service.cluster_ips.get(position) {
                Some(text) => (Some(position), text.as_str()),
                // An object written by hand may have `clusterIP` alone.
                None if position == 0 => (None, self.cluster_ip),
                None => return None,
            }
        };
        let field = || match position {
            Some(position) => format!("clusterIPs[{position}]"),
            None => "clusterIP".to_owned(),
        };
        match parse_address(text) {
            Some(address) if Family::of(address) == family => Some(address),
            Some(_) if service.ip_families.is_empty() => None,
            Some(_) => {
                self.invalid(
                    field(),
                    text,
                    &format!("not an {family} address, although ipFamilies says so; left out"),
                );
                None
            }
            None => {
                self.invalid(field(), text, "not an IP address; left out");
                None
            }
        }
    }

    fn spec(&mut self, family: Family, options: &Arc<Options>) -> ServiceSpec {
        let service = self.service;
        let external_ips = self.external_ips(family);
        let load_balancer_ips = self.load_balancer_ips(family);
        let source_ranges = self.source_ranges(family, !load_balancer_ips.is_empty());
        // A policy for external traffic means something only where external traffic can come from (as in kube-proxy).
        let external = service.service_type != ServiceType::ClusterIp || !service.external_ips.is_empty();
        let local = external && service.external_traffic_policy == TrafficPolicy::Local;
        let balanced = service.service_type == ServiceType::LoadBalancer;
        let health_check_node_port = if balanced && service.external_traffic_policy == TrafficPolicy::Local {
            let port = NonZeroU16::new(service.health_check_node_port);
            if port.is_none() {
                self.report(Reason::NoHealthCheckNodePort);
            }
            port
        } else {
            None
        };
        ServiceSpec {
            created: service.created,
            affinity: self.affinity(),
            external_ips,
            load_balancer_ips,
            source_ranges,
            external_policy: if local {
                TrafficPolicy::Local
            } else {
                TrafficPolicy::Cluster
            },
            internal_policy: service.internal_traffic_policy,
            health_check_node_port,
            options: Arc::clone(options),
        }
    }

    /// The timeout of session affinity. One that is not whole seconds is rounded up.
    fn affinity(&mut self) -> Option<Duration> {
        let SessionAffinity::ClientIp(timeout) = self.service.session_affinity else {
            return None;
        };
        let field = || "sessionAffinityConfig.clientIP.timeoutSeconds".to_owned();
        let value = format!("{timeout:?}");
        let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
        let used = seconds.clamp(1, MAX_AFFINITY);
        if timeout.is_zero() || seconds > MAX_AFFINITY || timeout.subsec_nanos() > 0 {
            let problem = format!("not a number of seconds from 1 to {MAX_AFFINITY}; {used} is used");
            self.invalid(field(), &value, &problem);
        }
        Some(Duration::from_secs(used))
    }

    fn external_ips(&mut self, family: Family) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        let mut seen = HashSet::new();
        for (position, text) in self.service.external_ips.iter().enumerate() {
            match parse_address(text) {
                Some(address) if Family::of(address) != family => {}
                Some(address) if !seen.insert(address) => {}
                Some(address) => addresses.push(address),
                None if text.trim().is_empty() => {}
                None => self.invalid(
                    format!("externalIPs[{position}]"),
                    text,
                    "not an IP address; left out",
                ),
            }
        }
        addresses
    }

    fn load_balancer_ips(&mut self, family: Family) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        let mut seen = HashSet::new();
        for (position, ingress) in self.service.ingress.iter().enumerate() {
            if ingress.mode == IngressMode::Proxy || ingress.ip.is_empty() {
                continue;
            }
            match parse_address(&ingress.ip) {
                Some(address) if Family::of(address) != family => {}
                Some(address) if !seen.insert(address) => {}
                Some(address) => addresses.push(address),
                None => self.invalid(
                    format!("status.loadBalancer.ingress[{position}].ip"),
                    &ingress.ip,
                    "not an IP address; left out",
                ),
            }
        }
        addresses
    }

    fn source_ranges(&mut self, family: Family, balanced: bool) -> Arc<[IpNet]> {
        let mut ranges = BTreeSet::new();
        let mut unused = false;
        for (position, text) in self.service.load_balancer_source_ranges.iter().enumerate() {
            match parse_net(text.trim()) {
                Some(net) if Family::of(net.addr()) == family => {
                    ranges.insert(net);
                }
                Some(_) => unused = true,
                None if text.trim().is_empty() => {}
                None => {
                    unused = true;
                    self.invalid(
                        format!("loadBalancerSourceRanges[{position}]"),
                        text,
                        "not a network such as 192.0.2.0/24; left out",
                    );
                }
            }
        }
        if ranges.iter().any(|net| net.prefix_len() == 0) {
            if balanced {
                self.report(Reason::SourceRangeAdmitsAll(family));
            }
            ranges.clear();
        } else if ranges.is_empty() && unused && balanced {
            self.report(Reason::NoSourceRange(family));
        }
        if ranges.is_empty() {
            return Arc::default();
        }
        ranges.into_iter().collect()
    }

    /// Names the external and load-balancer IPs of a family that the Service is not served in.
    fn addresses_of_other_families(&mut self, families: &[Family], served: [bool; 2]) {
        let service = self.service;
        let external = service
            .external_ips
            .iter()
            .enumerate()
            .map(|(n, text)| (format!("externalIPs[{n}]"), text));
        let ingress = service
            .ingress
            .iter()
            .enumerate()
            .filter(|(_, ingress)| ingress.mode == IngressMode::Vip)
            .map(|(n, ingress)| (format!("status.loadBalancer.ingress[{n}].ip"), &ingress.ip));
        for (field, text) in external.chain(ingress) {
            if let Some(address) = parse_address(text) {
                let family = Family::of(address);
                if families.contains(&family) && !served[family.index()] {
                    self.report(Reason::FamilyMismatch { field, address });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Ingress, ObjectName, Port};

    fn web() -> Service {
        Service::new(ObjectName::new("shop", "web"))
            .with_cluster_ip("10.96.0.9")
            .with_port(Port::new("http", 80))
    }

    fn read(service: &Service) -> ServicePorts {
        service_ports(service, &Family::ALL, None, &Default::default())
    }

    fn events(read: &ServicePorts) -> Vec<String> {
        read.events.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_service_without_families_is_of_the_family_of_its_address() {
        let ports = read(&web()).ports;
        assert_eq!(
            ports.iter().map(PortSpec::family).collect::<Vec<_>>(),
            [Family::Ipv4]
        );
    }

    #[test]
    fn the_first_of_cluster_ips_replaces_a_missing_cluster_ip() {
        let mut service = web().with_cluster_ip("");
        service.ip_families = vec![Family::Ipv4, Family::Ipv6];
        service.cluster_ips = vec!["10.96.0.9".into(), "fd00::9".into()];
        assert_eq!(read(&service).ports.len(), 2);
        service.cluster_ips = vec!["None".into()];
        assert_eq!(read(&service).excluded, Some(ExclusionReason::Headless));
    }

    #[test]
    fn a_port_of_0_and_an_affinity_out_of_range_are_reported() {
        let mut service = web().with_port(Port::new("zero", 0));
        service.session_affinity = SessionAffinity::ClientIp(Duration::from_millis(1_500));
        let read = read(&service);
        assert_eq!(read.ports.len(), 1);
        assert_eq!(read.ports[0].service.affinity, Some(Duration::from_secs(2)));
        assert_eq!(
            events(&read),
            [
                "Service shop/web: ports[1].port: \"0\": not a port (1 to 65535); left out",
                "Service shop/web: sessionAffinityConfig.clientIP.timeoutSeconds: \"1.5s\": not a number of seconds from 1 to \
                 86400; 2 is used",
            ]
        );
    }

    #[test]
    fn each_family_takes_the_address_at_its_position() {
        let mut service = web();
        service.ip_families = vec![Family::Ipv6, Family::Ipv4];
        service.cluster_ips = vec!["fd00::9".into(), "10.96.0.9".into()];
        let ports = read(&service).ports;
        let addresses: Vec<_> = ports.iter().map(|port| port.cluster_ip.to_string()).collect();
        assert_eq!(addresses, ["10.96.0.9", "fd00::9"]);
    }

    #[test]
    fn headless_external_name_and_foreign_services_are_excluded() {
        assert_eq!(
            read(&web().with_cluster_ip("None")).excluded,
            Some(ExclusionReason::Headless)
        );
        assert_eq!(
            read(&web().with_cluster_ip("")).excluded,
            Some(ExclusionReason::Headless)
        );
        let mut service = web();
        service.service_type = ServiceType::ExternalName;
        assert_eq!(read(&service).excluded, Some(ExclusionReason::ExternalName));
        let mut service = web();
        service.labels.insert(PROXY_NAME_LABEL.into(), "other".into());
        assert_eq!(read(&service).excluded, Some(ExclusionReason::OtherProxy));
        assert_eq!(
            service_ports(&service, &Family::ALL, Some("other"), &Default::default())
                .ports
                .len(),
            1
        );
    }

    #[test]
    fn a_zero_length_range_restricts_nothing() {
        let mut service = web();
        service.service_type = ServiceType::LoadBalancer;
        service.ingress = vec![Ingress {
            ip: "203.0.113.9".into(),
            ..Ingress::default()
        }];
        service.load_balancer_source_ranges = vec![" 10.0.0.0/8".into(), "0.0.0.0/0".into()];
        let read = read(&service);
        assert!(read.ports[0].service.source_ranges.is_empty());
        assert_eq!(
            events(&read),
            ["Service shop/web: loadBalancerSourceRanges: a /0 range lets every IPv4 source in"]
        );
    }

    #[test]
    fn source_ranges_that_cannot_be_used_restrict_nothing() {
        let mut service = web();
        service.service_type = ServiceType::LoadBalancer;
        service.ingress = vec![Ingress {
            ip: "203.0.113.9".into(),
            ..Ingress::default()
        }];
        service.load_balancer_source_ranges = vec!["10.0.0.1".into()];
        let read = read(&service);
        assert!(read.ports[0].service.source_ranges.is_empty());
        assert_eq!(
            events(&read),
            [
                "Service shop/web: loadBalancerSourceRanges[0]: \"10.0.0.1\": not a network such as 192.0.2.0/24; left out",
                "Service shop/web: loadBalancerSourceRanges: no range is IPv4, so IPv4 sources are not restricted",
            ]
        );
    }

    #[test]
    fn an_address_of_a_family_without_cluster_ip_is_reported() {
        let mut service = web();
        service.external_ips = vec!["2001:db8::1".into(), "203.0.113.1".into(), "x".into()];
        service.ingress = vec![Ingress {
            ip: "2001:db8::2".into(),
            ..Ingress::default()
        }];
        let read = read(&service);
        assert_eq!(read.ports[0].service.external_ips.len(), 1);
        assert_eq!(
            events(&read),
            [
                "Service shop/web: externalIPs[2]: \"x\": not an IP address; left out",
                "Service shop/web: externalIPs[0]: 2001:db8::1 is left out: the Service has no IPv6 cluster IP",
                "Service shop/web: status.loadBalancer.ingress[0].ip: 2001:db8::2 is left out: \
                 the Service has no IPv6 cluster IP",
            ]
        );
    }
}
