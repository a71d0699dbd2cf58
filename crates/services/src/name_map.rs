//! Hash maps and sets of object names.
//!
//! Objects are looked up by name several times in every update. The hash function is foldhash, which is faster than the standard
//! library's SipHash; SipHash took 20 % of the time of the first update. Its keys are random, so that names of objects cannot be chosen to
//! collide.

use std::collections::{HashMap, HashSet};

use foldhash::quality::RandomState;

use crate::source::ObjectName;

/// Values by object name.
pub type NameMap<T> = HashMap<ObjectName, T, RandomState>;

/// A set of object names.
pub type NameSet<N = ObjectName> = HashSet<N, RandomState>;
