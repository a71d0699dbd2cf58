//! Which schedulers Services may request.
//!
//! The kernel loads the module of a scheduler while it holds the mutex of IPVS. For some modules this can block the node (see
//! [Modules](Scheduler#modules)), so a Service gets such a scheduler only if it is loaded, if this process can load it before, or if the
//! configuration names it.

use std::collections::BTreeSet;

use kernlink_ipvs::{Ipvs, Scheduler};
use kernlink_services::model::options::annotation_field;
use kernlink_services::{Event, Reason};

/// The schedulers that Services may request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Schedulers {
    /// The default scheduler.
    default: Option<Scheduler>,
    /// [`Config::service_schedulers`](crate::Config::service_schedulers).
    permitted: Option<BTreeSet<Scheduler>>,
    /// Those that the kernel would have to load for a request, as last read.
    not_loaded: BTreeSet<Scheduler>,
    /// Those that the kernel API refused although they seemed to be loadable. Loading is not tried again unless it is found to have become
    /// possible, or the configuration changes.
    failed: BTreeSet<Scheduler>,
}

impl Schedulers {
    /// Takes the [schedulers of the configuration](crate::Config::service_schedulers), with the default scheduler that is in use.
    pub(super) fn configure(&mut self, permitted: Option<&[Scheduler]>, default: Scheduler) {
        self.default = Some(default);
        self.permitted = permitted.map(|permitted| permitted.iter().copied().collect());
        self.failed.clear();
    }

    /// Finds the schedulers that the kernel would have to load for a request, and permits it for those that the configuration names. Returns
    /// whether Services may request others than before, and an event for each named scheduler that is not loaded.
    pub(super) fn observe(&mut self, ipvs: &mut dyn Ipvs) -> (bool, Vec<Event>) {
        ipvs.permit_loading(&[]);
        let mut not_loaded: BTreeSet<Scheduler> = Scheduler::KNOWN.iter().copied().collect();
        not_loaded.retain(|scheduler| ipvs.is_scheduler_refused(*scheduler));
        let named = self.default.iter().chain(self.permitted.iter().flatten());
        let named: BTreeSet<Scheduler> = named.copied().collect();
        ipvs.permit_loading(&named.iter().copied().collect::<Vec<_>>());
        let event = |scheduler: &Scheduler| {
            let text = format!(
                "the configuration names scheduler {scheduler}, and its module ip_vs_{scheduler} is not loaded: the kernel loads it for the \
                 first virtual server, and blocks the node if a network namespace is deleted meanwhile; load it at the start of the node \
                 (/etc/modules-load.d)"
            );
            Event::host("SchedulerNotLoaded", text)
        };
        let events = named.intersection(&not_loaded).map(event).collect();
        let before = self.clone();
        self.not_loaded = &not_loaded - &named;
        self.failed.retain(|scheduler| {
            !before.not_loaded.contains(scheduler) || self.not_loaded.contains(scheduler)
        });
        (*self != before, events)
    }

    /// Records that the kernel API refused a scheduler. Returns whether Services may request others than before.
    pub(super) fn refuse(&mut self, scheduler: Scheduler) -> bool {
        self.failed.insert(scheduler)
    }

    /// Why a Service may not have a known scheduler. `None` if it may.
    pub(super) fn refusal(&self, scheduler: Scheduler) -> Option<Reason> {
        if self.default == Some(scheduler) {
            return None;
        }
        let why = match &self.permitted {
            Some(permitted) if permitted.contains(&scheduler) => return None,
            Some(permitted) => {
                let mut names: Vec<String> = permitted
                    .iter()
                    .chain(&self.default)
                    .map(ToString::to_string)
                    .collect();
                names.sort_unstable();
                names.dedup();
                format!(
                    "{:?} is not permitted by kernlink.serviceSchedulers of the configuration; permitted: {}",
                    scheduler.as_str(),
                    names.join(", ")
                )
            }
            None if self.not_loaded.contains(&scheduler) || self.failed.contains(&scheduler) => format!(
                "{:?} is not permitted: its module ip_vs_{scheduler} is not loaded, and the kernel could block if it loaded the module for a \
                 Service; load it at the start of the node (/etc/modules-load.d), or name the scheduler in kernlink.serviceSchedulers",
                scheduler.as_str()
            ),
            None => return None,
        };
        let field = annotation_field("scheduler");
        Some(Reason::NotPermitted { field, why })
    }
}
