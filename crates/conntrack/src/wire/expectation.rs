//! Expectations.

use std::time::Duration;

use kernlink_netlink::{AttributeReader, AttributeWriter, Error, netfilter};

use super::tuple::{read_tuple, write_tuple};
use super::{family_number, header, text};
use crate::expectation::{Expectation, ExpectationFlags, NewExpectation};
use crate::uapi::*;
use crate::zone::Zone;

pub(crate) fn write_new_expectation(w: &mut AttributeWriter<'_>, new: &NewExpectation) {
    header(w, family_number(new.tuple.family()));
    write_tuple(w, CTA_EXPECT_MASTER, &new.master, None);
    write_tuple(w, CTA_EXPECT_TUPLE, &new.tuple, None);
    write_tuple(w, CTA_EXPECT_MASK, &new.mask, None);
    if new.zone != 0 {
        w.be_u16(CTA_EXPECT_ZONE, new.zone);
    }
    // The kernel ignores the timeout when it adds an expectation.
    if let Some(timeout) = new.timeout {
        w.be_u32(
            CTA_EXPECT_TIMEOUT,
            u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX),
        );
    }
    if let Some(helper) = &new.helper {
        w.string(CTA_EXPECT_HELP_NAME, helper);
    }
    if !new.flags.is_empty() {
        w.be_u32(CTA_EXPECT_FLAGS, new.flags.bits());
    }
    if new.class != 0 {
        w.be_u32(CTA_EXPECT_CLASS, new.class);
    }
}

/// Always with a tuple: without one, the kernel deletes all expectations.
pub(crate) fn write_expectation_key(w: &mut AttributeWriter<'_>, expectation: &Expectation) {
    header(w, family_number(expectation.tuple.family()));
    write_tuple(w, CTA_EXPECT_TUPLE, &expectation.tuple, None);
    if expectation.zone.id != 0 {
        w.be_u16(CTA_EXPECT_ZONE, expectation.zone.id);
    }
    if expectation.id != 0 {
        w.be_u32(CTA_EXPECT_ID, expectation.id);
    }
}

/// Reads an expectation from the payload of a message.
pub(crate) fn read_expectation(payload: &[u8]) -> Result<Expectation, Error> {
    let mut tuples = [None; 3];
    let mut zone = Zone::DEFAULT;
    let mut timeout = None;
    let mut id = 0;
    let mut helper = None;
    let mut flags = ExpectationFlags::empty();
    let mut class = 0;
    let mut function = None;
    for attribute in AttributeReader::after_header(payload, netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_EXPECT_MASTER => tuples[0] = Some(read_tuple(&attribute)?.0),
            CTA_EXPECT_TUPLE => tuples[1] = Some(read_tuple(&attribute)?.0),
            CTA_EXPECT_MASK => tuples[2] = Some(read_tuple(&attribute)?.0),
            CTA_EXPECT_TIMEOUT => timeout = Some(Duration::from_secs(attribute.be_u32()?.into())),
            CTA_EXPECT_ID => id = attribute.be_u32()?,
            CTA_EXPECT_HELP_NAME => helper = Some(text(&attribute)),
            CTA_EXPECT_ZONE => zone = Zone::new(attribute.be_u16()?),
            CTA_EXPECT_FLAGS => flags = ExpectationFlags::from_bits_retain(attribute.be_u32()?),
            CTA_EXPECT_CLASS => class = attribute.be_u32()?,
            CTA_EXPECT_FN => function = Some(text(&attribute)),
            _ => {}
        }
    }
    let [Some(master), Some(tuple), Some(mask)] = tuples else {
        return Err(Error::Malformed {
            what: "expectation: missing master, tuple or mask",
        });
    };
    Ok(Expectation {
        master,
        tuple,
        mask,
        zone,
        timeout,
        id,
        helper,
        flags,
        class,
        function,
    })
}
