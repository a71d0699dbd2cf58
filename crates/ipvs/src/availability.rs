//! What the running kernel can do, and what to do about the rest.

use crate::info::Info;
use crate::modules::Modules;
use crate::scheduler::Scheduler;

/// What the running kernel's IPVS can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Support {
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
    /// Version and table size.
    pub info: Info,
    /// Every scheduler of [`Scheduler::KNOWN`], in that order, and whether it can be had.
    pub schedulers: Vec<(Scheduler, Availability)>,
}

/// Whether a kernel module can be had.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Availability {
    /// It is in the kernel.
    Loaded,
    /// It is on disk; the kernel loads it on first use.
    Loadable,
    /// It is neither in the kernel nor on disk: install the kernel's full module package, or take a kernel built with it.
    Missing,
    /// It is not in the kernel, and this file system does not show the kernel's modules.
    Unknown,
}

impl Availability {
    /// Whether the kernel can be expected to have it when asked.
    pub fn is_usable(&self) -> bool {
        matches!(self, Self::Loaded | Self::Loadable)
    }

    /// Whether a module can be had, by the kernel's list of loaded modules and its module directory.
    pub(crate) fn of(module: &str, modules: &Modules) -> Self {
        if modules.is_loaded(module) {
            Self::Loaded
        } else {
            match modules.is_on_disk(module) {
                Some(true) => Self::Loadable,
                Some(false) => Self::Missing,
                None => Self::Unknown,
            }
        }
    }
}
