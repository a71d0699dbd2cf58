//! What every [`Ipvs`] must show. Each check takes an empty table and leaves whatever it likes behind.
//!
//! Run it against an implementation of your own:
//!
//! ```
//! for check in kernlink_ipvs::contract::CHECKS {
//!     (check.run)(&mut kernlink_ipvs::Fake::new());
//! }
//! ```
#![allow(clippy::unwrap_used, reason = "a check says what is wrong by panicking")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use crate::{
    Consistency, Daemon, DaemonRole, Error, Family, ForwardingMethod, Granularity, InterfaceName, Ipvs,
    Operation, Persistence, PersistenceEngine, Protocol, RealServer, RealServerKey, Reason, Scheduler,
    SchedulerFlags, Thresholds, Timeouts, Tunnel, TunnelFlags, VirtualServer, VirtualServerKey, Weight,
};

/// One thing that must hold.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// What holds.
    pub name: &'static str,
    /// Panics if it does not.
    pub run: fn(&mut dyn Ipvs),
}

macro_rules! checks {
    ($($check:ident),* $(,)?) => {
        /// Every check, by name.
        pub const CHECKS: &[Check] = &[$(Check { name: stringify!($check), run: $check }),*];
    };
}

checks![
    virtual_servers_come_back_as_they_were_written,
    real_servers_come_back_as_they_were_written,
    update_replaces_every_setting,
    outcomes_are_one_each_in_order,
    a_batch_of_failures_reports_every_failure,
    ensure_may_be_repeated,
    ensure_goes_into_a_batch,
    a_weight_changes_alone,
    a_table_converges,
    absent_and_present_are_told_apart,
    an_unknown_scheduler_is_not_an_absent_virtual_server,
    an_unknown_persistence_engine_is_named,
    deleting_a_virtual_server_takes_its_real_servers_along,
    real_servers_of_an_absent_virtual_server_are_an_empty_list,
    flush_leaves_nothing,
    forbidden_addresses_are_explained,
    a_mapped_address_is_refused_with_the_address_to_use,
    a_forwarding_method_that_would_be_cut_is_refused,
    mixed_families_need_a_tunnel,
    a_gue_tunnel_needs_a_port,
    what_cannot_be_written_is_not_sent,
    a_snapshot_agrees_with_the_listings,
    one_mark_names_two_virtual_servers,
    zero_needs_its_virtual_server,
    timeouts_of_zero_stay,
    daemons_start_and_stop,
    an_empty_batch_has_no_outcomes,
];

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

fn virtual_servers_come_back_as_they_were_written(ipvs: &mut dyn Ipvs) {
    let mark = NonZeroU32::new(0x8123_4567).unwrap();
    let servers = [
        web(),
        VirtualServer::new(VirtualServerKey::udp(v4(1), 0x1234), Scheduler::LC).with_one_packet_scheduling(),
        VirtualServer::new(VirtualServerKey::sctp(v4(2), 65_535), Scheduler::WRR)
            .with_persistence(Persistence::from_seconds(10_800).unwrap()),
        VirtualServer::new(VirtualServerKey::tcp(v4(3), 0), Scheduler::WLC).with_persistence(
            Persistence::from_seconds(77)
                .unwrap()
                .with_granularity(Granularity::from_mask(Ipv4Addr::new(255, 255, 240, 0))),
        ),
        VirtualServer::new(VirtualServerKey::tcp(v6(1), 443), Scheduler::SH)
            .with_scheduler_flags(SchedulerFlags::FALLBACK | SchedulerFlags::PORT),
        VirtualServer::new(VirtualServerKey::tcp(v6(2), 443), Scheduler::MH)
            .with_scheduler_flags(SchedulerFlags::PORT)
            .with_persistence(
                Persistence::from_seconds(50)
                    .unwrap()
                    .with_granularity(Granularity::from_prefix_length(65).unwrap()),
            ),
        VirtualServer::new(VirtualServerKey::mark(Family::Ipv4, mark), Scheduler::NONE),
        VirtualServer::new(VirtualServerKey::mark(Family::Ipv6, mark), Scheduler::RR)
            .with_scheduler_flags(SchedulerFlags::THIRD),
        VirtualServer::new(VirtualServerKey::udp(v4(4), 5060), Scheduler::RR)
            .with_persistence(Persistence::from_seconds(60).unwrap())
            .with_persistence_engine(PersistenceEngine::SIP),
    ];
    for server in &servers {
        ipvs.add_virtual_server(server).unwrap();
        let found = ipvs.find_virtual_server(&server.key).unwrap().unwrap();
        assert_eq!(found.server, *server);
    }
    let mut expected = servers.to_vec();
    expected.sort_by_key(|server| server.key);
    assert_eq!(listed(ipvs), expected);
}

