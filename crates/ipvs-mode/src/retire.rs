//! IPVS mode on a node that it does not serve any more.
//!
//! The rules of the mode that serves the node translate new connections before IPVS sees them, and those to virtual servers only end. A
//! frontend that this mode does not serve yet keeps its virtual server meanwhile. The link is removed last: by it a process notices that anything
//! of IPVS mode is left, without IPVS.
//!
//! If no mode serves the node, everything is removed at once. Sysctls keep their values.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_dummylink::DummyLinks;
use kernlink_engine::DataPath;
use kernlink_engine::error::InvalidConfig;
use kernlink_engine::handover::Steps;
use kernlink_engine::retire::{Interim, Kept, Name, Retire, Retired, Round};
use kernlink_engine::unreadable::is_unreadable;
use kernlink_host::{KernelSysctls, Sysctls};
use kernlink_iptables_restore::Table;
use kernlink_ipvs::VirtualServerKey;
use kernlink_netfilter::interim;
use kernlink_services::{Changes, Family, Services};

use super::State;
use super::config::Config;
use super::error::Error;
use super::kernel::Kernel;
use super::rules::{self, POSTROUTING};

/// Finds and removes what IPVS mode left: virtual servers, addresses and set entries, then jumps, chains, sets and the dummy link.
pub struct Retiring {
    config: Config,
    links: Box<dyn DummyLinks>,
    /// The kernel APIs, unless they are in use.
    kernel: Option<Kernel>,
    /// What is left, if anything is.
    left: Option<Left>,
}

/// What is left.
struct Left {
    state: Box<State>,
    kernel: Kernel,
    steps: Steps<State>,
    /// Whether the last reading succeeded. Otherwise everything is read again before anything is removed.
    is_read: bool,
}

impl Retiring {
    /// The configuration decides what is owned, and what the limits of connections are. The kernel APIs are opened when `links` have the
    /// dummy link of IPVS mode: this loads modules.
    ///
    /// # Errors
    /// Everything that is invalid in the configuration.
    pub fn new(config: Config, links: Box<dyn DummyLinks>) -> Result<Self, InvalidConfig> {
        config.validate()?;
        Ok(Self {
            config,
            links,
            kernel: None,
            left: None,
        })
    }

    /// Through these kernel APIs.
    #[must_use]
    pub fn with_kernel(mut self, kernel: Kernel) -> Self {
        self.kernel = Some(kernel);
        self
    }

    /// The kernel APIs, if they were opened or passed.
    #[must_use]
    pub fn into_kernel(self) -> Option<Kernel> {
        self.left.map(|left| left.kernel).or(self.kernel)
    }

    /// Whether the dummy link exists.
    fn has_link(&mut self) -> Result<bool, Error> {
        match self.config.link() {
            Some(link) => Ok(self.links.exists(&link)?),
            None => Ok(false),
        }
    }

    fn take_kernel(&mut self) -> Result<Kernel, Error> {
        match self.kernel.take() {
            Some(kernel) => Ok(kernel),
            None => Kernel::open(),
        }
    }

    /// Reads everything that is left, if there is anything.
    fn read_left(&mut self, now: Instant, kept: Kept<'_>) -> Result<bool, Error> {
        if self.left.is_none() {
            if !self.has_link()? {
                return Ok(false);
            }
            let kernel = self.take_kernel()?;
            let mut state = Box::new(State::new(&self.config));
            state.retire();
            self.left = Some(Left {
                state,
                kernel,
                steps: Steps::default(),
                is_read: false,
            });
        }
        let Some(left) = &mut self.left else {
            return Ok(false);
        };
        left.read(now, kept)?;
        Ok(true)
    }

    /// The virtual servers that are owned. IPVS is not loaded for it.
    ///
    /// # Errors
    /// What cannot be read, so that it is not known which ones are owned.
    pub fn owned_servers(&mut self) -> Result<BTreeSet<VirtualServerKey>, Error> {
        let none = BTreeSet::new();
        if self.left.is_none() && self.kernel.is_none() {
            // Without IPVS there is no virtual server, and to open it would load it.
            let is_loaded = KernelSysctls::open()?.read("net.ipv4.vs.conntrack")?.is_some();
            if !is_loaded {
                return Ok(none);
            }
            self.kernel = Some(Kernel::open()?);
        }
        let left = self.left.as_mut().map(|left| &mut left.kernel);
        let Some(kernel) = left.or(self.kernel.as_mut()) else {
            return Ok(none);
        };
        if kernel.ipvs.list_virtual_servers()?.is_empty() {
            return Ok(none);
        }
        let mut state = State::new(&self.config);
        state.retire_at_once();
        state.observe(kernel)?;
        match state.readings.error.take() {
            // It is not known which ones are owned.
            Some(error) if !Family::ALL.iter().all(|family| state.is_ownership_known(*family)) => Err(error),
            _ => {
                let found = state.servers.iter_observed();
                Ok(found
                    .filter(|(_, server)| server.is_owned)
                    .map(|(key, _)| *key)
                    .collect())
            }
        }
    }

