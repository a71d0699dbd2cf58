//! Loading the modules of schedulers that the kernel cannot always load itself.
//!
//! The kernel loads the module of a scheduler while it holds the mutex of IPVS
//! ([`ip_vs_genl_set_cmd`][ctl], [`ip_vs_scheduler_get`][sched]). A module that registers operations for network namespaces, such as
//! that of `lblc` ([`ip_vs_lblc_init`][lblc]), waits until no namespace is being deleted, and the deletion of a namespace waits
//! for the mutex of IPVS ([`ip_vs_dst_event`][ctl]). If a namespace is deleted at that moment, neither ends until the process
//! that sent the request is killed. Meanwhile the kernel holds the mutex of rtnetlink, so nothing can change a link, an address or a
//! route. A module that is loaded before the request holds up nothing.
//!
//! The name of a scheduler is part of the name of the module: `ftp` is no scheduler, but the kernel loads `ip_vs_ftp` for it, which
//! registers such operations too ([`ip_vs_ftp_init`][ftp]). So the kernel is left to load the modules of the schedulers in
//! [`HARMLESS`] only.
//!
//! [ctl]: https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ctl.c
//! [sched]: https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_sched.c
//! [lblc]: https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_lblc.c
//! [ftp]: https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ftp.c

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use kernlink_base::Modules;

use crate::availability::Availability;
use crate::error::Error;
use crate::operation::Operation;
use crate::scheduler::Scheduler;

/// The schedulers whose modules wait for nothing while they are loaded, and the one without a module.
const HARMLESS: [Scheduler; 13] = [
    Scheduler::RR,
    Scheduler::WRR,
    Scheduler::LC,
    Scheduler::WLC,
    Scheduler::MH,
    Scheduler::SH,
    Scheduler::DH,
    Scheduler::SED,
    Scheduler::NQ,
    Scheduler::FO,
    Scheduler::OVF,
    Scheduler::TWOS,
    Scheduler::NONE,
];

/// The program that loads modules for the kernel, with its path; empty if automatic loading is disabled.
const PROGRAM: &str = "/proc/sys/kernel/modprobe";

/// Which modules of schedulers the kernel may load for a request.
#[derive(Debug, Default)]
pub(super) struct Loading {
    /// The kernel may load the modules of these too, while it holds the mutex of IPVS.
    permitted: BTreeSet<Scheduler>,
    /// The program did not load the modules of these, although it seemed possible.
    failed: BTreeSet<Scheduler>,
}

/// The schedulers of one batch whose operations are not sent, and whether their modules are installed.
#[derive(Default)]
pub(super) struct NotLoaded(Vec<(Scheduler, Availability)>);

impl NotLoaded {
    /// The error of an operation that must not be sent.
    pub(super) fn check(&self, operation: &Operation) -> Result<(), Error> {
        let Some(scheduler) = scheduler_of(operation).filter(|_| !self.0.is_empty()) else {
            return Ok(());
        };
        match self.0.iter().find(|(refused, _)| *refused == scheduler) {
            Some((_, module)) => Err(Error::SchedulerNotLoaded {
                operation: Box::new(operation.clone()),
                scheduler,
                module: module.clone(),
            }),
            None => Ok(()),
        }
    }
}

impl Loading {
    pub(super) fn permit(&mut self, schedulers: &[Scheduler]) {
        self.permitted = schedulers.iter().copied().collect();
    }

    /// Loads the modules that `operations` need and that the kernel must not load itself. Returns the schedulers that are not
    /// registered after that, without those that are permitted.
    pub(super) fn prepare(&mut self, operations: &[Operation]) -> NotLoaded {
        let mut concerned: Vec<(Scheduler, String)> = Vec::new();
        for scheduler in operations.iter().filter_map(scheduler_of) {
            let Some(module) = concerned_module(scheduler) else {
                continue;
            };
            if !concerned.iter().any(|(known, _)| *known == scheduler) {
                concerned.push((scheduler, module));
            }
        }
        let mut not_loaded = NotLoaded::default();
        let mut modules = None;
        for (scheduler, module) in concerned {
            if is_registered(scheduler, &module) {
                continue;
            }
            load(&module);
            if is_registered(scheduler, &module) {
                self.failed.remove(&scheduler);
                continue;
            }
            let modules = modules.get_or_insert_with(Modules::of_running_kernel);
            if modules.is_built_in(&module) {
                continue;
            }
            if is_loadable(&module, modules) {
                self.failed.insert(scheduler);
            }
            if !self.permitted.contains(&scheduler) {
                let module = Availability::of(&module, modules);
                not_loaded.0.push((scheduler, module));
            }
        }
        not_loaded
    }