fn listed(ipvs: &mut dyn Ipvs) -> Vec<VirtualServer> {
    ipvs.list_virtual_servers()
        .unwrap()
        .into_iter()
        .map(|status| status.server)
        .collect()
}

fn real_servers_come_back_as_they_were_written(ipvs: &mut dyn Ipvs) {
    ipvs.add_virtual_server(&web()).unwrap();
    let plain = |last| RealServer::new(RealServerKey::new(pod(last), 0x1f90));
    let servers = [
        plain(1),
        plain(2)
            .with_weight(Weight::DRAINING)
            .with_forwarding(ForwardingMethod::DirectRoute),
        plain(3)
            .with_weight(Weight::MAX)
            .with_thresholds(Thresholds::new(0x1_0203, 0x102).unwrap()),
        plain(4).with_tunnel(Tunnel::gue(6080, TunnelFlags::REMOTE_CHECKSUM)),
        plain(5).with_tunnel(Tunnel::gre(TunnelFlags::CHECKSUM)),
        plain(6).with_tunnel(Tunnel::IPIP),
        plain(7).with_forwarding(ForwardingMethod::Local),
        plain(8).with_forwarding(ForwardingMethod::Bypass),
        RealServer::new(RealServerKey::new(v6(9), 80)).with_tunnel(Tunnel::IPIP),
    ];
    for server in &servers {
        ipvs.add_real_server(&web().key, server).unwrap();
    }
    let found: Vec<_> = ipvs
        .list_real_servers(&web().key)
        .unwrap()
        .into_iter()
        .map(|status| status.server)
        .collect();
    assert_eq!(found, servers);

    let six = VirtualServer::new(VirtualServerKey::udp(v6(1), 53), Scheduler::RR);
    let server = RealServer::new(RealServerKey::new(v6(0x10), 0x1234));
    ipvs.add_virtual_server(&six).unwrap();
    ipvs.add_real_server(&six.key, &server).unwrap();
    let found = ipvs.list_real_servers(&six.key).unwrap();
    assert_eq!(
        found.iter().map(|status| &status.server).collect::<Vec<_>>(),
        [&server]
    );
}

fn update_replaces_every_setting(ipvs: &mut dyn Ipvs) {
    let full = VirtualServer::new(VirtualServerKey::udp(v4(1), 53), Scheduler::SH)
        .with_scheduler_flags(SchedulerFlags::PORT)
        .with_one_packet_scheduling()
        .with_persistence(Persistence::from_seconds(9).unwrap())
        .with_persistence_engine(PersistenceEngine::SIP);
    let bare = VirtualServer::new(full.key, Scheduler::RR);
    ipvs.add_virtual_server(&full).unwrap();
    ipvs.update_virtual_server(&bare).unwrap();
    assert_eq!(listed(ipvs), [bare]);
    ipvs.update_virtual_server(&full).unwrap();
    assert_eq!(listed(ipvs), std::slice::from_ref(&full));

    let key = RealServerKey::new(pod(1), 53);
    let full_real = RealServer::new(key)
        .with_weight(Weight::from(7))
        .with_thresholds(Thresholds::new(20, 10).unwrap())
        .with_tunnel(Tunnel::gue(1, TunnelFlags::CHECKSUM));
    let bare_real = RealServer::new(key);
    ipvs.add_real_server(&full.key, &full_real).unwrap();
    for server in [bare_real, full_real] {
        ipvs.update_real_server(&full.key, &server).unwrap();
        assert_eq!(ipvs.list_real_servers(&full.key).unwrap()[0].server, server);
    }
}

