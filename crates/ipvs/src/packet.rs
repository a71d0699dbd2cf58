//! IPVS messages for the netlink-packet crates (feature `netlink-packet`): one type that their connections can send and receive,
//! for callers with their own connection, for example an asynchronous one.
//!
//! [`async_list.rs`](https://github.com/kernlink/kernlink/blob/main/crates/ipvs/examples/async_list.rs) lists the virtual servers over
//! `netlink-proto`.
//!
//! The types of netlink-packet-core and netlink-packet-generic are in the signatures of this module only, and their versions
//! are part of this feature.

use kernlink_netlink::{AttributeReader, AttributeWriter, generic};
use netlink_packet_core::{DecodeError, Emitable, ParseableParametrized};
use netlink_packet_generic::{GenlFamily, GenlHeader};

use crate::daemon::Daemon;
use crate::error::{Error, InvalidOperation};
use crate::info::Info;
use crate::operation::Operation;
use crate::stats::{RealServerStatus, VirtualServerStatus};
use crate::timeouts::Timeouts;
use crate::uapi::*;
use crate::virtual_server::VirtualServerKey;
use crate::wire;

/// The content of a message of the family `IPVS` after the generic header: the payload of a
/// [`GenlMessage`](netlink_packet_generic::GenlMessage).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IpvsMessage {
    /// A change. [`operation`](Self::operation) makes it, and refuses invalid operations.
    #[non_exhaustive]
    Operation(Operation),
    /// Requests all virtual servers; requires the dump flag. The answers are [`VirtualServer`](Self::VirtualServer)s.
    ListVirtualServers,
    /// Requests one virtual server. The answer is a [`VirtualServer`](Self::VirtualServer), or the error `ESRCH`.
    FindVirtualServer(VirtualServerKey),
    /// Requests the real servers of a virtual server; requires the dump flag. The answers are
    /// [`RealServer`](Self::RealServer)s.
    ListRealServers(VirtualServerKey),
    /// Requests the daemons; requires the dump flag. The answers are [`Daemon`](Self::Daemon)s.
    ListDaemons,
    /// Requests the timeouts. The answer is [`Timeouts`](Self::Timeouts).
    ReadTimeouts,
    /// Requests version and table size. The answer is [`Info`](Self::Info).
    ReadInfo,
    /// An answer: a virtual server.
    VirtualServer(VirtualServerStatus),
    /// An answer: a real server.
    RealServer(RealServerStatus),
    /// An answer: a daemon.
    Daemon(Daemon),
    /// An answer: the timeouts.
    Timeouts(Timeouts),
    /// An answer: version and table size.
    Info(Info),
}

impl IpvsMessage {
    /// A change.
    ///
    /// # Errors
    /// [`Error::is_invalid`] if the kernel would execute it differently, or if it is an `Ensure` operation: send the two operations
    /// of [`Operation::add_and_update`].
    pub fn operation(operation: Operation) -> Result<Self, Error> {
        let checked = match &operation {
            Operation::EnsureVirtualServer(_) | Operation::EnsureRealServer { .. } => {
                Err(InvalidOperation::TwoMessages)
            }
            operation => wire::check(operation),
        };
        match checked {
            Ok(()) => Ok(Self::Operation(operation)),
            Err(problem) => Err(Error::Invalid {
                operation: Box::new(operation),
                problem,
            }),
        }
    }

    /// Writes everything after the netlink header.
    fn write(&self, writer: &mut AttributeWriter<'_>) {
        match self {
            Self::Operation(operation) => wire::write_operation(writer, operation),
            Self::FindVirtualServer(key) | Self::ListRealServers(key) => {
                wire::write_header(writer, self.command());
                wire::write_service_key(writer, key);
            }
            Self::ListVirtualServers | Self::ListDaemons | Self::ReadTimeouts | Self::ReadInfo => {
                wire::write_header(writer, self.command());
            }
            Self::VirtualServer(status) => {
                wire::write_header(writer, self.command());
                wire::write_virtual_server_status(writer, status);
            }
            Self::RealServer(status) => {
                wire::write_header(writer, self.command());
                wire::write_real_server_status(writer, status);
            }
            Self::Daemon(daemon) => {
                wire::write_header(writer, self.command());
                wire::write_daemon_body(writer, daemon);
            }
            Self::Timeouts(timeouts) => {
                wire::write_header(writer, self.command());
                wire::write_timeouts(writer, timeouts);
            }
            Self::Info(info) => {
                wire::write_header(writer, self.command());
                wire::write_info(writer, info);
            }
        }
    }

    /// The attributes without the generic header.
    fn body(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut AttributeWriter::new(&mut bytes));
        bytes.drain(..generic::HEADER_LENGTH.min(bytes.len()));
        bytes
    }
}

impl GenlFamily for IpvsMessage {
    fn family_name() -> &'static str {
        IPVS_GENL_NAME
    }

    fn command(&self) -> u8 {
        match self {
            Self::Operation(operation) => wire::command(operation),
            Self::ListVirtualServers | Self::FindVirtualServer(_) => IPVS_CMD_GET_SERVICE,
            Self::ListRealServers(_) => IPVS_CMD_GET_DEST,
            Self::ListDaemons => IPVS_CMD_GET_DAEMON,
            Self::ReadTimeouts => IPVS_CMD_GET_CONFIG,
            Self::ReadInfo => IPVS_CMD_GET_INFO,
            Self::VirtualServer(_) => IPVS_CMD_NEW_SERVICE,
            Self::RealServer(_) => IPVS_CMD_NEW_DEST,
            Self::Daemon(_) => IPVS_CMD_NEW_DAEMON,
            Self::Timeouts(_) => IPVS_CMD_SET_CONFIG,
            Self::Info(_) => IPVS_CMD_SET_INFO,
        }
    }

    fn version(&self) -> u8 {
        IPVS_GENL_VERSION
    }
}

impl Emitable for IpvsMessage {
    fn buffer_len(&self) -> usize {
        self.body().len()
    }

    /// Writes everything if the buffer has [`buffer_len`](Emitable::buffer_len) bytes; otherwise as much as fits.
    fn emit(&self, buffer: &mut [u8]) {
        for (place, byte) in buffer.iter_mut().zip(self.body()) {
            *place = byte;
        }
    }
}

impl ParseableParametrized<[u8], GenlHeader> for IpvsMessage {
    /// Parses an answer of the kernel.
    fn parse_with_param(body: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        let body = AttributeReader::new(body);
        let parsed = match header.cmd {
            IPVS_CMD_NEW_SERVICE => wire::read_virtual_server(body).map(Self::VirtualServer),
            IPVS_CMD_NEW_DEST => wire::read_real_server(body, None).map(Self::RealServer),
            IPVS_CMD_NEW_DAEMON => wire::read_daemon(body).map(Self::Daemon),
            IPVS_CMD_SET_CONFIG => wire::read_timeouts(body).map(Self::Timeouts),
            IPVS_CMD_SET_INFO => wire::read_info(body).map(Self::Info),
            other => {
                return Err(DecodeError::from(format!(
                    "unknown IPVS command {other} in an answer"
                )));
            }
        };
        parsed.map_err(|error| DecodeError::from(error.to_string()))
    }
}
