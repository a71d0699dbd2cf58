//! The behaviour that every [`DataPath`] must have, on a fake of its kernel.
//!
//! A data path provides a [`Fixture`]. [`contract_tests!`](crate::contract_tests) makes a test of each [check](checks). The Services are
//! random: some [never change](Cluster::stable), and must be served during all checks. A failed check prints the seed of its Services.

#![expect(clippy::panic, reason = "a check fails by panicking")]

mod calls;
mod cluster;
mod cost;
mod damage;
mod faults;
mod listings;
mod process;
mod random;
mod retiring;
mod syncs;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use kernlink_base::contract::{Check, Failures};
use kernlink_services::FrontendKey;

pub use self::calls::{Calls, Fault, Kind};
pub use self::cluster::Cluster;
pub use self::cost::a_change_costs_the_same_at_any_size;
pub use self::damage::damage_by_another_program_is_repaired_by_one_sync;
pub use self::faults::{
    after_random_faults_the_kernel_reaches_the_desired_state, all_but_a_refused_change_is_executed,
    any_change_may_be_the_last_of_a_process, any_first_change_may_be_the_last_of_a_process,
    lost_replies_are_read_again, lost_requests_are_sent_again,
};
pub use self::listings::{a_failed_reading_removes_nothing, a_torn_listing_is_not_used_as_complete};
pub use self::random::Random;
pub use self::retiring::{
    RetireFixture, a_host_that_it_did_not_serve_has_nothing_of_it,
    any_change_of_a_removal_may_fail_or_be_the_last,
    what_is_not_served_yet_stays_and_at_the_end_nothing_is_left,
    without_a_serving_mode_one_removal_leaves_nothing,
};
pub use self::syncs::{
    a_new_process_plans_nothing, a_plan_printed_twice_is_the_same, a_second_sync_plans_nothing,
    changes_in_turn_equal_a_new_node, foreign_objects_are_unchanged,
};
use crate::data_path::{Class, DataPath};

/// A data path, its configuration and its fake kernel. It is the same for all hosts that it makes.
pub trait Fixture {
    /// The data path.
    type DataPath: DataPath;
    /// Its fake kernel.
    type Host: Host<DataPath = Self::DataPath>;

    /// The configuration: of node `node-a` with the addresses 192.0.2.1 and 2001:db8::1, for the families of [`Cluster::stable`], and pods in
    /// 10.244.0.0/16 and fd00:244::/64.
    fn config(&self) -> <Self::DataPath as DataPath>::Config;

    /// A new host without objects of the data path, with the node's addresses on a link, and with objects of other programs. Its kernel APIs
    /// make all calls through `calls`.
    fn host(&self, calls: &Calls) -> Self::Host;

    /// Whether objects of this class end with the process, such as listening ports: a new process makes them again. Default: none do.
    fn ends_with_process(&self, _class: &Class) -> bool {
        false
    }

    /// Whether the Services are served while no process runs. Default: they are.
    fn serves_without_process(&self) -> bool {
        true
    }

    /// Whether the data path serves a frontend to a client. If not, the contract does not require it. Default: it does.
    fn serves(&self, _request: &Request) -> bool {
        true
    }

    /// Whether the kernel refuses an operation if another one on the same Service was refused, without any effect: it may be passed to the
    /// kernel together with that one, without a need of its step. Default: no operation is like this.
    fn is_safe_without_needs(&self, _operation: &<Self::DataPath as DataPath>::Operation) -> bool {
        false
    }

    /// Whether the kernel APIs have [listings](Kind::Listing) that may be torn. Default: they have.
    fn has_torn_listings(&self) -> bool {
        true
    }

    /// The seeds of the random Services of each check. Default: [`seeds`] of 4.
    fn seeds(&self) -> Range<u64> {
        seeds(4)
    }
}

