//! Steps of real servers that are withdrawn, and of their deadlines.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use kernlink_engine::plan::{Needs, Subject};
use kernlink_ipset::{IfExists, Operation as SetOperation};
use kernlink_ipvs::{Operation, RealServerKey, VirtualServerKey};
use kernlink_services::Family;

use super::{EntryKey, Need, Planner, ServerDifference};
use crate::drain::{self, Drain};
use crate::key::Key;
use crate::order::Phase;
use crate::sets::is_usable;
use crate::state::{DesiredServer, ObservedRealServer, ObservedServer};

/// The maximum number of new real servers that the removal of an old one needs one of.
pub(super) const MOST_ALTERNATIVES: usize = 16;

/// What happens to a real server that is not desired.
enum Leaving {
    Deleted,
    /// Its weight becomes 0.
    BeginsToDrain,
    Drains,
}

impl Planner<'_, '_, '_> {
    pub(super) fn remove_real_servers(&mut self) {
        let mut late: HashMap<EntryKey, Vec<Need>> = HashMap::new();
        // The planner changes its maps of steps while it reads the differences.
        let differences = std::mem::take(&mut self.servers);
        for difference in &differences {
            if let (Some(desired), Some(observed)) = (difference.desired, difference.observed) {
                self.withdraw(difference, desired, observed, &mut late);
            }
        }
        self.servers = differences;
        for (entry, needs) in late {
            self.late.entry(entry).or_default().extend(needs);
        }
    }

    /// Withdraws the real servers of a virtual server that are not desired.
    fn withdraw(
        &mut self,
        difference: &ServerDifference<'_>,
        desired: &DesiredServer,
        observed: &ObservedServer,
        late: &mut HashMap<EntryKey, Vec<Need>>,
    ) {
        if observed.real_servers_agree(&desired.real_servers) {
            return;
        }
        let key = *difference.key;
        let leaving = |(known, _): &&(RealServerKey, _)| desired.real_server(known).is_none();
        let mut leaving: Vec<_> = observed.real_servers.iter().filter(leaving).copied().collect();
        if leaving.is_empty() {
            return;
        }
        // One that begins to drain sets a later deadline for all at its address.
        leaving.sort_by_key(|(_, real)| real.is_draining());
        // While no desired real server accepts connections, those that do are kept until a new one does. The others may go. One that is desired with
        // weight 0 accepts none; if all are, there is nothing to wait for.
        let in_place = desired.missing_first(observed).is_none();
        let added = self.added.get(&key).filter(|_| !in_place);
        let waits = !in_place && added.is_none();
        // A limited number, so that the size of a plan does not grow with the square of the number of real servers. If all of these are
        // refused, the old real servers are removed after a retry.
        let any: Vec<Need> = added
            .into_iter()
            .flatten()
            .take(MOST_ALTERNATIVES)
            .cloned()
            .collect();
        let late_entries = self.late_of(difference);
        let limit = match desired.drain {
            Drain::Connections { limit } => limit,
            Drain::AtOnce => None,
        };
        let adopted = self.adoption_needs(difference);
        let mut starts: BTreeSet<IpAddr> = BTreeSet::new();
        for (server, real) in &leaving {
            let serves = !real.is_draining();
            if serves && waits {
                continue;
            }
            let leaving = self.leaving(&key, desired, *server, *real, &starts);
            if limit.is_some() && !matches!(leaving, Leaving::Deleted) {
                self.kept_deadlines.insert((key, server.address));
            }
            let (operation, is_deleted) = match leaving {
                Leaving::Drains => continue,
                Leaving::Deleted => {
                    let operation = Operation::DeleteRealServer {
                        virtual_server: key,
                        real_server: *server,
                    };
                    (operation, true)
                }
                Leaving::BeginsToDrain => {
                    let operation = Operation::UpdateRealServer {
                        virtual_server: key,
                        real_server: real.draining(*server),
                    };
                    (operation, false)
                }
            };
            let any = any.iter().filter(|_| serves).cloned();
            let need = self.builder.push(
                Phase::RemoveRealServers,
                Key::RealServer(key, *server),
                difference.subject.clone(),
                operation,
                Needs::all(adopted.clone()).and_any(any),
            );
            if is_deleted {
                let of_address = self.deleted_real.entry((key, server.address)).or_default();
                of_address.push(need.clone());
            } else if matches!(need, Need::Step(_)) {
                starts.insert(server.address);
            }
            for entry in late_entries.iter().filter(|_| serves) {
                late.entry(entry.clone()).or_default().push(need.clone());
            }
        }
        if let Some(limit) = limit {
            self.add_deadlines(difference, limit, &leaving, &starts);
        }
    }

    fn leaving(
        &self,
        key: &VirtualServerKey,
        desired: &DesiredServer,
        server: RealServerKey,
        real: ObservedRealServer,
        starts: &BTreeSet<IpAddr>,
    ) -> Leaving {
        let Drain::Connections { limit } = desired.drain else {
            return Leaving::Deleted;
        };
        if !real.is_draining() {
            return Leaving::BeginsToDrain;
        }
        let drains = &self.state.drains;
        let is_over = || {
            let deadline = drains.deadline(key, server.address).map(|deadline| deadline.at);
            // Another real server at this address that begins to drain sets a later deadline for both.
            let is_shared = starts.contains(&server.address);
            limit.is_some() && !is_shared && deadline.zip(drains.now()).is_some_and(|(at, now)| at <= now)
        };
        if drains.is_idle(*key, server) || is_over() {
            Leaving::Deleted
        } else {
            Leaving::Drains
        }
    }

    /// Adds the deadlines of the real servers that begin to drain at these addresses, and those that are missing for others. If one cannot
    /// be added, the real server drains without a limit until a retry succeeds.
    fn add_deadlines(
        &mut self,
        difference: &ServerDifference<'_>,
        limit: Duration,
        leaving: &[(RealServerKey, ObservedRealServer)],
        starts: &BTreeSet<IpAddr>,
    ) {
        let (key, Some(now)) = (*difference.key, self.state.drains.now()) else {
            return;
        };
        let draining = leaving.iter().filter(|(_, real)| real.is_draining());
        let addresses: BTreeSet<IpAddr> = draining.map(|(server, _)| server.address).collect();
        for address in addresses.union(starts).copied() {
            let known = self.state.drains.deadline(&key, address);
            let left = match known.map(|known| left_until(known.at, now)) {
                _ if starts.contains(&address) => limit,
                None => limit,
                // It is deleted in this plan.
                Some(Duration::ZERO) => continue,
                Some(left) if left > limit => limit,
                Some(_) if known.is_some_and(|known| known.is_stored) => continue,
                Some(left) => left,
            };
            self.add_deadline(&key, address, left, difference.subject.clone());
        }
    }

    fn add_deadline(&mut self, key: &VirtualServerKey, address: IpAddr, left: Duration, subject: Subject) {
        let Some(entry) = drain::entry(key, address) else {
            return;
        };
        let family = Family::of(address);
        let needs = Needs::all(self.drain_set(family));
        let entry = entry.with_timeout(drain::timeout(left));
        self.builder.push(
            Phase::AddDeadlines,
            Key::Deadline(*key, address),
            subject,
            SetOperation::ensure(drain::set_name(family), entry),
            needs,
        );
    }

    /// What a deadline needs: its set. Nothing if it exists.
    fn drain_set(&mut self, family: Family) -> Vec<Need> {
        let definition = drain::definition(family);
        let known = self.state.drains.set(family);
        if known.is_some_and(|known| is_usable(known, &definition)) {
            return Vec::new();
        }
        let key = Key::DrainSet(family);
        let before = self.builder.steps_of(&key);
        if !before.is_empty() {
            return before;
        }
        let need = self.builder.push(
            Phase::Sets,
            key,
            Subject::DataPath,
            SetOperation::ensure_set(definition),
            Needs::none(),
        );
        vec![need]
    }

    /// Removes the deadlines of real servers that no longer drain, or drain without a limit.
    pub(super) fn remove_deadlines(&mut self) {
        for difference in &self.servers {
            let key = *difference.key;
            for address in self.state.drains.stored(&key) {
                if self.kept_deadlines.contains(&(key, address)) {
                    continue;
                }
                let of_real = self.deleted_real.get(&(key, address));
                let of_server = match difference.desired {
                    Some(_) => Vec::new(),
                    None => self.builder.steps_of(&Key::VirtualServer(key)),
                };
                let Some(entry) = drain::entry(&key, address) else {
                    continue;
                };
                let needs = of_real.into_iter().flatten().chain(&of_server);
                let operation = SetOperation::Delete {
                    set: drain::set_name(Family::of(address)),
                    entry,
                    if_exists: IfExists::Succeed,
                };
                self.builder.push(
                    Phase::RemoveDeadlines,
                    Key::Deadline(key, address),
                    difference.subject.clone(),
                    operation,
                    Needs::all(needs.cloned()),
                );
            }
        }
    }
}

fn left_until(at: Instant, now: Instant) -> Duration {
    at.saturating_duration_since(now)
}
