//! The kernel APIs of the proxier, which record the processes that they start and the sysctls that they use.

use kernlink_benches::Result;
use kernlink_benches::recorded::Record;
use kernlink_proxier::host::KernelSysctls;
use kernlink_proxier::ipvs_mode::Kernel;

use crate::tools::Tools;

/// The kernel in the calling thread's network namespace.
pub(crate) fn open_kernel(record: &Record) -> Result<Kernel> {
    let mut kernel = Kernel::open()?;
    let tools = Tools::in_memory()?;
    kernel.rules = Box::new(tools.client(record.runner(tools.runner())));
    kernel.sysctls = record.sysctls(KernelSysctls::open()?);
    Ok(kernel)
}
