//! Parsing of a Service to the specifications of its ports.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use kernlink_base::Family;

use super::options::{self, Options};
use super::port_spec::{PortSpec, ServiceSpec};
use super::service_port_name::ServicePortName;
use crate::address::{parse_address, parse_net};
use crate::config::Config;
use crate::event::{self, Event, Reason};
use crate::source::{IngressMode, Service, ServiceType, SessionAffinity, TrafficPolicy};

/// The ports of a Service.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServicePorts {
    /// The ports in each family, IPv4 first, those of a family in the order of the Service.
    pub(crate) ports: Box<[PortSpec]>,
    /// Events about the fields of the Service.
    pub(crate) events: Vec<Event>,
    /// The reason why the Service is not served, if it is excluded.
    pub(crate) excluded: Option<ExclusionReason>,
}

/// The reasons why a service proxy does not serve a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ExclusionReason {
    /// The Service has no cluster IP.
    Headless,
    /// The Service is of type `ExternalName`.
    ExternalName,
    /// The label `service.kubernetes.io/service-proxy-name` assigns the Service to another service proxy.
    OtherProxy,
}

impl fmt::Display for ExclusionReason {
    /// `headless`, `of type ExternalName` or `assigned to another service proxy`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExclusionReason::Headless => "headless",
            ExclusionReason::ExternalName => "of type ExternalName",
            ExclusionReason::OtherProxy => "assigned to another service proxy",
        })
    }
}

/// The longest session affinity that Kubernetes allows: a day, in seconds.
const MAX_AFFINITY: u64 = 86_400;

/// The largest number of frontends of the external IPs of a Service in a family: any user who may create a Service chooses the number of its
/// external IPs and of its ports, and each pair of them is a frontend.
const MAX_EXTERNAL_FRONTENDS: usize = 65_536;

/// The label that assigns a Service to another service proxy.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";

