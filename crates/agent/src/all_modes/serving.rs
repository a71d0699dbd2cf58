//! Whether the kernel serves Services already.

use kernlink_proxier::{iptables_mode, ipvs_mode};
use kernlink_userspace::data_path as userspace;

use super::error::Error;
use super::kernel::Kernel;
use super::mode::Mode;

impl Kernel {
    /// Whether the kernel has objects that serve Services, in any mode: a virtual server of any program, a chain of a port of a Service, or
    /// a portal. `mode` is the configured one. The modules of IPVS are loaded for it in IPVS mode only.
    ///
    /// # Errors
    /// What could not be read.
    pub fn has_services(&mut self, mode: Mode) -> Result<bool, Error> {
        let rules = &mut *self.iptables()?.rules;
        if userspace::has_portals(rules).map_err(userspace::Error::from)?
            || iptables_mode::has_service_chains(rules)?
        {
            return Ok(true);
        }
        if mode != Mode::Ipvs && !self.is_ipvs_loaded()? {
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
