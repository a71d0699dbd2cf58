//! Which modules are missing when the kernel refuses an operation.

use std::collections::HashMap;

use kernlink_base::Modules;

use crate::availability::Availability;
use crate::error::Unavailable;
use crate::reason::Reason;

/// Looks up modules for the refused operations of one batch. The files are read at most once.
#[derive(Default)]
pub(crate) struct ModuleLookup {
    modules: Option<Modules>,
    found: HashMap<String, Availability>,
}

impl ModuleLookup {
    fn of(&mut self, module: String) -> Availability {
        let modules = self.modules.get_or_insert_with(Modules::of_running_kernel);
        let found = self.found.entry(module);
        found
            .or_insert_with_key(|module| Availability::of(module, modules))
            .clone()
    }

    /// Adds whether a missing scheduler or persistence engine is installed, and which of the two is missing.
    pub(crate) fn refine(&mut self, reason: Reason) -> Reason {
        match reason {
            Reason::SchedulerUnavailable { scheduler, .. } => Reason::SchedulerUnavailable {
                module: self.of(format!("ip_vs_{scheduler}")),
                scheduler,
            },
            Reason::PersistenceEngineUnavailable { engine, .. } => Reason::PersistenceEngineUnavailable {
                module: self.of(format!("ip_vs_pe_{engine}")),
                engine,
            },
            Reason::SchedulerOrPersistenceEngineUnavailable { scheduler, engine } => {
                let of_scheduler = self.of(format!("ip_vs_{scheduler}"));
                match (of_scheduler, self.of(format!("ip_vs_pe_{engine}"))) {
                    (Availability::Loaded, module) if module != Availability::Loaded => {
                        Reason::PersistenceEngineUnavailable { engine, module }
                    }
                    (module, Availability::Loaded) if module != Availability::Loaded => {
                        Reason::SchedulerUnavailable { scheduler, module }
                    }
                    _ => Reason::SchedulerOrPersistenceEngineUnavailable { scheduler, engine },
                }
            }
            reason => reason,
        }
    }
}

impl Unavailable {
    /// Why the running kernel has no netlink family `IPVS` after a request for it, on which the kernel tries to load the module.
    pub(crate) fn diagnose() -> Self {
        Self::of(&Modules::of_running_kernel())
    }

    fn of(modules: &Modules) -> Self {
        let release = modules.release().to_owned();
        let directory = modules.directory().display().to_string();
        match modules.is_on_disk("ip_vs") {
            Some(true) => Self::NotLoaded,
            Some(false) => Self::NotInstalled { release, directory },
            None => Self::Unknown { release, directory },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{PersistenceEngine, Scheduler};

    fn modules(loaded: &str, on_disk: Option<(&str, &str)>) -> Modules {
        Modules::new("6.1.0-1-amd64", loaded, on_disk)
    }

    #[test]
    fn the_error_of_a_kernel_without_the_family_has_the_remedy() {
        let deps = "kernel/net/netfilter/ipvs/ip_vs.ko.xz: kernel/lib/libcrc32c.ko\n";
        let texts = [
            (
                Some(("", deps)),
                "the module ip_vs is installed but was not loaded automatically; run `modprobe ip_vs` as root of the host",
            ),
            (
                Some(("", "kernel/net/netfilter/ipvs/ip_vs_rr.ko:\n")),
                "kernel 6.1.0-1-amd64 has no IPVS: /lib/modules/6.1.0-1-amd64 does not contain the module ip_vs; install the kernel's full module package or use a kernel with CONFIG_IP_VS",
            ),
            (
                None,
                "kernel 6.1.0-1-amd64 has not loaded IPVS, and /lib/modules/6.1.0-1-amd64 does not exist here, so it is unknown whether the module ip_vs is installed; run `modprobe ip_vs` as root of the host",
            ),
        ];
        for (on_disk, text) in texts {
            let error = crate::Error::from(Unavailable::of(&modules("", on_disk)));
            assert_eq!(error.to_string(), text);
            assert!(error.is_unavailable() && error.is_unsupported() && !error.is_permission_denied());
        }
    }

    #[test]
    fn modules_are_found_by_their_whole_name() {
        let modules = modules(
            "ip_vs_rr 16384 2 - Live 0x0\nip_vs 200704 4 ip_vs_rr, Live 0x0\n",
            Some((
                "kernel/net/netfilter/ipvs/ip_vs_lc.ko\n",
                "kernel/net/netfilter/ipvs/ip_vs_wrr.ko.zst: kernel/x.ko\n",
            )),
        );
        assert_eq!(Availability::of("ip_vs_rr", &modules), Availability::Loaded);
        assert_eq!(Availability::of("ip_vs_lc", &modules), Availability::Loaded);
        assert_eq!(Availability::of("ip_vs_wrr", &modules), Availability::Loadable);
        assert_eq!(Availability::of("ip_vs_r", &modules), Availability::Missing);
        assert_eq!(Availability::of("ip_vs_wr", &modules), Availability::Missing);
    }

    #[test]
    fn the_error_names_the_scheduler_or_engine_that_is_not_loaded() {
        let lookup = |loaded: &str| ModuleLookup {
            modules: Some(modules(
                loaded,
                Some(("", "net/ip_vs_fo.ko.xz:\nnet/ip_vs_rr.ko.xz:\n")),
            )),
            found: HashMap::new(),
        };
        let (scheduler, engine) = (Scheduler::FO, PersistenceEngine::SIP);
        let either = || Reason::SchedulerOrPersistenceEngineUnavailable { scheduler, engine };
        let (fo, sip) = ("ip_vs_fo 1 0 - Live 0x0\n", "ip_vs_pe_sip 1 0 - Live 0x0\n");
        assert_eq!(
            lookup(fo).refine(either()).to_string(),
            "persistence engine sip is not available (module ip_vs_pe_sip); the module is not installed for this kernel"
        );
        assert_eq!(
            lookup(sip).refine(either()).to_string(),
            "scheduler fo is not available (module ip_vs_fo); the module is installed but was not loaded automatically; run \
             `modprobe ip_vs_fo` as root of the host"
        );
        assert_eq!(lookup("").refine(either()), either());
        assert_eq!(lookup(&format!("{fo}{sip}")).refine(either()), either());
    }
}