fn outcomes_are_one_each_in_order(ipvs: &mut dyn Ipvs) {
    let key = web().key;
    let real = RealServer::new(RealServerKey::new(pod(1), 80));
    let outcomes = ipvs.execute(&[
        Operation::DeleteVirtualServer(key),
        Operation::AddVirtualServer(web()),
        Operation::AddVirtualServer(web()),
        add(key, real.clone()),
        add(key, real.clone()),
        Operation::DeleteRealServer {
            virtual_server: key,
            real_server: real.key,
        },
        Operation::DeleteRealServer {
            virtual_server: key,
            real_server: real.key,
        },
        Operation::SetTimeouts(Timeouts::UNCHANGED.with_tcp(Duration::from_millis(1))),
        Operation::DeleteVirtualServer(key),
    ]);
    let shown: Vec<String> = outcomes
        .iter()
        .map(|outcome| match outcome {
            Ok(()) => "done".to_owned(),
            Err(error) => error.to_string(),
        })
        .collect();
    assert_eq!(
        shown,
        [
            "cannot delete virtual server -t 10.96.0.1:4660: the virtual server does not exist",
            "done",
            "cannot add virtual server -t 10.96.0.1:4660: it exists already",
            "done",
            "cannot add real server 10.1.2.1:80 of -t 10.96.0.1:4660: it exists already",
            "done",
            "cannot delete real server 10.1.2.1:80 of -t 10.96.0.1:4660: the real server does not exist",
            "cannot set the time-outs",
            "done",
        ]
    );
}

fn a_batch_of_failures_reports_every_failure(ipvs: &mut dyn Ipvs) {
    // More than the kernel's receive buffer has room for answers.
    let operations: Vec<_> = (0..2_000)
        .map(|port| Operation::DeleteVirtualServer(VirtualServerKey::tcp(v4(1), port)))
        .collect();
    let outcomes = ipvs.execute(&operations);
    assert_eq!(outcomes.len(), operations.len());
    for (outcome, operation) in outcomes.iter().zip(&operations) {
        let error = outcome.as_ref().unwrap_err();
        assert!(error.is_virtual_server_absent(), "{error:?}");
        let Error::Refused { operation: of, .. } = error else {
            continue;
        };
        assert_eq!(**of, *operation);
    }
}

fn ensure_may_be_repeated(ipvs: &mut dyn Ipvs) {
    let (first, second) = (RealServer::new(RealServerKey::new(pod(1), 80)), web());
    for weight in [1, 1, 5] {
        let server = first.clone().with_weight(Weight::from(weight));
        ipvs.ensure_virtual_server(&second).unwrap();
        ipvs.ensure_real_server(&second.key, &server).unwrap();
        assert_eq!(ipvs.list_all().unwrap(), [(second.clone(), vec![server])]);
    }
    let absent = VirtualServerKey::tcp(v4(9), 9);
    assert!(
        ipvs.ensure_real_server(&absent, &first)
            .unwrap_err()
            .is_virtual_server_absent()
    );
}

fn ensure_goes_into_a_batch(ipvs: &mut dyn Ipvs) {
    let ensure = |last, weight: u16| Operation::EnsureRealServer {
        virtual_server: web().key,
        real_server: RealServer::new(RealServerKey::new(pod(last), 80)).with_weight(Weight::from(weight)),
    };
    let other = VirtualServer::new(web().key, Scheduler::WRR);
    let mut unknown = other.clone();
    unknown.scheduler = Scheduler::new("nosuch").unwrap();
    let outcomes = ipvs.execute(&[
        ensure(1, 1),
        Operation::EnsureVirtualServer(web()),
        ensure(1, 1),
        ensure(2, 2),
        ensure(1, 3),
        Operation::EnsureVirtualServer(other.clone()),
        Operation::EnsureVirtualServer(unknown.clone()),
        Operation::DeleteRealServer {
            virtual_server: web().key,
            real_server: RealServerKey::new(pod(2), 80),
        },
    ]);
    assert_eq!(outcomes.len(), 8);
    for (index, outcome) in outcomes.iter().enumerate() {
        match index {
            0 => assert!(
                outcome.as_ref().unwrap_err().is_virtual_server_absent(),
                "{outcome:?}"
            ),
            6 => assert!(
                outcome.as_ref().unwrap_err().is_scheduler_unavailable(),
                "{outcome:?}"
            ),
            _ => assert_eq!(*outcome, Ok(()), "{index}"),
        }
    }
    let three = RealServer::new(RealServerKey::new(pod(1), 80)).with_weight(Weight::from(3));
    assert_eq!(ipvs.list_all().unwrap(), [(other, vec![three])]);

    ipvs.flush().unwrap();
    let error = ipvs.ensure_virtual_server(&unknown).unwrap_err();
    assert!(
        error.is_scheduler_unavailable() && !error.is_not_found(),
        "{error}"
    );
    assert_eq!(listed(ipvs), []);
}

