//! Handing the node back to kube-proxy. It begins with what the kernel holds, so a process that has just started can do it, without sources.

use std::fmt;

use kernlink_base::ErrorChain;
use kernlink_ipset::{Operation as SetOperation, SetName};

use super::drain;
use super::error::Error;
use super::kernel::Kernel;
use super::operation::Operation;
use super::replacement::{Replacement, of_temporary};
use super::sets::SetId;

/// Operations on the objects that kube-proxy does not know, and what prevents others.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct HandBack {
    /// The operations, in order.
    pub operations: Vec<Operation>,
    /// What could not be read; its objects stay.
    pub errors: Vec<Error>,
    /// Sets whose entries do not fit in kube-proxy's parameters; they keep their own. kube-proxy fails to add further entries to them
    /// only when they are full.
    pub too_large: Vec<SetName>,
}

impl HandBack {
    /// Reads what hands the node back to kube-proxy while traffic flows: the sets that only kernlink uses are destroyed, and sets that it enlarged
    /// get kube-proxy's parameters. Virtual servers, addresses, entries and rules are those of kube-proxy and stay.
    #[must_use]
    pub fn plan(kernel: &mut Kernel) -> Self {
        let mut this = Self::default();
        let headers = match kernel.sets.headers() {
            Ok(headers) => headers,
            Err(error) => {
                this.errors.push(error.into());
                return this;
            }
        };
        for header in &headers {
            let Some((family, id)) = SetId::of_name(&header.set.name).filter(|(_, id)| *id != SetId::Ledger)
            else {
                continue;
            };
            let definition = id.definition(family);
            let (Some(maxelem), Some(actual)) = (definition.options.maxelem, header.set.options.maxelem)
            else {
                continue;
            };
            if maxelem == actual {
                continue;
            }
            match kernel.sets.list_set(&header.set.name) {
                Ok(contents) if contents.entries.len() > maxelem as usize => {
                    this.too_large.push(header.set.name);
                }
                Ok(contents) => this.operations.push(Operation::ReplaceSet(Box::new(Replacement {
                    set: definition,
                    entries: contents.entries,
                }))),
                Err(error) => this.errors.push(error.into()),
            }
        }
        // Last: until then another process recognises the virtual servers by the ledger.
        let names = headers.iter().map(|header| header.set.name);
        let removed = names.filter(is_only_of_kernlink);
        this.operations
            .extend(removed.map(|name| Operation::from(SetOperation::destroy(name))));
        this
    }

    /// Executes the operations. Returns one outcome for each, in order; one that fails does not stop those after it.
    pub fn execute(&self, kernel: &mut Kernel) -> Vec<Result<(), Error>> {
        let operations: Vec<&Operation> = self.operations.iter().collect();
        kernel.execute_all(&operations)
    }
}

impl fmt::Display for HandBack {
    /// The commands, and a line for everything that stays.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for operation in &self.operations {
            writeln!(f, "{operation}")?;
        }
        for error in &self.errors {
            writeln!(f, "# {}", ErrorChain(error))?;
        }
        for set in &self.too_large {
            writeln!(
                f,
                "# set {set} keeps its size: its entries do not fit in that of kube-proxy"
            )?;
        }
        Ok(())
    }
}

/// Whether a set is one of the ledger, of deadlines, or of a replacement that did not end.
fn is_only_of_kernlink(name: &SetName) -> bool {
    let is_ledger = SetId::of_name(name).is_some_and(|(_, id)| id == SetId::Ledger);
    is_ledger || drain::family_of_set(name).is_some() || of_temporary(name).is_some()
}