/// Parses a Service for the given families, which are those of the configuration, as `defaults` are.
pub(crate) fn service_ports(
    service: &Service,
    families: &[Family],
    config: &Config,
    defaults: &Arc<Options>,
) -> ServicePorts {
    let excluded = |reason| ServicePorts {
        ports: Box::default(),
        events: Vec::new(),
        excluded: Some(reason),
    };
    if service.labels.get(PROXY_NAME_LABEL) != config.service_proxy_name.as_ref() {
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
        external_ips: &service.external_ips,
        events: Vec::new(),
    };
    if config.ignore_external_ips {
        reader.ignore_external_ips();
    }
    let options = options::options(service, defaults, &config.annotations, |reason| {
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
                let problem = "not a port (1 to 65535); ignored";
                reader.invalid(format!("spec.ports[{position}].port"), "0", problem);
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
    event::limit(&mut events);
    ServicePorts {
        ports: ports.into_boxed_slice(),
        events,
        excluded: None,
    }
}

struct Reader<'a> {
    service: &'a Service,
    /// `clusterIP`; if empty, the first of `clusterIPs`.
    cluster_ip: &'a str,
    /// `externalIPs`; none if they are ignored.
    external_ips: &'a [String],
    events: Vec<Event>,
}

impl Reader<'_> {
    fn report(&mut self, reason: Reason) {
        self.events
            .push(Event::service(self.service.name.clone(), reason));
    }

    fn invalid(&mut self, field: String, value: &str, problem: &str) {
        self.report(Reason::invalid(field, value, problem));
    }

    /// Leaves out `externalIPs`.
    fn ignore_external_ips(&mut self) {
        let mut ignored = std::mem::take(&mut self.external_ips).iter();
        if ignored.any(|text| !text.trim().is_empty()) {
            self.report(Reason::NotPermitted {
                field: "spec.externalIPs".to_owned(),
                why: "not permitted by kernlink.ignoreExternalIPs of the configuration".to_owned(),
            });
        }
    }

    /// The cluster IP of a family: that at the position of the family in `ipFamilies`, or `clusterIP` if `ipFamilies` is empty.
    fn cluster_ip(&mut self, family: Family) -> Option<IpAddr> {
        let service = self.service;
        let (position, text) = if service.ip_families.is_empty() {
            (None, self.cluster_ip)
        } else {
            let position = service.ip_families.iter().position(|&f| f == family)?;
            match service.cluster_ips.get(position) {
                Some(text) => (Some(position), text.as_str()),
                // A manifest that the API server did not complete may have `clusterIP` without `clusterIPs`.
                None if position == 0 => (None, self.cluster_ip),
                None => return None,
            }
        };
        let field = || match position {
            Some(position) => format!("spec.clusterIPs[{position}]"),
            None => "spec.clusterIP".to_owned(),
        };
        match parse_address(text) {
            Some(address) if Family::of(address) == family => Some(address),
            Some(_) if service.ip_families.is_empty() => None,
            Some(_) => {
                self.invalid(
                    field(),
                    text,
                    &format!("ipFamilies requires an {family} address; ignored"),
                );
                None
            }
            None => {
                self.invalid(field(), text, "not an IP address; ignored");
                None
            }
        }
    }

    fn spec(&mut self, family: Family, options: &Arc<Options>) -> ServiceSpec {
        let service = self.service;
        let external_ips = self.external_ips(family);
        let load_balancer_ips = self.load_balancer_ips(family);
        let source_ranges = self.source_ranges(family, !load_balancer_ips.is_empty());
        // As in kube-proxy, the external traffic policy applies only to Services with external frontends.
        let external = service.service_type != ServiceType::ClusterIp || !self.external_ips.is_empty();
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

    /// The timeout of session affinity, rounded up to whole seconds, from 1 s to 24 h.
    fn affinity(&mut self) -> Option<Duration> {
        let SessionAffinity::ClientIp(timeout) = self.service.session_affinity else {
            return None;
        };
        let field = || "spec.sessionAffinityConfig.clientIP.timeoutSeconds".to_owned();
        let value = format!("{timeout:?}");
        let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
        let used = seconds.clamp(1, MAX_AFFINITY);
        if timeout.is_zero() || seconds > MAX_AFFINITY || timeout.subsec_nanos() > 0 {
            let problem = format!("not a number of seconds from 1 to {MAX_AFFINITY}; {used} is used");
            self.invalid(field(), &value, &problem);
        }
        Some(Duration::from_secs(used))
    }

    /// The first external IPs, as many as the number of ports permits.
    fn external_ips(&mut self, family: Family) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        let mut seen = HashSet::new();
        for (position, text) in self.external_ips.iter().enumerate() {
            match parse_address(text) {
                Some(address) if Family::of(address) != family => {}
                Some(address) if !seen.insert(address) => {}
                Some(address) => addresses.push(address),
                None if text.trim().is_empty() => {}
                None => self.invalid(
                    format!("spec.externalIPs[{position}]"),
                    text,
                    "not an IP address; ignored",
                ),
            }
        }
        let ports = self.service.ports.len();
        let most = MAX_EXTERNAL_FRONTENDS / ports.max(1);
        if addresses.len() > most {
            let given = format!("{} {family} addresses", addresses.len());
            let problem = format!("with {ports} ports at most {most} are served; the others are ignored");
            self.invalid("spec.externalIPs".to_owned(), &given, &problem);
            addresses.truncate(most);
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
                    "not an IP address; ignored",
                ),
            }
        }
        addresses
    }

    fn source_ranges(&mut self, family: Family, balanced: bool) -> Arc<[IpNet]> {
        let mut ranges: Vec<IpNet> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut unused = false;
        for (position, text) in self.service.load_balancer_source_ranges.iter().enumerate() {
            match parse_net(text.trim()) {
                Some(net) if Family::of(net.addr()) == family => {
                    if seen.insert(net) {
                        ranges.push(net);
                    }
                }
                Some(_) => unused = true,
                None if text.trim().is_empty() => {}
                None => {
                    unused = true;
                    self.invalid(
                        format!("spec.loadBalancerSourceRanges[{position}]"),
                        text,
                        "not a network such as 192.0.2.0/24; ignored",
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

    /// Reports the external and load-balancer IPs of a family in which the Service has no cluster IP.
    fn addresses_of_other_families(&mut self, families: &[Family], served: [bool; 2]) {
        let service = self.service;
        let external = self
            .external_ips
            .iter()
            .enumerate()
            .map(|(n, text)| (format!("spec.externalIPs[{n}]"), text));
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
        service_ports(service, &Family::ALL, &Config::new("n"), &Default::default())
    }

    fn events(read: &ServicePorts) -> Vec<String> {
        read.events.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_service_without_ip_families_has_the_family_of_its_cluster_ip() {
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
                "Service shop/web: spec.ports[1].port: invalid value \"0\": not a port (1 to 65535); ignored",
                "Service shop/web: spec.sessionAffinityConfig.clientIP.timeoutSeconds: invalid value \"1.5s\": not a number of seconds from 1 to \
                 86400; 2 is used",
            ]
        );
    }

    #[test]
    fn each_family_has_the_cluster_ip_at_its_position() {
        let mut service = web();
        service.ip_families = vec![Family::Ipv6, Family::Ipv4];
        service.cluster_ips = vec!["fd00::9".into(), "10.96.0.9".into()];
        let ports = read(&service).ports;
        let addresses: Vec<_> = ports.iter().map(|port| port.cluster_ip.to_string()).collect();
        assert_eq!(addresses, ["10.96.0.9", "fd00::9"]);
    }

    #[test]
    fn services_that_are_headless_or_external_names_or_of_another_proxy_are_excluded() {
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
        let mut config = Config::new("n");
        config.service_proxy_name = Some("other".to_owned());
        assert_eq!(
            service_ports(&service, &Family::ALL, &config, &Default::default())
                .ports
                .len(),
            1
        );
    }

    #[test]
    fn a_source_range_of_length_0_restricts_nothing() {
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
            [
                "Service shop/web: spec.loadBalancerSourceRanges: a /0 range matches all addresses; IPv4 sources are not restricted"
            ]
        );
    }

    #[test]
    fn invalid_source_ranges_restrict_nothing() {
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
                "Service shop/web: spec.loadBalancerSourceRanges[0]: invalid value \"10.0.0.1\": not a network such as 192.0.2.0/24; ignored",
                "Service shop/web: spec.loadBalancerSourceRanges: no valid IPv4 range; IPv4 sources are not restricted",
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
                "Service shop/web: spec.externalIPs[2]: invalid value \"x\": not an IP address; ignored",
                "Service shop/web: spec.externalIPs[0]: the Service has no IPv6 cluster IP; 2001:db8::1 is not programmed",
                "Service shop/web: status.loadBalancer.ingress[0].ip: the Service has no IPv6 cluster IP; \
                 2001:db8::2 is not programmed",
            ]
        );
    }

    #[test]
    fn the_product_of_external_ips_and_ports_is_bounded() {
        let mut service = web();
        service.ports = (1..=1_000)
            .map(|number| Port::new(format!("p{number}"), number))
            .collect();
        let address = |number| format!("203.0.113.{number}");
        service.external_ips = (0..65).map(address).collect();
        assert_eq!(events(&read(&service)), [""; 0]);
        let all = read(&service).ports[0].service.external_ips.clone();
        assert_eq!(all.len(), 65);
        service.external_ips.extend((65..200).map(address));
        let bounded = read(&service);
        let served = bounded.ports.iter().map(|port| &port.service.external_ips);
        assert!(
            served.eq(std::iter::repeat_n(&all, 1_000)),
            "the first ones are kept"
        );
        assert_eq!(
            events(&bounded),
            [
                "Service shop/web: spec.externalIPs: invalid value \"200 IPv4 addresses\": with 1000 ports at most 65 are served; \
                 the others are ignored"
            ]
        );
    }

    #[test]
    fn external_ips_that_the_configuration_ignores_are_reported_once() {
        let mut config = Config::new("n");
        config.ignore_external_ips = true;
        let mut service = web();
        service.external_traffic_policy = TrafficPolicy::Local;
        let read = |service: &Service| service_ports(service, &Family::ALL, &config, &Default::default());
        let without = read(&service);
        assert_eq!(events(&without), [""; 0]);
        // Of both families, invalid, and of another family than the Service.
        service.external_ips = vec![
            "203.0.113.1".into(),
            "2001:db8::1".into(),
            "x".into(),
            String::new(),
        ];
        let ports = read(&service);
        assert_eq!(ports.ports, without.ports);
        assert_eq!(
            events(&ports),
            [
                "Service shop/web: spec.externalIPs: not permitted by kernlink.ignoreExternalIPs of the configuration; ignored"
            ]
        );
        service.external_ips = vec![" ".into()];
        assert_eq!(events(&read(&service)), [""; 0]);
    }
}
