//! Checks of real servers.

use std::net::{IpAddr, Ipv4Addr};

use super::{Tested, pod, v6, web};
use crate::{
    ForwardingMethod, Ipvs, RealServer, RealServerKey, Reason, Scheduler, Thresholds, Tunnel, TunnelFlags,
    VirtualServer, VirtualServerKey, Weight,
};

pub(super) fn real_servers_are_listed_as_they_were_added(ipvs: &mut Tested) {
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

pub(super) fn set_weight_changes_only_the_weight(ipvs: &mut Tested) {
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

pub(super) fn real_servers_of_an_absent_virtual_server_are_an_empty_list(ipvs: &mut Tested) {
    assert_eq!(ipvs.list_real_servers(&web().key).unwrap(), []);
    assert_eq!(ipvs.list_virtual_servers().unwrap(), []);
}

pub(super) fn forbidden_addresses_are_refused_with_their_kind(ipvs: &mut Tested) {
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
                .ends_with(&format!("invalid real server address {address}: it is {kind}"))
        );
    }
}

pub(super) fn a_mapped_address_is_refused_with_the_address_to_use(ipvs: &mut Tested) {
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

pub(super) fn a_forwarding_method_above_7_is_refused(ipvs: &mut Tested) {
    ipvs.add_virtual_server(&web()).unwrap();
    let server = |number| {
        RealServer::new(RealServerKey::new(pod(number), 80))
            .with_forwarding(ForwardingMethod::Unknown(number))
    };
    let error = ipvs.add_real_server(&web().key, &server(10)).unwrap_err();
    assert!(error.is_invalid(), "{error}");
    assert_eq!(ipvs.list_real_servers(&web().key).unwrap(), []);
    // `Unknown` with the number of a known method equals that method.
    ipvs.add_real_server(&web().key, &server(2)).unwrap();
    let listed = ipvs.list_real_servers(&web().key).unwrap();
    assert_eq!(listed[0].server, server(2));
    assert_eq!(listed[0].server.forwarding, ForwardingMethod::Tunnel);
}

pub(super) fn mixed_families_require_a_tunnel(ipvs: &mut Tested) {
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

pub(super) fn a_gue_tunnel_requires_a_port(ipvs: &mut Tested) {
    ipvs.add_virtual_server(&web()).unwrap();
    let server =
        RealServer::new(RealServerKey::new(pod(1), 80)).with_tunnel(Tunnel::gue(0, TunnelFlags::empty()));
    let error = ipvs.add_real_server(&web().key, &server).unwrap_err();
    assert!(
        error.is_invalid() && error.reason() == Some(&Reason::TunnelPortMissing),
        "{error}"
    );
}
