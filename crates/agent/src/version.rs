//! The version of the program.

/// The commit that the program was built from, its first 12 digits: that of the environment variable `KERNLINK_COMMIT` when it was built, or that of the
/// work tree. `unknown`: there was no work tree or no `git`, and that variable was not set.
pub const COMMIT: &str = env!("KERNLINK_COMMIT");

/// The version and the commit: `0.1.0 (df94dd10b5b3)`.
pub const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("KERNLINK_COMMIT"), ")");