    /// Removes everything, on a node without a serving mode. Without the link too: a removal that was interrupted may have left the rest.
    fn remove_all(&mut self, round: &Round<'_>) -> Retired {
        let mut retired = Retired::default();
        let text = |error: &Error| ErrorChain(error).to_string();
        let kernel = match self.left.take() {
            Some(left) => Ok(left.kernel),
            None => self.take_kernel(),
        };
        let mut kernel = match kernel {
            Ok(kernel) => kernel,
            Err(error) => {
                // A host without IPVS has nothing of it.
                retired.is_gone = matches!(self.has_link(), Ok(false));
                retired.problems.extend((!retired.is_gone).then(|| text(&error)));
                return retired;
            }
        };
        let mut state = State::new(&self.config);
        state.retire_at_once();
        state.set_time(round.now);
        match state.observe(&mut kernel) {
            Ok(mut events) => {
                events.extend(state.observe_families(&mut kernel, &Family::ALL));
                events.retain(is_unreadable);
                let problems = events.iter().map(|event| event.reason.to_string());
                retired.problems = problems.collect();
                // One of its own each time: a removal is not repeated by itself.
                let mut steps = Steps::default();
                retired.steps = steps.run(&mut state, &mut kernel, round.now, round.executes);
                retired.kept = state.retired.map(|retired| retired.staying).unwrap_or_default();
                retired.is_gone = retired.steps.is_empty() && retired.problems.is_empty();
            }
            Err(error) => retired.problems.push(text(&error)),
        }
        self.kernel = Some(kernel);
        retired
    }
}

impl Left {
    fn read(&mut self, now: Instant, kept: Kept<'_>) -> Result<(), Error> {
        self.state.set_time(now);
        self.is_read = false;
        self.state.observe(&mut self.kernel)?;
        if !self.state.has_served() {
            // What is left may be in tables alone. A round reads them again, after the serving mode wrote them.
            self.state.observe_families(&mut self.kernel, &Family::ALL);
            self.state.check_tables()?;
        }
        self.state.keep(kept);
        self.is_read = true;
        Ok(())
    }

    /// Reads what is due. After a failed reading that is everything.
    fn reread(&mut self, now: Instant, kept: Kept<'_>) -> Result<(), Error> {
        if !self.is_read {
            return self.read(now, kept);
        }
        let read = self.steps.reread(&mut self.state, &mut self.kernel, now);
        // A table that cannot be read may have rules that name a set.
        let read = read.and_then(|()| self.state.check_tables());
        self.is_read = read.is_ok();
        read
    }
}

impl fmt::Debug for Retiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retiring").finish_non_exhaustive()
    }
}

impl Retire for Retiring {
    fn mode(&self) -> &'static str {
        "IPVS mode"
    }

    fn has(&self, name: &Name<'_>) -> bool {
        rules::has_chain(name)
    }

    fn is_read_again(&self) -> bool {
        true
    }

    fn read(&mut self, now: Instant, kept: Kept<'_>) -> Result<bool, String> {
        self.read_left(now, kept)
            .map_err(|error| ErrorChain(&error).to_string())
    }

    fn is_serving(&mut self) -> Result<bool, String> {
        let owned = self.owned_servers();
        let serves = owned.map(|owned| !owned.is_empty());
        serves.map_err(|error| ErrorChain(&error).to_string())
    }

    fn compile(&mut self, services: &Services, changes: &Changes) {
        if let Some(left) = &mut self.left {
            left.state.compile(services, changes);
        }
    }

    fn interim(&self) -> Vec<Interim> {
        let Some(left) = &self.left else {
            return Vec::new();
        };
        let state = &left.state;
        let families = Family::ALL.into_iter();
        let families = families.filter(|family| state.is_kept(*family, Table::Nat, POSTROUTING));
        let of_family =
            |family: Family| interim(family, Table::Nat, POSTROUTING, &state.needed_rules(family));
        families.map(of_family).collect()
    }

    fn has_virtual_ips(&self, family: Family) -> bool {
        let left = self.left.as_ref();
        left.is_none_or(|left| left.state.may_have_virtual_ips(family))
    }

    fn retire(&mut self, round: &Round<'_>) -> Retired {
        if !round.has_serving_mode {
            return self.remove_all(round);
        }
        let mut retired = Retired::default();
        let Some(left) = &mut self.left else {
            retired.is_gone = true;
            return retired;
        };
        if let Err(error) = left.reread(round.now, round.kept) {
            retired.problems.push(ErrorChain(&error).to_string());
            return retired;
        }
        let (state, kernel) = (&mut left.state, &mut left.kernel);
        state.keep(round.kept);
        state.hold(|frontend| !round.unserved.contains_key(frontend));
        retired.steps = left.steps.run(state, kernel, round.now, round.executes);
        retired.held = state.held();
        retired.draining = state.draining();
        retired.waiting = left.steps.waiting();
        retired.next = [DataPath::next(&**state), left.steps.next()]
            .into_iter()
            .flatten()
            .min();
        retired.is_gone = state.is_gone() && retired.waiting == 0;
        if retired.is_gone && round.executes {
            self.kernel = self.left.take().map(|left| left.kernel);
        }
        retired
    }
}
