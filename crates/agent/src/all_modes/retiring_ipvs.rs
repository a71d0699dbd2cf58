//! The removal of what IPVS mode left, on a node that iptables mode serves, or another data path on iptables.
//!
//! It begins after this data path executed a plan: then its rules translate new connections, and those to virtual servers only end. A Service
//! that the rules do not serve yet, because operations on it fail, keeps its virtual servers meanwhile. In the other direction IPVS mode does all: it keeps the rules of iptables mode until it serves itself.

use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_proxier::DataPath;
use kernlink_proxier::data_path::BuilderOf;
use kernlink_proxier::ipvs_mode::{self, IpvsMode, SharedChains};
use kernlink_proxier::retire::names;
use kernlink_proxier::unreadable::LEFTOVERS_UNREADABLE;
use kernlink_services::{Changes, Event, FrontendKey, ObjectName, Services};

use super::config::Config;
use super::error::Error;
use super::kernel::Kernel;
use super::state::State;

/// IPVS mode on a node that another data path serves, which executes the steps of the removal. Its methods are those of a
/// [`DataPath`] for the keys of IPVS mode.
#[derive(Clone, Debug)]
pub(super) struct RetiringIpvs {
    state: Box<ipvs_mode::State>,
    /// Whether nothing was compiled since the state was made.
    is_new: bool,
    /// Whether it was read. Otherwise nothing is removed before the next listing.
    is_read: bool,
    progress: Progress,
    /// Whether the first plan of the removal is not made yet.
    is_first: bool,
    now: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// The other data path did not execute a plan yet.
    Waiting,
    /// It executed one.
    Removing,
}

impl RetiringIpvs {
    /// After the mode changed to iptables mode: the state of IPVS mode until now.
    pub(super) fn after(state: Box<ipvs_mode::State>) -> Self {
        Self::new(state, SharedChains::Kept)
    }

    fn new(mut state: Box<ipvs_mode::State>, shared_chains: SharedChains) -> Self {
        state.retire(shared_chains);
        Self {
            state,
            is_new: false,
            is_read: false,
            progress: Progress::Waiting,
            is_first: false,
            now: None,
        }
    }

    /// On a node that another process served.
    fn found(config: &Config, shared_chains: SharedChains, now: Option<Instant>) -> Self {
        let state = IpvsMode::new(&config.retiring_ipvs());
        let mut found = Self {
            is_new: true,
            ..Self::new(Box::new(state), shared_chains)
        };
        if let Some(now) = now {
            found.set_time(now);
        }
        found
    }

    /// Reads what is left. Returns an event as long as there is anything. `config` has what decides what is owned;
    /// `shared_chains` is what happens to chains that iptables mode has too, `now` the time of the sync in progress.
    ///
    /// # Errors
    /// Whether the link of IPVS mode exists could not be read. What else cannot be read is an event.
    pub(super) fn observe(
        retiring: &mut Option<Self>,
        config: &Config,
        shared_chains: SharedChains,
        now: Option<Instant>,
        kernel: &mut Kernel,
    ) -> Result<Vec<Event>, Error> {
        if retiring.is_none() && kernel.has_ipvs_link()? {
            *retiring = Some(Self::found(config, shared_chains, now));
        }
        let Some(left) = retiring else {
            return Ok(Vec::new());
        };
        // What prevents the removal does not prevent iptables mode.
        let read = kernel.ipvs().and_then(|kernel| {
            let read = IpvsMode::observe(&mut left.state, kernel);
            read.map_err(Error::from)
        });
        left.is_read = read.is_ok();
        Ok(vec![match read {
            Ok(_) => Event::host("RetiringMode", left.text()),
            Err(error) => Event::host(
                LEFTOVERS_UNREADABLE,
                format!(
                    "IPVS mode served this node before; what it left cannot be read: {}",
                    ErrorChain(&error)
                ),
            ),
        }])
    }

    /// What is left and why, for the event.
    fn text(&self) -> String {
        let left =
            "IPVS mode served this node before; what it left is removed when its connections have ended";
        match names(&self.state.held_services()) {
            Some(held) => format!("{left}; IPVS still serves {held}, whose rules cannot be written yet"),
            None => left.to_owned(),
        }
    }

    /// Reads single objects again.
    pub(super) fn observe_keys(&mut self, kernel: &mut Kernel, keys: &[ipvs_mode::Key]) {
        if keys.is_empty() || !self.is_read {
            return;
        }
        let read = kernel.ipvs().and_then(|kernel| {
            let read = IpvsMode::observe_keys(&mut self.state, kernel, keys);
            read.map_err(Error::from)
        });
        // What prevents the removal does not prevent iptables mode. The next listing reports it if it persists.
        self.is_read = read.is_ok();
    }

    /// The state of IPVS mode.
    #[must_use]
    pub(super) fn state(&self) -> &ipvs_mode::State {
        &self.state
    }

    /// The state of IPVS mode, in which outcomes are recorded.
    pub(super) fn state_mut(&mut self) -> &mut ipvs_mode::State {
        &mut self.state
    }

    /// What IPVS mode owns is decided as before; the limits of connections are those of the new configuration.
    pub(super) fn set_config(&mut self, config: &Config) {
        let mut own = self.state.config().clone();
        own.services.clone_from(config.services());
        IpvsMode::set_config(&mut self.state, &own);
    }

    /// Sets the time of the sync that begins.
    pub(super) fn set_time(&mut self, now: Instant) {
        self.now = Some(now);
        IpvsMode::set_time(&mut self.state, now);
    }

    /// The limits of connections depend on the Services.
    pub(super) fn compile(&mut self, services: &Services, changes: &Changes) {
        let everything = std::mem::take(&mut self.is_new).then(|| services.everything());
        let changes = everything.as_ref().unwrap_or(changes);
        IpvsMode::compile(&mut self.state, services, changes);
    }

    /// The objects to read again.
    #[must_use]
    pub(super) fn due(&self, now: Instant) -> Vec<ipvs_mode::Key> {
        match self.progress {
            _ if !self.is_read => Vec::new(),
            // Read again, and so compared.
            Progress::Removing if self.is_first => vec![ipvs_mode::Key::NodeAddresses],
            Progress::Waiting => Vec::new(),
            Progress::Removing => IpvsMode::due(&self.state, now),
        }
    }

    /// When [`due`](Self::due) returns objects.
    #[must_use]
    pub(super) fn next(&self) -> Option<Instant> {
        match self.progress {
            _ if !self.is_read => None,
            Progress::Waiting => self.now,
            Progress::Removing if self.is_first => self.now,
            Progress::Removing => IpvsMode::next(&self.state),
        }
    }

    /// Adds the steps of the removal, after those of the other data path. `is_served`: whether that serves a frontend of a Service.
    pub(super) fn plan(
        &mut self,
        plan: &mut BuilderOf<'_, State>,
        is_served: impl Fn(&FrontendKey, &ObjectName) -> bool,
    ) {
        if self.progress == Progress::Removing && self.is_read {
            self.state.hold(is_served);
            plan.add_part(|part| IpvsMode::plan(&mut self.state, part));
        }
    }

    /// Ends the sync in progress. Returns whether everything was removed that only IPVS mode has.
    #[must_use]
    pub(super) fn clear_dirty(&mut self) -> bool {
        match self.progress {
            Progress::Waiting => {
                self.progress = Progress::Removing;
                self.is_first = true;
            }
            Progress::Removing => {
                IpvsMode::clear_dirty(&mut self.state);
                self.is_first = false;
            }
        }
        self.state.is_gone()
    }
}