    /// Whether [`prepare`](Self::prepare) would return the scheduler, as far as this can be known without loading its module.
    pub(super) fn refuses(&self, scheduler: Scheduler) -> bool {
        let Some(module) = concerned_module(scheduler).filter(|_| !self.permitted.contains(&scheduler))
        else {
            return false;
        };
        if is_registered(scheduler, &module) {
            return false;
        }
        let modules = Modules::of_running_kernel();
        let can_be_loaded = is_loadable(&module, &modules) && !self.failed.contains(&scheduler);
        !modules.is_built_in(&module) && !can_be_loaded
    }
}

/// The module of a scheduler that the kernel must not load while it holds the mutex.
fn concerned_module(scheduler: Scheduler) -> Option<String> {
    let is_concerned = !HARMLESS.contains(&scheduler);
    scheduler.module().filter(|_| is_concerned)
}

/// Whether the kernel has the scheduler: by the state of its module, which one that is built in does not have, or by its sysctl, which is
/// missing in network namespaces of other user namespaces.
fn is_registered(scheduler: Scheduler, module: &str) -> bool {
    match fs::read_to_string(format!("/sys/module/{module}/initstate")) {
        // While a module is loaded or unloaded, the sysctl exists too.
        Ok(state) => state.trim_end() == "live",
        Err(_) => {
            let has_sysctl = [Scheduler::LBLC, Scheduler::LBLCR].contains(&scheduler);
            has_sysctl && Path::new(&format!("/proc/sys/net/ipv4/vs/{scheduler}_expiration")).exists()
        }
    }
}

/// Whether this process can load a module: it is installed, and the program passes on `CAP_SYS_MODULE`.
fn is_loadable(module: &str, modules: &Modules) -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    modules.is_on_disk(module) == Some(true) && program().is_some() && passes_on_sys_module(&status)
}

/// Whether a program that a process with this `/proc/PID/status` starts has `CAP_SYS_MODULE` (number 16): as root, unless the
/// capability is removed from the bounding set, or as an ambient capability.
fn passes_on_sys_module(status: &str) -> bool {
    let field = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let has = |set: &str| {
        let bits = field(set).and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        bits.is_some_and(|bits| bits & (1 << 16) != 0)
    };
    // The second of the user IDs is the effective one.
    let is_root = field("Uid").is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0"));
    has("CapAmb") || is_root && has("CapBnd")
}

/// The scheduler that the kernel looks up for an operation.
fn scheduler_of(operation: &Operation) -> Option<Scheduler> {
    match operation {
        Operation::AddVirtualServer(server)
        | Operation::UpdateVirtualServer(server)
        | Operation::EnsureVirtualServer(server) => Some(server.scheduler),
        _ => None,
    }
}

/// The program, if it has a path. The kernel does not search for one without.
fn program() -> Option<String> {
    let text = fs::read_to_string(PROGRAM).unwrap_or_default();
    let program = text.trim_end();
    Path::new(program).is_file().then(|| program.to_owned())
}

