//! What the agent does, from the command line and kube-proxy's configuration file.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use kernlink_kubernetes::kube_proxy_config::{KubeProxyConfiguration, Override, OverrideValue, read_with};
use kernlink_proxier::ipvs_mode::Config;

use crate::flags::Flags;

/// The settings of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The configuration in effect in the form of kube-proxy's file, with the values of flags and the node name.
    pub file: KubeProxyConfiguration,
    /// The configuration of IPVS mode.
    pub config: Config,
    /// The folder of manifests.
    pub folder: PathBuf,
    /// The address of `/healthz` and `/livez`. `None`: no server.
    pub healthz: Option<SocketAddr>,
    /// The address of the metrics server. `None`: no server.
    pub metrics: Option<SocketAddr>,
}

/// The configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSettings {
    /// What is invalid, at least one.
    pub problems: Vec<String>,
}

impl fmt::Display for InvalidSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid configuration: {}", self.problems.join("; "))
    }
}

impl std::error::Error for InvalidSettings {}

/// A file without fields.
const EMPTY_FILE: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

impl Settings {
    /// Reads the configuration file and applies the flags. A flag takes precedence over the file, unlike in kube-proxy, which ignores most
    /// flags if there is a file.
    ///
    /// # Errors
    /// Everything that is invalid.
    pub fn new(flags: &Flags) -> Result<Self, InvalidSettings> {
        let mut file = read_file(flags)?;
        if file.mode.is_empty() {
            "ipvs".clone_into(&mut file.mode);
        }
        let mut problems = Vec::new();
        if file.mode != "ipvs" {
            let field = name_of("mode", flags);
            problems.push(format!(
                "{field}: {:?} is not supported; supported: ipvs",
                file.mode
            ));
        }
        if file.hostname_override.is_empty() {
            match nix::unistd::gethostname().map(|name| name.to_string_lossy().trim().to_lowercase()) {
                Ok(name) if !name.is_empty() => file.hostname_override = name,
                _ => problems.push("--node-name: is missing, and the host has no name".to_owned()),
            }
        }
        let folder = flags.watch.clone().unwrap_or_default();
        if flags.watch.is_none() && flags.action.needs_folder() {
            problems.push("--watch: is missing; expected a folder of manifests".to_owned());
        }
        let invalid = |field: &str, problem: &str| format!("{}: {problem}", name_of(field, flags));
        let mut config = match Config::from_kube_proxy(&file) {
            Ok(config) => config,
            Err(error) => {
                problems.extend(
                    error
                        .problems
                        .iter()
                        .map(|(field, problem)| invalid(field, problem)),
                );
                return Err(InvalidSettings { problems });
            }
        };
        config.services.node_ips.clone_from(&flags.node_ips);
        config.services.pod_cidrs.clone_from(&flags.pod_cidrs);
        config.services.zone = flags.zone.as_deref().map(Into::into);
        if !flags.families.is_empty() {
            config.services.families = flags.families.iter().copied().collect();
        }
        if let Some(first) = &flags.first_services {
            config.first_services.clone_from(first);
        }
        if let Err(error) = config.validate() {
            problems.extend(
                error
                    .problems
                    .iter()
                    .map(|(field, problem)| invalid(field, problem)),
            );
        }
        if !problems.is_empty() {
            return Err(InvalidSettings { problems });
        }
        Ok(Self {
            healthz: flags.has_healthz.then_some(file.healthz_bind_address),
            metrics: flags.has_metrics.then_some(file.metrics_bind_address),
            file,
            config,
            folder,
        })
    }
}

fn read_file(flags: &Flags) -> Result<KubeProxyConfiguration, InvalidSettings> {
    let (name, text) = match &flags.config {
        None => ("command line".to_owned(), EMPTY_FILE.to_owned()),
        Some(path) => {
            let text = fs::read_to_string(path).map_err(|error| InvalidSettings {
                problems: vec![format!("cannot read {}: {error}", path.display())],
            })?;
            (path.display().to_string(), text)
        }
    };
    let overrides: Vec<Override<'_>> = flags
        .overrides
        .iter()
        // kube-proxy has the default then.
        .filter(|(_, value)| *value != OverrideValue::Text(String::new()))
        .map(|(flag, value)| Override {
            field: flag.field,
            value: value.clone(),
        })
        .collect();
    read_with(&name, &text, &overrides).map_err(|error| InvalidSettings {
        problems: error
            .problems
            .iter()
            .map(|problem| {
                let field = name_of(&problem.field, flags);
                if field == problem.field {
                    format!("{name}: {problem}")
                } else {
                    format!("{field}: {}", problem.reason)
                }
            })
            .collect(),
    })
}