fn a_weight_changes_alone(ipvs: &mut dyn Ipvs) {
    let server = RealServer::new(RealServerKey::new(pod(1), 80))
        .with_weight(Weight::from(7))
        .with_thresholds(Thresholds::new(20, 10).unwrap())
        .with_tunnel(Tunnel::gue(1, TunnelFlags::CHECKSUM));
    let set = |ipvs: &mut dyn Ipvs, weight| ipvs.set_weight(&web().key, &server.key, weight);
    let error = set(ipvs, Weight::ONE).unwrap_err();
    assert!(error.is_virtual_server_absent(), "{error}");
    ipvs.add_virtual_server(&web()).unwrap();
    let error = set(ipvs, Weight::ONE).unwrap_err();
    assert!(
        error.is_not_found() && !error.is_virtual_server_absent(),
        "{error}"
    );
    ipvs.add_real_server(&web().key, &server).unwrap();
    assert_eq!(set(ipvs, Weight::DRAINING), Ok(Weight::from(7)));
    assert_eq!(set(ipvs, Weight::DRAINING), Ok(Weight::DRAINING));
    let drained = server.clone().with_weight(Weight::DRAINING);
    assert_eq!(ipvs.list_real_servers(&web().key).unwrap()[0].server, drained);
}

fn a_table_converges(ipvs: &mut dyn Ipvs) {
    let real = |last| RealServer::new(RealServerKey::new(pod(last), 80));
    let limited = real(3).with_thresholds(Thresholds::new(20, 10).unwrap());
    let foreign = VirtualServer::new(VirtualServerKey::udp(v4(1), 53), Scheduler::RR);
    let old = VirtualServer::new(VirtualServerKey::tcp(v4(2), 80), Scheduler::RR);
    let six = VirtualServer::new(VirtualServerKey::tcp(v6(1), 80), Scheduler::RR);
    let before = [
        (web(), vec![real(1), real(2), real(3)]),
        (foreign.clone(), vec![real(1)]),
        (old, vec![real(1)]),
    ];
    let changed = VirtualServer::new(web().key, Scheduler::WRR);
    let after = [
        (
            changed,
            vec![real(2).with_weight(Weight::from(9)), limited, real(4)],
        ),
        (six, vec![RealServer::new(RealServerKey::new(v6(2), 80))]),
    ];
    let is_owned = |key: &VirtualServerKey| key.protocol() == Some(Protocol::Tcp);
    for (desired, executed) in [
        (&before[..], 8),
        (&before[..], 0),
        (&after[..], 8),
        (&after[..], 0),
    ] {
        let outcomes = ipvs.converge(desired, &is_owned).unwrap();
        assert_eq!(outcomes.len(), executed, "{outcomes:?}");
        for executed in outcomes {
            assert_eq!(executed.outcome, Ok(()), "{}", executed.operation);
        }
        let mut expected = desired.to_vec();
        if !expected.iter().any(|(server, _)| *server == foreign) {
            expected.push((foreign.clone(), vec![real(1)]));
        }
        expected.sort_by_key(|(server, _)| server.key);
        assert_eq!(ipvs.list_all().unwrap(), expected);
    }
    // By a snapshot, which does not tell thresholds: that real server alone is written again.
    let operations = ipvs.snapshot().unwrap().difference(&after, is_owned);
    assert_eq!(
        operations,
        [Operation::UpdateRealServer {
            virtual_server: web().key,
            real_server: after[0].1[1].clone(),
        }]
    );
}

