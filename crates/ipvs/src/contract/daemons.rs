//! Checks of daemons and timeouts.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::{Tested, v6, web};
use crate::{
    Daemon, DaemonRole, InterfaceName, Operation, RealServer, RealServerKey, Reason, Timeouts, Tunnel,
};

pub(super) fn daemons_start_and_stop(ipvs: &mut Tested) {
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

    // The kernel chooses what is not set, and lists its choice.
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

    // The default of a master is for 1500 bytes, regardless of the interface. Other lengths are adjusted to the range of the role.
    for (role, requested, listed_length) in [
        (DaemonRole::Master, 0, 1472),
        (DaemonRole::Master, 1, 1),
        (DaemonRole::Master, 65_535, 65_507),
        (DaemonRole::Backup, 1, 1024),
        (DaemonRole::Backup, 65_535, 65_507),
    ] {
        ipvs.start_daemon(&Daemon::new(role, interface).with_max_length(requested))
            .unwrap();
        let listed = ipvs.list_daemons().unwrap();
        assert_eq!(listed[0].max_length, Some(listed_length), "{role} {requested}");
        ipvs.stop_daemon(role).unwrap();
    }

    // A daemon that is stopped before its thread has started.
    for _ in 0..10 {
        let at_once = [
            Operation::StartDaemon(Daemon::new(DaemonRole::Backup, interface)),
            Operation::StopDaemon(DaemonRole::Backup),
        ];
        assert_eq!(ipvs.execute(&at_once), [Ok(()), Ok(())]);
        assert_eq!(ipvs.list_daemons().unwrap(), []);
    }
}

pub(super) fn a_timeout_of_zero_is_not_changed(ipvs: &mut Tested) {
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
