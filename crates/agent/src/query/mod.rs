//! Questions to the running agent, over a Unix socket: what it does, which frontends it serves, and why one is served or not.
//!
//! | module | what it does |
//! | --- | --- |
//! | `documents` | the answers |
//! | `socket` | where the socket is, and who may connect |
//! | `server` | HTTP on the socket |
//! | `worker` | the thread that reads the proxier and the kernel |
//! | `overview`, `services`, `explain`, `support` | the answers to each question |
//! | `status` | what a status of any mode has, and what a sync leaves |
//! | `log_level` | the level of the log, and its changes |
//! | `parameters` | the parameters of questions |
//!
//! Root, and the user that the agent has, may change the level of the log; nothing else can be changed.
//!
//! A status needs the lock of the state only, so it is also answered while a sync takes long. Everything else reads the proxier between two
//! syncs, in short parts, and the kernel on a thread of its own; if a sync in progress takes too long, the answer names that.

pub(crate) mod documents;
pub(crate) mod explain;
pub(crate) mod log_level;
mod overview;
mod parameters;
pub(crate) mod server;
pub(crate) mod services;
pub(crate) mod socket;
pub(crate) mod status;
pub(crate) mod support;
pub(crate) mod time;
pub(crate) mod worker;
