//! Lists the virtual servers asynchronously, over a connection of `netlink-proto`.
//!
//!     cargo run --example async_list --features netlink-packet

use futures_util::StreamExt;
use kernlink_ipvs::packet::IpvsMessage;
use kernlink_netlink::generic::Family;
use kernlink_netlink::{Connection, Protocol};
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_generic::GenlMessage;
use netlink_proto::sys::SocketAddr;
use netlink_proto::sys::protocols::NETLINK_GENERIC;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The kernel assigns the number of a family when its module is loaded. One blocking request at the start is enough.
    let family = Family::resolve(&mut Connection::open(Protocol::Generic)?, "IPVS")?.id;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let (connection, handle, _) =
            netlink_proto::new_connection::<GenlMessage<IpvsMessage>>(NETLINK_GENERIC)?;
        tokio::spawn(connection);
        let mut message = GenlMessage::from_payload(IpvsMessage::ListVirtualServers);
        message.set_resolved_family_id(family);
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        let mut answers = handle.request(request, SocketAddr::new(0, 0))?;
        while let Some(answer) = answers.next().await {
            match answer.payload {
                NetlinkPayload::InnerMessage(GenlMessage {
                    payload: IpvsMessage::VirtualServer(status),
                    ..
                }) => println!("{}  # {} connections", status.server, status.stats.connections),
                NetlinkPayload::Error(error) => return Err(error.to_io().into()),
                other => println!("{other:?}"),
            }
        }
        Ok(())
    })
}
