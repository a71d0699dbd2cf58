//! The smallest data path: forwards in memory, one for each frontend.

// snippet
use std::collections::BTreeMap;
use std::net::SocketAddr;

use kernlink_engine::Objects;
use kernlink_engine::services::{ArbitratedFrontend, FrontendKey, TrafficPolicy};

/// What the host does with packets to each frontend. A kernel API has a connection here, and owns some of the objects that it lists.
#[derive(Debug, Default)]
pub(crate) struct Forwards(BTreeMap<FrontendKey, Vec<SocketAddr>>);

impl Objects for Forwards {
    type Key = FrontendKey;
    type Value = Vec<SocketAddr>;
    type Error = std::fmt::Error;

    const KIND: &'static str = "forward";

    fn desired(frontend: &ArbitratedFrontend<'_>) -> Option<(FrontendKey, Vec<SocketAddr>)> {
        let endpoints = match frontend.frontends().next()?.policy {
            TrafficPolicy::Cluster => &frontend.owner.endpoints.cluster,
            TrafficPolicy::Local => &frontend.owner.endpoints.local,
        };
        let addresses = endpoints.iter().map(|to| SocketAddr::new(to.address, to.port));
        Some((frontend.key, addresses.collect()))
    }

    fn list(&mut self) -> Result<Vec<(FrontendKey, Vec<SocketAddr>)>, Self::Error> {
        let forwards = self.0.iter();
        Ok(forwards.map(|(key, to)| (*key, to.clone())).collect())
    }

    fn write(&mut self, key: &FrontendKey, to: &Vec<SocketAddr>) -> Result<(), Self::Error> {
        self.0.insert(*key, to.clone());
        Ok(())
    }

    fn delete(&mut self, key: &FrontendKey) -> Result<(), Self::Error> {
        self.0.remove(key);
        Ok(())
    }
}
// snippet
