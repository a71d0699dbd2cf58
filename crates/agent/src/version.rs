//! The version of the program.

/// The commit that the program was built from: what the environment variable `KERNLINK_COMMIT` had, or the first 12 digits of that of the work tree.
/// `None`: there was no work tree or no `git`, and that variable was not set.
pub const COMMIT: Option<&str> = match option_env!("KERNLINK_COMMIT") {
    Some(commit) if !commit.is_empty() => Some(commit),
    _ => None,
};

/// The version, and the commit if it is known: `0.1.0 (df94dd10b5b3)`.
#[must_use]
pub fn text() -> String {
    let version = env!("CARGO_PKG_VERSION");
    match COMMIT {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_follows_the_version() {
        let commit = COMMIT.map(|commit| format!(" ({commit})")).unwrap_or_default();
        assert_eq!(text(), format!("{}{commit}", env!("CARGO_PKG_VERSION")));
        assert_ne!(COMMIT, Some(""));
    }
}
