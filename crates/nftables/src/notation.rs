//! The notation of `nft`.

mod operation;
mod rule;
mod ruleset;
mod set;
mod value;

pub(crate) use self::operation::{Brief, OneElement};
