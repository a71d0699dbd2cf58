//! The lock of the network namespace.

use kernlink_proxier::host::Lock;

use crate::exit::Exit;
use crate::print;

/// Locks the network namespace. Reports why if that is not possible.
pub(crate) fn acquire() -> Result<Lock, Exit> {
    match Lock::acquire() {
        Ok(lock) => {
            if !lock.is_exclusive() {
                tracing::warn!(
                    "nothing keeps another agent out of this network namespace: the kernel has no tables of nf_tables with an owner \
                     (Linux 5.12), and a process that is not root has the abstract Unix socket @{}",
                    Lock::NAME
                );
            }
            Ok(lock)
        }
        Err(error) => {
            print::error(&error);
            Err(Exit::from(&error))
        }
    }
}
