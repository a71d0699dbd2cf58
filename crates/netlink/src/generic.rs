//! Generic netlink: subsystems (families) that are looked up by name
//! ([`genetlink.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/genetlink.h)).

use netlink_packet_core::Emitable;
use netlink_packet_generic::GenlHeader;
use netlink_packet_generic::constants::{
    CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_ATTR_MCAST_GROUPS, CTRL_ATTR_MCAST_GRP_ID,
    CTRL_ATTR_MCAST_GRP_NAME, CTRL_ATTR_VERSION, CTRL_CMD_GETFAMILY, GENL_ID_CTRL,
};

use crate::{Connection, Errno, Error, Message};

/// Length of the header in bytes.
pub const HEADER_LENGTH: usize = 4;

/// Version of the messages of the generic netlink controller (`nlctrl`).
const CONTROLLER_VERSION: u8 = 2;

/// The header that follows the netlink header of a generic message (`struct genlmsghdr`).
#[must_use]
pub fn header(command: u8, version: u8) -> [u8; HEADER_LENGTH] {
    let mut bytes = [0; HEADER_LENGTH];
    GenlHeader {
        cmd: command,
        version,
    }
    .emit(&mut bytes);
    bytes
}

/// The command of a received message.
pub fn command(message: &Message<'_>) -> Result<u8, Error> {
    match *message.payload {
        [command, _version, _, _, ..] => Ok(command),
        _ => Err(Error::Malformed {
            what: "generic netlink message: shorter than its header",
        }),
    }
}

/// A generic netlink family of the running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Family {
    /// Message type of the family's messages. The kernel assigns it when the family is registered.
    pub id: u16,
    /// Version of the family's interface.
    pub version: u32,
    /// Names and numbers of the multicast groups, in the kernel's order.
    pub groups: Vec<(Box<str>, u32)>,
}

impl Family {
    /// Looks up a family by name. The kernel loads the family's module if necessary.
    ///
    /// # Errors
    /// [`Error::UnknownFamily`] if the family does not exist, and the kernel loaded no module for it.
    pub fn resolve(connection: &mut Connection, name: &str) -> Result<Self, Error> {
        let found = connection.request(
            GENL_ID_CTRL,
            0,
            |w| {
                w.header(&header(CTRL_CMD_GETFAMILY, CONTROLLER_VERSION))
                    .string(CTRL_ATTR_FAMILY_NAME, name);
            },
            |message| Self::decode(&message).map(Some),
        );
        match found {
            Ok(families) => families.into_iter().next().ok_or(Error::Malformed {
                what: "answer to CTRL_CMD_GETFAMILY: empty",
            }),
            Err(Error::Refused(refusal)) if refusal.errno == Errno::ENOENT => {
                Err(Error::UnknownFamily { name: name.into() })
            }
            Err(error) => Err(error),
        }
    }

    fn decode(message: &Message<'_>) -> Result<Self, Error> {
        let mut id = None;
        let mut family = Family {
            id: 0,
            version: 0,
            groups: Vec::new(),
        };
        for attribute in message.attributes(HEADER_LENGTH)? {
            let attribute = attribute?;
            match attribute.kind() {
                CTRL_ATTR_FAMILY_ID => id = Some(attribute.ne_u16()?),
                CTRL_ATTR_VERSION => family.version = attribute.ne_u32()?,
                CTRL_ATTR_MCAST_GROUPS => {
                    for group in attribute.nested() {
                        let (mut name, mut number) = (None, None);
                        for field in group?.nested() {
                            let field = field?;
                            match field.kind() {
                                CTRL_ATTR_MCAST_GRP_NAME => name = Some(field.string()?.into()),
                                CTRL_ATTR_MCAST_GRP_ID => number = Some(field.ne_u32()?),
                                _ => {}
                            }
                        }
                        family.groups.extend(name.zip(number));
                    }
                }
                _ => {}
            }
        }
        family.id = id.ok_or(Error::Malformed {
            what: "answer to CTRL_CMD_GETFAMILY: no CTRL_ATTR_FAMILY_ID",
        })?;
        Ok(family)
    }
}
