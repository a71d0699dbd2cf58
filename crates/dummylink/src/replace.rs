//! Replacing the addresses of a link.

// Circle of imports: `DummyLinks` provides `replace` for every implementation.

use std::fmt;

use kernlink_base::ErrorChain;

use crate::{
    Difference, DummyLinks, Error, LinkAddress, LinkName, LocalRoute, Operation, Ownership, Selection,
    difference,
};

/// Result of [`DummyLinks::replace`](crate::DummyLinks::replace).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplaceReport {
    /// The difference between observed and desired addresses before the change.
    pub difference: Difference,
    /// Number of successful operations on addresses.
    pub done: usize,
    /// Local routes that the kernel deleted with the link's last IPv4 address and that were added again.
    pub restored: Vec<LocalRoute>,
    /// Operations that failed, in order.
    pub failures: Vec<(Operation, Error)>,
}

impl fmt::Display for ReplaceReport {
    /// One line: `3 operations done, 1 route restored, 1 failed: address add 10.0.0.1/32 dev dummy0: ...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        write!(f, "{} operation{} done", self.done, plural(self.done))?;
        if !self.restored.is_empty() {
            let count = self.restored.len();
            write!(f, ", {count} route{} restored", plural(count))?;
        }
        if !self.failures.is_empty() {
            write!(f, ", {} failed", self.failures.len())?;
        }
        for (index, (operation, error)) in self.failures.iter().enumerate() {
            let separator = if index == 0 { ":" } else { ";" };
            write!(f, "{separator} {operation}: {}", ErrorChain(error))?;
        }
        Ok(())
    }
}

impl ReplaceReport {
    /// Executes operations and records their outcomes.
    pub(crate) fn execute(&mut self, links: &mut (impl DummyLinks + ?Sized), operations: Vec<Operation>) {
        if operations.is_empty() {
            return;
        }
        let missing = std::iter::repeat_with(|| Err(Error::OutcomeMissing));
        let outcomes = links.execute(&operations).into_iter().chain(missing);
        for (operation, outcome) in operations.into_iter().zip(outcomes) {
            match (&operation, outcome) {
                (Operation::EnsureRoute(_, route), Ok(())) => self.restored.push(*route),
                (_, Ok(())) => self.done += 1,
                // Already deleted, by another program or together with another address.
                (_, Err(error)) if error.is_not_found() && !error.is_link_missing() => {}
                (_, Err(error)) => self.failures.push((operation, error)),
            }
        }
    }
}

/// See [`DummyLinks::replace`].
pub(crate) fn replace<L: DummyLinks + ?Sized>(
    links: &mut L,
    link: &LinkName,
    desired: &[LinkAddress],
    ownership: &Ownership,
) -> Result<ReplaceReport, Error> {
    // Its first name, which listings contain; `link` may be an alternative name.
    let link = match links.link(link)? {
        Some(found) => found.name,
        None => {
            return Err(Error::LinkMissing {
                operation: Selection::On(*link).to_string().into(),
                link: *link,
            });
        }
    };
    let mut report = ReplaceReport::default();
    let mut routes = Vec::new();
    for round in 0..2 {
        let observed = links.list(Selection::All)?;
        let difference = difference(&link, &observed, desired, ownership);
        let mut operations = difference.operations(&link);
        if round == 0 {
            if difference.deletes_ipv4() {
                routes = links.routes(&link)?;
                routes.retain(|route| route.prefix().addr().is_ipv4());
            }
            if difference.deletes_last_ipv4(&observed, &link) {
                operations.extend(routes.iter().map(|route| Operation::EnsureRoute(link, *route)));
            }
            report.difference = difference;
        }
        // The second round adds again what the kernel deleted together with a primary address.
        let operations: Vec<_> = operations
            .into_iter()
            .filter(|operation| round == 0 || !report.failures.iter().any(|(failed, _)| failed == operation))
            .collect();
        if operations.is_empty() {
            break;
        }
        report.execute(links, operations);
        if !report.difference.deletes_primary(&observed, &link) {
            break;
        }
    }
    // Another program may have deleted the other addresses, so that the last one was deleted without the routes in the batch.
    if !routes.is_empty() {
        let present = links.routes(&link)?;
        let lost = routes
            .iter()
            .filter(|route| !present.contains(route) && !report.restored.contains(route))
            .map(|route| Operation::EnsureRoute(link, *route))
            .collect();
        report.execute(links, lost);
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_prints_what_was_done_and_what_failed() {
        let link: LinkName = "dummy0".parse().unwrap();
        let mut report = ReplaceReport {
            done: 1,
            ..ReplaceReport::default()
        };
        assert_eq!(report.to_string(), "1 operation done");
        let key = "10.0.0.1/32".parse().unwrap();
        report
            .failures
            .push((Operation::DeleteAddress(link, key), Error::OutcomeMissing));
        let text = report.to_string();
        assert!(
            text.starts_with("1 operation done, 1 failed: address del"),
            "{text}"
        );
        assert!(text.contains("10.0.0.1/32"), "{text}");
    }
}