fn absent_and_present_are_told_apart(ipvs: &mut dyn Ipvs) {
    let real = RealServer::new(RealServerKey::new(pod(1), 80));
    let key = web().key;
    for error in [
        ipvs.update_virtual_server(&web()).unwrap_err(),
        ipvs.delete_virtual_server(&key).unwrap_err(),
        ipvs.add_real_server(&key, &real).unwrap_err(),
        ipvs.update_real_server(&key, &real).unwrap_err(),
        ipvs.delete_real_server(&key, &real.key).unwrap_err(),
    ] {
        assert!(
            error.is_not_found() && error.is_virtual_server_absent(),
            "{error}"
        );
        assert!(!error.is_already_exists() && !error.is_unsupported(), "{error}");
    }
    assert_eq!(ipvs.find_virtual_server(&key).unwrap(), None);
    ipvs.add_virtual_server(&web()).unwrap();
    for error in [
        ipvs.update_real_server(&key, &real).unwrap_err(),
        ipvs.delete_real_server(&key, &real.key).unwrap_err(),
    ] {
        assert!(
            error.is_not_found() && !error.is_virtual_server_absent(),
            "{error}"
        );
    }
    ipvs.add_real_server(&key, &real).unwrap();
    for error in [
        ipvs.add_virtual_server(&web()).unwrap_err(),
        ipvs.add_real_server(&key, &real).unwrap_err(),
    ] {
        assert!(error.is_already_exists() && !error.is_not_found(), "{error}");
    }
}

fn an_unknown_scheduler_is_not_an_absent_virtual_server(ipvs: &mut dyn Ipvs) {
    let mut server = web();
    server.scheduler = Scheduler::new("nosuch").unwrap();
    let error = ipvs.add_virtual_server(&server).unwrap_err();
    assert!(
        error.is_scheduler_unavailable() && error.is_unsupported() && !error.is_not_found(),
        "{error}"
    );
    assert!(
        error.to_string().starts_with(
            "cannot add virtual server -t 10.96.0.1:4660: the kernel has no scheduler nosuch (module ip_vs_nosuch)"
        ),
        "{error}"
    );
    ipvs.add_virtual_server(&web()).unwrap();
    let error = ipvs.update_virtual_server(&server).unwrap_err();
    assert!(
        error.is_scheduler_unavailable() && !error.is_not_found(),
        "{error}"
    );
    assert_eq!(listed(ipvs), [web()]);
}

fn an_unknown_persistence_engine_is_named(ipvs: &mut dyn Ipvs) {
    let mut server = web().with_persistence_engine(PersistenceEngine::new("nosuch").unwrap());
    let error = ipvs.add_virtual_server(&server).unwrap_err();
    assert!(error.is_unsupported() && !error.is_not_found(), "{error}");
    assert!(
        error
            .to_string()
            .contains("persistence engine nosuch (module ip_vs_pe_nosuch)"),
        "{error}"
    );
    server.scheduler = Scheduler::NONE;
    let error = ipvs.add_virtual_server(&server).unwrap_err();
    assert!(
        !error.is_scheduler_unavailable() && error.is_unsupported(),
        "{error}"
    );
}

fn deleting_a_virtual_server_takes_its_real_servers_along(ipvs: &mut dyn Ipvs) {
    ipvs.add_virtual_server(&web()).unwrap();
    ipvs.add_real_server(&web().key, &RealServer::new(RealServerKey::new(pod(1), 80)))
        .unwrap();
    ipvs.delete_virtual_server(&web().key).unwrap();
    ipvs.add_virtual_server(&web()).unwrap();
    assert_eq!(ipvs.list_real_servers(&web().key).unwrap(), []);
}

fn real_servers_of_an_absent_virtual_server_are_an_empty_list(ipvs: &mut dyn Ipvs) {
    assert_eq!(ipvs.list_real_servers(&web().key).unwrap(), []);
    assert_eq!(ipvs.list_virtual_servers().unwrap(), []);
}

fn flush_leaves_nothing(ipvs: &mut dyn Ipvs) {
    ipvs.add_virtual_server(&web()).unwrap();
    ipvs.flush().unwrap();
    assert_eq!(listed(ipvs), []);
    ipvs.flush().unwrap();
}

fn forbidden_addresses_are_explained(ipvs: &mut dyn Ipvs) {
    let six = VirtualServer::new(VirtualServerKey::tcp(v6(1), 80), Scheduler::RR);
    ipvs.add_virtual_server(&web()).unwrap();
    ipvs.add_virtual_server(&six).unwrap();
    for (address, kind) in [
        ("224.0.0.5", "a multicast address"),
        ("255.255.255.255", "a broadcast address"),
        ("0.0.0.0", "an address of the network 0.0.0.0/8"),
        ("ff02::1", "a multicast address"),
        ("::", "the unspecified address"),
        ("fe80::1", "a link-local address"),
    ] {
        let address: IpAddr = address.parse().unwrap();
        let key = if address.is_ipv4() { web().key } else { six.key };
        let error = ipvs
            .add_real_server(&key, &RealServer::new(RealServerKey::new(address, 80)))
            .unwrap_err();
        assert!(error.is_invalid(), "{error}");
        assert!(
            error
                .to_string()
                .ends_with(&format!("{address} is {kind}, which no real server can have"))
        );
    }
}

