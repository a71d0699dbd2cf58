//! IPVS mode on a node that it does not serve any more.
//!
//! The rules of the mode that serves the node translate new connections before IPVS sees them, and those to virtual servers only end. A
//! frontend that this mode does not serve yet keeps its virtual server meanwhile. The link is removed last: by it a process notices that anything
//! of IPVS mode is left, without IPVS.

use std::fmt;
use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_dummylink::DummyLinks;
use kernlink_engine::DataPath;
use kernlink_engine::error::InvalidConfig;
use kernlink_engine::handover::Steps;
use kernlink_engine::retire::{Interim, Kept, Leftovers, Name, Removed, Retire, Retired, Round};
use kernlink_engine::unreadable::is_unreadable;
use kernlink_host::{KernelSysctls, Sysctls};
use kernlink_iptables_restore::Table;
use kernlink_netfilter::{interim, removed};
use kernlink_services::{Changes, Family, Services};

use super::cleanup::{cleanup, plan_cleanup, without_services};
use super::config::Config;
use super::error::Error;
use super::kernel::Kernel;
use super::rules::{self, POSTROUTING};
use super::{Proxier, State};

/// Finds and removes what IPVS mode left: virtual servers, addresses and set entries, then jumps, chains, sets and the dummy link.
pub struct Retiring {
    config: Config,
    links: Box<dyn DummyLinks>,
    /// The kernel APIs, unless they are in use.
    kernel: Option<Kernel>,
    /// What is left, if anything is.
    left: Option<Left>,
    /// A proxier without Services, if the node has no serving mode.
    without_services: Option<Proxier>,
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
            without_services: None,
        })
    }

    /// Through these kernel APIs.
    #[must_use]
    pub fn with_kernel(mut self, kernel: Kernel) -> Self {
        self.kernel = Some(kernel);
        self
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

    /// The proxier without Services. `None`: nothing is left on a host without IPVS.
    fn without_services(&mut self) -> Result<Option<&mut Proxier>, String> {
        if self.without_services.is_none() {
            let kernel = match self.take_kernel() {
                Ok(kernel) => kernel,
                Err(error) => {
                    return match self.has_link() {
                        Ok(false) => Ok(None),
                        _ => Err(ErrorChain(&error).to_string()),
                    };
                }
            };
            let proxier = without_services(self.config.clone(), kernel);
            let proxier = proxier.map_err(|error| ErrorChain(&error).to_string())?;
            self.without_services = Some(proxier);
        }
        Ok(self.without_services.as_mut())
    }
}

impl Left {
    fn read(&mut self, now: Instant, kept: Kept<'_>) -> Result<(), Error> {
        self.state.set_time(now);
        self.is_read = false;
        self.state.observe(&mut self.kernel)?;
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
        let text = |error: Error| ErrorChain(&error).to_string();
        if self.kernel.is_none() {
            // Without it there is no virtual server, and to open it would load it.
            let mut sysctls = KernelSysctls::open().map_err(|error| text(error.into()))?;
            let is_loaded = sysctls
                .read("net.ipv4.vs.conntrack")
                .map_err(|error| text(error.into()))?;
            if is_loaded.is_none() {
                return Ok(false);
            }
        }
        let mut kernel = self.take_kernel().map_err(text)?;
        let servers = kernel.ipvs.list_virtual_servers();
        self.kernel = Some(kernel);
        Ok(!servers.map_err(|error| text(error.into()))?.is_empty())
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

    fn retire(&mut self, round: &Round<'_>) -> Retired {
        let mut retired = Retired::default();
        let Some(left) = &mut self.left else {
            retired.is_gone = true;
            return retired;
        };
        if let Err(error) = left.reread(round.now, round.kept) {
            retired.problem = Some(ErrorChain(&error).to_string());
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
        retired.is_gone = state.is_gone();
        if retired.is_gone && round.executes {
            self.kernel = self.left.take().map(|left| left.kernel);
        }
        retired
    }

    fn leftovers(&mut self, now: Instant) -> Leftovers {
        let mut left = Leftovers::default();
        let proxier = match self.without_services() {
            Ok(Some(proxier)) => proxier,
            Ok(None) => return left,
            Err(problem) => {
                left.problems.push(problem);
                return left;
            }
        };
        match plan_cleanup(proxier, now) {
            Ok((plan, removal)) => {
                left.commands.extend(plan.map(|plan| plan.to_string()));
                left.commands += &removal.to_string();
                let events = proxier.pending_events().filter(|event| is_unreadable(event));
                left.problems.extend(events.map(|event| event.reason.to_string()));
                let errors = removal.errors.iter();
                left.problems
                    .extend(errors.map(|error| ErrorChain(error).to_string()));
            }
            Err(error) => left.problems.push(ErrorChain(&error).to_string()),
        }
        left
    }

    fn remove(&mut self, now: Instant) -> Removed {
        let mut none = Removed::default();
        let proxier = match self.without_services() {
            Ok(Some(proxier)) => proxier,
            Ok(None) => return none,
            Err(problem) => {
                none.failures.push(problem);
                return none;
            }
        };
        match cleanup(proxier, now) {
            Ok((synced, removal, outcomes)) => {
                let mut all = removed(
                    &removal.errors,
                    &removal.operations,
                    &outcomes,
                    &removal.kept_chains,
                );
                if let Some(synced) = synced {
                    all.done += synced.counts().done;
                    let is_success = synced.is_success();
                    all.failures.extend((!is_success).then(|| synced.to_string()));
                }
                all
            }
            Err(error) => {
                none.failures.push(ErrorChain(&error).to_string());
                none
            }
        }
    }
}
