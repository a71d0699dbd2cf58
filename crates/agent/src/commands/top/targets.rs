//! The Services that are watched, as the agent answers.

use std::net::SocketAddr;

use hyper::Method;
use kernlink_services::FrontendKey;

use crate::commands::client::{self, Client, Failed};
use crate::query::documents::{FrontendRow, ServiceList};

/// A service port, or a virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// `namespace/name:port`, or the virtual server.
    pub(super) name: String,
    pub(super) frontends: Vec<FrontendKey>,
    /// Those that receive new connections, sorted.
    pub(super) endpoints: Vec<SocketAddr>,
}

/// What the agent serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) mode: String,
    /// In the order of names.
    pub(super) targets: Vec<Target>,
}

/// Asks the agent.
///
/// # Errors
/// Why there is no answer.
pub(super) fn ask(client: &Client) -> Result<Served, String> {
    let answer = client.send(&Method::GET, "/v1/services?endpoints=true");
    let list = answer.and_then(|body| client::parse(&body));
    list.map(served).map_err(|Failed(why)| why)
}

fn served(list: ServiceList) -> Served {
    let mut rows = list.frontends;
    // A frontend of another owner has the connections of that one.
    rows.retain(|row| row.owner == row.service);
    rows.sort_by(|one, other| one.service.cmp(&other.service));
    let mut targets: Vec<Target> = Vec::new();
    for row in rows {
        if targets.last().is_none_or(|last| last.name != row.service) {
            targets.push(Target {
                name: row.service.clone(),
                frontends: Vec::new(),
                endpoints: Vec::new(),
            });
        }
        if let Some(target) = targets.last_mut() {
            add(target, &row);
        }
    }
    Served {
        mode: list.mode,
        targets,
    }
}

fn add(target: &mut Target, row: &FrontendRow) {
    // Several kinds may have one address.
    if let Some(frontend) = frontend(&row.frontend)
        && !target.frontends.contains(&frontend)
    {
        target.frontends.push(frontend);
    }
    let endpoints = row.endpoints.iter().flatten();
    target
        .endpoints
        .extend(endpoints.filter_map(|endpoint| endpoint.parse::<SocketAddr>().ok()));
    target.endpoints.sort_unstable();
    target.endpoints.dedup();
}

/// `10.96.0.1:80/TCP`.
fn frontend(text: &str) -> Option<FrontendKey> {
    let (socket, protocol) = text.rsplit_once('/')?;
    let socket: SocketAddr = socket.parse().ok()?;
    Some(FrontendKey {
        address: socket.ip(),
        protocol: protocol.parse().ok()?,
        port: socket.port(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(service: &str, owner: &str, frontend: &str, endpoints: &[&str]) -> FrontendRow {
        FrontendRow {
            frontend: frontend.to_owned(),
            service: service.to_owned(),
            owner: owner.to_owned(),
            endpoints: Some(endpoints.iter().map(|endpoint| (*endpoint).to_owned()).collect()),
            ..FrontendRow::default()
        }
    }

    #[test]
    fn the_frontends_of_a_service_port_are_one_target_and_lost_ones_are_not_in_it() {
        let served = served(ServiceList {
            mode: "ipvs".to_owned(),
            frontends: vec![
                row("a/b:http", "a/b:http", "[fd00::1]:80/TCP", &["[fd00::9]:8080"]),
                row("a/a", "a/a", "10.96.0.1:53/UDP", &["10.0.0.2:53", "10.0.0.1:53"]),
                row("a/a", "a/a", "192.0.2.1:30053/UDP", &["10.0.0.1:53"]),
                row("a/a", "a/b:http", "192.0.2.9:53/UDP", &[]),
                row("a/c", "a/c", "from a later version", &[]),
            ],
            ..ServiceList::default()
        });
        let names: Vec<&str> = served.targets.iter().map(|target| target.name.as_str()).collect();
        assert_eq!(names, ["a/a", "a/b:http", "a/c"]);
        let a = &served.targets[0];
        let frontends: Vec<String> = a.frontends.iter().map(ToString::to_string).collect();
        assert_eq!(frontends, ["10.96.0.1:53/UDP", "192.0.2.1:30053/UDP"]);
        let endpoints: Vec<String> = a.endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(endpoints, ["10.0.0.1:53", "10.0.0.2:53"]);
        assert_eq!(served.targets[1].frontends[0].to_string(), "[fd00::1]:80/TCP");
        assert!(served.targets[2].frontends.is_empty());
    }
}
