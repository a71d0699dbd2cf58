//! Accounting objects of netfilter, which count the packets of the rules that name them
//! ([`nfnetlink_acct.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netfilter/nfnetlink_acct.h)).

use crate::flags::{NLM_F_CREATE, NLM_F_EXCL};
use crate::{AttributeWriter, Connection, Error, Message, netfilter};

/// The longest name of an object, in bytes.
#[doc(alias = "NFACCT_NAME_MAX")]
pub const NAME_LIMIT: usize = 31;

const NFNL_MSG_ACCT_NEW: u8 = 0;
const NFNL_MSG_ACCT_GET: u8 = 1;

const NFACCT_NAME: u16 = 1;
const NFACCT_PKTS: u16 = 2;
const NFACCT_BYTES: u16 = 3;

/// An accounting object. It belongs to a network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccountingObject {
    /// Its name.
    pub name: Box<str>,
    /// Packets that matched a rule with it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Creates an object that counts from 0, on a connection of [`Protocol::Netfilter`](crate::Protocol::Netfilter). `nfacct add NAME`.
///
/// # Errors
/// [`Error::Refused`]: with `EEXIST` if it exists, with `EINVAL` if the kernel does not have the module `nfnetlink_acct`.
#[doc(alias = "nfacct")]
pub fn add(connection: &mut Connection, name: &str) -> Result<(), Error> {
    let message_type = netfilter::message_type(netfilter::NFNL_SUBSYS_ACCT, NFNL_MSG_ACCT_NEW);
    connection.execute_one(message_type, NLM_F_CREATE | NLM_F_EXCL, |writer| {
        write(writer, name)
    })
}

/// Reads an object. Its counters are not reset. `nfacct get NAME`.
///
/// # Errors
/// [`Error::Refused`]: with `ENOENT` if it does not exist, with `EINVAL` if the kernel does not have the module `nfnetlink_acct`.
pub fn read(connection: &mut Connection, name: &str) -> Result<Option<AccountingObject>, Error> {
    let message_type = netfilter::message_type(netfilter::NFNL_SUBSYS_ACCT, NFNL_MSG_ACCT_GET);
    let found = connection.request(message_type, 0, |writer| write(writer, name), decode)?;
    Ok(found.into_iter().next())
}

fn write(writer: &mut AttributeWriter<'_>, name: &str) {
    writer.header(&netfilter::Header::new(0).to_bytes());
    writer.string(NFACCT_NAME, name);
}

fn decode(message: Message<'_>) -> Result<Option<AccountingObject>, Error> {
    let mut name = None;
    let (mut packets, mut bytes) = (0, 0);
    for attribute in message.attributes(netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        match attribute.kind() {
            NFACCT_NAME => name = Some(attribute.string()?.into()),
            NFACCT_PKTS => packets = attribute.be_u64()?,
            NFACCT_BYTES => bytes = attribute.be_u64()?,
            _ => {}
        }
    }
    let name = name.ok_or(Error::Malformed {
        what: "accounting object: no name",
    })?;
    Ok(Some(AccountingObject { name, packets, bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::take_message;

    /// The answer of Linux 6.18 for an object, with counters other than 0.
    const ANSWER: &str = "580000000007020001000000ba7100000000000022000100 63745f73746174655f696e76616c69645f64726f707065645f706b7473000000 \
                          0c000200000000000000000c 0c00030000000000000203e8 0800040000000001";

    #[test]
    fn an_answer_of_the_kernel_is_decoded() {
        let digits: Vec<char> = ANSWER.chars().filter(char::is_ascii_hexdigit).collect();
        let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
        let datagram: Vec<u8> = digits.chunks(2).map(byte).collect();
        let mut rest = &datagram[..];
        let message = take_message(&mut rest).unwrap().unwrap();
        let object = decode(message).unwrap().unwrap();
        assert_eq!(&*object.name, "ct_state_invalid_dropped_pkts");
        assert_eq!((object.packets, object.bytes), (12, 132_072));
    }
}
