//! Whether the kernel serves Services already.

use super::error::Error;
use super::kernel::Kernel;
use super::mode::Mode;
use crate::{iptables_mode, ipvs_mode};

impl Kernel {
    /// Whether the kernel has objects that serve Services, in either mode: a virtual server of any program, or a chain of a port of a
    /// Service. `mode` is the configured one. The modules of IPVS are not loaded for it in iptables mode.
    ///
    /// # Errors
    /// What could not be read.
    pub fn has_services(&mut self, mode: Mode) -> Result<bool, Error> {
        let rules = match mode {
            Mode::Ipvs => &mut *self.ipvs()?.rules,
            Mode::Iptables => &mut *self.iptables()?.rules,
        };
        if iptables_mode::has_service_chains(rules)? {
            return Ok(true);
        }
        if mode == Mode::Iptables && !self.is_ipvs_loaded()? {
            return Ok(false);
        }
        let servers = self.ipvs()?.ipvs.list_virtual_servers();
        Ok(!servers.map_err(ipvs_mode::Error::from)?.is_empty())
    }

    /// Whether the kernel has IPVS without loading a module. Without it there is no virtual server.
    fn is_ipvs_loaded(&mut self) -> Result<bool, Error> {
        let value = self.iptables()?.sysctls.read("net.ipv4.vs.conntrack");
        Ok(value.map_err(iptables_mode::Error::from)?.is_some())
    }
}
