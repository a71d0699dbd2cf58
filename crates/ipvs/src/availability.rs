//! What the running kernel supports.

use kernlink_base::Modules;

use crate::info::Info;
use crate::scheduler::Scheduler;

/// What the running kernel's IPVS supports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Support {
    /// The kernel release, as `uname -r` prints it.
    pub release: String,
    /// IPVS version and table size.
    pub info: Info,
    /// Every scheduler of [`Scheduler::KNOWN`], in that order, and whether it is available.
    pub schedulers: Vec<(Scheduler, Availability)>,
}

/// Whether a kernel module is available.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Availability {
    /// It is loaded or built in.
    Loaded,
    /// It is installed. The kernel loads it on first use, except those that [`Client`](crate::Client) must load before, see
    /// [Modules](crate::Scheduler#modules).
    Loadable,
    /// It is neither loaded nor installed. Remedy: install the kernel's full module package, or use a kernel built with it.
    Missing,
    /// It is not loaded, and the kernel's module directory is not visible.
    Unknown,
}

impl Availability {
    /// Whether it is loaded or can be loaded.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        matches!(self, Self::Loaded | Self::Loadable)
    }

    /// The availability of a module, from the kernel's list of loaded modules and its module directory.
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
