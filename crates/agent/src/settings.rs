//! What the agent does, from the command line and kube-proxy's configuration file.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernlink_kubernetes::kube_proxy_config::{
    self, DetectLocalMode, KubeProxyConfiguration, Override, OverrideValue, read_with,
};

use crate::cluster::{self, Access};
use crate::configuration_file::ConfigurationFile;
use crate::flags::{Action, Flags, KubeProxyFlag};
use crate::modes::{Config, Mode};

/// The settings of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The configuration in effect in the form of kube-proxy's file, with the values of flags and the node name.
    pub file: KubeProxyConfiguration,
    /// The configuration of the mode.
    pub config: Config,
    /// The folder of manifests. `None`: the API server is the only source.
    pub folder: Option<PathBuf>,
    /// The API server. `None`: the folder is the only source.
    pub cluster: Option<cluster::Options>,
    /// The address of `/healthz` and `/livez`. `None`: no server.
    pub healthz: Option<SocketAddr>,
    /// The address of the metrics server. `None`: no server.
    pub metrics: Option<SocketAddr>,
    /// The Unix socket for questions to the agent. `None`: there is none.
    pub socket: Option<QuerySocket>,
    /// The flags of the command line with their values, for `/flagz`.
    pub flags: BTreeMap<String, String>,
    /// The configuration file as it was read. `None`: there is none.
    pub read_file: Option<ConfigurationFile>,
}

/// The Unix socket for questions to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuerySocket {
    /// Its path. `None`: that of the network namespace in `/run/kernlink`.
    pub path: Option<PathBuf>,
    /// The group whose members may connect, by name or number. `None`: only root may.
    pub group: Option<String>,
}

/// The configuration is invalid, or not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSettings {
    /// What is invalid, at least one.
    pub problems: Vec<String>,
    /// Whether the configuration file cannot be read or is empty. Another attempt may find it: the volume is not mounted yet, or a program
    /// is about to write the file.
    pub is_file_missing: bool,
}

impl InvalidSettings {
    fn new(problems: Vec<String>) -> Self {
        Self {
            problems,
            is_file_missing: false,
        }
    }

    fn without_file(problem: String) -> Self {
        Self {
            problems: vec![problem],
            is_file_missing: true,
        }
    }
}

impl fmt::Display for InvalidSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_file_missing {
            f.write_str("invalid configuration: ")?;
        }
        f.write_str(&self.problems.join("; "))
    }
}

impl std::error::Error for InvalidSettings {}

/// A file without fields.
const EMPTY_FILE: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

impl Settings {
    /// What has an effect, without where it was written.
    #[cfg(test)]
    pub(crate) fn without_origin(self) -> Self {
        Self {
            flags: BTreeMap::new(),
            read_file: None,
            ..self
        }
    }

