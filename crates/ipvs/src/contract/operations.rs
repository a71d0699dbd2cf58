//! Checks of operations, their outcomes and errors.

use std::time::Duration;

use super::{Tested, add, listed, pod, v4, web};
use crate::{
    Daemon, DaemonRole, Error, Granularity, InterfaceName, Operation, Persistence, PersistenceEngine,
    RealServer, RealServerKey, Scheduler, SchedulerFlags, Thresholds, Timeouts, Tunnel, TunnelFlags,
    VirtualServer, VirtualServerKey, Weight,
};

pub(super) fn update_replaces_the_whole_configuration(ipvs: &mut Tested) {
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

pub(super) fn each_operation_has_one_outcome_in_order(ipvs: &mut Tested) {
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
            "cannot add virtual server -t 10.96.0.1:4660: it already exists",
            "done",
            "cannot add real server 10.1.2.1:80 of -t 10.96.0.1:4660: it already exists",
            "done",
            "cannot delete real server 10.1.2.1:80 of -t 10.96.0.1:4660: the real server does not exist",
            "cannot set the timeouts",
            "done",
        ]
    );
}

pub(super) fn a_batch_of_failures_reports_every_failure(ipvs: &mut Tested) {
    // More refusals than fit into the receive buffer of the socket.
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

pub(super) fn ensure_can_be_repeated(ipvs: &mut Tested) {
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

pub(super) fn ensure_can_be_part_of_a_batch(ipvs: &mut Tested) {
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

pub(super) fn absent_and_existing_servers_have_different_errors(ipvs: &mut Tested) {
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

pub(super) fn an_invalid_operation_is_not_sent(ipvs: &mut Tested) {
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

pub(super) fn an_empty_batch_has_no_outcomes(ipvs: &mut Tested) {
    assert_eq!(ipvs.execute(&[]), []);
}