fn a_mapped_address_is_refused_with_the_address_to_use(ipvs: &mut dyn Ipvs) {
    let six = VirtualServer::new(VirtualServerKey::tcp(v6(1), 80), Scheduler::RR);
    ipvs.add_virtual_server(&six).unwrap();
    ipvs.add_virtual_server(&web()).unwrap();
    let mapped = RealServer::new(RealServerKey::new(
        Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped(),
        80,
    ));
    for error in [
        ipvs.add_real_server(&six.key, &mapped).unwrap_err(),
        ipvs.update_real_server(&six.key, &mapped).unwrap_err(),
        ipvs.add_real_server(&web().key, &mapped.clone().with_tunnel(Tunnel::IPIP))
            .unwrap_err(),
    ] {
        assert!(error.is_invalid(), "{error}");
        let problem = std::error::Error::source(&error).map(ToString::to_string);
        assert_eq!(
            problem.as_deref(),
            Some("invalid real server address ::ffff:10.1.2.3: it is IPv4-mapped; use 10.1.2.3")
        );
    }
    assert_eq!(ipvs.list_real_servers(&six.key).unwrap(), []);
}

fn a_forwarding_method_that_would_be_cut_is_refused(ipvs: &mut dyn Ipvs) {
    ipvs.add_virtual_server(&web()).unwrap();
    let server = |number| {
        RealServer::new(RealServerKey::new(pod(number), 80))
            .with_forwarding(ForwardingMethod::Unknown(number))
    };
    let error = ipvs.add_real_server(&web().key, &server(10)).unwrap_err();
    assert!(error.is_invalid(), "{error}");
    assert_eq!(ipvs.list_real_servers(&web().key).unwrap(), []);
    // A known number by this name is the known method.
    ipvs.add_real_server(&web().key, &server(2)).unwrap();
    let listed = ipvs.list_real_servers(&web().key).unwrap();
    assert_eq!(listed[0].server, server(2));
    assert_eq!(listed[0].server.forwarding, ForwardingMethod::Tunnel);
}

fn mixed_families_need_a_tunnel(ipvs: &mut dyn Ipvs) {
    ipvs.add_virtual_server(&web()).unwrap();
    let server = RealServer::new(RealServerKey::new(v6(1), 80));
    let error = ipvs.add_real_server(&web().key, &server).unwrap_err();
    assert!(error.is_invalid(), "{error}");
    assert!(
        matches!(error.reason(), Some(Reason::MixedFamilies { .. })),
        "{error:?}"
    );
    assert_eq!(ipvs.list_real_servers(&web().key).unwrap(), []);
    let server = server.with_tunnel(Tunnel::IPIP);
    ipvs.add_real_server(&web().key, &server).unwrap();
    assert_eq!(ipvs.list_real_servers(&web().key).unwrap()[0].server, server);
    ipvs.delete_real_server(&web().key, &server.key).unwrap();
}

fn a_gue_tunnel_needs_a_port(ipvs: &mut dyn Ipvs) {
    ipvs.add_virtual_server(&web()).unwrap();
    let server =
        RealServer::new(RealServerKey::new(pod(1), 80)).with_tunnel(Tunnel::gue(0, TunnelFlags::empty()));
    let error = ipvs.add_real_server(&web().key, &server).unwrap_err();
    assert!(
        error.is_invalid() && error.reason() == Some(&Reason::TunnelPortMissing),
        "{error}"
    );
}

fn what_cannot_be_written_is_not_sent(ipvs: &mut dyn Ipvs) {
    let of_v6 = Granularity::from_prefix_length(64).unwrap();
    let wrong = web().with_persistence(Persistence::from_seconds(60).unwrap().with_granularity(of_v6));
    let error = ipvs.add_virtual_server(&wrong).unwrap_err();
    assert!(error.is_invalid(), "{error}");
    assert_eq!(listed(ipvs), []);
    let interface = InterfaceName::new("lo").unwrap();
    let daemon = Daemon::new(DaemonRole::Master, interface).with_sync_id(256);
    assert!(ipvs.start_daemon(&daemon).unwrap_err().is_invalid());
    assert!(
        ipvs.set_timeouts(Timeouts::UNCHANGED.with_udp(Duration::MAX))
            .unwrap_err()
            .is_invalid()
    );
}

