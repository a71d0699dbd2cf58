//! What another mode left on this node, and when it is removed.
//!
//! The removal begins after the configured mode executed a plan. A Service that it does not serve yet, because operations on it fail, keeps
//! what serves it in the other mode, unless it has source ranges: what restricts them may be replaced already.
//!
//! | configured | what is removed |
//! | --- | --- |
//! | all but `ipvs` | virtual servers and their addresses, when their connections have ended (`retiring_ipvs.rs`) |
//! | `userspace` | then chains, sets, and last the link of IPVS mode, by which a process notices that anything of it is left; then chains of iptables mode |
//! | `iptables`, `ipvs` | portal chains of userspace mode, at the end of the first sync of a new process: nothing listens at their ports any more |
//! | `ipvs` | rules of iptables mode: IPVS mode itself removes them, since they are in the chains that it writes |

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use kernlink_base::ErrorChain;
use kernlink_proxier::DataPath;
use kernlink_proxier::data_path::BuilderOf;
use kernlink_proxier::ipvs_mode::{IpvsMode, SharedChains};
use kernlink_proxier::plan::{Needs, Subject};
use kernlink_proxier::retire::names;
use kernlink_proxier::unreadable::LEFTOVERS_UNREADABLE;
use kernlink_services::{Changes, Event, FrontendKey, ObjectName, Services};

use super::config::Config;
use super::error::Error;
use super::kernel::Kernel;
use super::key::Key;
use super::mode::Mode;
use super::operation::Phase;
use super::removal::Removal;
use super::retiring_ipvs::RetiringIpvs;
use super::state::State;

/// How often it is compared whether the configured mode serves what is kept for it.
const HELD_INTERVAL: Duration = Duration::from_secs(5);
/// When what could not be read is read again.
const READ_INTERVAL: Duration = Duration::from_secs(60);

/// What another mode left.
#[derive(Clone, Debug)]
pub(super) struct Leftovers {
    progress: Progress,
    /// Whether this process served the node in the other mode: its portals lead to open ports.
    is_same_process: bool,
    /// IPVS mode in another mode, until its connections have ended.
    pub(super) ipvs: Option<RetiringIpvs>,
    /// Whether the rest, which userspace mode shares with IPVS mode, is removed after it.
    is_rest_last: bool,
    /// The rest, as last read.
    removal: Option<Removal>,
    /// What of the rest could not be read.
    problem: Option<String>,
    /// The frontends of Services, with the Services that own them; not those with source ranges. Empty if nothing is left.
    desired: HashMap<FrontendKey, ObjectName>,
    /// Whether nothing was compiled yet.
    is_new: bool,
    /// Those whose rules stay, because the configured mode did not serve them when the rest was read.
    held: BTreeSet<FrontendKey>,
    /// Whether the rest was read, or its removal failed, since the last plan.
    is_dirty: bool,
    /// Whether a part of the rest was removed since the last plan.
    is_removed: bool,
    now: Option<Instant>,
    /// When the rest is read again.
    next: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// The configured mode did not execute a plan yet.
    Waiting,
    /// It executed one.
    Removing,
    /// Nothing is left.
    Gone,
}

impl Leftovers {
    /// Of another process, or of this one, if the configuration changed.
    pub(super) fn new(is_same_process: bool) -> Self {
        Self {
            progress: Progress::Waiting,
            is_same_process,
            ipvs: None,
            is_rest_last: false,
            removal: None,
            problem: None,
            desired: HashMap::new(),
            is_new: true,
            held: BTreeSet::new(),
            is_dirty: false,
            is_removed: false,
            now: None,
            next: None,
        }
    }

    /// Of IPVS mode of this process.
    pub(super) fn of_ipvs(retiring: RetiringIpvs) -> Self {
        Self {
            ipvs: Some(retiring),
            ..Self::new(true)
        }
    }

    /// Whether the rest waits for the removal of IPVS mode.
    fn is_waiting(&self) -> bool {
        self.is_rest_last && self.ipvs.is_some()
    }

