//! A listening UDP port.

use std::collections::HashSet;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::select;
use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recv, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::coop::consume_budget;
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{sleep, sleep_until};

use super::Shared;
use super::listener::{Served, Serving, Transport};
use super::open_flows::{Begun, OpenFlows};
use super::scratch;
use super::socket::{self, is_local, is_too_large};
use super::stats::Counters;
use crate::balance::Attempt;
use crate::budget::{Budget, Lease};
use crate::flows::FlowKey;

/// The requested size of the receive buffer; the kernel reduces it to `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 4 << 20;

/// The pause after an error of receiving that another attempt would meet again.
const PAUSE: Duration = Duration::from_millis(10);

/// The number of datagrams that are passed on before other tasks run.
const BURST: usize = 64;

/// The number of endpoints that are tried for the first datagram of a flow.
const ATTEMPTS: usize = 4;

/// A listening UDP port. Dropping it closes the port and ends its flows.
#[derive(Debug)]
pub(super) struct UdpPort {
    port: Arc<Port>,
    receiving: AbortHandle,
}

#[derive(Debug)]
struct Port {
    socket: UdpSocket,
    served: Served,
    flows: OpenFlows<Flow>,
    counters: Arc<Counters>,
    /// The descriptors that the port may use.
    budget: Budget,
    /// The flows that the port may have.
    flow_budget: Budget,
    shared: Arc<Shared>,
}

/// A flow: a socket that is connected to the endpoint, and the task that passes on its replies.
#[derive(Debug)]
struct Flow {
    endpoint: SocketAddr,
    socket: Arc<UdpSocket>,
    replies: AbortHandle,
    _room: Option<Room>,
}

/// What a flow uses: a descriptor, and one of all flows.
#[derive(Debug)]
struct Room {
    _descriptor: Lease,
    _flow: Lease,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.replies.abort();
    }
}

impl UdpPort {
    pub(super) fn open(
        address: SocketAddr,
        serving: &Serving,
        shared: Arc<Shared>,
    ) -> io::Result<(Self, SocketAddr)> {
        let socket = socket::bind(Transport::Udp, address)?;
        match address {
            SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?,
            SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?,
        }
        // A smaller buffer works too.
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
        let socket = UdpSocket::from_std(socket.into())?;
        let address = socket.local_addr()?;
        let port = Arc::new(Port {
            socket,
            served: Served::new(serving, shared.limits.affinity_records),
            flows: OpenFlows::new(shared.limits.flow_timeouts),
            counters: shared.counters.open(),
            budget: shared.share(),
            flow_budget: shared.flows.share(shared.limits.port_share),
            shared,
        });
        let receiving = tokio::spawn(receive_all(Arc::clone(&port))).abort_handle();
        Ok((Self { port, receiving }, address))
    }

    pub(super) fn serve(&self, serving: &Serving) {
        self.port.served.set(serving);
        let endpoints: HashSet<SocketAddr> = serving.backends.iter().map(|backend| backend.address).collect();
        let ended = self
            .port
            .flows
            .retain(|key, flow| endpoints.contains(&flow.endpoint) && serving.admits(key.client.ip()));
        self.port.count_ended(ended.len());
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.port.counters
    }
}

impl Drop for UdpPort {
    fn drop(&mut self) {
        self.receiving.abort();
        // The tasks of the flows refer to the port.
        let ended = self.port.flows.close();
        self.port.count_ended(ended.len());
    }
}

/// Receives datagrams of clients until the port is closed. Nothing here waits for an endpoint.
async fn receive_all(port: Arc<Port>) {
    while !port.flows.is_closed() {
        let next = port.flows.next_check(Instant::now());
        let readable = pin!(port.socket.readable());
        match next {
            Some(check) => {
                let timer = pin!(sleep_until(check.into()));
                select(readable, timer).await;
            }
            None => _ = readable.await,
        }
        let ended = port.flows.expire(Instant::now());
        port.count_ended(ended.len());
        drop(ended);
        let mut is_empty = false;
        for _ in 0..BURST {
            match scratch::with(|buffer| port.receive_one(buffer)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    is_empty = true;
                    break;
                }
                Err(error) if is_local(&error) => sleep(PAUSE).await,
                // An error of the network that the kernel passes on.
                Err(_) => {}
            }
        }
        if is_empty {
            consume_budget().await;
        } else {
            // The tasks of flows that ended run, and close their sockets.
            yield_now().await;
        }
    }
}

