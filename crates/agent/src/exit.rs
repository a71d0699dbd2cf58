//! How the program ends.

use std::process::ExitCode;

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

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}
