//! The modes: the one place that chooses among them.
//!
//! Each mode is a data path and a [`Retire`] of its own. The agent runs the data path of the configured mode, and passes it the others as retiring
//! modes, which remove what they left (`kernlink_proxier::handover`). A new mode is a variant of [`Mode`] and [`Config`], an
//! implementation of [`Served`], an arm of `in_mode`, and a line in [`retire_all`].

mod config;
mod listing;
mod mode;
mod objects;
mod query;
mod running;
mod served;
mod settings;

#[cfg(test)]
mod tests;

use kernlink_base::ErrorChain;
use kernlink_proxier::host::IPVS_LINK;
use kernlink_proxier::iptables_mode;
use kernlink_proxier::ipvs_mode;
use kernlink_proxier::ipvs_mode::dummylink;
use kernlink_proxier::ipvs_mode::iptables_restore::Client;
use kernlink_proxier::nftables_mode;
use kernlink_proxier::retire::Retire;
use kernlink_userspace::data_path as userspace;

pub use self::config::Config;
pub(crate) use self::config::in_mode;
pub use self::listing::{Desired, Listings};
pub use self::mode::{Mode, UnknownMode};
pub use self::objects::Find;
pub(crate) use self::query::AnyProxier;
pub(crate) use self::running::{AnyRunner, AnyStatus, no_status, set_config};
pub use self::served::{OpenError, Opened, Served};
pub use self::settings::{AfterIpvs, IptablesConfig, NftablesConfig, UserspaceConfig};

/// Something that is done in the configured mode.
pub(crate) trait Task {
    type Output;

    fn run<M: Served>(self, settings: &M::Settings) -> Self::Output;
}

/// Does something in the configured mode.
pub(crate) fn run<T: Task>(config: &Config, task: T) -> T::Output {
    in_mode!(config, |M, settings| task.run::<M>(settings))
}

/// The kernel modules that the rules and objects of the configured mode use.
pub(crate) fn modules_of(config: &Config) -> &'static [&'static str] {
    in_mode!(config, |M, _settings| M::MODULES)
}

/// A mode on a node that it does not serve.
pub type Retiring = (Mode, Box<dyn Retire>);

/// Every mode on a node that it does not serve, in the order in which they retire. IPVS mode is first, since its link, and no name of
/// a chain, is the notice that anything of it is left. No kernel API is opened that loads a module.
///
/// # Errors
/// The first API that cannot be opened.
pub fn retire_all(config: &Config) -> Result<Vec<Retiring>, OpenError> {
    let links = dummylink::Client::open().map_err(OpenError::of)?;
    let tables = nftables_mode::nftables::Client::open().map_err(OpenError::of)?;
    let ipvs = ipvs_mode::retire::Retiring::new(config.retiring_ipvs(), Box::new(links));
    Ok(vec![
        (Mode::Ipvs, Box::new(ipvs.map_err(OpenError::of)?)),
        (
            Mode::Iptables,
            Box::new(iptables_mode::retire::Retiring::new(Box::new(Client::new()))),
        ),
        (
            Mode::Nftables,
            Box::new(nftables_mode::retire::Retiring::new(Box::new(tables))),
        ),
        (
            Mode::Userspace,
            Box::new(userspace::retire::Retiring::new(Box::new(Client::new()))),
        ),
    ])
}

/// All modes except the configured one.
///
/// # Errors
/// As [`retire_all`].
pub fn retiring(config: &Config) -> Result<Vec<Box<dyn Retire>>, OpenError> {
    let all = retire_all(config)?.into_iter();
    let others = all.filter(|(mode, _)| *mode != config.mode());
    Ok(others.map(|(_, retiring)| retiring).collect())
}

/// Whether the kernel has objects that serve Services, in any mode. No module is loaded for it.
///
/// # Errors
/// What could not be read.
pub fn has_services(config: &Config) -> Result<bool, String> {
    let all = retire_all(config).map_err(|error| ErrorChain(&error).to_string())?;
    let mut problem = None;
    for (_, mut mode) in all {
        match mode.is_serving() {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => _ = problem.get_or_insert(error),
        }
    }
    problem.map_or(Ok(false), Err)
}

/// Whether the link of IPVS mode exists, which a node keeps as long as anything of this mode is left. No module is loaded for it.
///
/// # Errors
/// If the links cannot be read.
pub fn has_ipvs_link() -> Result<bool, OpenError> {
    use kernlink_proxier::ipvs_mode::dummylink::{DummyLinks, LinkName};
    let link = LinkName::new(IPVS_LINK).map_err(OpenError::of)?;
    let mut links = dummylink::Client::open().map_err(OpenError::of)?;
    links.exists(&link).map_err(OpenError::of)
}
