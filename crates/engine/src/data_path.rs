//! What a data path provides: how arbitrated frontends become kernel objects.
//!
//! A data path is a type that implements [`DataPath`]: its tables of desired and observed kernel objects. [`Proxier`](crate::Proxier) does what
//! all data paths need: it holds the Services, decides when the kernel is read, orders and executes plans, and retries failed operations.

use std::collections::BTreeSet;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::time::{Duration, Instant};

use kernlink_services::{
    Changes, Config, Event, Family, FrontendKey, InterfaceAddress, ObjectName, Services,
};

pub use crate::class::Class;
use crate::error::{InvalidConfig, SyncError};
use crate::pace::Pace;
use crate::plan::{Plan, PlanBuilder, Step};
use crate::report::Report;
use crate::retire::{Interim, Name};
use crate::schedule::Intervals;
use crate::synced::Synced;

/// A data path: its tables of desired and observed kernel objects. The kernel APIs are arguments.
///
/// # Order of calls
///
/// [`Proxier`](crate::Proxier) calls one function at a time. [`Proxier::sync`](crate::Proxier::sync) calls, in this order:
///
/// 1. [`set_time`](Self::set_time), [`needs_listing`](Self::needs_listing), and without a listing [`due`](Self::due);
///    [`set_dirty`](Self::set_dirty) for the objects of these and of failed operations whose retry is due.
/// 2. In a listing: [`observe`](Self::observe), [`interface_addresses`](Self::interface_addresses),
///    [`first_services`](Self::first_services), [`observe_families`](Self::observe_families); the last one while another thread resolves the
///    Services. Otherwise, if there are such objects: [`observe_keys`](Self::observe_keys), [`recheck`](Self::recheck); and
///    `interface_addresses`, if these may have changed.
/// 3. [`set_interim`](Self::set_interim) and [`set_virtual_ips`](Self::set_virtual_ips) if these are others than before. [`compile`](Self::compile), also if nothing changed.
///    [`is_dirty`](Self::is_dirty) for objects of failed operations: if one is dirty, `set_dirty` for the objects whose steps were skipped
///    because of it; if also the outcome of its operation is unknown, `observe_keys` for it.
/// 4. [`plan`](Self::plan).
/// 5. [`reverted`](Self::reverted) for each step, and `is_dirty` for objects of failed operations.
/// 6. For each phase [`execute`](Self::execute), then for each of its operations [`record`](Self::record), or
///    [`record_failure`](Self::record_failure).
/// 7. [`clear_dirty`](Self::clear_dirty), [`next`](Self::next), [`draining`](Self::draining), [`unread`](Self::unread).
/// 8. With [retiring modes](crate::handover): [`serves`](Self::serves) and [`keeps`](Self::keeps), then `set_interim` and `set_virtual_ips`
///    again if these are others now. In a listing `keeps` is called after `observe` too.
///
/// A sync that programs [`first_services`](Self::first_services) before all others passes only these to `compile`, and calls
/// `observe_families` for their families only; the next sync reads the other families first. [`Proxier::plan`](crate::Proxier::plan) calls 1
/// to 4 only, any number of times.
/// [`Proxier::apply`](crate::Proxier::apply) is a sync with a listing that stops after 4 if the plan is not the reviewed one. Between syncs
/// there may be [`set_config`](Self::set_config) and [`is_observed`](Self::is_observed). [`class`](Self::class),
/// [`consequence`](Self::consequence) and [`totals`](Self::totals) are called for [`Status`](crate::Status) after a sync.
///
/// # What they may change
///
/// Only `execute` changes the kernel. Desired values are changed by `compile` and `set_config`; observed values by `observe`, `interface_addresses`,
/// `observe_families`, `observe_keys`, `recheck`, `record` and `record_failure`. An object becomes dirty by `set_dirty`, by a listing, by a
/// difference that `recheck` finds, and by a change of its desired value, and clean by `clear_dirty` only. `plan` may keep in the data path what
/// later functions need of it, but the next call of `plan` must add the same steps again.
///
/// An error of `observe`, `interface_addresses`, `observe_keys` or `recheck` ends the sync: the next one calls `observe`.
///
/// # Transactions
///
/// The steps of a phase are passed to [`execute`](Self::execute) in one call, in order, except that a step that needs another step of the same
/// phase begins a new call. So what the kernel is to execute in one transaction is planned in one phase, with one operation for each
/// Service and family, and without needs between them. An operation has all that its Service needs of the transaction, in the order that
/// the kernel requires, and one key. `execute` joins consecutive operations, as many as the kernel executes well at once, and
/// returns one outcome for each. If the kernel refuses a transaction, `execute` finds the operations that are the cause and executes the
/// others without them; only the refused ones fail.
///
/// # Contract
///
/// The module `contract` (feature `fake`) tests all of this on a fake kernel.
pub trait DataPath: Debug + Send + Sized + 'static {
    /// Its configuration.
    type Config: Clone + Debug + PartialEq + Send;
    /// The kernel APIs that it programs.
    type Kernel: Send;
    /// Identifies a kernel object of any kind.
    type Key: Clone + Debug + Display + Hash + Ord + Send;
    /// A change of a kernel object, with every value that its execution needs. Prints as a command.
    type Operation: Clone + Debug + Display + PartialEq + Send;
    /// A phase of a plan. Phases are executed in their order.
    type Phase: Copy + Debug + Display + Ord + Send;
    /// Why the kernel could not be read, or an operation failed.
    type Error: Clone + std::error::Error + PartialEq + Send + Sync + 'static;
    /// The numbers of its desired objects, for [`Status`](crate::Status).
    type Totals: Clone + Debug + Default + PartialEq + Send;

    /// Checks a configuration.
    ///
    /// # Errors
    /// Everything that is invalid.
    fn validate(config: &Self::Config) -> Result<(), InvalidConfig>;

    /// The part of the configuration that concerns Services.
    fn services_config(config: &Self::Config) -> &Config;

    /// The intervals of the [`Schedule`](crate::Schedule) with this configuration, which a [`Runner`](crate::Runner) uses after it received
    /// the configuration. `None`: they stay as they are. Default: `None`.
    fn intervals(_config: &Self::Config) -> Option<Intervals> {
        None
    }

    /// The pace of transactions with the present configuration, for the [`Schedule`](crate::Schedule) of a [`Runner`](crate::Runner). Default:
    /// none, so that no two syncs start within the shortest interval.
    fn pace(&self) -> Option<Pace> {
        None
    }

    /// The time that the standard tool needs to list the owned objects, about. While changes do not end, a schedule with a
    /// [pace](Self::pace) has pauses of this length. Called after every sync: the cost must not depend on the number of Services. Default:
    /// zero.
    fn listing_time(&self) -> Duration {
        Duration::ZERO
    }

    /// A data path before Services and kernel were read.
    fn new(config: &Self::Config) -> Self;

    /// Replaces the configuration. The next sync calls [`observe`](Self::observe), which makes all objects dirty, and
    /// [`compile`](Self::compile). Only if [`services_config`](Self::services_config) differs, its changes name all Services. If desired
    /// values depend on another part of the configuration, change them here, or let the next `compile` make them again from
    /// [`Services::frontends`] or [`Services::everything`].
    fn set_config(&mut self, config: &Self::Config);

    /// Reads everything that a plan depends on, except what [`observe_families`](Self::observe_families) reads, and makes all objects dirty.
    /// Returns an event for each thing that could not be read but does not prevent a plan.
    ///
    /// # Errors
    /// What prevents a plan.
    fn observe(&mut self, kernel: &mut Self::Kernel) -> Result<Vec<Event>, Self::Error>;

    /// Reads what concerns one family alone and is costly to read, such as tables, and makes it dirty. Called after
    /// [`observe`](Self::observe), once for each family: for all families together, or for those of the
    /// [first Services](Self::first_services) before the first plan, and for the others before the second one. It may be called on another
    /// thread than the others, which is in the same network namespace. A plan must not contain steps that depend on what was not read.
    /// Returns events as [`observe`](Self::observe). Default: nothing, for data paths that read everything in `observe`.
    fn observe_families(&mut self, _kernel: &mut Self::Kernel, _families: &[Family]) -> Vec<Event> {
        Vec::new()
    }

    /// Reads single objects again: before their failed operations are retried, and when they are [`due`](Self::due). Records the observed
    /// values, and `None` for an object that does not exist or is not owned. The engine makes the objects dirty.
    ///
    /// An object may be left out if its operations can be repeated, and the next plan has one for it in any case.
    ///
    /// # Errors
    /// What could not be read.
    fn observe_keys(&mut self, kernel: &mut Self::Kernel, keys: &[Self::Key]) -> Result<(), Self::Error>;

    /// Whether an object is recorded as existing. Only such objects are read by [`recheck`](Self::recheck). Default: all are.
    fn is_observed(&self, _key: &Self::Key) -> bool {
        true
    }

    /// Reads single objects again that another program may have removed or changed, and makes those dirty whose observed values differ
    /// from the recorded ones. Returns those that differ: the next sync reads the whole kernel if there are any. The default reads them as
    /// [`observe_keys`](Self::observe_keys), makes all dirty and returns none.
    ///
    /// # Errors
    /// What could not be read.
    fn recheck(
        &mut self,
        kernel: &mut Self::Kernel,
        keys: &[Self::Key],
    ) -> Result<Vec<Self::Key>, Self::Error> {
        self.observe_keys(kernel, keys)?;
        for key in keys {
            self.set_dirty(key);
        }
        Ok(Vec::new())
    }

    /// Whether the last [`observe`](Self::observe) read this object, so that a recheck of it that was requested before is done. If not, it is
    /// rechecked after the listing. Also asked after [`observe_families`](Self::observe_families), about objects whose operations failed: those that
    /// neither read are read by [`observe_keys`](Self::observe_keys) before their operations are retried. Default: yes.
    fn is_read_by_listing(&self, _key: &Self::Key) -> bool {
        true
    }

    /// The object that a step with this key repairs, if the last [`observe`](Self::observe) found it changed or removed by another program:
    /// its observed value was not the recorded one. Called after a plan was made, before [`clear_dirty`](Self::clear_dirty). Default: none.
    fn reverted(&self, _key: &Self::Key) -> Option<Self::Key> {
        None
    }

    /// The object with which a [rechecked](Self::recheck) one is repaired, if its steps have that key: the recheck is delayed while the repairs of
    /// that object are. Default: none.
    fn repaired_with(&self, _key: &Self::Key) -> Option<Self::Key> {
        None
    }

    /// Sets the time of the plan or sync that begins, before anything else is done for it.
    fn set_time(&mut self, _now: Instant) {}

    /// The objects that must be read again at a time although no operation on them failed. They are made dirty. Default: none.
    fn due(&self, _now: Instant) -> Vec<Self::Key> {
        Vec::new()
    }

    /// The earliest time at which [`due`](Self::due) returns an object or [`needs_listing`](Self::needs_listing) is true, after a sync. Retries
    /// of failed operations are not part of it: the engine has their times. Default: none.
    fn next(&self) -> Option<Instant> {
        None
    }

    /// Whether the whole kernel is to be read again, because a part of it could not be read. Default: no.
    fn needs_listing(&self, _now: Instant) -> bool {
        false
    }

    /// The kinds of objects that could not be read, each once. As long as there is one that [all Services depend on](Class::is_shared), its
    /// family counts as not synced. Default: none.
    fn unread(&self) -> Vec<Class> {
        Vec::new()
    }

    /// What does not work while operations on an object fail, for the event that reports the failure. Default: nothing is added.
    fn consequence(_key: &Self::Key) -> Option<&'static str> {
        None
    }

    /// The number of endpoints that were removed and are still in the kernel until their connections end. Default: 0.
    fn draining(&self) -> usize {
        0
    }

    /// Reads the addresses of this node's interfaces, without those that the data path bound. Node ports are served at these addresses;
    /// without any there are no frontends for node ports. Called in each listing after [`observe`](Self::observe), which may have read them
    /// already, and after a notice that they changed: [`Proxier::recheck_addresses`](crate::Proxier::recheck_addresses). A change of them
    /// changes Services, which makes objects dirty. Default: none.
    ///
    /// # Errors
    /// What could not be read. The sync ends.
    fn interface_addresses(
        &mut self,
        _kernel: &mut Self::Kernel,
    ) -> Result<Vec<InterfaceAddress>, Self::Error> {
        Ok(Vec::new())
    }

    /// The Services that the next sync programs completely before all others. Must be empty if the kernel contains objects of the data path,
    /// or of another one that serves: a plan for a part of the Services removes what only the others need. Called after
    /// [`observe`](Self::observe), and again after [`observe_families`](Self::observe_families) read what concerns the families of these
    /// Services: if it is empty then, there is one plan for all Services. Default: none.
    fn first_services(&self) -> &[ObjectName] {
        &[]
    }

    /// Brings the desired objects up to date with changes of the Services. Returns new events. The first changes name everything. A
    /// frontend in `changes` may be new, changed, or gone; [`Services::frontend`] returns `None` for
    /// one that is gone.
    fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event>;

    /// Makes an object dirty: the next plan compares it.
    fn set_dirty(&mut self, key: &Self::Key);

    /// Whether an object is dirty. Also asked for objects that are neither desired nor observed.
    fn is_dirty(&self, key: &Self::Key) -> bool;

    /// Compares the dirty objects and adds the steps that make the observed values equal to the desired ones. The objects stay dirty: a
    /// plan that is only printed calls this too.
    fn plan(&mut self, plan: &mut BuilderOf<'_, Self>);

    /// Executes operations in order and returns one outcome for each, in order. One that fails does not stop those after it. A step that needs
    /// another one is passed only after that one was done.
    fn execute(kernel: &mut Self::Kernel, operations: &[&Self::Operation]) -> Vec<Result<(), Self::Error>>;

    /// The error of an operation for which [`execute`](Self::execute) returned no outcome.
    fn outcome_missing() -> Self::Error;

    /// Whether an operation that failed with this error may have been executed nevertheless. Its object is then read again when its retry
    /// is due, also if nothing needs the operation any more.
    fn is_outcome_unknown(error: &Self::Error) -> bool;

    /// Whether a frontend is served for the Service that owns it: everything that it needs is in place, as last read or written. What a
    /// [retiring mode](crate::handover) left is removed for such frontends, and for those that no Service has any more. Reads the tables; the
    /// cost does not depend on their size. Default: no, so that a retiring mode keeps every desired frontend.
    fn serves(&self, _frontend: &FrontendKey, _service: &ObjectName) -> bool {
        false
    }

    /// Whether the data path can serve a frontend at all. What a [retiring mode](crate::handover) left for one that it cannot serve is removed
    /// when all frontends are served that it can, with an event. Default: yes.
    fn is_servable(&self, _frontend: &FrontendKey) -> bool {
        true
    }

    /// Whether the data path has an object with this name too, such as a chain, so that a [retiring mode](crate::handover) does not remove it.
    /// Default: no.
    fn keeps(&self, _name: &Name<'_>) -> bool {
        false
    }

    /// Sets the rules that chains of the data path must have on top as long as a [retiring mode](crate::handover) needs them: all of
    /// them, each time that there are others. Those for chains that it does not [keep](Self::keeps) are not for it. If rules are missing that
    /// were set before, the next plan writes the chain without them. Called before [`plan`](Self::plan). Default: there are no such chains.
    fn set_interim(&mut self, _interim: &[Interim]) {}

    /// Sets the families in which addresses of Services may be on a link of a [retiring mode](crate::handover), each time that these are others.
    /// They are addresses of the node then, but no node port is served at them: one Service may have a port there that is the node port of
    /// another one. Called before [`plan`](Self::plan), as `set_interim`. Default: nothing changes, for data paths whose node ports are served at named
    /// addresses, which are those of [`interface_addresses`](Self::interface_addresses).
    fn set_virtual_ips(&mut self, _families: &BTreeSet<Family>) {}

    /// Records in the observed objects that an operation was done.
    fn record(&mut self, operation: &Self::Operation);

    /// Records that an operation failed; one without an outcome with [the error for that](Self::outcome_missing). Default: the retry alone
    /// matters.
    fn record_failure(&mut self, _operation: &Self::Operation, _error: &Self::Error) {}

    /// Makes all objects clean, after a plan compared the dirty ones. Failed operations are retried from the records of
    /// [`Proxier`](crate::Proxier).
    fn clear_dirty(&mut self);

    /// What an object is, for counts of operations and failures.
    fn class(key: &Self::Key) -> Class;

    /// The numbers of the desired objects. Called after every sync: the cost must not depend on the number of Services.
    fn totals(&self) -> Self::Totals;
}

/// A plan of a data path.
pub type PlanOf<M> = Plan<<M as DataPath>::Key, <M as DataPath>::Operation, <M as DataPath>::Phase>;
/// A step of a plan of a data path.
pub type StepOf<M> = Step<<M as DataPath>::Key, <M as DataPath>::Operation>;
/// What collects the steps of a plan of a data path.
pub type BuilderOf<'a, M> =
    PlanBuilder<'a, <M as DataPath>::Key, <M as DataPath>::Operation, <M as DataPath>::Phase>;
/// The outcomes of a plan of a data path.
pub type ReportOf<M> = Report<<M as DataPath>::Error>;
/// What a sync of a data path did.
pub type SyncedOf<M> =
    Synced<<M as DataPath>::Key, <M as DataPath>::Operation, <M as DataPath>::Phase, <M as DataPath>::Error>;
/// Why a sync of a data path did nothing.
pub type SyncErrorOf<M> = SyncError<<M as DataPath>::Error>;