/// Runs the program as the kernel does (`call_modprobe` in
/// [`kmod.c`](https://github.com/torvalds/linux/blob/v6.1/kernel/kmod.c)). Its exit status is of no use: it is 0 too if the
/// configuration of the program replaces the loading by another command.
fn load(module: &str) {
    let Some(program) = program().filter(|program| Path::new(program).is_absolute()) else {
        return;
    };
    let _is_read_from_the_kernel = Command::new(program)
        .args(["-q", "--", module])
        .env_clear()
        .envs([
            ("HOME", "/"),
            ("TERM", "linux"),
            ("PATH", "/sbin:/usr/sbin:/bin:/usr/bin"),
        ])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::virtual_server::{VirtualServer, VirtualServerKey};

    fn key() -> VirtualServerKey {
        VirtualServerKey::tcp(Ipv4Addr::new(10, 0, 0, 1), 80)
    }

    #[test]
    fn a_scheduler_is_looked_up_for_each_configuration_of_a_virtual_server() {
        let server = VirtualServer::new(key(), Scheduler::LBLC);
        for operation in [
            Operation::AddVirtualServer(server.clone()),
            Operation::UpdateVirtualServer(server.clone()),
            Operation::EnsureVirtualServer(server),
        ] {
            assert_eq!(scheduler_of(&operation), Some(Scheduler::LBLC), "{operation}");
        }
        assert_eq!(scheduler_of(&Operation::DeleteVirtualServer(key())), None);
    }

    #[test]
    fn the_kernel_may_load_the_modules_of_all_known_schedulers_but_lblc_and_lblcr() {
        let concerned: Vec<String> = Scheduler::KNOWN
            .iter()
            .copied()
            .filter_map(concerned_module)
            .collect();
        assert_eq!(concerned, ["ip_vs_lblc", "ip_vs_lblcr"]);
        assert_eq!(concerned_module(Scheduler::NONE), None);
        // The module `ip_vs_ftp` has no scheduler, but the kernel would load it.
        let ftp = Scheduler::new("ftp").unwrap();
        assert_eq!(concerned_module(ftp).as_deref(), Some("ip_vs_ftp"));
    }

    #[test]
    fn a_scheduler_without_a_module_is_refused_unless_it_is_permitted() {
        let server = VirtualServer::new(key(), Scheduler::new("no-such").unwrap());
        let operations = [
            Operation::DeleteVirtualServer(key()),
            Operation::AddVirtualServer(server.clone()),
            Operation::AddVirtualServer(VirtualServer::new(key(), Scheduler::RR)),
        ];
        let mut loading = Loading::default();
        let refused = |loading: &mut Loading| {
            let not_loaded = loading.prepare(&operations);
            operations
                .each_ref()
                .map(|operation| not_loaded.check(operation).err())
        };
        let [delete, add, other] = refused(&mut loading);
        assert_eq!((delete, other), (None, None));
        let error = add.unwrap();
        assert!(
            error.is_scheduler_not_loaded() && error.is_scheduler_unavailable() && error.is_unsupported()
        );
        assert!(
            !error.is_outcome_unknown() && error.reason().is_none(),
            "{error:?}"
        );
        assert!(
            error
                .to_string()
                .starts_with("cannot add virtual server -t 10.0.0.1:80: scheduler no-such is not loaded (module ip_vs_no-such)"),
            "{error}"
        );
        assert!(loading.refuses(server.scheduler) && !loading.refuses(Scheduler::RR));

        loading.permit(&[server.scheduler]);
        assert_eq!(refused(&mut loading), [None, None, None]);
        assert!(!loading.refuses(server.scheduler));
        loading.permit(&[]);
        assert!(loading.refuses(server.scheduler));
    }

    #[test]
    fn a_program_of_root_without_the_capability_in_the_bounding_set_cannot_load_modules() {
        let status = |uid: u32, bounding: &str, ambient: &str| {
            format!(
                "Name:\tx\nUid:\t1000\t{uid}\t0\t0\nCapEff:\t000001ffffffffff\nCapBnd:\t{bounding}\nCapAmb:\t{ambient}\n"
            )
        };
        let (all, network, module) = ("000001ffffffffff", "0000000000003400", "0000000000010000");
        assert!(passes_on_sys_module(&status(0, all, "0")));
        assert!(!passes_on_sys_module(&status(0, network, "0")));
        assert!(!passes_on_sys_module(&status(1000, all, "0")));
        assert!(passes_on_sys_module(&status(1000, all, module)));
        assert!(!passes_on_sys_module(""));
    }
}
