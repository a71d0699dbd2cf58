//! Loading the modules of schedulers that the kernel cannot always load itself.
//!
//! The kernel loads the module of a scheduler while it holds the mutex of IPVS
//! ([`ip_vs_genl_set_cmd`][ctl], [`ip_vs_scheduler_get`][sched]). The modules of two schedulers register operations for network
//! namespaces ([`ip_vs_lblc_init`][lblc]). That waits until no namespace is being deleted, and the deletion of a namespace waits
//! for the mutex of IPVS ([`ip_vs_dst_event`][ctl]). If a namespace is deleted at that moment, neither ends until the process
//! that sent the request is killed. Meanwhile the kernel holds the mutex of rtnetlink, so nothing can change a link, an address or a
//! route. A module that is loaded before the request holds up nothing.
//!
//! [ctl]: https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ctl.c
//! [sched]: https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_sched.c
//! [lblc]: https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_lblc.c

use std::path::Path;
use std::process::{Command, Stdio};

use crate::operation::Operation;
use crate::scheduler::Scheduler;

/// The schedulers concerned.
const CONCERNED: [Scheduler; 2] = [Scheduler::LBLC, Scheduler::LBLCR];

/// The program that loads modules for the kernel, with its path; empty if automatic loading is disabled.
const PROGRAM: &str = "/proc/sys/kernel/modprobe";

/// Loads the modules that `operations` need, if the kernel could fail to. A failure is ignored: the kernel then loads the module
/// itself, or refuses the operation.
pub(super) fn load_schedulers(operations: &[Operation]) {
    for scheduler in CONCERNED {
        let is_used = operations
            .iter()
            .any(|operation| scheduler_of(operation) == Some(scheduler));
        if is_used
            && let Some(module) = scheduler.module()
            && !is_registered(scheduler, &module)
        {
            load(&module);
        }
    }
}

/// Whether the kernel has the scheduler: by its sysctl, which is missing in network namespaces of other user namespaces, or by the state of
/// its module, which one that is built in does not have. If both are missing, the program of [`load`] finds that there is nothing to do.
fn is_registered(scheduler: Scheduler, module: &str) -> bool {
    let is_live = || {
        let state = std::fs::read_to_string(format!("/sys/module/{module}/initstate"));
        state.is_ok_and(|state| state.trim_end() == "live")
    };
    Path::new(&format!("/proc/sys/net/ipv4/vs/{scheduler}_expiration")).exists() || is_live()
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

/// Runs the program as the kernel does (`call_modprobe` in
/// [`kmod.c`](https://github.com/torvalds/linux/blob/v6.1/kernel/kmod.c)). The kernel does not search for one without a path.
fn load(module: &str) {
    let program = std::fs::read_to_string(PROGRAM).unwrap_or_default();
    let program = Path::new(program.trim_end());
    if !program.is_absolute() {
        return;
    }
    let _the_kernel_tries_too = Command::new(program)
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

    #[test]
    fn a_scheduler_is_looked_up_for_each_configuration_of_a_virtual_server() {
        let key = VirtualServerKey::tcp(Ipv4Addr::new(10, 0, 0, 1), 80);
        let server = VirtualServer::new(key, Scheduler::LBLC);
        for operation in [
            Operation::AddVirtualServer(server.clone()),
            Operation::UpdateVirtualServer(server.clone()),
            Operation::EnsureVirtualServer(server),
        ] {
            assert_eq!(scheduler_of(&operation), Some(Scheduler::LBLC), "{operation}");
        }
        assert_eq!(scheduler_of(&Operation::DeleteVirtualServer(key)), None);
    }
}
