//! How the program ends.

use std::process::ExitCode;

use kernlink_proxier::host::lock::LockError;

use crate::settings::InvalidSettings;

/// The exit status of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: everything was done, or a signal ended the agent.
    Success,
    /// 1: something could not be read or done; the kernel is not as it should be.
    Failure,
    /// 2: the command line or the configuration is invalid. Nothing was read or changed.
    Usage,
    /// 3: another process programs this network namespace. Nothing was read or changed.
    Locked,
}

impl Exit {
    /// This one unless it is a success, else the other.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self == Exit::Success { other } else { self }
    }

    /// The number.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Failure => 1,
            Exit::Usage => 2,
            Exit::Locked => 3,
        }
    }
}

impl From<&LockError> for Exit {
    fn from(error: &LockError) -> Self {
        if error.is_held() {
            Exit::Locked
        } else {
            Exit::Failure
        }
    }
}

impl From<&InvalidSettings> for Exit {
    /// A service manager tries again after a failure, and not after [`Exit::Usage`].
    fn from(error: &InvalidSettings) -> Self {
        if error.is_file_missing {
            Exit::Failure
        } else {
            Exit::Usage
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn only_a_lock_of_another_process_has_a_status_of_its_own() {
        assert_eq!(Exit::from(&LockError::Held { pid: None }).code(), 3);
        let error = LockError::Io(io::Error::from(io::ErrorKind::PermissionDenied));
        assert_eq!(Exit::from(&error).code(), 1);
    }
}
