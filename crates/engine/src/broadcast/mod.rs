//! The arbitrated Services, for listeners of the embedding program: what the data path receives, in the same order.
//!
//! A [`Subscription`], from [`Runner::subscribe`](crate::Runner::subscribe) or [`Proxier::subscribe`](crate::Proxier::subscribe), receives
//! [`Update`]s. The first one is a snapshot: everything, as of the moment of the subscription, or of the first sync if there was none. Each later
//! one leads from the state of the update before to a later state. No change is missing between them or is received twice, because snapshots and
//! updates are made on the thread of the proxier.
//!
//! An update is sent when the data path receives the same changes, before they are in the kernel:
//! [`Notice::Synced`](crate::runner::Notice::Synced) reports their execution. Nothing is sent while a source has not delivered its first full list.
//!
//! The data path never waits for a listener. The updates that a listener has not received are kept, as many as the capacity of its
//! subscription; further ones are merged into the last of them. So a slow listener receives fewer and larger updates, each of which still ends
//! in a state that existed, and the memory that it occupies is limited.

mod subscription;
mod update;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use kernlink_services::{
    ArbitratedFrontend, Changes, Family, FrontendKey, NodeFacts, ServicePort, ServicePortId, Services,
};

pub(crate) use self::subscription::Subscriber;
pub use self::subscription::{Disconnected, Subscription};
pub use self::update::Update;

/// Sends updates to subscriptions.
#[derive(Debug, Default)]
pub(crate) struct Broadcaster {
    subscribers: Vec<Subscriber>,
    /// The number of updates so far. 0: the data path has received nothing.
    revision: u64,
    /// The facts of the node as the data path received them. Unlike frontends they change before the next update of the Services.
    node: Arc<NodeFacts>,
}

impl Broadcaster {
    /// A subscription, whose receiving end may be passed to another thread.
    pub(crate) fn pair(capacity: NonZeroUsize) -> (Subscriber, Subscription) {
        subscription::pair(capacity)
    }

    /// Adds a subscription. It receives a snapshot of the Services, whose changes must all have been published, or waits for the first ones.
    pub(crate) fn add(&mut self, services: &Services, mut subscriber: Subscriber) {
        if self.revision > 0 {
            subscriber.send(&Arc::new(snapshot(services, self.revision, &self.node)));
        }
        self.subscribers.push(subscriber);
    }

    /// Sends changes. The Services must be in the state after them.
    pub(crate) fn publish(&mut self, services: &Services, changes: &Changes) {
        self.subscribers.retain(Subscriber::is_open);
        if changes.node || self.revision == 0 {
            self.node = Arc::new(services.node_facts().clone());
        }
        if self.revision == 0 {
            self.revision = 1;
            if !self.subscribers.is_empty() {
                let snapshot = Arc::new(snapshot(services, 1, &self.node));
                self.subscribers.iter_mut().for_each(|each| each.send(&snapshot));
            }
            return;
        }
        let node = changes.node.then(|| Arc::clone(&self.node));
        if changes.ports.is_empty()
            && changes.frontends.is_empty()
            && changes.health_checks.is_empty()
            && node.is_none()
        {
            return;
        }
        self.revision += 1;
        if !self.subscribers.is_empty() {
            let update = Arc::new(update(services, changes, self.revision, node));
            self.subscribers.iter_mut().for_each(|each| each.send(&update));
        }
    }
}

/// Everything.
fn snapshot(services: &Services, revision: u64, node: &Arc<NodeFacts>) -> Update {
    let mut owners = Owners::default();
    let checks = Family::ALL.into_iter().flat_map(|family| {
        let checks = services.health_checks(family).into_iter();
        checks.map(move |check| ((family, check.port.get()), Some(Arc::new(check.clone()))))
    });
    Update {
        revision,
        is_snapshot: true,
        frontends: services
            .frontends()
            .map(|frontend| (frontend.key, Some(owners.owner(frontend))))
            .collect(),
        health_checks: checks.collect(),
        node: Some(Arc::clone(node)),
    }
}

fn update(services: &Services, changes: &Changes, revision: u64, node: Option<Arc<NodeFacts>>) -> Update {
    let mut owners = Owners::default();
    let removed = changes.frontends.iter().map(|key| (*key, None));
    // Also those whose owner changed in another frontend.
    let of_ports = changes
        .ports
        .iter()
        .flat_map(|id| services.owned_frontends(*id).map(FrontendKey::of));
    let keys = changes.frontends.iter().copied().chain(of_ports);
    let present = keys.filter_map(|key| services.frontend(&key));
    let present = present.map(|frontend| (frontend.key, Some(owners.owner(frontend))));
    let checks = changes.health_checks.iter();
    Update {
        revision,
        is_snapshot: false,
        frontends: removed.chain(present).collect(),
        health_checks: checks
            .map(|&(family, port)| {
                let check = services.health_check(family, port);
                ((family, port), check.map(|check| Arc::new(check.clone())))
            })
            .collect(),
        node,
    }
}

/// One copy of each service port for all its frontends.
#[derive(Default)]
struct Owners(HashMap<ServicePortId, Arc<ServicePort>>);

impl Owners {
    fn owner(&mut self, frontend: ArbitratedFrontend<'_>) -> Arc<ServicePort> {
        let owner = self.0.entry(frontend.id);
        Arc::clone(owner.or_insert_with(|| Arc::new(frontend.owner.clone())))
    }
}
