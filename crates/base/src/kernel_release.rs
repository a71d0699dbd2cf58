//! Kernel releases.

use std::fmt;
use std::io;
use std::str::FromStr;

/// Major and minor number of a kernel release. [`Default`] is 0.0, older than every kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelRelease {
    /// 6 of `6.1.0-13-amd64`.
    pub major: u32,
    /// 1 of `6.1.0-13-amd64`.
    pub minor: u32,
}

impl KernelRelease {
    /// A release from its two numbers.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The release of the running kernel, from `/proc/sys/kernel/osrelease`.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, and [`io::ErrorKind::InvalidData`] if it does not begin with a release.
    pub fn current() -> io::Result<Self> {
        std::fs::read_to_string("/proc/sys/kernel/osrelease")?
            .parse()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

impl fmt::Display for KernelRelease {
    /// `6.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A text that does not begin with a kernel release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseKernelReleaseError(String);

impl fmt::Display for ParseKernelReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid kernel release {:?}; expected one such as 6.1.0-13-amd64",
            self.0
        )
    }
}

impl std::error::Error for ParseKernelReleaseError {}

impl FromStr for KernelRelease {
    type Err = ParseKernelReleaseError;

    /// Parses the output of `uname -r`. Space around the text and everything after the second number is ignored.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseKernelReleaseError(text.to_owned());
        let mut numbers = text.trim().splitn(3, '.').map(|part| {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..end].parse().map_err(|_| error())
        });
        let mut next = || numbers.next().unwrap_or_else(|| Err(error()));
        Ok(Self {
            major: next()?,
            minor: next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_their_numbers() {
        for (text, release) in [
            ("6.1.0-56-amd64\n", KernelRelease::new(6, 1)),
            ("5.10.0", KernelRelease::new(5, 10)),
            ("7.0-rc1", KernelRelease::new(7, 0)),
            ("4.9", KernelRelease::new(4, 9)),
        ] {
            assert_eq!(text.parse(), Ok(release));
        }
        assert!(KernelRelease::new(5, 10) > KernelRelease::new(5, 9));
    }

    #[test]
    fn what_is_no_release_is_an_error() {
        for text in ["", "unknown", "6", "6.", ".1", "v6.1", "99999999999.1"] {
            assert!(text.parse::<KernelRelease>().is_err(), "{text:?}");
        }
    }
}
