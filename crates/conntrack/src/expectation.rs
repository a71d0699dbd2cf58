//! Connections that a helper has announced.

use std::fmt;
use std::time::Duration;

use crate::tuple::{Tuple, Zone};

bitflags::bitflags! {
    /// What kind of expectation it is.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct ExpectationFlags: u32 {
        /// Stays when it is met.
        #[doc(alias = "NF_CT_EXPECT_PERMANENT")]
        const PERMANENT = 1;
        /// Not to be met yet.
        #[doc(alias = "NF_CT_EXPECT_INACTIVE")]
        const INACTIVE = 2;
        /// Made by a program.
        #[doc(alias = "NF_CT_EXPECT_USERSPACE")]
        const USERSPACE = 4;
        /// Bits that have no name yet.
        const _ = !0;
    }
}

/// A connection that another one has announced, such as the data connection of FTP
/// (`conntrack -L expect`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expectation {
    /// Original tuple of the flow that announced it.
    pub master: Tuple,
    /// What is expected.
    pub tuple: Tuple,
    /// Which bits of what is expected must fit: 0 in a port means any.
    pub mask: Tuple,
    /// The zone.
    pub zone: Zone,
    /// Whole seconds for which it is expected; `None` for ever.
    pub timeout: Option<Duration>,
    /// Number of the expectation. Linux 6.1 tells another one in news than in listings.
    pub id: u32,
    /// Name of the helper that the new flow will get.
    pub helper: Option<Box<str>>,
    /// What kind of expectation it is.
    pub flags: ExpectationFlags,
    /// Class, in the helper's numbering.
    pub class: u32,
    /// Name of the function in the kernel that is called when it is met, where it has one.
    pub function: Option<Box<str>>,
}

impl fmt::Display for Expectation {
    /// As `conntrack -L expect` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.timeout {
            Some(timeout) => write!(f, "{} ", timeout.as_secs())?,
            None => f.write_str("- ")?,
        }
        write!(
            f,
            "proto={} {} mask-{} master-{}",
            self.tuple.protocol.0,
            self.tuple,
            second_prefixed("mask-", &self.mask),
            second_prefixed("master-", &self.master),
        )?;
        if self.zone != Zone::DEFAULT {
            write!(f, " zone={}", self.zone.id)?;
        }
        write!(f, " class={}", self.class)?;
        match &self.helper {
            Some(helper) => write!(f, " helper={helper}"),
            None => Ok(()),
        }
    }
}

/// The fields of a tuple, with a prefix before the second: the first gets it from where it stands, and ports
/// have none.
fn second_prefixed(prefix: &str, tuple: &Tuple) -> String {
    tuple.to_string().replacen(' ', &format!(" {prefix}"), 1)
}
