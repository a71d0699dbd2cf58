//! The answer to `/v1/services`.

use std::net::SocketAddr;

use kernlink_services::{ChosenEndpoint, FrontendKey, ObjectName, ServicePort, TrafficPolicy};

use super::documents::{FrontendRow, ServiceList, VERSION};
use super::parameters::parameters;
use super::worker::Reader;
use crate::modes::AnyProxier;
use crate::state;

/// The number of Services that are read at once: syncs wait meanwhile.
const AT_ONCE: usize = 100;

/// Which Services are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// `None`: all of them.
    service: Option<ObjectName>,
    /// Whether each frontend has its endpoints.
    has_endpoints: bool,
}

impl Question {
    /// # Errors
    /// What is invalid.
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        let (mut service, mut has_endpoints) = (None, false);
        for (parameter, value) in parameters(query, &["service", "endpoints"])? {
            if parameter == "endpoints" {
                let parsed = value.parse();
                has_endpoints =
                    parsed.map_err(|_| format!("endpoints: {value:?} is not valid; valid: true, false"))?;
                continue;
            }
            let name = value
                .split_once('/')
                .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty() && !name.contains('/'));
            let (namespace, name) =
                name.ok_or_else(|| format!("service: {value:?} is not valid; valid: NAMESPACE/NAME"))?;
            service = Some(ObjectName::new(namespace, name));
        }
        Ok(Self {
            service,
            has_endpoints,
        })
    }
}

/// The frontends of one Service, or of all, in the order of names.
///
/// # Errors
/// If the proxier cannot be read now.
pub(super) fn answer(reader: &mut Reader, question: &Question) -> Result<ServiceList, String> {
    let mut list = ServiceList {
        version: VERSION,
        mode: state::lock(reader.state()).config().mode().to_string(),
        ..ServiceList::default()
    };
    let names = match &question.service {
        Some(name) => vec![name.clone()],
        None => {
            let names = reader.read(|proxier| {
                let services = proxier.services().services();
                services.map(|service| service.name.clone()).collect::<Vec<_>>()
            });
            let mut names = names.map_err(|why| why.text().to_owned())?;
            names.sort_unstable();
            names
        }
    };
    for names in names.chunks(AT_ONCE) {
        let (names, has_endpoints) = (names.to_vec(), question.has_endpoints);
        let rows = reader.read(move |proxier| {
            names
                .iter()
                .flat_map(|name| rows(proxier, name, has_endpoints))
                .collect::<Vec<_>>()
        });
        list.frontends.extend(rows.map_err(|why| why.text().to_owned())?);
    }
    if let Some(name) = question.service.clone()
        && list.frontends.is_empty()
    {
        let why = reader.read(move |proxier| why_not_served(proxier, &name));
        list.not_served = Some(why.map_err(|why| why.text().to_owned())?);
    }
    Ok(list)
}

/// The frontends that a Service defines, those of other owners too.
fn rows(proxier: &dyn AnyProxier, name: &ObjectName, has_endpoints: bool) -> Vec<FrontendRow> {
    let services = proxier.services();
    let mut rows = Vec::new();
    for (id, port) in services.ports_of(name) {
        for frontend in &port.frontends {
            let key = FrontendKey::of(frontend);
            let owner = services.frontend(&key);
            let is_owner = owner.is_some_and(|owner| owner.id == id);
            let used = endpoints(port, frontend.policy).count();
            let listed = has_endpoints.then(|| {
                let used = endpoints(port, frontend.policy);
                used.map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port).to_string())
                    .collect()
            });
            rows.push(FrontendRow {
                frontend: key.to_string(),
                kind: frontend.kind.to_string(),
                service: port.key.name.to_string(),
                owner: owner.map_or_else(String::new, |owner| owner.owner.key.name.to_string()),
                policy: policy(frontend.policy).to_owned(),
                in_kernel: is_owner && proxier.serves(&key, name),
                endpoints_used: if is_owner { used } else { 0 },
                endpoints_not_used: port
                    .endpoint_count
                    .saturating_sub(if is_owner { used } else { 0 }),
                endpoints: listed,
            });
        }
    }
    rows
}

/// The endpoints that traffic of a policy is balanced over.
fn endpoints(port: &ServicePort, policy: TrafficPolicy) -> impl Iterator<Item = &ChosenEndpoint> {
    let chosen = match policy {
        TrafficPolicy::Local => &port.endpoints.local,
        TrafficPolicy::Cluster => &port.endpoints.cluster,
    };
    chosen.iter().filter(|endpoint| endpoint.weight > 0)
}

pub(super) fn policy(policy: TrafficPolicy) -> &'static str {
    match policy {
        TrafficPolicy::Local => "Local",
        TrafficPolicy::Cluster => "Cluster",
    }
}

/// Why a Service has no frontends.
pub(super) fn why_not_served(proxier: &dyn AnyProxier, name: &ObjectName) -> String {
    let services = proxier.services();
    match (services.service(name), services.exclusion(name)) {
        (None, _) => format!("the Service {name} does not exist"),
        (Some(_), Some(reason)) => format!("the Service {name} is {reason}"),
        (Some(_), None) => {
            let families: Vec<String> = services
                .config()
                .families
                .iter()
                .map(ToString::to_string)
                .collect();
            format!(
                "the Service {name} has no address and port of a family that is served ({})",
                families.join(", ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_a_service_or_none() {
        assert_eq!(Question::parse("").unwrap().service, None);
        let one = Question::parse("service=shop/web").unwrap();
        assert_eq!(one.service, Some(ObjectName::new("shop", "web")));
        assert!(!one.has_endpoints && Question::parse("endpoints=true").unwrap().has_endpoints);
        for (query, expected) in [
            (
                "service=web",
                "service: \"web\" is not valid; valid: NAMESPACE/NAME",
            ),
            (
                "service=a/b/c",
                "service: \"a/b/c\" is not valid; valid: NAMESPACE/NAME",
            ),
            (
                "name=a/b",
                "the parameter \"name\" is not valid; valid: service, endpoints",
            ),
            ("endpoints=1", "endpoints: \"1\" is not valid; valid: true, false"),
        ] {
            assert_eq!(Question::parse(query).unwrap_err(), expected);
        }
    }
}
