//! The notation of `nft`.

mod operation;

pub(crate) use self::operation::{Brief, OneElement};
