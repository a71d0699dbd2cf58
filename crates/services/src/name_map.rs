//! Maps by object name.
//!
//! Every object is looked up by its name several times on its way to the desired state. The standard library's hash (SipHash)
//! took a fifth of the time that building it takes; this one is faster, and has random keys as well, since whoever can name
//! objects must not be able to choose names that fall together.

use std::collections::{HashMap, HashSet};

use foldhash::quality::RandomState;

use crate::source::ObjectName;

/// Values by the name of an object.
pub type NameMap<T> = HashMap<ObjectName, T, RandomState>;

/// Names of objects.
pub type NameSet<N = ObjectName> = HashSet<N, RandomState>;
