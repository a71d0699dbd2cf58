//! The notation of `nft`.

mod effect;
mod field;
mod form;
mod header;
mod object;
mod operand;
mod operation;
mod priority;
mod protocols;
mod rule;
mod ruleset;
mod set;
mod stateful;
mod value;

pub use self::operation::Commands;
pub(crate) use self::operation::{Brief, OneElement};