/// Passes on the replies of a flow until its socket fails or the flow ends.
async fn pass_replies(port: Arc<Port>, key: FlowKey, endpoint: SocketAddr, socket: Arc<UdpSocket>) {
    loop {
        // A refusal does not make the socket readable.
        if socket.ready(Interest::READABLE | Interest::ERROR).await.is_err() {
            break;
        }
        let result: io::Result<(bool, Option<Vec<u8>>)> = scratch::with(|buffer| {
            // `try_io` needs one interest: for two it always returns `WouldBlock`.
            let mut receive = |interest| {
                let receive = || Ok(recv(socket.as_raw_fd(), buffer, MsgFlags::empty())?);
                socket.try_io(interest, receive)
            };
            let length = match receive(Interest::READABLE) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => receive(Interest::ERROR),
                result => result,
            }?;
            let reply = buffer.get(..length).unwrap_or_default();
            let is_alive = port.flows.reply(&key, Instant::now());
            match port.reply(&key, reply) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    Ok((is_alive, Some(reply.to_vec())))
                }
                result => {
                    port.count_reply(length, &result);
                    Ok((is_alive, None))
                }
            }
        });
        match result {
            Ok((is_alive, unsent)) => {
                if let Some(reply) = unsent {
                    let send = || port.send_to_client(&key, &reply);
                    let result = port.socket.async_io(Interest::WRITABLE, send).await;
                    port.count_reply(reply.len(), &result);
                }
                if !is_alive {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // It says nothing about the endpoint. The kernel reports it once.
            Err(error) if is_too_large(&error) => {}
            Err(error) if is_local(&error) => sleep(PAUSE).await,
            Err(_) => {
                // The endpoint refused a datagram: the next one goes to another endpoint.
                let client = key.client.ip();
                let mut served = port.served.lock();
                served.balancer.set_refused(client, endpoint, Instant::now());
                break;
            }
        }
        consume_budget().await;
    }
    // Another flow may have the key by now.
    let ended = port
        .flows
        .remove_if(&key, |flow| Arc::ptr_eq(&flow.socket, &socket));
    port.count_ended(usize::from(ended.is_some()));
}

impl Port {
    fn count_ended(&self, flows: usize) {
        self.counters.ended.add(u64::try_from(flows).unwrap_or(u64::MAX));
    }

    /// Receives one datagram and passes it on.
    fn receive_one(self: &Arc<Self>, buffer: &mut [u8]) -> io::Result<()> {
        let datagram = self
            .socket
            .try_io(Interest::READABLE, || receive(&self.socket, buffer))?;
        let Some((key, length)) = datagram else {
            self.counters.datagrams_lost.add(1);
            return Ok(());
        };
        let data = buffer.get(..length).unwrap_or_default();
        let now = Instant::now();
        // Not `try_send`: the runtime does not know yet that a new socket is writable.
        let sent = self.flows.find(&key, now, |flow| {
            let socket = SockRef::from(&*flow.socket);
            match socket.send(data) {
                // The error of an earlier datagram.
                Err(error) if is_too_large(&error) => socket.send(data),
                result => result,
            }
        });
        if let Some(result) = sent {
            match result {
                Err(error) if is_local(&error) || is_too_large(&error) => self.counters.datagrams_lost.add(1),
                Ok(_) => self.count_datagram(length),
                Err(_) => {
                    // An earlier datagram was refused: the flow moves to another endpoint.
                    let ended = self.flows.remove(&key);
                    if let Some(flow) = &ended {
                        self.count_ended(1);
                        self.served.lock().balancer.set_failed(flow.endpoint, now);
                    }
                    self.begin(key, data, Attempt::Again, now);
                }
            }
            return Ok(());
        }
        self.begin(key, data, Attempt::First, now);
        Ok(())
    }

    /// Begins a flow with its first datagram, or drops the datagram.
    fn begin(self: &Arc<Self>, key: FlowKey, data: &[u8], mut attempt: Attempt, now: Instant) {
        let client = key.client.ip();
        if !self.served.lock().admits(client) {
            return self.counters.not_admitted.add(1);
        }
        let mut room = self.room();
        if room.is_none() {
            return self.counters.shed.add(1);
        }
        for _ in 0..ATTEMPTS {
            let chosen = self.served.lock().choose(client, attempt, now);
            let Some(choice) = chosen else {
                break;
            };
            let endpoint = choice.endpoint;
            match connect(endpoint, data) {
                Ok(socket) => {
                    let socket = Arc::new(socket);
                    let is_permitted = || self.served.lock().permits(choice);
                    let flow = || {
                        let task = pass_replies(Arc::clone(self), key, endpoint, Arc::clone(&socket));
                        Flow {
                            endpoint,
                            replies: tokio::spawn(task).abort_handle(),
                            socket: Arc::clone(&socket),
                            _room: room.take(),
                        }
                    };
                    match self.flows.begin(key, now, is_permitted, flow) {
                        Begun::Yes => {
                            self.counters.opened.add(1);
                            return self.count_datagram(data.len());
                        }
                        // The endpoints or source ranges changed at this moment.
                        Begun::NotPermitted if !self.served.lock().admits(client) => {
                            return self.counters.not_admitted.add(1);
                        }
                        Begun::NotPermitted => {}
                        Begun::Closed => return,
                    }
                }
                Err(error) if is_local(&error) => return self.counters.shed.add(1),
                Err(_) => {
                    self.counters.dial_failures.add(1);
                    self.served.lock().balancer.set_failed(endpoint, now);
                    attempt = Attempt::Again;
                }
            }
        }
        self.counters.without_endpoint.add(1);
    }