fn a_snapshot_agrees_with_the_listings(ipvs: &mut dyn Ipvs) {
    let mut operations = Vec::new();
    for last in 1..=20 {
        for key in [
            VirtualServerKey::tcp(v4(last), 80),
            VirtualServerKey::udp(v6(last.into()), 53),
        ] {
            operations.push(Operation::AddVirtualServer(VirtualServer::new(
                key,
                Scheduler::RR,
            )));
            for real in 0..last % 5 {
                let address = if key.family() == Family::Ipv4 {
                    pod(real)
                } else {
                    v6(real.into())
                };
                let method = [
                    ForwardingMethod::Masquerade,
                    ForwardingMethod::DirectRoute,
                    ForwardingMethod::Tunnel,
                ];
                let server = RealServer::new(RealServerKey::new(address, 0x1234))
                    .with_weight(Weight::from(u16::from(real)))
                    .with_forwarding(method[usize::from(real) % 3]);
                operations.push(add(key, server));
            }
        }
    }
    for outcome in ipvs.execute(&operations) {
        outcome.unwrap();
    }
    let snapshot = ipvs.snapshot().unwrap();
    assert_eq!(snapshot.consistency, Consistency::Verified);
    let listed = ipvs.list_virtual_servers().unwrap();
    assert_eq!(snapshot.virtual_servers.len(), listed.len());
    for (entry, status) in snapshot.virtual_servers.iter().zip(&listed) {
        assert_eq!(entry.virtual_server.server, status.server);
        let real_servers = ipvs.list_real_servers(&status.server.key).unwrap();
        assert_eq!(entry.real_servers.len(), real_servers.len());
        for (summary, status) in entry.real_servers.iter().zip(&real_servers) {
            assert!(summary.agrees_with(&status.server), "{summary:?} {status:?}");
            assert_eq!(entry.get(&status.server.key), Some(summary));
        }
        assert_eq!(snapshot.get(&status.server.key), Some(entry));
    }
}

fn one_mark_names_two_virtual_servers(ipvs: &mut dyn Ipvs) {
    let mark = NonZeroU32::new(7).unwrap();
    let four = VirtualServer::new(VirtualServerKey::mark(Family::Ipv4, mark), Scheduler::RR);
    let six = VirtualServer::new(VirtualServerKey::mark(Family::Ipv6, mark), Scheduler::RR);
    let real_four = RealServer::new(RealServerKey::new(pod(1), 0));
    let real_six = RealServer::new(RealServerKey::new(v6(1), 0));
    for (server, real) in [(&four, &real_four), (&six, &real_six)] {
        ipvs.add_virtual_server(server).unwrap();
        ipvs.add_real_server(&server.key, real).unwrap();
    }
    let snapshot = ipvs.snapshot().unwrap();
    assert_eq!(snapshot.consistency, Consistency::Verified);
    for (server, real) in [(&four, &real_four), (&six, &real_six)] {
        let entry = snapshot.get(&server.key).unwrap();
        assert_eq!(entry.real_servers.len(), 1);
        assert!(entry.real_servers[0].agrees_with(real));
    }
    ipvs.delete_virtual_server(&four.key).unwrap();
    let snapshot = ipvs.snapshot().unwrap();
    assert_eq!(snapshot.virtual_servers.len(), 1);
    assert!(snapshot.get(&six.key).unwrap().real_servers[0].agrees_with(&real_six));
}

fn zero_needs_its_virtual_server(ipvs: &mut dyn Ipvs) {
    assert!(ipvs.zero(&web().key).unwrap_err().is_not_found());
    ipvs.zero_all().unwrap();
    ipvs.add_virtual_server(&web()).unwrap();
    ipvs.zero(&web().key).unwrap();
}

fn timeouts_of_zero_stay(ipvs: &mut dyn Ipvs) {
    let before = ipvs.timeouts().unwrap();
    ipvs.set_timeouts(Timeouts::UNCHANGED.with_tcp_fin(Duration::from_secs(77)))
        .unwrap();
    assert_eq!(
        ipvs.timeouts().unwrap(),
        before.with_tcp_fin(Duration::from_secs(77))
    );
    let all = Timeouts::new(
        Duration::from_secs(0x1234),
        Duration::from_secs(0x56),
        Duration::from_secs(0x789),
    );
    ipvs.set_timeouts(all).unwrap();
    assert_eq!(ipvs.timeouts().unwrap(), all);
}

