//! What the node has: capabilities, processes, modules and tools.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use kernlink_base::{ErrorChain, Modules};
use kernlink_proxier::host::Lock;
use kernlink_proxier::ipvs_mode::iptables_restore::{
    Client, Invocation, LocalRunner, Runner, VariantInUse, Version, tool,
};
use kernlink_services::Family;

use super::document::{Check, Module, Outcome, Tool};
use crate::modes::Mode;
use crate::query::socket::network_namespace;

/// The longest time of a tool that prints its version or rules.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest output of a tool that prints its version, in bytes.
const OUTPUT: usize = 4_096;
/// The inode of the PID namespace of the host (`PROC_PID_INIT_INO` of the kernel).
const HOST_PIDS: u64 = 0xEFFF_FFFC;

pub(super) fn check(check: &'static str, result: Outcome, text: impl Into<String>) -> Check {
    Check {
        check,
        result,
        text: text.into(),
    }
}

/// The capabilities that a mode needs, by number in `linux/capability.h`.
fn capabilities(mode: Mode) -> &'static [(u32, &'static str)] {
    match mode {
        Mode::Nftables => &[(12, "CAP_NET_ADMIN")],
        Mode::Iptables | Mode::Ipvs | Mode::Userspace => &[(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW")],
    }
}

/// The capability to bind ports below [`UNPRIVILEGED`].
const BIND_SERVICE: (u32, &str) = (10, "CAP_NET_BIND_SERVICE");
/// The first port that every process may bind, if the kernel has no sysctl for it.
const UNPRIVILEGED: u16 = 1_024;

/// Those of the ports that need a capability.
pub(super) fn privileged(ports: BTreeSet<u16>) -> BTreeSet<u16> {
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first = first.ok().and_then(|first| first.trim().parse().ok());
    let first = first.unwrap_or(UNPRIVILEGED);
    ports.into_iter().filter(|port| *port < first).collect()
}

/// Whether this process has the capabilities that the agent needs. `ports`: those that it binds and that need one. `status`:
/// `/proc/self/status`.
pub(super) fn privileges(mode: Mode, ports: &BTreeSet<u16>, status: Option<&str>) -> Check {
    const NAME: &str = "privileges";
    let effective = status
        .and_then(|status| status.lines().find_map(|line| line.strip_prefix("CapEff:")))
        .and_then(|effective| u64::from_str_radix(effective.trim(), 16).ok());
    let Some(effective) = effective else {
        return check(
            NAME,
            Outcome::Unknown,
            "the capabilities of this process cannot be read in /proc/self/status",
        );
    };
    let mut needed = capabilities(mode)
        .iter()
        .map(|(bit, name)| (*bit, (*name).to_owned()))
        .collect::<Vec<_>>();
    if let Some(port) = ports.first() {
        let more = match ports.len() - 1 {
            0 => "needs".to_owned(),
            more => format!("and {more} more need"),
        };
        let (bit, name) = BIND_SERVICE;
        needed.push((bit, format!("{name}, which port {port} {more}")));
    }
    let has = |bit: u32| effective & (1 << bit) != 0;
    let missing: Vec<&str> = needed
        .iter()
        .filter(|(bit, _)| !has(*bit))
        .map(|(_, name)| name.as_str())
        .collect();
    if missing.is_empty() {
        let names: Vec<&str> = needed.iter().map(|(_, name)| name.as_str()).collect();
        check(NAME, Outcome::Ok, names.join(", "))
    } else {
        let text = format!(
            "this process lacks {}; run it with the rights of the agent, such as root",
            missing.join(", ")
        );
        check(NAME, Outcome::Failure, text)
    }
}

/// Whether an agent runs in this network namespace.
pub(super) fn agent() -> Check {
    const NAME: &str = "other agent";
    match Lock::holder() {
        Ok(None) => check(NAME, Outcome::Ok, "no agent runs in this network namespace"),
        Ok(Some(holder)) => check(
            NAME,
            Outcome::Note,
            format!("an agent, {holder}, programs this network namespace; end it before another one starts"),
        ),
        Err(error) => check(NAME, Outcome::Unknown, ErrorChain(&error).to_string()),
    }
}

/// A process that programs Services, or may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) name: String,
    /// Whether kube-proxy is only a part of it, which may be switched off.
    pub(super) has_other_parts: bool,
    /// Whether it is in the network namespace of this process. `None`: it cannot be read.
    pub(super) is_here: Option<bool>,
}

/// The name of a process that is a kube-proxy, or one in which one may run.
fn service_proxy(cmdline: &[u8]) -> Option<(String, bool)> {
    let mut arguments = cmdline.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let program = arguments.next()?;
    let program = program.split(' ').next()?.rsplit('/').next()?.to_owned();
    match program.as_str() {
        "kube-proxy" => Some((program, false)),
        "hyperkube" => arguments
            .next()
            .is_some_and(|verb| verb == "kube-proxy" || verb == "proxy")
            .then_some((program, false)),
        // k3s and MicroK8s have kube-proxy in the process of the kubelet.
        "k3s" | "k3s-server" | "k3s-agent" | "kubelite" => Some((program, true)),
        _ => None,
    }
}

/// The processes that program Services and are visible, except those that are known to be in another network namespace.
fn service_proxies() -> std::io::Result<Vec<Process>> {
    let own = network_namespace();
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        // It may have ended.
        let Ok(cmdline) = fs::read(format!("/proc/{pid}/cmdline")) else {
            continue;
        };
        let Some((name, has_other_parts)) = service_proxy(&cmdline) else {
            continue;
        };
        let namespace = fs::metadata(format!("/proc/{pid}/ns/net")).map(|file| file.ino());
        let is_here = namespace.ok().zip(own).map(|(its, own)| its == own);
        if is_here != Some(false) {
            processes.push(Process {
                pid,
                name,
                has_other_parts,
                is_here,
            });
        }
    }
    Ok(processes)
}

