//! Checks of snapshots and of `converge`, which read the whole table.

use super::{Tested, add, pod, v4, v6, web};
use crate::{
    Consistency, Family, ForwardingMethod, Operation, Protocol, RealServer, RealServerKey, Scheduler,
    Thresholds, VirtualServer, VirtualServerKey, Weight,
};

pub(super) fn a_snapshot_agrees_with_the_listings(ipvs: &mut Tested) {
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

pub(super) fn converge_makes_the_table_the_desired_one(ipvs: &mut Tested) {
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
    // A snapshot has no thresholds, so the real server with thresholds is updated again.
    let operations = ipvs.snapshot().unwrap().difference(&after, is_owned);
    assert_eq!(
        operations,
        [Operation::UpdateRealServer {
            virtual_server: web().key,
            real_server: after[0].1[1].clone(),
        }]
    );
}
