//! Events about the desired state.

use kernlink_dummylink::AddressKey;
use kernlink_services::{Event, Reason};

use super::State;
use super::service_ports::sorted;
use crate::options;

impl State {
    /// Events about the configuration.
    pub(super) fn configuration_events(&self) -> Vec<Event> {
        let scheduler = self.config.defaults.scheduler;
        let problem = options::known_scheduler(scheduler.as_str()).err();
        let event = |problem: String| {
            Event::configuration(Reason::Invalid {
                field: "scheduler".to_owned(),
                value: scheduler.to_string(),
                problem: format!("{problem}; {} is used", self.defaults.scheduler),
            })
        };
        problem.map(event).into_iter().collect()
    }

    /// New events about foreign virtual servers at addresses that the dummy link has or gets: they are reachable there too, and are
    /// not changed. Those with the key of a frontend are adopted, or have events of their own.
    pub(super) fn foreign_events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for key in &self.foreign.keys {
            let Some(address) = key.address() else { continue };
            let is_bound = AddressKey::host(address).is_ok_and(|key| self.addresses.is_desired(&key));
            let is_frontend = self.servers.is_desired(key) || self.foreign.withheld.contains_key(key);
            if is_bound && !is_frontend && self.foreign.reported.insert(*key) {
                let text = format!(
                    "{address} is a virtual IP, but virtual server {key} on it is foreign; it is not changed"
                );
                events.push(Event::host("ForeignVirtualServer", text));
            }
        }
        events
    }

    /// All events that describe the present desired state, sorted, each once, without those of
    /// [`Services::events`](kernlink_services::Services::events).
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let of_ports = self.ports.iter().flat_map(|port| &port.events).cloned();
        let of_services = self.service_events.values().flatten().cloned();
        let of_configuration = self.configuration_events().into_iter();
        sorted(of_ports.chain(of_services).chain(of_configuration))
    }
}