fn daemons_start_and_stop(ipvs: &mut dyn Ipvs) {
    let interface = InterfaceName::new("lo").unwrap();
    assert_eq!(ipvs.list_daemons().unwrap(), []);
    assert!(ipvs.stop_daemon(DaemonRole::Master).unwrap_err().is_not_found());
    let daemon = Daemon::new(DaemonRole::Master, interface)
        .with_sync_id(7)
        .with_max_length(1401)
        .with_group(Ipv4Addr::new(224, 1, 2, 3))
        .with_port(0x2345)
        .with_ttl(9);
    ipvs.start_daemon(&daemon).unwrap();
    assert_eq!(ipvs.list_daemons().unwrap(), std::slice::from_ref(&daemon));
    assert!(ipvs.start_daemon(&daemon).unwrap_err().is_already_exists());

    ipvs.add_virtual_server(&web()).unwrap();
    let mixed = RealServer::new(RealServerKey::new(v6(1), 80)).with_tunnel(Tunnel::IPIP);
    let error = ipvs.add_real_server(&web().key, &mixed).unwrap_err();
    assert_eq!(error.reason(), Some(&Reason::MixedFamiliesWithDaemon), "{error}");

    ipvs.stop_daemon(DaemonRole::Master).unwrap();
    assert_eq!(ipvs.list_daemons().unwrap(), []);
    ipvs.add_real_server(&web().key, &mixed).unwrap();
    let error = ipvs.start_daemon(&daemon).unwrap_err();
    assert_eq!(error.reason(), Some(&Reason::MixedFamiliesWithDaemon), "{error}");
    ipvs.delete_virtual_server(&web().key).unwrap();
    let error = ipvs
        .start_daemon(&Daemon::new(
            DaemonRole::Backup,
            InterfaceName::new("nosuch0").unwrap(),
        ))
        .unwrap_err();
    assert!(
        matches!(error.reason(), Some(Reason::InterfaceAbsent { .. })),
        "{error:?}"
    );
    let error = ipvs
        .start_daemon(&daemon.clone().with_group(Ipv4Addr::new(10, 0, 0, 1)))
        .unwrap_err();
    assert!(
        matches!(error.reason(), Some(Reason::GroupNotMulticast { .. })),
        "{error:?}"
    );

    // What is left open, the kernel chooses and tells.
    ipvs.start_daemon(&Daemon::new(DaemonRole::Backup, interface))
        .unwrap();
    let listed = ipvs.list_daemons().unwrap();
    let expected = Daemon::new(DaemonRole::Backup, interface)
        .with_max_length(65_507)
        .with_group(Ipv4Addr::new(224, 0, 0, 81))
        .with_port(8848)
        .with_ttl(1);
    assert_eq!(listed, [expected]);
    ipvs.stop_daemon(DaemonRole::Backup).unwrap();

    // A master keeps to 1500 bytes, whatever the interface can. Other lengths are brought into the range of the role.
    for (role, asked, granted) in [
        (DaemonRole::Master, 0, 1472),
        (DaemonRole::Master, 1, 1),
        (DaemonRole::Master, 65_535, 65_507),
        (DaemonRole::Backup, 1, 1024),
        (DaemonRole::Backup, 65_535, 65_507),
    ] {
        ipvs.start_daemon(&Daemon::new(role, interface).with_max_length(asked))
            .unwrap();
        let listed = ipvs.list_daemons().unwrap();
        assert_eq!(listed[0].max_length, Some(granted), "{role} {asked}");
        ipvs.stop_daemon(role).unwrap();
    }

    // Stopped before it has begun.
    for _ in 0..10 {
        let at_once = [
            Operation::StartDaemon(Daemon::new(DaemonRole::Backup, interface)),
            Operation::StopDaemon(DaemonRole::Backup),
        ];
        assert_eq!(ipvs.execute(&at_once), [Ok(()), Ok(())]);
        assert_eq!(ipvs.list_daemons().unwrap(), []);
    }
}

fn an_empty_batch_has_no_outcomes(ipvs: &mut dyn Ipvs) {
    assert_eq!(ipvs.execute(&[]), []);
}
