//! Checks that every implementation of a trait must pass: the kernel client, the fake, an implementation of the user's.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One required behaviour of implementations of the trait `T`.
#[derive(Debug)]
pub struct Check<T: ?Sized> {
    /// The behaviour, as a sentence in snake case.
    pub name: &'static str,
    /// Panics if the implementation behaves otherwise. It must be empty before, and holds arbitrary state afterwards.
    pub run: fn(&mut T),
}

impl<T: ?Sized> Clone for Check<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Check<T> {}

/// Calls `each` with every check and collects all failures. `each` must call [`Check::run`] with an empty implementation; it may skip
/// a check that cannot pass on the running kernel.
///
/// # Errors
///
/// The checks for which `each` panicked, in order. The panic hook has printed each message already.
pub fn run<T: ?Sized>(checks: &[Check<T>], mut each: impl FnMut(&Check<T>)) -> Result<(), Failures> {
    let mut failures = Vec::new();
    for check in checks {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| each(check))) {
            let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
                (Some(message), _) => (*message).to_owned(),
                (None, Some(message)) => message.clone(),
                (None, None) => "panicked without a message".to_owned(),
            };
            failures.push(Failure {
                check: check.name,
                message,
            });
        }
    }
    if failures.is_empty() {
        Ok(())
    } else {
        Err(Failures(failures))
    }
}

/// A check that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The name of the check.
    pub check: &'static str,
    /// The message of the panic.
    pub message: String,
}

/// All checks that failed in one run; at least one.
#[derive(Clone, PartialEq, Eq)]
pub struct Failures(pub Vec<Failure>);

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of the contract's checks failed", self.0.len())?;
        for failure in &self.0 {
            write!(f, "\n{}: {}", failure.check, failure.message)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failures {}

/// Names functions as [`Check`]s of a trait: `checks!(dyn Trait: first, second)`.
#[macro_export]
macro_rules! checks {
    ($type:ty: $($check:ident),* $(,)?) => {
        &[$($crate::contract::Check::<$type> { name: stringify!($check), run: $check }),*]
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn it_counts(count: &mut u32) {
        *count += 1;
    }

    fn it_is_ten(count: &mut u32) {
        assert_eq!(*count, 10, "not ten");
    }

    fn it_is_eleven(count: &mut u32) {
        assert_eq!(*count, 11, "not eleven");
    }

    #[test]
    fn every_failure_is_collected() {
        let mut runs = 0;
        let result = run(crate::checks!(u32: it_counts, it_is_ten, it_is_eleven), |check| {
            runs += 1;
            (check.run)(&mut 0);
        });
        assert_eq!(runs, 3);
        let failures = result.unwrap_err();
        let names: Vec<_> = failures.0.iter().map(|failure| failure.check).collect();
        assert_eq!(names, ["it_is_ten", "it_is_eleven"]);
        assert!(failures.to_string().contains("not eleven"), "{failures}");
    }

    #[test]
    fn no_failure_is_ok() {
        assert_eq!(
            run(crate::checks!(u32: it_counts), |check| (check.run)(&mut 0)),
            Ok(())
        );
    }
}
