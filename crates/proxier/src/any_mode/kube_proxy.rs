//! The configuration from kube-proxy's configuration file.

use kernlink_kubernetes::kube_proxy_config::KubeProxyConfiguration;

use super::config::Config;
use super::mode::{Mode, UnknownMode};
use crate::error::InvalidConfig;
use crate::{iptables_mode, ipvs_mode};

impl Config {
    /// The configuration in a file of kube-proxy, in the mode that its field `mode` names; empty is `iptables`. The node name is
    /// `hostnameOverride`. Without that field it is empty, and no endpoint is local: set
    /// [`node_name`](kernlink_services::Config::node_name) then.
    ///
    /// # Errors
    /// A mode that is not supported, such as `nftables`, and every value that the mode cannot use.
    pub fn from_kube_proxy(file: &KubeProxyConfiguration) -> Result<Self, InvalidConfig> {
        match file.mode.parse() {
            Ok(Mode::Ipvs) => ipvs_mode::Config::from_kube_proxy(file).map(Config::Ipvs),
            Ok(Mode::Iptables) => iptables_mode::Config::from_kube_proxy(file).map(Config::Iptables),
            Err(error) => {
                let error: UnknownMode = error;
                Err(InvalidConfig {
                    problems: vec![("mode", error.to_string())],
                })
            }
        }
    }
}
