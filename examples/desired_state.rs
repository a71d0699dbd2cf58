//! Reads manifests and writes the listings that the kernel of a node should print, in the notations of `ipvsadm`, `ipset`, `iptables`,
//! `nft` and `sysctl`. No kernel is read or changed.
//!
//! ```sh
//! cargo run --example desired_state -- --mode iptables --node-name node-a --node-ip 192.0.2.1 --cluster-cidr 10.244.0.0/16 web.yaml
//! ```
//!
//! Without `--mode`, the mode is that of the configuration file; one without a mode selects iptables, as in kube-proxy. Without a file it is
//! ipvs. The listings of iptables mode are `iptables.txt`, `ip6tables.txt`, `jumps.txt` and `sysctl.txt`; those of
//! nftables mode, which are commands of `nft` for an empty kernel, `nftables-ipv4.txt`, `nftables-ipv6.txt` and `sysctl.txt`. They are
//! for display: no version of `nft` up to 1.1.7 loads all of these rules.
//!
//! Two folders written with `--output-dir` can be compared with `diff -r`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use kernlink_agent::modes::{Config, Desired};
use kernlink_kubernetes::kube_proxy_config::{self, KubeProxyConfiguration};
use kernlink_kubernetes::manifest::{self, Objects};
use kernlink_proxier::host::LocalDetection;
use kernlink_proxier::ipvs_mode::KernelRelease;
use kernlink_proxier::services::address::{parse_address, parse_net};
use kernlink_proxier::services::{self, Event, Family, InterfaceAddress, Services, SourceId};

const USAGE: &str = "usage: desired_state --node-name NAME [--node-ip ADDRESS[,ADDRESS]] [OPTION]... FILE...

  --node-name NAME             this node; default: hostnameOverride of the configuration
  --node-ip A[,A6]             its addresses, the primary one first; default: those of its Node object
  --cluster-cidr C[,C6]        the networks of all pods
  --service-cidrs C[,...]      the networks that cluster IPs are allocated from, which nftables mode uses; default: none
  --pod-cidr C[,C6]            the networks of this node's pods; default: those of its Node object
  --zone ZONE                  its zone; default: that of its Node object
  --node-addresses IFACE=A,... the addresses on its interfaces, without prefix length; default: its addresses, on eth0; 127.0.0.1
                               and ::1 on lo are added unless addresses on lo are given
  --config FILE                a KubeProxyConfiguration
  --mode MODE                  ipvs, iptables or nftables; default: that of the configuration, which is iptables if it is empty or
                               missing there; ipvs without a configuration
  --kernel-version VERSION     default: this machine's
  --cpus N                     default: this machine's
  --output-dir DIRECTORY       write one file for each listing; default: all to standard output

An option takes precedence over the configuration file and over a Node object in the input.";

const NO_LISTINGS: &str = "mode: userspace mode has no listings, since its rules depend on the ports of the process; valid: ipvs, iptables, nftables";

