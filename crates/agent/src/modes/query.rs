//! What questions to the running agent need of the proxier of any mode.

use std::time::Instant;

use kernlink_proxier::Proxier;
use kernlink_services::{FrontendKey, ObjectName, ServicePortId, Services};

use super::objects::Find;
use super::served::Served;
use crate::query::documents::Failing;
use crate::query::status::FailedOperation;

/// The proxier of any mode, as its thread passes it to a reading.
pub(crate) trait AnyProxier {
    fn services(&self) -> &Services;

    /// Whether everything that a frontend needs is in the kernel, as last read or written.
    fn serves(&self, frontend: &FrontendKey, service: &ObjectName) -> bool;

    /// What reads the kernel objects that serve a frontend of a service port.
    fn find_objects(&self, frontend: &FrontendKey, port: ServicePortId) -> Find;

    /// The operations for a Service, or for no single one, that failed and are tried again; at most a number of them.
    fn failing(&self, service: &ObjectName, most: usize) -> Vec<Failing>;
}

impl<M: Served> AnyProxier for Proxier<M> {
    fn services(&self) -> &Services {
        Proxier::services(self)
    }

    fn serves(&self, frontend: &FrontendKey, service: &ObjectName) -> bool {
        self.state().serves(frontend, service)
    }

    fn find_objects(&self, frontend: &FrontendKey, port: ServicePortId) -> Find {
        self.state().find_objects(frontend, port)
    }

    fn failing(&self, service: &ObjectName, most: usize) -> Vec<Failing> {
        let now = Instant::now();
        let of_service =
            Proxier::failing(self).filter(|operation| operation.service.is_none_or(|known| known == service));
        of_service
            .take(most)
            .map(|operation| FailedOperation::new(&operation).at(now))
            .collect()
    }
}
