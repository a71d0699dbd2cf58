//! The behaviour that every implementation of [`Ipvs`] must have: the kernel client, the fake, and an implementation of the
//! user's.

#![allow(clippy::unwrap_used, reason = "a check fails by panicking")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kernlink_base::checks;
use kernlink_base::contract::{Check, Failures};

use self::daemons::*;
use self::operations::*;
use self::reading::*;
use self::real_servers::*;
use self::virtual_servers::*;
use crate::{Ipvs, Operation, RealServer, Scheduler, VirtualServer, VirtualServerKey};

mod daemons;
mod operations;
mod reading;
mod real_servers;
mod virtual_servers;

/// Calls `each` with every check and collects all failures. `each` must call [`Check::run`] with an empty table, in which an
/// interface `lo` exists and is up.
///
/// ```
/// use kernlink_ipvs::{Fake, contract};
///
/// contract::run(|check| (check.run)(&mut Fake::new())).unwrap();
/// ```
///
/// # Errors
/// The checks that failed, in order.
pub fn run(each: impl FnMut(&Check<dyn Ipvs>)) -> Result<(), Failures> {
    kernlink_base::contract::run(CHECKS, each)
}

/// What a check is called with.
type Tested = dyn Ipvs;

const CHECKS: &[Check<dyn Ipvs>] = checks!(dyn Ipvs:
    virtual_servers_are_listed_as_they_were_added,
    real_servers_are_listed_as_they_were_added,
    update_replaces_the_whole_configuration,
    each_operation_has_one_outcome_in_order,
    a_batch_of_failures_reports_every_failure,
    ensure_can_be_repeated,
    ensure_can_be_part_of_a_batch,
    set_weight_changes_only_the_weight,
    converge_makes_the_table_the_desired_one,
    absent_and_existing_servers_have_different_errors,
    an_unknown_scheduler_is_not_an_absent_virtual_server,
    an_unknown_persistence_engine_is_in_the_error,
    deleting_a_virtual_server_deletes_its_real_servers,
    real_servers_of_an_absent_virtual_server_are_an_empty_list,
    flush_deletes_all_virtual_servers,
    forbidden_addresses_are_refused_with_their_kind,
    a_mapped_address_is_refused_with_the_address_to_use,
    a_forwarding_method_above_7_is_refused,
    mixed_families_require_a_tunnel,
    a_gue_tunnel_requires_a_port,
    an_invalid_operation_is_not_sent,
    a_snapshot_agrees_with_the_listings,
    one_mark_identifies_two_virtual_servers,
    zero_requires_its_virtual_server,
    a_timeout_of_zero_is_not_changed,
    daemons_start_and_stop,
    an_empty_batch_has_no_outcomes
);

fn v4(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 96, 0, last))
}

fn pod(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 1, 2, last))
}

fn v6(last: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0x12, last))
}

fn web() -> VirtualServer {
    VirtualServer::new(VirtualServerKey::tcp(v4(1), 0x1234), Scheduler::RR)
}

fn add(virtual_server: VirtualServerKey, real_server: RealServer) -> Operation {
    Operation::AddRealServer {
        virtual_server,
        real_server,
    }
}

/// The configuration of all virtual servers.
fn listed(ipvs: &mut Tested) -> Vec<VirtualServer> {
    ipvs.list_virtual_servers()
        .unwrap()
        .into_iter()
        .map(|status| status.server)
        .collect()
}
