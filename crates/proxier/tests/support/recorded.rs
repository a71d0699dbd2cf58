//! A proxier with the recorder of its status.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::time::{Duration, Instant, SystemTime};

use kernlink_proxier::ipvs_mode::{Config, Kernel, Proxier, Totals};
use kernlink_proxier::status::{Recorder, Status};
use kernlink_services::{Change, Kind, ObjectChange, Service, TrafficPolicy};

use crate::node::{SOURCE, load_balancer};

/// A proxier with a recorder and a clock that the test moves.
pub(crate) struct Recorded {
    pub(crate) proxier: Proxier,
    pub(crate) recorder: Recorder<Totals>,
    pub(crate) now: Instant,
    pub(crate) time: SystemTime,
}

impl Recorded {
    pub(crate) fn new(config: Config, kernel: Kernel) -> Self {
        let families = config.services.families.clone();
        let mut recorded = Self {
            proxier: Proxier::new(&config, kernel).unwrap(),
            recorder: Recorder::new(families, SystemTime::UNIX_EPOCH),
            now: Instant::now(),
            time: SystemTime::UNIX_EPOCH,
        };
        recorded.change(Change::synced(Kind::Service));
        recorded.change(Change::synced(Kind::EndpointSlice));
        recorded
    }

    /// Some time passes.
    pub(crate) fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.time += Duration::from_secs(seconds);
    }

    pub(crate) fn change(&mut self, change: Change) {
        self.recorder.on_change(&change, self.now, self.time);
        let events = self.proxier.change(SOURCE, change);
        self.recorder.on_events(&events, self.time);
    }

    pub(crate) fn upsert(&mut self, service: Service) {
        self.change(Change::Services(ObjectChange::Upsert(service)));
    }

    pub(crate) fn sync(&mut self) {
        self.recorder.on_started();
        match self.proxier.sync(self.now) {
            Ok(synced) => self.recorder.on_synced(&self.proxier, &synced, self.time),
            Err(error) => self.recorder.on_error(&error, self.time),
        }
    }

    pub(crate) fn status(&self) -> &Status<Totals> {
        self.recorder.status()
    }
}

/// A load balancer with the external policy `Local` and a health-check node port.
pub(crate) fn local_load_balancer() -> Service {
    let mut service = load_balancer(&[]);
    service.external_traffic_policy = TrafficPolicy::Local;
    service.health_check_node_port = 32_001;
    service
}