    /// Reads the configuration file and applies the flags. A flag takes precedence over the file, unlike in kube-proxy, which ignores most
    /// flags if there is a file.
    ///
    /// # Errors
    /// Everything that is invalid.
    pub fn new(flags: &Flags) -> Result<Self, InvalidSettings> {
        let (mut file, read_file) = read_file(flags)?;
        let mut problems = Vec::new();
        if file.hostname_override.is_empty() {
            match nix::unistd::gethostname().map(|name| name.to_string_lossy().trim().to_lowercase()) {
                Ok(name) if !name.is_empty() => file.hostname_override = name,
                _ => problems.push("--node-name: is missing, and the host has no name".to_owned()),
            }
        }
        if let Some(verbosity) = flags.verbosity {
            file.log_verbosity = verbosity.into();
        }
        if flags.watch.len() > 1 {
            problems.push("--watch: given twice; valid: one folder".to_owned());
        }
        let access = access(flags, &file, &mut problems);
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
                return Err(InvalidSettings::new(problems));
            }
        };
        file.mode = config.mode().to_string();
        let services = config.services_mut();
        services.node_ips = flags.node_ips.concat();
        services.pod_cidrs = flags.pod_cidrs.concat();
        services.zone = flags.zone.as_deref().map(Into::into);
        let families = flags.families.concat();
        if !families.is_empty() {
            services.families = families.into_iter().collect();
        }
        if let (Some(first), Config::Ipvs(config)) = (&flags.first_services, &mut config) {
            config.first_services = first.concat();
        }
        if let Err(error) = config.validate() {
            problems.extend(
                error
                    .problems
                    .iter()
                    .map(|(field, problem)| invalid(field, problem)),
            );
        }
        if flags.action == Action::Once && config.mode() == Mode::Userspace {
            problems.push(
                "--once: is not possible in userspace mode: the listening ports end with the process"
                    .to_owned(),
            );
        }
        if !problems.is_empty() {
            return Err(InvalidSettings::new(problems));
        }
        let service_cidrs = config.service_cidrs_mut();
        let has_service_cidrs = service_cidrs.is_some();
        if access.is_some()
            && let Some(networks) = service_cidrs
        {
            // Until the objects are read.
            *networks = None;
        }
        let services = config.services();
        let cluster = access.map(|access| cluster::Options {
            access,
            node_name: Arc::clone(&services.node_name),
            service_proxy_name: services.service_proxy_name.clone(),
            has_all_nodes: flags.has_all_nodes,
            has_service_cidrs,
            needs_address: services.node_ips.is_empty(),
            needs_pod_cidr: services.pod_cidrs.is_empty()
                && file.detect_local_mode == DetectLocalMode::NodeCidr,
        });
        // That of the file, if there is no flag.
        let mut values = flags.given.0.clone();
        values.insert("v".to_owned(), file.log_verbosity.to_string());
        Ok(Self {
            healthz: file.healthz_bind_address,
            metrics: file.metrics_bind_address,
            socket: (flags.socket.as_deref() != Some(Path::new("none"))).then(|| QuerySocket {
                path: flags.socket.clone(),
                group: flags.socket_group.clone().filter(|group| !group.is_empty()),
            }),
            file,
            config,
            folder: flags.watch.first().cloned(),
            cluster,
            flags: values,
            read_file,
        })
    }
}

/// The API server: as in kube-proxy, that of the kubeconfig file or the address, otherwise that of the pod. With a folder, there is none
/// unless a flag or the configuration file names it.
fn access(flags: &Flags, file: &KubeProxyConfiguration, problems: &mut Vec<String>) -> Option<Access> {
    let kubeconfig = &file.client_connection.kubeconfig;
    let access = Access {
        kubeconfig: (!kubeconfig.is_empty()).then(|| kubeconfig.into()),
        // As in kube-proxy, an empty address has no effect.
        master: flags.master.clone().filter(|address| !address.is_empty()),
    };
    if access != Access::default() {
        if flags.is_in_cluster {
            problems.push(
                "--in-cluster: excludes --kubeconfig, clientConnection.kubeconfig and --master".to_owned(),
            );
        }
        return Some(access);
    }
    if flags.is_in_cluster {
        return Some(access);
    }
    if !flags.watch.is_empty() || !flags.action.needs_source() {
        return None;
    }
    if env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
        problems.push(
            "--watch: is missing, and so are --kubeconfig and --master; expected a folder of manifests or an API server, outside of a pod"
                .to_owned(),
        );
    }
    Some(access)
}

fn read_file(flags: &Flags) -> Result<(KubeProxyConfiguration, Option<ConfigurationFile>), InvalidSettings> {
    let mut read = None;
    let (name, text) = match &flags.config {
        None => ("command line".to_owned(), EMPTY_FILE.to_owned()),
        Some(path) => {
            let text = fs::read_to_string(path).map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData => InvalidSettings::new(vec![format!(
                    "cannot read {}: it is not UTF-8 text",
                    path.display()
                )]),
                _ => InvalidSettings::without_file(format!("cannot read {}: {error}", path.display())),
            })?;
            if text.trim().is_empty() {
                return Err(InvalidSettings::without_file(format!(
                    "{} is empty; expected a KubeProxyConfiguration",
                    path.display()
                )));
            }
            read = Some(ConfigurationFile::new(path, text.as_bytes()));
            (path.display().to_string(), text)
        }
    };
    // kube-proxy has the default for an empty text.
    let given = flags.overrides.0.iter();
    let given: Vec<_> = given
        .filter(|(_, value)| *value != OverrideValue::Text(String::new()))
        .collect();
    let mode = given.iter().find_map(|(flag, value)| match value {
        OverrideValue::Text(mode) if flag.field == "mode" => Some(mode.clone()),
        _ => None,
    });
    let mode = mode
        .or_else(|| kube_proxy_config::mode(&text))
        .unwrap_or_default();
    let overrides: Vec<Override<'_>> = given
        .iter()
        .map(|(flag, value)| Override {
            field: flag.field_in(&mode),
            value: value.clone(),
        })
        .collect();
    let configuration = read_with(&name, &text, &overrides).map_err(|error| {
        let problems = error.problems.iter().map(|problem| {
            let field = name_of(&problem.field, flags);
            if field == problem.field {
                format!("{name}: {problem}")
            } else {
                format!("{field}: {}", problem.reason)
            }
        });
        InvalidSettings::new(problems.collect())
    })?;
    Ok((configuration, read))
}

