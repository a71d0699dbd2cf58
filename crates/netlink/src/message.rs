//! Encoding and decoding of netlink messages.

use netlink_packet_core::{
    Emitable, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_REQUEST, NLMSG_ERROR, NetlinkBuffer, NetlinkHeader,
};

use crate::{AttributeReader, AttributeWriter, Errno, Error, Refusal};

/// One received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message<'b> {
    /// Message type; its meaning depends on the protocol.
    pub message_type: u16,
    /// `NLM_F_*` bits.
    pub flags: u16,
    /// Sequence number of the request that this message answers; 0 in notifications.
    pub sequence: u32,
    /// Port ID of the receiver; in notifications of netfilter that of the socket whose request caused the change, 0 if there was none
    /// (see [`Connection::port`](crate::Connection::port)).
    pub port: u32,
    /// Everything after the netlink header; starts with the subsystem's header.
    pub payload: &'b [u8],
}

impl<'b> Message<'b> {
    /// The attributes after the subsystem's header of `length` bytes.
    pub fn attributes(&self, length: usize) -> Result<AttributeReader<'b>, Error> {
        AttributeReader::after_header(self.payload, length)
    }
}

/// An acknowledgement: the request was executed, or refused.
pub(crate) struct Acknowledgement<'b> {
    /// `Ok` if the request was executed, with the kernel's warning if there is one.
    pub(crate) outcome: Result<Option<Box<str>>, Refusal>,
    /// The part of the request's payload that the kernel repeats; empty if it repeats the header only.
    pub(crate) echo: &'b [u8],
}

/// Length of the netlink header in bytes.
pub(crate) const HEADER_LENGTH: usize = 16;

// Attribute types inside an extended acknowledgement.
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGERR_ATTR_OFFS: u16 = 2;
const NLMSGERR_ATTR_MISS_TYPE: u16 = 5;

/// Appends a message to a buffer; the sequence number is set later by [`set_sequence`].
/// On an error the buffer is unchanged.
pub(crate) fn append(
    buffer: &mut Vec<u8>,
    message_type: u16,
    flags: u16,
    write: impl FnOnce(&mut AttributeWriter<'_>),
) -> Result<(), Error> {
    let start = buffer.len();
    buffer.resize(start + HEADER_LENGTH, 0);
    let mut writer = AttributeWriter::new(buffer);
    write(&mut writer);
    let overflowed = writer.has_overflowed();
    let length = u32::try_from(buffer.len() - start).unwrap_or(u32::MAX);
    if overflowed || length == u32::MAX {
        buffer.truncate(start);
        return Err(Error::TooLarge {
            what: "an attribute",
            limit: usize::from(u16::MAX),
        });
    }
    let mut header = NetlinkHeader::default();
    header.length = length;
    header.message_type = message_type;
    header.flags = flags | NLM_F_REQUEST;
    if let Some(bytes) = buffer.get_mut(start..start + HEADER_LENGTH) {
        header.emit(bytes);
    }
    Ok(())
}

/// Sets sequence number and additional flags of the message that starts at the slice's start.
pub(crate) fn set_sequence(message: &mut [u8], sequence: u32, more_flags: u16) {
    if message.len() < HEADER_LENGTH {
        return;
    }
    let mut header = NetlinkBuffer::new(message);
    header.set_sequence_number(sequence);
    header.set_flags(header.flags() | more_flags);
}

/// Removes the first message from `rest` and returns it. `None` at the end of the datagram.
pub(crate) fn take_message<'b>(rest: &mut &'b [u8]) -> Option<Result<Message<'b>, Error>> {
    if rest.is_empty() {
        return None;
    }
    let all = std::mem::take(rest);
    let Ok(header) = NetlinkBuffer::new_checked(all) else {
        return Some(Err(Error::Malformed {
            what: "message: its length exceeds the datagram",
        }));
    };
    let length = header.length() as usize;
    let Some(payload) = all.get(HEADER_LENGTH..length) else {
        return Some(Err(Error::Malformed {
            what: "message: its length exceeds the datagram",
        }));
    };
    *rest = all.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Some(Ok(Message {
        message_type: header.message_type(),
        flags: header.flags(),
        sequence: header.sequence_number(),
        port: header.port_number(),
        payload,
    }))
}

/// Reads an acknowledgement (`NLMSG_ERROR`) or the end of a dump (`NLMSG_DONE`).
pub(crate) fn acknowledgement<'b>(message: &Message<'b>) -> Result<Acknowledgement<'b>, Error> {
    let Some((code, rest)) = message.payload.split_first_chunk::<4>() else {
        // The kernel may end a successful dump with an empty message.
        return if message.message_type == NLMSG_ERROR {
            Err(Error::Malformed {
                what: "acknowledgement: shorter than an error number",
            })
        } else {
            Ok(Acknowledgement {
                outcome: Ok(None),
                echo: &[],
            })
        };
    };
    let mut echo: &[u8] = &[];
    let mut details = rest;
    if message.message_type == NLMSG_ERROR {
        let (header, after_header) = rest.split_at_checked(HEADER_LENGTH).ok_or(Error::Malformed {
            what: "acknowledgement: the request's header is truncated",
        })?;
        details = after_header;
        if message.flags & NLM_F_CAPPED == 0 {
            let [l0, l1, l2, l3, ..] = *header else {
                return Err(Error::Malformed {
                    what: "acknowledgement: the request's header is truncated",
                });
            };
            let length = (u32::from_ne_bytes([l0, l1, l2, l3]) as usize).saturating_sub(HEADER_LENGTH);
            echo = after_header.get(..length).unwrap_or(after_header);
            details = after_header.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        }
    }
    let code = i32::from_ne_bytes(*code);
    let mut refusal = Refusal::new(Errno(code.checked_neg().unwrap_or(i32::MAX)));
    if message.flags & NLM_F_ACK_TLVS != 0 {
        // They only explain the outcome: an invalid one is ignored.
        for attribute in AttributeReader::new(details).flatten() {
            match attribute.kind() {
                NLMSGERR_ATTR_MSG => refusal.message = Some(text(attribute.bytes())),
                NLMSGERR_ATTR_OFFS => refusal.offset = attribute.ne_u32().ok(),
                NLMSGERR_ATTR_MISS_TYPE => refusal.missing_attribute = attribute.ne_u32().ok(),
                _ => {}
            }
        }
    }
    let outcome = if code == 0 {
        Ok(refusal.message)
    } else {
        Err(refusal)
    };
    Ok(Acknowledgement { outcome, echo })
}

/// The kernel's text up to the NUL. It can contain names, which may be any bytes.
fn text(bytes: &[u8]) -> Box<str> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or(bytes)).into()
}