/// A fake kernel that several processes use, one after the other. Clones share it.
pub trait Host: Clone + Send + Sync + 'static {
    /// The data path.
    type DataPath: DataPath;

    /// The kernel APIs of a process.
    fn kernel(&self) -> <Self::DataPath as DataPath>::Kernel;

    /// Removes what ends with a process. Default: nothing does.
    fn end_process(&self) {}

    /// The objects of the data path, one line each or a heading with indented lines, in a form that does not depend on history: sorted
    /// where the order has no effect, without names and numbers that depend on earlier Services.
    fn owned(&self) -> String;

    /// The objects of other programs, in the same way.
    fn foreign(&self) -> String;

    /// For each request, the endpoints at which a new connection may end; none if it is rejected, dropped, or ends anywhere else.
    fn served(&self, requests: &[Request]) -> Vec<BTreeSet<SocketAddr>>;

    /// Removes or changes an object of the data path, as another program may do it. Returns what was done; empty if there is no object.
    fn damage(&self, random: &mut Random) -> String;

    /// What must never be the case, such as an object that exists before one that it depends on. Default: nothing is checked.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A new connection, or the first datagram of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// Where it is sent to.
    pub frontend: FrontendKey,
    /// Who sends it.
    pub client: Client,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.client {
            Client::Node => write!(f, "{} from the node", self.frontend),
            Client::Host(address) => write!(f, "{} from {address}", self.frontend),
        }
    }
}

/// Who sends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Client {
    /// A process of the node.
    Node,
    /// A pod or another host.
    Host(IpAddr),
}

/// Makes a test of each check of the contract: `contract_tests!(fixture())`, where the expression is a
/// [`Fixture`](crate::contract::Fixture).
/// With names of checks, of these only: `contract_tests!(fixture(); a_second_sync_plans_nothing)`.
#[macro_export]
macro_rules! contract_tests {
    (@tests [$fixture:expr] $($check:ident),* $(,)?) => {
        $(
            #[test]
            fn $check() {
                $crate::contract::$check(&mut $fixture);
            }
        )*
    };
    (@checks [] $($check:ident),* $(,)?) => {
        vec![$(Check { name: stringify!($check), run: $check }),*]
    };
    (@all $what:ident [$($argument:tt)*]) => {
        $crate::contract_tests! {
            @$what [$($argument)*]
            a_second_sync_plans_nothing,
            a_new_process_plans_nothing,
            changes_in_turn_equal_a_new_node,
            a_plan_printed_twice_is_the_same,
            foreign_objects_are_unchanged,
            all_but_a_refused_change_is_executed,
            lost_replies_are_read_again,
            lost_requests_are_sent_again,
            any_change_may_be_the_last_of_a_process,
            any_first_change_may_be_the_last_of_a_process,
            after_random_faults_the_kernel_reaches_the_desired_state,
            damage_by_another_program_is_repaired_by_one_sync,
            a_failed_reading_removes_nothing,
            a_torn_listing_is_not_used_as_complete,
            a_change_costs_the_same_at_any_size,
        }
    };
    ($fixture:expr) => {
        $crate::contract_tests! { @all tests [$fixture] }
    };
    ($fixture:expr; $($check:ident),* $(,)?) => {
        $crate::contract_tests! { @tests [$fixture] $($check),* }
    };
}

/// Makes a test of each check of what a mode leaves: `retire_tests!(fixture())`, where the expression is a
/// [`RetireFixture`](crate::contract::RetireFixture).
#[macro_export]
macro_rules! retire_tests {
    ($fixture:expr) => {
        $crate::contract_tests! {
            @tests [$fixture]
            a_host_that_it_did_not_serve_has_nothing_of_it,
            what_is_not_served_yet_stays_and_at_the_end_nothing_is_left,
            without_a_serving_mode_one_removal_leaves_nothing,
            any_change_of_a_removal_may_fail_or_be_the_last,
        }
    };
}

/// The seeds 0 to `count`, or those that the environment variable `KERNLINK_SEEDS` requests: `40` is a number of seeds, `16..17` the seed 16.
#[must_use]
pub fn seeds(count: u64) -> Range<u64> {
    let requested = std::env::var("KERNLINK_SEEDS").unwrap_or_default();
    let parse = |text: &str| text.parse::<u64>().ok();
    let range = match requested.split_once("..") {
        Some((from, to)) => parse(from).zip(parse(to)).map(|(from, to)| from..to),
        None => parse(&requested).map(|count| 0..count),
    };
    range.unwrap_or(0..count)
}

/// So many seeds for each of these.
fn times(seeds: &Range<u64>, factor: u64) -> Range<u64> {
    seeds.start * factor..seeds.end * factor
}

/// All checks.
#[must_use]
pub fn checks<F: Fixture>() -> Vec<Check<F>> {
    contract_tests!(@all checks [])
}

/// Runs all checks, and collects all failures.
///
/// # Errors
/// The checks that failed.
pub fn run<F: Fixture>(fixture: &mut F) -> Result<(), Failures> {
    kernlink_base::contract::run(&checks(), |check| (check.run)(fixture))
}
