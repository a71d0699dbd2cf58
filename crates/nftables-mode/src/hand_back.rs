//! From kernlink back to kube-proxy, both in nftables mode: kube-proxy has a table of another name, and does not remove those of kernlink.
//!
//! While both exist, new connections are translated by the table that was made last, kube-proxy's. But a frontend or a cluster IP that kernlink refused
//! when it ended is refused until its tables are deleted.

use std::fmt;

use kernlink_base::ErrorChain;
use kernlink_nftables::{Commands, Error, ItemKey, Nftables, Operation, TableKey};
use kernlink_services::Family;

use crate::layout::{KUBE_PROXY_TABLE, SetName, Slot};

/// The map of kube-proxy's table with the frontends that have endpoints.
const KUBE_PROXY_FRONTENDS: &str = "service-ips";

/// The deletion of the tables of kernlink in the families in which kube-proxy serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandBack {
    /// The operations, for one transaction.
    pub operations: Vec<Operation>,
    /// Why tables stay.
    pub problems: Vec<String>,
}

impl HandBack {
    /// Reads which tables can be deleted. A table without frontends can; one with frontends if kube-proxy's table of this family has some too.
    pub fn plan(tables: &mut dyn Nftables) -> Self {
        let mut this = Self::default();
        for family in Family::ALL {
            match this.add(tables, family) {
                Ok(()) => {}
                // Without nf_tables there is no table.
                Err(error) if error.is_unsupported() => {}
                Err(error) => this.problems.push(ErrorChain(&error).to_string()),
            }
        }
        this
    }

    fn add(&mut self, tables: &mut dyn Nftables, family: Family) -> Result<(), Error> {
        let existing: Vec<TableKey> = tables
            .tables(Some(family.into()))?
            .into_iter()
            .map(|table| table.key)
            .collect();
        let own = Slot::ALL.map(|slot| slot.table(family));
        let own: Vec<&TableKey> = own.iter().filter(|table| existing.contains(table)).collect();
        let mut has_frontends = false;
        for table in &own {
            has_frontends |= has_elements(tables, table, SetName::Frontends.text())?;
        }
        let other = TableKey::new(family, KUBE_PROXY_TABLE);
        let is_served = existing.contains(&other) && has_elements(tables, &other, KUBE_PROXY_FRONTENDS)?;
        for table in own {
            if has_frontends && !is_served {
                self.problems.push(format!(
                    "table {table} stays: table {other} serves no Service; start kube-proxy in nftables mode before, or remove everything \
                     with --cleanup"
                ));
            } else {
                self.operations
                    .push(Operation::delete(ItemKey::Table(table.clone())));
            }
        }
        Ok(())
    }

    /// Deletes the tables. One that another program deleted meanwhile is no error.
    ///
    /// # Errors
    /// That of the kernel. No table is deleted then.
    pub fn execute(&self, tables: &mut dyn Nftables) -> Result<(), Error> {
        match tables.apply(&self.operations) {
            Err(error) if error.is_not_found() => {
                let outcomes = self.operations.iter().map(|operation| {
                    let deleted = tables.apply(std::slice::from_ref(operation));
                    deleted.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
                });
                outcomes.collect()
            }
            outcome => outcome,
        }
    }
}

/// Prints the commands of `nft`.
impl fmt::Display for HandBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.operations.is_empty() {
            return Ok(());
        }
        writeln!(f, "nft -f - <<END\n{}END", Commands::new(&self.operations))
    }
}

/// Whether a set of a table exists and has elements.
fn has_elements(tables: &mut dyn Nftables, table: &TableKey, set: &str) -> Result<bool, Error> {
    match tables.list_elements(&table.set(set)) {
        Ok(elements) => Ok(!elements.is_empty()),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(all(test, feature = "fake"))]
mod tests {
    use kernlink_nftables::{DataType, Element, Elements, Fake, Set, Table, Value};

    use super::*;

    fn with_map(fake: &mut Fake, table: &TableKey, map: &str, has_element: bool) {
        let set = Set::map(table.set(map), &[DataType::Ipv4Address], &[DataType::Service]);
        let element = Element::new(Value::from([10, 96, 0, 1])).with_value(Value::from([0, 1]));
        let elements = Elements::new(set.key.clone(), has_element.then_some(element));
        let mut operations = vec![Operation::add(Table::new(table.clone())), Operation::add(set)];
        operations.extend(has_element.then(|| Operation::add(elements)));
        fake.apply(&operations).unwrap();
    }

    fn names(fake: &mut Fake) -> Vec<String> {
        let tables = fake.tables(None).unwrap();
        tables.iter().map(|table| table.key.to_string()).collect()
    }

    #[test]
    fn the_tables_are_deleted_when_kube_proxy_serves_and_not_before() {
        let mut fake = Fake::new();
        for slot in Slot::ALL {
            with_map(
                &mut fake,
                &slot.table(Family::Ipv4),
                "frontends",
                slot == Slot::First,
            );
        }
        // Without frontends: it serves no Service.
        with_map(&mut fake, &Slot::First.table(Family::Ipv6), "frontends", false);
        with_map(
            &mut fake,
            &TableKey::new(Family::Ipv4, "other"),
            "frontends",
            true,
        );
        let kube_proxy = TableKey::new(Family::Ipv4, KUBE_PROXY_TABLE);
        with_map(&mut fake, &kube_proxy, KUBE_PROXY_FRONTENDS, false);
        let early = HandBack::plan(&mut fake);
        assert_eq!(
            early.to_string(),
            "nft -f - <<END\ndelete table ip6 kernlink\nEND\n"
        );
        assert_eq!(
            early.problems,
            ["kernlink", "kernlink-2"].map(|name| format!(
                "table ip {name} stays: table ip kube-proxy serves no Service; start kube-proxy in nftables mode before, or remove everything \
                 with --cleanup"
            ))
        );
        early.execute(&mut fake).unwrap();
        let all = ["ip kernlink", "ip kernlink-2", "ip kube-proxy", "ip other"];
        assert_eq!(names(&mut fake), all);

        with_map(&mut fake, &kube_proxy, KUBE_PROXY_FRONTENDS, true);
        let late = HandBack::plan(&mut fake);
        assert!(late.problems.is_empty());
        // Another program deletes one of them meanwhile.
        let first = Slot::First.table(Family::Ipv4);
        fake.apply(&[Operation::delete(ItemKey::Table(first))]).unwrap();
        late.execute(&mut fake).unwrap();
        assert_eq!(names(&mut fake), ["ip kube-proxy", "ip other"]);
        assert_eq!(HandBack::plan(&mut fake), HandBack::default());
        assert_eq!(HandBack::default().to_string(), "");
    }
}
