//! The notation of `nft`.

mod comparison;
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
mod type_of;
mod value;
mod view;

pub use self::operation::Commands;
pub(crate) use self::operation::{Brief, OneElement};
pub use self::ruleset::Listing;