fn main() -> ExitCode {
    let arguments: Result<Vec<String>, _> = std::env::args_os()
        .skip(1)
        .map(std::ffi::OsString::into_string)
        .collect();
    let outcome = match arguments {
        Ok(arguments) => run(arguments.into_iter()),
        Err(argument) => Err(format!("argument {argument:?} is not UTF-8")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("desired_state: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let options = Options::read(arguments)?;
    if options.help {
        println!("{USAGE}");
        return Ok(());
    }
    let mut warnings = Vec::new();
    let config = options.config(&mut warnings)?;
    let objects = options.objects()?;
    warnings.extend(objects.errors.iter().map(|error| format!("{error}")));
    let unread = (!objects.missing.is_empty()).then(|| {
        let errors: Vec<String> = objects.errors.iter().map(ToString::to_string).collect();
        let errors = errors.join("; ");
        format!("some objects of the manifests cannot be read, the listings are without them: {errors}")
    });
    let addresses = options.interface_addresses(config.services(), &objects)?;
    let kernel = options.kernel()?;
    let processors = options.processors()?;

    let mut services = Services::new(config.services().clone());
    services.set_interface_addresses(addresses);
    let mut reported: Vec<Event> = Vec::new();
    for change in objects.into_changes_without_missing() {
        reported.extend(services.change(SourceId(0), change));
    }
    services.update();
    let changes = services.take_changes();
    let (listings, compiled) = config.listings(&Desired {
        services: &services,
        changes: &changes,
        kernel,
        processors,
    });
    reported.extend(compiled);
    reported.extend(services.events());
    reported.sort();
    reported.dedup();
    warnings.extend(reported.iter().map(ToString::to_string));
    let events: String = warnings.into_iter().map(|warning| warning + "\n").collect();
    let listings = listings.ok_or(NO_LISTINGS)?;
    let mut files = listings.files();
    files.push(("events.txt", &events));

    match options.one("--output-dir") {
        Some(directory) => write(Path::new(directory), &files)?,
        None => {
            let mut out = std::io::stdout().lock();
            files
                .into_iter()
                .try_for_each(|(name, text)| write!(out, "==> {name} <==\n{text}\n"))
                .map_err(|error| format!("standard output: {error}"))?;
        }
    }
    unread.map_or(Ok(()), Err)
}

fn write(directory: &Path, files: &[(&str, &str)]) -> Result<(), String> {
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    for (name, text) in files {
        let path = directory.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// The command line.
#[derive(Default)]
struct Options {
    values: BTreeMap<String, String>,
    files: Vec<PathBuf>,
    help: bool,
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Options::default();
        while let Some(argument) = arguments.next() {
            if matches!(argument.as_str(), "-h" | "--help") {
                options.help = true;
                continue;
            }
            if !argument.starts_with("--") {
                options.files.push(argument.into());
                continue;
            }
            let (name, value) = match argument.split_once('=') {
                // In `--node-addresses eth0=...` the equals sign belongs to the next argument.
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (argument, None),
            };
            if !USAGE.contains(&format!("  {name} ")) {
                return Err(format!("unknown option {name}\n{USAGE}"));
            }
            let value = value
                .or_else(|| arguments.next())
                .ok_or_else(|| format!("{name} requires a value"))?;
            if value.is_empty() && matches!(name.as_str(), "--output-dir" | "--config" | "--mode") {
                return Err(format!("{name} must not be empty"));
            }
            if options.values.insert(name.clone(), value).is_some() {
                return Err(format!("{name} is given more than once"));
            }
        }
        Ok(options)
    }

    fn one(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// The parts of a value, separated by commas and parsed by `read`.
    fn list<T>(&self, name: &str, what: &str, read: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
        let parts = self.one(name).into_iter().flat_map(|value| value.split(','));
        parts
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(|part| read(part).ok_or_else(|| format!("{name}: invalid value {part:?}; expected {what}")))
            .collect()
    }

    fn config(&self, warnings: &mut Vec<String>) -> Result<Config, String> {
        let mode = self.one("--mode").map(str::to_owned);
        let mut config = match self.one("--config") {
            None => {
                let mut file = KubeProxyConfiguration::default();
                file.mode = mode.unwrap_or_else(|| "ipvs".to_owned());
                Config::from_kube_proxy(&file).map_err(|error| format!("--mode: {error}"))?
            }
            Some(path) => {
                let text = read_file(Path::new(path))?;
                let mut file = kube_proxy_config::read(path, &text).map_err(|error| error.to_string())?;
                warnings.extend(file.warnings.iter().map(|warning| format!("{path}: {warning}")));
                file.mode = mode.unwrap_or(file.mode);
                Config::from_kube_proxy(&file).map_err(|error| format!("{path}: {error}"))?
            }
        };
        let services = config.services_mut();
        if let Some(name) = self.one("--node-name") {
            // Lower case, like the value of kube-proxy's `--hostname-override`.
            services.node_name = name.trim().to_lowercase().into();
        }
        if services.node_name.is_empty() {
            return Err(format!("--node-name is required\n{USAGE}"));
        }
        services.node_ips = self.list("--node-ip", "an IP address", parse_address)?;
        if !services.node_ips.is_empty() {
            // The option takes precedence over `bindAddress`.
            services.bind_address = None;
        }
        services.pod_cidrs = self.list("--pod-cidr", "a network such as 10.244.1.0/24", parse_net)?;
        services.zone = self.one("--zone").map(Into::into);
        let cluster = self.list("--cluster-cidr", "a network such as 10.244.0.0/16", parse_net)?;
        for (name, networks) in [("--cluster-cidr", &cluster), ("--pod-cidr", &services.pod_cidrs)] {
            for family in Family::ALL {
                if networks
                    .iter()
                    .filter(|net| Family::of(net.addr()) == family)
                    .count()
                    > 1
                {
                    return Err(format!(
                        "{name} has more than one {family} network; at most one per family is valid"
                    ));
                }
            }
        }
        let local_detection = match &mut config {
            Config::Ipvs(config) => &mut config.local_detection,
            Config::Iptables(config) => &mut config.config.local_detection,
            Config::Nftables(config) => &mut config.config.local_detection,
            Config::Userspace(_) => return Err(NO_LISTINGS.to_owned()),
        };
        if let LocalDetection::ClusterCidr(configured) = local_detection
            && self.one("--cluster-cidr").is_some()
        {
            *configured = cluster;
        }
        let networks = self.list("--service-cidrs", "a network such as 10.96.0.0/12", |part| {
            parse_net(part).filter(|net| net.prefix_len() > 0)
        })?;
        if let Some(service_cidrs) = config.service_cidrs_mut() {
            *service_cidrs = Some(networks);
        }
        Ok(config)
    }

    fn objects(&self) -> Result<Objects, String> {
        if self.files.is_empty() {
            return Err(format!("no manifest is given\n{USAGE}"));
        }
        let mut objects = Objects::default();
        for path in &self.files {
            objects.extend(manifest::read(&path.display().to_string(), &read_file(path)?));
        }
        Ok(objects)
    }

    /// The addresses of the node's interfaces: those of `--node-addresses`; without it the node's addresses, on `eth0`. Those of `lo`, which
    /// every node has, need not be given.
    fn interface_addresses(
        &self,
        config: &services::Config,
        objects: &Objects,
    ) -> Result<Vec<InterfaceAddress>, String> {
        let mut addresses = if self.one("--node-addresses").is_some() {
            self.list("--node-addresses", "INTERFACE=ADDRESS", |part| {
                let (interface, address) = part.split_once('=')?;
                Some(InterfaceAddress::new(interface, parse_address(address)?))
            })?
        } else {
            let mut addresses: Vec<IpAddr> = config.node_ips.clone();
            if addresses.is_empty() {
                let own = objects
                    .nodes
                    .iter()
                    .filter(|node| *node.name.name == *config.node_name);
                addresses.extend(
                    own.flat_map(|node| &node.addresses)
                        .map(|address| address.address),
                );
            }
            addresses
                .into_iter()
                .map(|address| InterfaceAddress::new("eth0", address))
                .collect()
        };
        if addresses.iter().all(|address| *address.interface != *"lo") {
            let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            addresses.extend(loopback.map(|address| InterfaceAddress::new("lo", address)));
        }
        Ok(addresses)
    }

    fn kernel(&self) -> Result<KernelRelease, String> {
        let version = match self.one("--kernel-version") {
            Some(version) => version.to_owned(),
            None => read_file(Path::new("/proc/sys/kernel/osrelease"))?,
        };
        KernelRelease::from_str(&version).map_err(|error| format!("--kernel-version: {error}"))
    }

    fn processors(&self) -> Result<u32, String> {
        match self.one("--cpus") {
            Some(number) => match number.parse() {
                Ok(number) if number > 0 => Ok(number),
                _ => Err(format!(
                    "--cpus: invalid value {number:?}; expected a number from 1 to 4294967295"
                )),
            },
            None => {
                Ok(std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1)))
            }
        }
    }
}

fn read_file(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