/// The flag that gave a field its value, otherwise the field.
fn name_of(field: &str, flags: &Flags) -> String {
    let of_field = |name: &str| {
        let rest = field.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
    };
    let flag = flags.overrides.iter().find(|(flag, _)| of_field(flag.field));
    flag.map_or_else(|| field.to_owned(), |(flag, _)| format!("--{}", flag.name))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::time::Duration;

    use kernlink_services::{Family, ObjectName};

    use super::*;

    fn settings(line: &str) -> Result<Settings, String> {
        let flags = Flags::parse(line.split_whitespace().map(OsString::from)).unwrap();
        Settings::new(&flags).map_err(|error| error.to_string())
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, format!("{EMPTY_FILE}{text}")).unwrap();
        file
    }

    #[test]
    fn flags_take_precedence_over_the_file() {
        let file = file(
            "hostnameOverride: node-a\nipvs: {scheduler: lc, syncPeriod: 1m}\nhealthzBindAddress: 127.0.0.1:1\n",
        );
        let line = format!(
            "--watch /m --config {} --ipvs-scheduler wrr --node-ip 192.0.2.1 --zone z --ip-families ipv4 --first-services a/b",
            file.path().display()
        );
        let settings = settings(&line).unwrap();
        assert_eq!(settings.config.defaults.scheduler.to_string(), "wrr");
        assert_eq!(settings.config.sync_period, Duration::from_secs(60));
        let services = &settings.config.services;
        assert_eq!(
            (&*services.node_name, services.zone.as_deref()),
            ("node-a", Some("z"))
        );
        assert_eq!(services.families, [Family::Ipv4].into());
        assert_eq!(settings.config.first_services, [ObjectName::new("a", "b")]);
        assert_eq!(settings.healthz, "127.0.0.1:1".parse().ok());
        assert_eq!(settings.file.mode, "ipvs");
    }

    #[test]
    fn without_a_file_the_defaults_of_kube_proxy_apply() {
        let settings =
            settings("--watch /m --node-name N --metrics-bind-address none --healthz-bind-address=").unwrap();
        assert_eq!(
            &*settings.config.services.node_name, "n",
            "in lower case, as in kube-proxy"
        );
        assert_eq!(settings.healthz, "0.0.0.0:10256".parse().ok());
        assert_eq!(settings.metrics, None);
        assert_eq!(settings.config.conntrack.min, 131_072);
    }

    #[test]
    fn everything_invalid_is_reported_with_the_flag_or_the_field() {
        let file = file("clusterCIDR: x\nmode: ipvs\n");
        let path = file.path().display();
        let error = settings(&format!(
            "--config {path} --ipvs-tcp-timeout 5 --ipvs-exclude-cidrs 1.2.3.4/8,y"
        ))
        .unwrap_err();
        assert!(
            error.contains(&format!("{path}: clusterCIDR: must be")),
            "{error}"
        );
        assert!(
            error.contains(" --ipvs-tcp-timeout: \"5\" is not a duration"),
            "{error}"
        );
        assert!(
            error.contains(" --ipvs-exclude-cidrs: must be a valid CIDR"),
            "{error}"
        );
        let error = settings("--node-name n --ipvs-scheduler nonsense").unwrap_err();
        assert!(error.contains("--watch: is missing"), "{error}");
        assert!(error.contains(" --ipvs-scheduler: \"nonsense\""), "{error}");
        let error = settings("--watch /m --proxy-mode nftables").unwrap_err();
        assert!(
            error.contains("--proxy-mode: \"nftables\" is not supported; supported: ipvs"),
            "{error}"
        );
        let error = settings("--watch /m --config /nonexistent/c").unwrap_err();
        assert!(error.contains("cannot read /nonexistent/c: "), "{error}");
    }
}
