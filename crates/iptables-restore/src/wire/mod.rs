//! The text form of rules and rule sets: parsing and rendering.

pub(crate) mod options;
mod parse;
pub(crate) mod parse_lenient;
pub(crate) mod render;
mod rule;
pub(crate) mod token;
