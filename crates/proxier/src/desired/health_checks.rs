//! Health-check node ports: at which port a load balancer asks for which Service. Answering is the embedder's.

use kernlink_ipset::Entry;

use super::sets::SetId;
use crate::model::HealthCheck;

/// The set entry that lets the question in.
pub(crate) fn entry(check: &HealthCheck) -> (SetId, Entry) {
    (SetId::HealthCheckNodePort, Entry::port(check.port.get()))
}