    /// Reads what is left. Returns events as long as there is anything.
    pub(super) fn observe(
        &mut self,
        config: &Config,
        kernel: &mut Kernel,
        is_served: impl Fn(&FrontendKey, &ObjectName) -> bool,
    ) -> Result<Vec<Event>, Error> {
        let mut events = Vec::new();
        self.is_rest_last = config.mode() == Mode::Userspace;
        let shared_chains = match config.mode() {
            Mode::Ipvs => None,
            Mode::Iptables => Some(SharedChains::Kept),
            Mode::Userspace => Some(SharedChains::Removed),
        };
        if let Some(shared_chains) = shared_chains {
            events = RetiringIpvs::observe(&mut self.ipvs, config, shared_chains, self.now, kernel)?;
            if self.is_waiting() {
                self.progress = self.progress.restarted();
            }
        }
        if self.progress == Progress::Gone {
            return Ok(events);
        }
        self.read(config, kernel, is_served);
        let of = match config {
            Config::Ipvs(_) | Config::Iptables(_) => "userspace mode",
            Config::Userspace(_) => "iptables or IPVS mode",
        };
        let is_left =
            !self.held.is_empty() || self.removal.as_ref().is_some_and(|removal| !removal.is_empty());
        if let Some(problem) = &self.problem {
            let text = format!("what {of} may have left cannot be read: {problem}");
            events.push(Event::host(LEFTOVERS_UNREADABLE, text));
        } else if is_left && !self.is_waiting() {
            let held = self.held_text();
            let text =
                format!("{of} served this node before; what it left is removed after the first sync{held}");
            events.push(Event::host("RetiringMode", text));
        }
        Ok(events)
    }

    /// The Services whose rules stay, for the event.
    fn held_text(&self) -> String {
        let services = self.held.iter().filter_map(|frontend| self.desired.get(frontend));
        let held = names(&services.collect());
        let held = held
            .map(|held| format!("; its rules of {held} stay, which the configured mode cannot serve yet"));
        held.unwrap_or_default()
    }

    /// Reads what is left apart from IPVS mode, which has a state of its own. `is_served`: whether the configured mode serves a frontend
    /// of a Service.
    pub(super) fn read(
        &mut self,
        config: &Config,
        kernel: &mut Kernel,
        is_served: impl Fn(&FrontendKey, &ObjectName) -> bool,
    ) {
        let unserved = self
            .desired
            .iter()
            .filter(|(frontend, service)| !is_served(frontend, service));
        let unserved = unserved.map(|(frontend, _)| *frontend).collect();
        let removal = match config {
            // They lead to the ports of a process that has ended.
            Config::Ipvs(_) | Config::Iptables(_) => Ok(Removal::of_portals(kernel)),
            Config::Userspace(_) => Removal::of_chains(kernel, &unserved),
        };
        self.is_dirty = true;
        self.problem = match &removal {
            Ok(removal) => removal.problem(),
            Err(error) => Some(ErrorChain(error).to_string()),
        };
        self.removal = removal.ok();
        self.held = self.removal.as_ref().map(Removal::held).unwrap_or_default();
        let is_nothing = self.problem.is_none() && self.removal.as_ref().is_some_and(Removal::is_empty);
        if !self.is_waiting() && is_nothing && self.held.is_empty() {
            self.progress = Progress::Gone;
            self.desired = HashMap::new();
            self.is_new = true;
        }
    }

    pub(super) fn set_config(&mut self, config: &Config) {
        if let Some(ipvs) = &mut self.ipvs {
            ipvs.set_config(config);
        }
    }

    pub(super) fn set_time(&mut self, now: Instant) {
        self.now = Some(now);
        if let Some(ipvs) = &mut self.ipvs {
            ipvs.set_time(now);
        }
    }