/// The flag that gave a field its value, or without a file could give it one; otherwise the field.
fn name_of(field: &str, flags: &Flags) -> String {
    let of_field = |name: &str| {
        let rest = field.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
    };
    let flag = flags
        .overrides
        .0
        .iter()
        .find(|(flag, _)| flag.fields().any(of_field));
    let flag = flag.map(|(flag, _)| *flag);
    let flag = flag.or_else(|| KubeProxyFlag::of_field(field).filter(|_| flags.config.is_none()));
    flag.map_or_else(|| field.to_owned(), |flag| format!("--{}", flag.name))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::time::Duration;

    use kernlink_services::{Family, ObjectName};

    use super::*;
    use crate::modes::IptablesConfig;

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
            "mode: ipvs\nhostnameOverride: node-a\nipvs: {scheduler: lc, syncPeriod: 1m}\nhealthzBindAddress: 127.0.0.1:1\n",
        );
        let line = format!(
            "--watch /m --config {} --ipvs-scheduler wrr --node-ip 192.0.2.1 --zone z --ip-families ipv4 --first-services a/b",
            file.path().display()
        );
        let settings = settings(&line).unwrap();
        let services = settings.config.services();
        assert_eq!(
            (&*services.node_name, services.zone.as_deref()),
            ("node-a", Some("z"))
        );
        assert_eq!(services.families, [Family::Ipv4].into());
        assert_eq!(settings.healthz, "127.0.0.1:1".parse().ok());
        assert_eq!(settings.file.mode, "ipvs");
        assert_eq!(settings.config.sync_period(), Duration::from_secs(60));
        let Config::Ipvs(config) = settings.config else {
            panic!("another mode")
        };
        assert_eq!(config.defaults.scheduler.to_string(), "wrr");
        assert_eq!(config.first_services, [ObjectName::new("a", "b")]);
    }

    #[test]
    fn the_networks_of_cluster_ips_are_not_known_before_the_api_server_is_read() {
        for (line, known) in [("--in-cluster", None), ("--watch /m", Some(Vec::new()))] {
            let line = format!("--node-name n --proxy-mode nftables {line}");
            let mut settings = settings(&line).unwrap();
            assert_eq!(
                settings.config.service_cidrs_mut(),
                Some(&mut known.clone()),
                "{line}"
            );
        }
    }

    #[test]
    fn the_mode_is_that_of_the_flag_or_the_file_and_that_of_kube_proxy_by_default() {
        let file = file("mode: ipvs\nhostnameOverride: node-a\n");
        let path = file.path().display();
        for (line, mode) in [
            ("--node-name n".to_owned(), "iptables"),
            ("--node-name n --proxy-mode=".to_owned(), "iptables"),
            ("--node-name n --proxy-mode ipvs".to_owned(), "ipvs"),
            (format!("--config {path}"), "ipvs"),
            (format!("--config {path} --proxy-mode iptables"), "iptables"),
        ] {
            let settings = settings(&format!("--watch /m {line}")).unwrap();
            assert_eq!(settings.file.mode, mode, "{line}");
            assert_eq!(settings.config.mode().to_string(), mode, "{line}");
        }
        let line = "--watch /m --node-name n --iptables-sync-period 10s --iptables-min-sync-period 2s \
                    --iptables-localhost-nodeports=false --ip-families ipv6";
        let settings = settings(line).unwrap();
        let Config::Iptables(IptablesConfig { config, .. }) = settings.config else {
            panic!("another mode")
        };
        assert_eq!(config.sync_period, Duration::from_secs(10));
        assert_eq!(config.min_sync_period, Duration::from_secs(2));
        assert!(!config.loopback_node_ports);
        assert_eq!(config.services.families, [Family::Ipv6].into());
    }

    #[test]
    fn without_a_file_the_defaults_of_kube_proxy_apply() {
        let settings =
            settings("--watch /m --node-name N --metrics-bind-address none --healthz-bind-address=").unwrap();
        assert_eq!(
            &*settings.config.services().node_name,
            "n",
            "in lower case, as in kube-proxy"
        );
        assert_eq!(settings.healthz, "0.0.0.0:10256".parse().ok());
        assert_eq!(settings.metrics, None);
        let Config::Iptables(IptablesConfig { config, .. }) = settings.config else {
            panic!("another mode")
        };
        assert_eq!(config.conntrack.min, 131_072);
    }

    #[test]
    fn what_services_may_request_is_restricted_by_flags_or_the_file() {
        let file = file(
            "mode: ipvs\nhostnameOverride: node-a\nipvs: {scheduler: wrr}
kernlink: {serviceAnnotations: [scheduler], serviceAnnotationNamespaces: [shop], serviceSchedulers: [lblc], ignoreExternalIPs: true}\n",
        );
        let of_file = settings(&format!("--watch /m --config {}", file.path().display())).unwrap();
        let of_flags = settings(
            "--watch /m --node-name node-a --proxy-mode ipvs --ipvs-scheduler wrr --service-annotations scheduler \
             --service-annotation-namespaces shop --service-schedulers lblc --ignore-external-ips",
        )
        .unwrap();
        assert_eq!(
            of_flags.clone().without_origin(),
            of_file.clone().without_origin()
        );
        let services = of_file.config.services();
        assert!(services.ignore_external_ips);
        assert!(services.annotations.permits("shop", "scheduler"));
        assert!(!services.annotations.permits("shop", "weights"));
        assert!(!services.annotations.permits("default", "scheduler"));
        let Config::Ipvs(config) = of_file.config else {
            panic!("another mode")
        };
        let names = config
            .service_schedulers
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>();
        assert_eq!(names, ["lblc"]);

        for mode in ["ipvs", "iptables", "userspace"] {
            let line = format!("--watch /m --node-name n --proxy-mode {mode}");
            let default = settings(&line).unwrap().config;
            assert!(default.services().annotations.permits("any", "scheduler"));
            assert!(!default.services().ignore_external_ips);
            let none = settings(&format!("{line} --service-annotations= --ignore-external-ips")).unwrap();
            assert!(!none.config.services().annotations.permits("any", "scheduler"));
            assert!(none.config.services().ignore_external_ips);
            let error = settings(&format!("{line} --service-annotations weight")).unwrap_err();
            assert!(
                error.contains("--service-annotations: \"weight\" must be one of "),
                "{error}"
            );
        }
        let error =
            settings("--watch /m --node-name n --proxy-mode ipvs --service-schedulers lblc,ftp").unwrap_err();
        assert!(
            error.contains("--service-schedulers: \"ftp\": unknown scheduler; known: dh,"),
            "{error}"
        );
    }

    #[test]
    fn servers_can_be_switched_off_and_on() {
        let servers = |line: &str| {
            let settings = settings(&format!("--watch /m --node-name n {line}")).unwrap();
            (settings.healthz.is_some(), settings.metrics.is_some())
        };
        assert_eq!(
            servers("--healthz-bind-address 127.0.0.1:1 --healthz-bind-address none"),
            (false, true)
        );
        assert_eq!(
            servers(
                "--healthz-bind-address none --healthz-bind-address 127.0.0.1:1 --metrics-bind-address none"
            ),
            (true, false)
        );
    }

    #[test]
    fn the_api_server_is_that_of_the_flags_the_file_or_the_pod() {
        let file = file(
            "clientConnection: {kubeconfig: /etc/k, qps: 6, burst: 11, acceptContentTypes: y, contentType: x}\ndetectLocalMode: NodeCIDR\nhostnameOverride: node-a\n",
        );
        let path = file.path().display();
        let access = |line: &str| settings(line).unwrap().cluster.map(|cluster| cluster.access);
        let expected = |kubeconfig: Option<&str>, master: Option<&str>| {
            Some(Access {
                kubeconfig: kubeconfig.map(Into::into),
                master: master.map(str::to_owned),
            })
        };
        assert_eq!(
            access(&format!("--config {path}")),
            expected(Some("/etc/k"), None)
        );
        assert_eq!(
            access(&format!(
                "--config {path} --kubeconfig /k --master https://192.0.2.1:6443"
            )),
            expected(Some("/k"), Some("https://192.0.2.1:6443"))
        );
        assert_eq!(
            access("--node-name n --master http://m"),
            expected(None, Some("http://m"))
        );
        assert_eq!(
            access("--node-name n --watch /m --in-cluster"),
            expected(None, None)
        );
        assert_eq!(access("--node-name n --watch /m"), None);
        assert_eq!(access("--node-name n --cleanup"), None);

        let of_file = settings(&format!("--config {path}")).unwrap();
        let warnings: Vec<&str> = of_file
            .file
            .warnings
            .iter()
            .map(|warning| &*warning.field)
            .collect();
        let fields = ["acceptContentTypes", "burst", "contentType", "qps"]
            .map(|name| format!("clientConnection.{name}"));
        assert_eq!(warnings.len(), fields.len(), "{warnings:?}");
        assert!(
            fields.iter().all(|field| warnings.contains(&&**field)),
            "{warnings:?}"
        );
        let cluster = of_file.cluster.unwrap();
        assert!(cluster.needs_address && cluster.needs_pod_cidr && !cluster.has_all_nodes);
        let line = format!("--config {path} --node-ip 192.0.2.1 --pod-cidr 10.244.0.0/24 --all-nodes");
        let cluster = settings(&line).unwrap().cluster.unwrap();
        assert!(!cluster.needs_address && !cluster.needs_pod_cidr && cluster.has_all_nodes);

        let error = settings("--node-name n --in-cluster --kubeconfig /k").unwrap_err();
        assert!(error.contains("--in-cluster: excludes --kubeconfig"), "{error}");
    }

    #[test]
    fn a_command_line_of_kube_proxy_is_accepted() {
        // kubeadm, kops and GKE.
        let line = "--hostname-override=n --kubeconfig=/k --master=https://192.0.2.1 --cluster-cidr=10.0.0.0/8 --oom-score-adj=-998 \
                    --v=2 --feature-gates=A=true,B=false --iptables-sync-period=1m --iptables-min-sync-period=10s --ipvs-sync-period=1m \
                    --ipvs-min-sync-period=10s --kube-api-qps=5.5 --kube-api-burst=10 --kube-api-content-type=x --config-sync-period=15m \
                    --profiling=false --show-hidden-metrics-for-version=1.35 --conntrack-max-per-core=131072";
        let settings = settings(line).unwrap();
        let warnings: Vec<&str> = settings
            .file
            .warnings
            .iter()
            .map(|warning| &*warning.field)
            .collect();
        let chosen = [
            "clientConnection.contentType",
            "clientConnection.qps",
            "featureGates",
            "oomScoreAdj",
            "showHiddenMetricsForVersion",
        ];
        assert_eq!(warnings, chosen, "not those with the default of kube-proxy");
        assert!(settings.cluster.is_some());
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
            error.contains(&format!("{path}: clusterCIDR: \"x\" must be")),
            "{error}"
        );
        assert!(
            error.contains(" --ipvs-tcp-timeout: \"5\" is not a duration"),
            "{error}"
        );
        assert!(
            error.contains(" --ipvs-exclude-cidrs: \"y\" must be a valid CIDR"),
            "{error}"
        );
        let error = settings("--node-name n --proxy-mode ipvs --ipvs-scheduler nonsense").unwrap_err();
        assert!(error.contains("--watch: is missing"), "{error}");
        assert!(error.contains(" --ipvs-scheduler: \"nonsense\""), "{error}");
        let error = settings("--watch /m --detect-local-mode BridgeInterface").unwrap_err();
        let expected = "invalid configuration: --pod-bridge-interface: must not be empty if detectLocalMode is BridgeInterface";
        assert_eq!(error, expected, "a flag that could be given");
        let error = settings("--watch /m --proxy-mode kernelspace").unwrap_err();
        assert!(
            error.contains(
                "--proxy-mode: must be iptables, ipvs, nftables, userspace or empty (empty means iptables)"
            ),
            "{error}"
        );
        let error = settings("--watch /a --watch /b --node-name n").unwrap_err();
        assert_eq!(
            error,
            "invalid configuration: --watch: given twice; valid: one folder"
        );
        let error = settings("--watch /m --config /nonexistent/c").unwrap_err();
        assert!(error.contains("cannot read /nonexistent/c: "), "{error}");
    }
}