/// Whether a kube-proxy runs in this network namespace.
pub(super) fn kube_proxy() -> Check {
    let sees_host = fs::metadata("/proc/self/ns/pid").is_ok_and(|file| file.ino() == HOST_PIDS);
    match service_proxies() {
        Ok(processes) => kube_proxy_of(&processes, sees_host),
        Err(error) => check(
            "kube-proxy",
            Outcome::Unknown,
            format!("the processes cannot be listed: {error}"),
        ),
    }
}

fn kube_proxy_of(processes: &[Process], sees_host: bool) -> Check {
    let texts: Vec<String> = processes
        .iter()
        .map(|process| {
            let Process { pid, name, .. } = process;
            let namespace = match process.is_here {
                Some(_) => "",
                None => ", whose network namespace cannot be read,",
            };
            if process.has_other_parts {
                format!(
                    "process {pid} ({name}){namespace} may have a kube-proxy in it: switch that off before the agent starts"
                )
            } else {
                format!("process {pid} ({name}){namespace} runs: end it, without its --cleanup, before the agent starts")
            }
        })
        .collect();
    if !texts.is_empty() {
        return check("kube-proxy", Outcome::Note, texts.join("; "));
    }
    if sees_host {
        check(
            "kube-proxy",
            Outcome::Ok,
            "no process of it runs in this network namespace",
        )
    } else {
        let text = "no process of it is visible; in a container without hostPID those of the host are not";
        check("kube-proxy", Outcome::Note, text)
    }
}

