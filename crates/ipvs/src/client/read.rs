//! Reading the kernel's table over netlink and from `/proc`.

use std::collections::HashMap;

use kernlink_netlink::{AttributeReader, AttributeWriter, Connection, Errno, Message, Protocol};

use super::Client;
use super::listing::{Listing, Request};
use crate::error::Error;
use crate::proc_net::{self, RowKey};
use crate::snapshot::{Consistency, RealServerSummary, Snapshot, SnapshotEntry};
use crate::stats::{RealServerStatus, VirtualServerStatus};
use crate::uapi::*;
use crate::virtual_server::VirtualServerKey;
use crate::wire;

/// More virtual servers than this never fit into one datagram, which has at most 32 KiB. A virtual server has 250 bytes.
const MANY: usize = 130;

impl Client {
    /// The virtual servers, in the order of their keys.
    pub(super) fn read_virtual_servers(&mut self) -> Result<Listing<VirtualServerStatus>, Error> {
        let listing = self.list(
            "list the virtual servers",
            self.has_many,
            |writer| wire::write_header(writer, IPVS_CMD_GET_SERVICE),
            |message| {
                wire::body(message.payload, IPVS_CMD_NEW_SERVICE)
                    .and_then(wire::read_virtual_server)
                    .map(Some)
            },
            |status| status.server.key,
        )?;
        self.has_many = listing.items.len() > MANY;
        Ok(listing)
    }

    /// One virtual server; `None` if it does not exist.
    pub(super) fn read_virtual_server(
        &mut self,
        key: &VirtualServerKey,
    ) -> Result<Option<VirtualServerStatus>, Error> {
        let found = self.connection.request(
            self.family,
            0,
            |writer| {
                wire::write_header(writer, IPVS_CMD_GET_SERVICE);
                wire::write_service_key(writer, key);
            },
            |message| {
                wire::body(message.payload, IPVS_CMD_NEW_SERVICE)
                    .and_then(wire::read_virtual_server)
                    .map(Some)
            },
        );
        match found {
            Ok(mut servers) => Ok(servers.pop()),
            Err(error) if error.errno() == Some(Errno::ESRCH) => Ok(None),
            Err(error) => Err(Error::request("read a virtual server")(error)),
        }
    }

    /// The real servers of a virtual server, in the order of their keys.
    pub(super) fn read_real_servers(
        &mut self,
        virtual_server: &VirtualServerKey,
    ) -> Result<Listing<RealServerStatus>, Error> {
        let family = virtual_server.family();
        self.list(
            "list the real servers",
            false,
            |writer| {
                wire::write_header(writer, IPVS_CMD_GET_DEST);
                wire::write_service_key(writer, virtual_server);
            },
            |message| {
                let body = wire::body(message.payload, IPVS_CMD_NEW_DEST)?;
                wire::read_real_server(body, Some(family)).map(Some)
            },
            |status| status.server.key,
        )
    }

    fn list<T, K: Ord>(
        &mut self,
        attempt: &'static str,
        is_large: bool,
        write: impl Fn(&mut AttributeWriter<'_>),
        read: impl Fn(Message<'_>) -> Result<Option<T>, kernlink_netlink::Error>,
        key: impl Fn(&T) -> K,
    ) -> Result<Listing<T>, Error> {
        let request = Request {
            message_type: self.family,
            write,
            read,
        };
        let namespace = &self.namespace;
        let timeout = self.connection.timeout();
        let second = || {
            let mut connection = namespace.run(|| Connection::open(Protocol::Generic))??;
            connection.set_timeout(timeout)?;
            Ok::<_, kernlink_netlink::Error>(connection)
        };
        request
            .list(&mut self.connection, second, key, is_large)
            .map_err(Error::request(attempt))
    }

    /// Sends a request that consists of a command only, and reads its answer of one message.
    pub(super) fn request_one<T>(
        &mut self,
        attempt: &'static str,
        [command, answer]: [u8; 2],
        read: fn(AttributeReader<'_>) -> Result<T, kernlink_netlink::Error>,
    ) -> Result<T, Error> {
        self.connection
            .request(
                self.family,
                0,
                |writer| wire::write_header(writer, command),
                |message| wire::body(message.payload, answer).and_then(read).map(Some),
            )
            .and_then(|mut answers| {
                answers.pop().ok_or(kernlink_netlink::Error::Malformed {
                    what: "answer: an acknowledgement without a message",
                })
            })
            .map_err(Error::request(attempt))
    }

    /// Takes a snapshot: lists the virtual servers over netlink and reads their real servers from `/proc/net/ip_vs` in one pass.
    ///
    /// The kernel prints a virtual server with all its real servers at once, so no real server that exists during the whole call is
    /// missing from a row ([`ip_vs_info_seq_show`](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ctl.c)).
    /// Whole rows can be missing: the kernel prints a page at a time, and it counts the virtual servers of all network namespaces
    /// for the position of a page but skips only those of one namespace to find it. The rows do not show the family of a mark
    /// either. The real servers of a virtual server without a row, and of one by mark, are listed over netlink.
    pub(super) fn take_snapshot(&mut self) -> Result<Snapshot, Error> {
        let listing = self.read_virtual_servers()?;
        let (mut is_complete, mut attempts) = (listing.is_complete, listing.attempts);
        let mut rows = self.read_rows()?;
        let mut entries = Vec::with_capacity(listing.items.len());
        for virtual_server in listing.items {
            let real_servers = match rows.remove(&virtual_server.server.key) {
                Some(real_servers) => real_servers,
                None => {
                    let listing = self.read_real_servers(&virtual_server.server.key)?;
                    is_complete &= listing.is_complete;
                    attempts = attempts.max(listing.attempts);
                    listing.items.iter().map(RealServerSummary::from).collect()
                }
            };
            entries.push(SnapshotEntry::new(virtual_server, real_servers));
        }
        let consistency = if is_complete {
            Consistency::Verified
        } else {
            Consistency::Unverified { attempts }
        };
        Ok(Snapshot {
            virtual_servers: entries,
            consistency,
        })
    }

    /// The rows of virtual servers by address. Empty if the file does not exist, as in some sandboxes; then everything is listed
    /// over netlink.
    fn read_rows(&self) -> Result<HashMap<VirtualServerKey, Vec<RealServerSummary>>, Error> {
        let rows = match self.in_namespace(proc_net::read)? {
            Ok(rows) => rows,
            Err(Error::File { .. }) => return Ok(HashMap::new()),
            Err(error) => return Err(error),
        };
        let of_addresses = rows.into_iter().filter_map(|row| match row.key {
            RowKey::Address(key) => Some((key, row.real_servers)),
            RowKey::Mark(_) => None,
        });
        Ok(of_addresses.collect())
    }
}

/// The items of a complete listing.
pub(super) fn complete<T>(listing: Listing<T>, attempt: &'static str) -> Result<Vec<T>, Error> {
    if listing.is_complete {
        return Ok(listing.items);
    }
    Err(Error::request(attempt)(
        kernlink_netlink::Error::DumpInterrupted {
            attempts: listing.attempts,
        },
    ))
}