    /// Room for one more flow. If there is none, the oldest flow without a reply ends. `None`: all have one.
    fn room(&self) -> Option<Room> {
        let take = || {
            if self.flows.len() >= self.shared.limits.flows {
                return None;
            }
            Some(Room {
                _flow: self.flow_budget.take(1)?,
                _descriptor: self.shared.lease(&self.budget, 1)?,
            })
        };
        take().or_else(|| {
            drop(self.flows.remove_unanswered()?);
            self.count_ended(1);
            self.counters.replaced.add(1);
            take()
        })
    }

    fn count_datagram(&self, length: usize) {
        self.counters.datagrams_in.add(1);
        self.counters.bytes_in.add(u64::try_from(length).unwrap_or(0));
    }

    fn count_reply(&self, length: usize, result: &io::Result<()>) {
        if result.is_ok() {
            self.counters.datagrams_out.add(1);
            self.counters.bytes_out.add(u64::try_from(length).unwrap_or(0));
        } else {
            self.counters.datagrams_lost.add(1);
        }
    }

    /// Sends a reply if that is possible without waiting.
    fn reply(&self, key: &FlowKey, data: &[u8]) -> io::Result<()> {
        self.socket
            .try_io(Interest::WRITABLE, || self.send_to_client(key, data))
    }

    /// Sends to the client from the address to which the client sent.
    fn send_to_client(&self, key: &FlowKey, data: &[u8]) -> io::Result<()> {
        let descriptor = self.socket.as_raw_fd();
        let client = SockaddrStorage::from(key.client);
        let data = [IoSlice::new(data)];
        match key.local {
            IpAddr::V4(local) => {
                let source = in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: in_addr {
                        s_addr: local.to_bits().to_be(),
                    },
                    ipi_addr: in_addr { s_addr: 0 },
                };
                let message = [ControlMessage::Ipv4PacketInfo(&source)];
                sendmsg(descriptor, &data, &message, MsgFlags::empty(), Some(&client))?;
            }
            IpAddr::V6(local) => {
                let scope = match key.client {
                    SocketAddr::V6(client) => client.scope_id(),
                    SocketAddr::V4(_) => 0,
                };
                let source = in6_pktinfo {
                    ipi6_addr: in6_addr {
                        s6_addr: local.octets(),
                    },
                    ipi6_ifindex: scope,
                };
                let message = [ControlMessage::Ipv6PacketInfo(&source)];
                sendmsg(descriptor, &data, &message, MsgFlags::empty(), Some(&client))?;
            }
        }
        Ok(())
    }
}

/// A socket that is connected to an endpoint, after it sent the first datagram.
fn connect(endpoint: SocketAddr, data: &[u8]) -> io::Result<UdpSocket> {
    let socket = socket::new(Transport::Udp, endpoint)?;
    socket.connect(&endpoint.into())?;
    socket.send(data)?;
    UdpSocket::from_std(socket.into())
}

/// Receives a datagram: the flow and the length. `None` if it did not fit or its addresses are unknown.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Option<(FlowKey, usize)>> {
    let mut control = nix::cmsg_space!(in6_pktinfo);
    let mut slices = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut slices,
        Some(&mut control),
        MsgFlags::empty(),
    )?;
    if message.flags.contains(MsgFlags::MSG_TRUNC) {
        return Ok(None);
    }
    let client = message.address.as_ref().and_then(to_socket_address);
    let local = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            Some(IpAddr::V4(u32::from_be(info.ipi_addr.s_addr).into()))
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(IpAddr::V6(info.ipi6_addr.s6_addr.into())),
        _ => None,
    });
    let key = client.zip(local).map(|(client, local)| FlowKey { client, local });
    Ok(key.map(|key| (key, message.bytes)))
}

fn to_socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddrV4::from(*v4).into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6).into()))
}