    pub(super) fn compile(&mut self, services: &Services, changes: &Changes) {
        if let Some(ipvs) = &mut self.ipvs {
            ipvs.compile(services, changes);
        }
        if self.progress == Progress::Gone {
            return;
        }
        let everything = std::mem::take(&mut self.is_new).then(|| services.everything());
        let changes = everything.as_ref().unwrap_or(changes);
        for frontend in &changes.frontends {
            let owner = services.frontend(frontend);
            let open = owner.filter(|owner| owner.frontends().all(|owned| owned.source_ranges.is_empty()));
            match open {
                Some(owner) => {
                    _ = self
                        .desired
                        .insert(*frontend, owner.owner.key.name.service.clone())
                }
                None => _ = self.desired.remove(frontend),
            }
        }
    }

    pub(super) fn set_dirty(&mut self) {
        self.is_dirty = true;
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    pub(super) fn due(&self, now: Instant) -> Vec<Key> {
        let of_ipvs = self.ipvs.iter().flat_map(|ipvs| ipvs.due(now));
        let is_due = !self.is_waiting() && self.next.is_some_and(|next| next <= now);
        of_ipvs
            .map(Key::from)
            .chain(is_due.then_some(Key::Leftovers))
            .collect()
    }

    pub(super) fn next(&self) -> Option<Instant> {
        let of_rest = self.next.filter(|_| !self.is_waiting());
        let of_ipvs = self.ipvs.as_ref().and_then(RetiringIpvs::next);
        of_rest.into_iter().chain(of_ipvs).min()
    }

    /// The endpoints of IPVS mode that serve their connections until these end.
    pub(super) fn draining(&self) -> usize {
        self.ipvs
            .as_ref()
            .map_or(0, |ipvs| IpvsMode::draining(ipvs.state()))
    }

    /// Adds the steps of the removal.
    pub(super) fn plan(
        &mut self,
        plan: &mut BuilderOf<'_, State>,
        is_served: impl Fn(&FrontendKey, &ObjectName) -> bool,
    ) {
        if let Some(ipvs) = &mut self.ipvs {
            ipvs.plan(plan, is_served);
        }
        if self.is_waiting() || !self.is_dirty {
            return;
        }
        let removal = self.removal.as_ref().filter(|removal| !removal.is_empty());
        // Portals of another process lead to ports at which nothing listens any more: until they are removed, nothing serves their Services.
        let is_due = |removal: &&Removal| {
            self.progress == Progress::Removing
                || (!self.is_same_process && matches!(removal, Removal::Portals(_)))
        };
        if let Some(removal) = removal.filter(is_due) {
            plan.push(
                Phase::Leftovers,
                Key::Leftovers,
                Subject::DataPath,
                removal.clone(),
                Needs::none(),
            );
        }
    }

    /// Records that the rest was removed, as far as it was read.
    pub(super) fn record_removed(&mut self) {
        let is_complete = self
            .removal
            .take()
            .is_some_and(|removal| removal.problem().is_none());
        // A part may have become removable by it.
        self.is_removed = is_complete;
    }

    /// Ends the sync in progress.
    pub(super) fn clear_dirty(&mut self) {
        let is_compared = std::mem::take(&mut self.is_dirty);
        let is_waiting = self.is_waiting();
        if self.ipvs.as_mut().is_some_and(RetiringIpvs::clear_dirty) {
            self.ipvs = None;
            if is_waiting {
                // Plans of the configured mode were executed too.
                self.progress = Progress::Removing;
                self.next = self.now;
            }
        }
        if is_waiting {
            return;
        }
        let is_removed = std::mem::take(&mut self.is_removed);
        let after = |interval: Duration| self.now.map(|now| now + interval);
        match self.progress {
            Progress::Waiting => {
                self.progress = Progress::Removing;
                // What is read from now on does not change any more.
                self.next = self.now;
            }
            Progress::Removing if is_removed => self.next = self.now,
            // The retry of a failed removal reads it again.
            Progress::Removing if is_compared && !self.held.is_empty() => self.next = after(HELD_INTERVAL),
            Progress::Removing if is_compared => self.next = after(READ_INTERVAL),
            Progress::Removing => {}
            Progress::Gone => self.next = None,
        }
    }
}

impl Progress {
    /// After something was found again.
    fn restarted(self) -> Self {
        match self {
            Progress::Gone => Progress::Waiting,
            other => other,
        }
    }
}