/// The modules of a mode, and a note if any is missing.
pub(super) fn modules(names: &[&'static str], modules: &Modules) -> (Vec<Module>, Check) {
    let states: Vec<Module> = names
        .iter()
        .map(|module| Module {
            module,
            state: match modules.is_on_disk(module) {
                _ if modules.is_loaded(module) => "loaded",
                Some(true) => "installed",
                Some(false) => "missing",
                None => "unknown",
            },
        })
        .collect();
    let named = |state: &str| -> Vec<&str> {
        let of_state = states.iter().filter(|module| module.state == state);
        of_state.map(|module| module.module).collect()
    };
    let missing = named("missing");
    let directory = modules.directory().display();
    let check = if !missing.is_empty() {
        let text = format!(
            "not loaded, and not in {directory}: {}; rules and objects that need them are refused, unless this kernel has them under \
             another name",
            missing.join(", ")
        );
        check("modules", Outcome::Note, text)
    } else if named("unknown").is_empty() {
        let installed = named("installed").len();
        let text = format!(
            "all are there; {} are loaded or built in, {installed} are loaded when they are used",
            states.len() - installed
        );
        check("modules", Outcome::Ok, text)
    } else {
        let text = format!(
            "{directory} is not visible: which modules can be loaded is not known, nor which are built in"
        );
        check("modules", Outcome::Note, text)
    };
    (states, check)
}

/// What the iptables tools of the host are, by family.
#[derive(Debug, Default)]
pub(super) struct Tools {
    pub(super) tools: Vec<Tool>,
    pub(super) checks: Vec<Check>,
    /// The families without tools.
    pub(super) missing: BTreeMap<Family, String>,
}

/// The tools that a mode on iptables starts, and whether their variant is that of the rules of the node.
pub(super) fn iptables_tools(families: impl IntoIterator<Item = Family>) -> Tools {
    let mut found = Tools::default();
    let mut client = Client::new().with_timeout(TIMEOUT);
    for family in families {
        let tool = tool(family);
        let version = match client.version(family) {
            Ok(version) => version,
            Err(error) => {
                found.missing.insert(family, ErrorChain(&error).to_string());
                found.tools.push(Tool {
                    tool,
                    version: None,
                    needed: true,
                });
                continue;
            }
        };
        found.tools.push(Tool {
            tool,
            version: Some(version.to_string()),
            needed: true,
        });
        let detected = client.detect_variants(family).map(|detected| detected.in_use());
        found.checks.push(match detected {
            Ok(in_use) => variant(family, version, in_use),
            Err(error) => {
                let text = format!(
                    "which variant of {tool} has rules cannot be read: {}",
                    ErrorChain(&error)
                );
                check("iptables", Outcome::Unknown, text)
            }
        });
    }
    found
}

/// Whether the tools write where the rules of the node are.
fn variant(family: Family, version: Version, in_use: VariantInUse) -> Check {
    let tool = tool(family);
    let own = version.variant;
    match in_use {
        VariantInUse::One(variant) if variant != own => {
            let text = format!(
                "the rules of the node are in tables of the variant {variant}, and {tool} {version} writes those of {own}: packets would pass \
                 both, and kube-proxy's rules would stay; make {variant} the variant of the tools (update-alternatives --set {tool}, or the \
                 image for it)"
            );
            check("iptables", Outcome::Failure, text)
        }
        VariantInUse::Both { preferred } => {
            let text = format!(
                "both variants have rules, and packets pass those of both; those of the kubelet, or otherwise most rules, are of the variant \
                 {preferred}, and {tool} {version} writes those of {own}"
            );
            let outcome = if own == preferred {
                Outcome::Note
            } else {
                Outcome::Failure
            };
            check("iptables", outcome, text)
        }
        _ => check("iptables", Outcome::Ok, format!("{tool} {version}")),
    }
}

/// The versions of `nft` whose output about the tables of nftables mode has peculiarities.
const NFT_MESSAGES: [(u32, u32, u32); 2] = [(1, 0, 2), (1, 0, 6)];

/// `nft`, which nftables mode does not need: a person uses it to look at the tables.
pub(super) fn nft() -> (Tool, Check) {
    let completion = LocalRunner::new().run(Invocation {
        program: "nft".to_owned(),
        arguments: vec!["--version".to_owned()],
        environment: BTreeMap::new(),
        stdin: Vec::new(),
        timeout: TIMEOUT,
        output_limit: OUTPUT,
    });
    let printed = completion
        .ok()
        .map(|completion| String::from_utf8_lossy(&completion.stdout).trim().to_owned());
    let check = nft_check(printed.as_deref());
    let tool = Tool {
        tool: "nft",
        version: printed,
        needed: false,
    };
    (tool, check)
}

fn nft_check(printed: Option<&str>) -> Check {
    let Some(printed) = printed else {
        return check(
            "nft",
            Outcome::Note,
            "nft is not installed; the agent does not need it, but it shows the tables",
        );
    };
    let version = printed.split_whitespace().find_map(|word| {
        let mut numbers = word.strip_prefix('v')?.split('.').map(str::parse::<u32>);
        let mut next = || numbers.next().unwrap_or(Ok(0)).ok();
        Some((next()?, next()?, next()?))
    });
    let [first, last] = NFT_MESSAGES;
    match version {
        Some(version) if version >= first && version <= last => {
            let text = format!(
                "{printed}: prints the tables, with -j also messages about maps on standard error; save a firewall by table, not all tables"
            );
            check("nft", Outcome::Note, text)
        }
        _ => check("nft", Outcome::Ok, printed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        let of = |mode, text: &str| privileges(mode, &BTreeSet::new(), Some(text));
        assert_eq!(
            of(Mode::Nftables, "CapEff:\t0000000000001000\n").result,
            Outcome::Ok
        );
        let missing = of(Mode::Iptables, "CapInh:\t0\nCapEff:\t0000000000001000\n");
        assert_eq!(missing.result, Outcome::Failure);
        assert!(missing.text.contains("lacks CAP_NET_RAW;"), "{}", missing.text);
        let none = of(Mode::Ipvs, "CapEff:\t0\n");
        assert!(none.text.contains("CAP_NET_ADMIN, CAP_NET_RAW"), "{}", none.text);
        for unreadable in [None, Some(""), Some("CapEff:\tx\n")] {
            assert_eq!(
                privileges(Mode::Ipvs, &BTreeSet::new(), unreadable).result,
                Outcome::Unknown
            );
        }
    }

    #[test]
    fn the_capability_for_low_ports_is_needed_if_there_are_some() {
        let of = |ports: &[u16], effective: &str| {
            let ports = ports.iter().copied().collect();
            privileges(Mode::Nftables, &ports, Some(effective))
        };
        let without = "CapEff:\t0000000000001000\n";
        assert_eq!(of(&[], without).result, Outcome::Ok);
        let missing = of(&[443, 80, 81], without);
        assert_eq!(missing.result, Outcome::Failure);
        let expected = "lacks CAP_NET_BIND_SERVICE, which port 80 and 2 more need;";
        assert!(missing.text.contains(expected), "{}", missing.text);
        let with = of(&[80], "CapEff:\t0000000000001400\n");
        assert_eq!(with.result, Outcome::Ok, "{}", with.text);
        assert!(privileged(BTreeSet::from([u16::MAX])).is_empty());
    }

    #[test]
    fn a_kube_proxy_is_found_by_its_command_line() {
        for (cmdline, expected) in [
            (
                "/usr/local/bin/kube-proxy\0--config=/x\0",
                Some(("kube-proxy", false)),
            ),
            ("kube-proxy", Some(("kube-proxy", false))),
            ("/hyperkube\0kube-proxy\0", Some(("hyperkube", false))),
            ("/hyperkube\0kubelet\0", None),
            ("/usr/local/bin/k3s server\0", Some(("k3s", true))),
            ("vi\0kube-proxy\0", None),
            ("kube-proxy-bench\0", None),
            ("", None),
        ] {
            let expected = expected.map(|(name, parts)| (name.to_owned(), parts));
            assert_eq!(service_proxy(cmdline.as_bytes()), expected, "{cmdline:?}");
        }
        assert_eq!(kube_proxy_of(&[], true).result, Outcome::Ok);
        assert_eq!(kube_proxy_of(&[], false).result, Outcome::Note);
    }

    #[test]
    fn the_state_of_each_module_is_known_where_the_modules_are_visible() {
        const NAMES: [&str; 3] = ["nf_tables", "nft_nat", "nft_masq"];
        let of = |on_disk| {
            let (states, check) = modules(
                &NAMES,
                &Modules::new("6.1.0", "nf_tables 1 0 - Live 0x0\n", on_disk),
            );
            let states: Vec<&str> = states.iter().map(|module| module.state).collect();
            (states, check)
        };
        let (states, check) = of(None);
        assert_eq!(states, ["loaded", "unknown", "unknown"]);
        assert_eq!(check.result, Outcome::Note);
        let (states, check) = of(Some(("", "net/nft_nat.ko.xz:\n")));
        assert_eq!(states, ["loaded", "installed", "missing"]);
        assert!(
            check.text.contains("not in /lib/modules/6.1.0: nft_masq;"),
            "{}",
            check.text
        );
        let (_, check) = of(Some(("net/nft_masq.ko\n", "net/nft_nat.ko.xz:\n")));
        assert_eq!(check.result, Outcome::Ok, "{}", check.text);
    }

    #[test]
    fn rules_of_the_other_variant_are_a_failure() {
        use kernlink_proxier::ipvs_mode::iptables_restore::Variant;
        let nft: Version = "iptables v1.8.9 (nf_tables)".parse().unwrap();
        for (in_use, expected) in [
            (VariantInUse::One(Variant::Nft), Outcome::Ok),
            (VariantInUse::One(Variant::Legacy), Outcome::Failure),
            (VariantInUse::Neither(None), Outcome::Ok),
            (
                VariantInUse::Both {
                    preferred: Variant::Nft,
                },
                Outcome::Note,
            ),
            (
                VariantInUse::Both {
                    preferred: Variant::Legacy,
                },
                Outcome::Failure,
            ),
        ] {
            assert_eq!(variant(Family::Ipv4, nft, in_use).result, expected, "{in_use:?}");
        }
    }

    #[test]
    fn versions_of_nft_that_print_messages_are_named() {
        for (printed, expected) in [
            (Some("nftables v1.0.1 (Fearless Fosdick #3)"), Outcome::Ok),
            (Some("nftables v1.0.6 (Lester Gooch #5)"), Outcome::Note),
            (Some("nftables v1.1.3"), Outcome::Ok),
            (Some("?"), Outcome::Ok),
            (None, Outcome::Note),
        ] {
            assert_eq!(nft_check(printed).result, expected, "{printed:?}");
        }
    }
}
