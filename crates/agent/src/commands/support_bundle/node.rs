//! What the node is: kernel, sysctls, modules, tools.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::time::Duration;

use kernlink_base::{ErrorChain, Modules};
use kernlink_proxier::host::{KernelSysctls, Sysctls, processors};
use kernlink_proxier::ipvs_mode::iptables_restore::{Invocation, LocalRunner, Runner};

use crate::modes::{Config, Mode, modules_of};

/// The longest time of a tool that prints its version.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most that a tool prints of its version, in bytes.
const OUTPUT: usize = 4_096;

/// The sysctls that traffic of Services depends on.
const SYSCTLS: &[&str] = &[
    "net.bridge.bridge-nf-call-ip6tables",
    "net.bridge.bridge-nf-call-iptables",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.route_localnet",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.conf.all.src_valid_mark",
    "net.ipv4.conf.default.rp_filter",
    "net.ipv4.ip_forward",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_nonlocal_bind",
    "net.ipv4.vs.conn_reuse_mode",
    "net.ipv4.vs.conntrack",
    "net.ipv4.vs.expire_nodest_conn",
    "net.ipv4.vs.expire_quiescent_template",
    "net.ipv4.vs.run_estimation",
    "net.ipv6.conf.all.disable_ipv6",
    "net.ipv6.conf.all.forwarding",
    "net.netfilter.nf_conntrack_acct",
    "net.netfilter.nf_conntrack_buckets",
    "net.netfilter.nf_conntrack_count",
    "net.netfilter.nf_conntrack_max",
    "net.netfilter.nf_conntrack_tcp_be_liberal",
    "net.netfilter.nf_conntrack_tcp_timeout_close_wait",
    "net.netfilter.nf_conntrack_tcp_timeout_established",
    "net.netfilter.nf_conntrack_udp_timeout",
    "net.netfilter.nf_conntrack_udp_timeout_stream",
];

/// The tools that modes start, or that show their objects.
const TOOLS: &[&str] = &[
    "iptables",
    "ip6tables",
    "nft",
    "ipset",
    "ipvsadm",
    "conntrack",
    "ip",
];

/// Each file with its text.
pub(super) fn files() -> Vec<(&'static str, Result<String, String>)> {
    vec![
        ("node/kernel.txt", Ok(kernel())),
        ("node/sysctls.txt", sysctls()),
        ("node/modules.txt", Ok(modules())),
        ("node/tools.txt", Ok(tools())),
    ]
}

fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version = fs::read_to_string("/proc/sys/kernel/version").unwrap_or_default();
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    format!(
        "kernel: {} {}\narchitecture: {}\nprocessors: {}\nsystem, in a container that of the image: {}\n",
        release.trim(),
        version.trim(),
        std::env::consts::ARCH,
        processors(),
        system.unwrap_or("not known").trim_matches('"'),
    )
}

fn sysctls() -> Result<String, String> {
    let mut kernel = KernelSysctls::open().map_err(|error| ErrorChain(&error).to_string())?;
    let mut page = String::new();
    for name in SYSCTLS {
        let value = match kernel.read(name) {
            Ok(Some(value)) => value,
            Ok(None) => "the kernel does not have it".to_owned(),
            Err(error) => ErrorChain(&error).to_string(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(page, "{name} = {value}");
    }
    Ok(page)
}

fn modules() -> String {
    let modules = Modules::of_running_kernel();
    let mut states = BTreeMap::new();
    for mode in Mode::ALL {
        for module in modules_of(&Config::new(mode, "")) {
            let state = match modules.is_on_disk(module) {
                _ if modules.is_loaded(module) => "loaded",
                Some(true) => "installed",
                Some(false) => "missing",
                None => "unknown",
            };
            states.insert(*module, state);
        }
    }
    states
        .iter()
        .map(|(module, state)| format!("{module} {state}\n"))
        .collect()
}

fn tools() -> String {
    let mut page = String::new();
    let modules = Modules::of_running_kernel();
    for tool in TOOLS {
        // These ask the kernel for the version of its part, which would load the module.
        let module = match *tool {
            "ipset" => Some("ip_set"),
            "ipvsadm" => Some("ip_vs"),
            _ => None,
        };
        if let Some(module) = module.filter(|module| !modules.is_loaded(module)) {
            let _ = writeln!(page, "{tool}: not started: it would load the module {module}");
            continue;
        }
        let argument = if *tool == "ip" { "-V" } else { "--version" };
        let completion = LocalRunner::new().run(Invocation {
            program: (*tool).to_owned(),
            arguments: vec![argument.to_owned()],
            environment: BTreeMap::new(),
            stdin: Vec::new(),
            timeout: TIMEOUT,
            output_limit: OUTPUT,
        });
        let printed = match completion {
            Ok(completion) => String::from_utf8_lossy(&completion.stdout).into_owned(),
            Err(error) => ErrorChain(&error).to_string(),
        };
        let _ = writeln!(page, "{tool}: {}", printed.lines().next().unwrap_or_default());
    }
    page
}
