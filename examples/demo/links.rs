//! Links, addresses and routes of the calling thread's network namespace, written over route netlink: the demo starts no program for them.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use kernlink_netlink::flags::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use kernlink_netlink::{AttributeWriter, Connection, Protocol};
use nix::net::if_::if_nametoindex;

// The names of the kernel (rtnetlink.h, if_link.h, if_addr.h, veth.h).
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFF_UP: u32 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 2;
const RTA_DST: u16 = 1;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_BOOT: u8 = 3;
const RTN_UNICAST: u8 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Sets a link up.
pub(crate) fn set_up(name: &str) -> Result<()> {
    execute(RTM_NEWLINK, 0, |request| {
        request.header(&link_header(IFF_UP)).string(IFLA_IFNAME, name);
    })
    .with_context(|| format!("set the link {name} up"))
}

/// Adds a pair of veth devices, of which the second one is in another namespace.
pub(crate) fn add_veth(name: &str, peer: &str, namespace: &File) -> Result<()> {
    let descriptor = u32::try_from(namespace.as_raw_fd())?;
    execute(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, |request| {
        request.header(&link_header(0)).string(IFLA_IFNAME, name);
        request.nested(IFLA_LINKINFO, |info| {
            info.string(IFLA_INFO_KIND, "veth");
            info.nested(IFLA_INFO_DATA, |data| {
                data.nested(VETH_INFO_PEER, |other| {
                    other.header(&link_header(0)).string(IFLA_IFNAME, peer);
                    other.ne_u32(IFLA_NET_NS_FD, descriptor);
                });
            });
        });
    })
    .with_context(|| format!("add the link {name} of type veth"))
}

/// Gives an address with the length of its network to a link.
pub(crate) fn add_address(link: &str, address: IpAddr, length: u8) -> Result<()> {
    let context = || format!("add the address {address}/{length} to the link {link}");
    let index = if_nametoindex(link).with_context(context)?;
    // Without duplicate address detection, during which no server can be bound to an IPv6 address.
    let flags = if address.is_ipv6() { IFA_F_NODAD } else { 0 };
    let mut header = [family(address), length, flags, 0, 0, 0, 0, 0];
    header[4..].copy_from_slice(&index.to_ne_bytes());
    execute(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, |request| {
        request.header(&header).address(IFA_LOCAL, address);
        request.address(IFA_ADDRESS, address);
    })
    .with_context(context)
}

/// Adds a route to a single address, or the default route.
pub(crate) fn add_route(to: Option<IpAddr>, gateway: IpAddr) -> Result<()> {
    let length = to.map_or(0, |address| if address.is_ipv4() { 32 } else { 128 });
    // Family, length of the destination and of the source, TOS, table, protocol, scope, type, flags.
    let header = [
        family(gateway),
        length,
        0,
        0,
        RT_TABLE_MAIN,
        RTPROT_BOOT,
        0,
        RTN_UNICAST,
        0,
        0,
        0,
        0,
    ];
    execute(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, |request| {
        request.header(&header);
        if let Some(address) = to {
            request.address(RTA_DST, address);
        }
        request.address(RTA_GATEWAY, gateway);
    })
    .with_context(|| format!("add a route by {gateway}"))
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

/// `struct ifinfomsg` without an index, which sets these flags.
fn link_header(flags: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&flags.to_ne_bytes());
    header
}

fn execute(message_type: u16, flags: u16, write: impl FnOnce(&mut AttributeWriter<'_>)) -> Result<()> {
    let mut connection = Connection::open(Protocol::Route)?;
    Ok(connection.execute_one(message_type, flags, write)?)
}
