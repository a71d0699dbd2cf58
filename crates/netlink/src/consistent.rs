//! Listing a table that may change during the listing.

/// What [`list_until_consistent`] listed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing<T> {
    /// The listing of the last attempt.
    pub value: T,
    /// Whether the last attempt was consistent.
    pub is_consistent: bool,
    /// How many attempts were made; at least 1.
    pub attempts: u32,
}

/// Calls `list` until it reports a consistent listing, or until `max_attempts` listings were made (at least one).
///
/// `list` gets the listing of the attempt before, and returns a listing and whether it is consistent. A caller that compares two
/// listings in a row reports the first one as not consistent.
///
/// ```
/// let mut lengths = [1, 2, 3, 3, 4].into_iter();
/// let listing = kernlink_netlink::list_until_consistent(10, |before: Option<&u32>| {
///     let length = lengths.next().ok_or("the end")?;
///     Ok::<_, &str>((length, before == Some(&length)))
/// })?;
/// assert_eq!((listing.value, listing.is_consistent, listing.attempts), (3, true, 4));
/// # Ok::<(), &str>(())
/// ```
///
/// # Errors
/// The first error of `list`; no further attempt is made.
pub fn list_until_consistent<T, E>(
    max_attempts: u32,
    mut list: impl FnMut(Option<&T>) -> Result<(T, bool), E>,
) -> Result<Listing<T>, E> {
    let mut before = None;
    let mut attempts = 0;
    loop {
        let (value, is_consistent) = list(before.as_ref())?;
        attempts += 1;
        if is_consistent || attempts >= max_attempts {
            return Ok(Listing {
                value,
                is_consistent,
                attempts,
            });
        }
        before = Some(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempt_is_returned_even_if_it_is_not_consistent() {
        let mut calls = 0;
        let listing = list_until_consistent(3, |before: Option<&u32>| {
            assert_eq!(before.copied(), (calls > 0).then_some(calls));
            calls += 1;
            Ok::<_, ()>((calls, false))
        })
        .unwrap();
        assert_eq!(
            listing,
            Listing {
                value: 3,
                is_consistent: false,
                attempts: 3
            }
        );
    }

    #[test]
    fn an_error_ends_the_attempts() {
        let mut calls = 0;
        let result = list_until_consistent(10, |_: Option<&()>| {
            calls += 1;
            if calls == 2 {
                Err("refused")
            } else {
                Ok(((), false))
            }
        });
        assert_eq!((result, calls), (Err("refused"), 2));
    }
}
