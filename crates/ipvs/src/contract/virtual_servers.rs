//! Checks of virtual servers.

use std::net::Ipv4Addr;
use std::num::NonZeroU32;

use super::{Tested, listed, pod, v4, v6, web};
use crate::{
    Consistency, Family, Granularity, Persistence, PersistenceEngine, RealServer, RealServerKey, Scheduler,
    SchedulerFlags, VirtualServer, VirtualServerKey,
};

pub(super) fn virtual_servers_are_listed_as_they_were_added(ipvs: &mut Tested) {
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

pub(super) fn an_unknown_scheduler_is_not_an_absent_virtual_server(ipvs: &mut Tested) {
    let mut server = web();
    server.scheduler = Scheduler::new("nosuch").unwrap();
    let error = ipvs.add_virtual_server(&server).unwrap_err();
    assert!(
        error.is_scheduler_unavailable() && error.is_unsupported() && !error.is_not_found(),
        "{error}"
    );
    // The kernel refuses it, or the client, which does not make the kernel load the module.
    let text = error.to_string();
    let texts = ["available", "loaded"].map(|what| {
        format!("cannot add virtual server -t 10.96.0.1:4660: scheduler nosuch is not {what} (module ip_vs_nosuch)")
    });
    assert!(texts.iter().any(|start| text.starts_with(start)), "{text}");
    ipvs.add_virtual_server(&web()).unwrap();
    let error = ipvs.update_virtual_server(&server).unwrap_err();
    assert!(
        error.is_scheduler_unavailable() && !error.is_not_found(),
        "{error}"
    );
    assert_eq!(listed(ipvs), [web()]);
}

pub(super) fn an_unknown_persistence_engine_is_in_the_error(ipvs: &mut Tested) {
    let mut server = web().with_persistence_engine(PersistenceEngine::new("nosuch").unwrap());
    let error = ipvs.add_virtual_server(&server).unwrap_err();
    assert!(error.is_unsupported() && !error.is_not_found(), "{error}");
    assert!(
        error
            .to_string()
            .contains("persistence engine nosuch is not available (module ip_vs_pe_nosuch)"),
        "{error}"
    );
    server.scheduler = Scheduler::NONE;
    let error = ipvs.add_virtual_server(&server).unwrap_err();
    assert!(
        !error.is_scheduler_unavailable() && error.is_unsupported(),
        "{error}"
    );
}

pub(super) fn deleting_a_virtual_server_deletes_its_real_servers(ipvs: &mut Tested) {
    ipvs.add_virtual_server(&web()).unwrap();
    ipvs.add_real_server(&web().key, &RealServer::new(RealServerKey::new(pod(1), 80)))
        .unwrap();
    ipvs.delete_virtual_server(&web().key).unwrap();
    ipvs.add_virtual_server(&web()).unwrap();
    assert_eq!(ipvs.list_real_servers(&web().key).unwrap(), []);
}

pub(super) fn flush_deletes_all_virtual_servers(ipvs: &mut Tested) {
    ipvs.add_virtual_server(&web()).unwrap();
    ipvs.flush().unwrap();
    assert_eq!(listed(ipvs), []);
    ipvs.flush().unwrap();
}

pub(super) fn one_mark_identifies_two_virtual_servers(ipvs: &mut Tested) {
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

pub(super) fn zero_requires_its_virtual_server(ipvs: &mut Tested) {
    assert!(ipvs.zero(&web().key).unwrap_err().is_not_found());
    ipvs.zero_all().unwrap();
    ipvs.add_virtual_server(&web()).unwrap();
    ipvs.zero(&web().key).unwrap();
}
