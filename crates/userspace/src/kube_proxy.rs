//! The configuration from kube-proxy's configuration file.

use kernlink_engine::error::InvalidConfig;
use kernlink_host::services_from_kube_proxy;
use kernlink_kubernetes::kube_proxy_config::KubeProxyConfiguration;

use crate::data_path::Config;
use crate::flows::FlowTimeouts;
use crate::limits::Limits;

impl Config {
    /// The configuration in a file of kube-proxy of any mode, with the fields that kube-proxy 1.25 used in userspace mode, and those about
    /// Services of later versions. The node name is `hostnameOverride`. Without that field it is empty, and no endpoint is local: set
    /// [`node_name`](kernlink_services::Config::node_name) then.
    ///
    /// # Errors
    /// Every value that userspace mode cannot use.
    pub fn from_kube_proxy(file: &KubeProxyConfiguration) -> Result<Self, InvalidConfig> {
        let mut problems = Vec::new();
        let mut config = Config::new("");
        config.services = services_from_kube_proxy(file);
        config.sync_period = file.iptables.sync_period;
        config.min_sync_period = file.iptables.min_sync_period;
        match file.port_range.as_str() {
            "" | "0" | "0-0" => {}
            text => match text.parse() {
                Ok(range) => config.port_range = range,
                Err(error) => problems.push(("portRange", format!("{error}"))),
            },
        }
        if let Some(address) = file.bind_address.filter(|address| address.is_loopback()) {
            let problem = format!(
                "{address} is a loopback address; valid in userspace mode: another address of this node, or empty"
            );
            problems.push(("bindAddress", problem));
        }
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(InvalidConfig { problems })
        }
    }
}

impl Limits {
    /// The limits in a file of kube-proxy: `udpIdleTimeout` for flows with and without a reply. 0 is the default of [`FlowTimeouts`].
    #[must_use]
    pub fn from_kube_proxy(file: &KubeProxyConfiguration) -> Self {
        let mut limits = Limits::default();
        if !file.udp_idle_timeout.is_zero() {
            limits.flow_timeouts = FlowTimeouts {
                first_reply: file.udp_idle_timeout,
                idle: file.udp_idle_timeout,
            };
        }
        limits
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kernlink_kubernetes::kube_proxy_config::read;

    use super::*;

    fn file(fields: &str) -> KubeProxyConfiguration {
        let head =
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: userspace\n";
        let file = read("f", &format!("{head}{fields}")).unwrap();
        assert_eq!(file.warnings, []);
        file
    }

    #[test]
    fn the_fields_of_the_mode_are_used() {
        // As kubeadm 1.25 writes it.
        let kubeadm = file("portRange: \"\"\nudpIdleTimeout: 0s\nhostnameOverride: node-a\n");
        let config = Config::from_kube_proxy(&kubeadm).unwrap();
        let mut expected = Config::new("node-a");
        expected.services = config.services.clone();
        assert_eq!(config, expected);
        assert_eq!(&*config.services.node_name, "node-a");
        assert_eq!(Limits::from_kube_proxy(&kubeadm), Limits::default());

        let other = file(
            "portRange: 300+20\nudpIdleTimeout: 123ms\nbindAddress: 192.0.2.10\niptables: {syncPeriod: 9s, minSyncPeriod: 3s}\n",
        );
        let config = Config::from_kube_proxy(&other).unwrap();
        assert_eq!((config.port_range.first(), config.port_range.last()), (300, 320));
        assert_eq!(config.services.bind_address, "192.0.2.10".parse().ok());
        assert_eq!(config.intervals().max, Duration::from_secs(9));
        assert_eq!(config.intervals().min, Duration::from_secs(3));
        let timeout = Duration::from_millis(123);
        let timeouts = Limits::from_kube_proxy(&other).flow_timeouts;
        assert_eq!((timeouts.first_reply, timeouts.idle), (timeout, timeout));
        for range in ["0", "0-0"] {
            let config = Config::from_kube_proxy(&file(&format!("portRange: \"{range}\"\n"))).unwrap();
            assert_eq!(config.port_range, crate::PortRange::default());
        }
    }

    #[test]
    fn invalid_values_are_reported_with_their_fields() {
        let error = Config::from_kube_proxy(&file("portRange: 9-2\nbindAddress: 127.0.0.2\n")).unwrap_err();
        let fields: Vec<&str> = error.problems.iter().map(|(field, _)| *field).collect();
        assert_eq!(fields, ["portRange", "bindAddress"]);
        let head =
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: userspace\n";
        let error = read("f", &format!("{head}udpIdleTimeout: -1s\n")).unwrap_err();
        assert!(
            error.to_string().contains("udpIdleTimeout: must be greater than"),
            "{error}"
        );
    }
}
