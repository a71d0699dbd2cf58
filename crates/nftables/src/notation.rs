//! The notation of `nft`.

mod object;
mod operation;
mod priority;
mod rule;
mod ruleset;
mod set;
mod value;

pub use self::operation::Commands;
pub(crate) use self::operation::{Brief, OneElement};
