//! The text form of rules and rule sets: parsing and rendering.

pub(crate) mod options;
pub(crate) mod parse;
pub(crate) mod parse_lenient;
pub(crate) mod render;
pub(crate) mod token;
