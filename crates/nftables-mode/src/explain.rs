//! The objects of the kernel that serve a frontend, for an operator: as they should be, and as they are.

use kernlink_base::ErrorChain;
use kernlink_engine::KernelObject;
use kernlink_nftables::{Chain, Commands, Element, Elements, Error, Nftables, Operation, Rule, TableKey};
use kernlink_services::{Family, FrontendKey};

use crate::item::Item;
use crate::layout::SetName;
use crate::rules::{Parameters, Skeleton};
use crate::state::State;

/// What a frontend has in the table of its family, as last written or read. It is read again on another thread.
#[derive(Clone, Debug)]
pub struct FrontendElements {
    family: Family,
    /// `None`: there is no table.
    table: Option<(TableKey, Parameters)>,
    items: Vec<Item>,
}

impl State {
    /// What a frontend has in the kernel, as last written or read.
    #[must_use]
    pub fn frontend_elements(&self, key: &FrontendKey) -> FrontendElements {
        let family = self.family(key.family());
        let table = family.table.as_ref();
        FrontendElements {
            family: key.family(),
            table: table.map(|table| (table.slot.table(key.family()), table.parameters.clone())),
            items: family.recorded_items(key),
        }
    }
}

impl FrontendElements {
    /// Reads the elements from the kernel, each by its key, and the chains and rules of the table, whose number does not depend on the Services.
    pub fn find(&self, nftables: &mut dyn Nftables) -> Vec<KernelObject> {
        let Some((table, parameters)) = &self.table else {
            return vec![KernelObject::missing(format!(
                "the table of {}, which the next sync makes",
                self.family
            ))];
        };
        let name = format!("table {table}");
        match nftables.table(table) {
            Err(error) => return vec![unknown(name, &error)],
            Ok(None) => return vec![KernelObject::missing(name)],
            Ok(Some(_)) => {}
        }
        let mut objects = match (nftables.chains(table), nftables.rules(table, None)) {
            (Ok(chains), Ok(rules)) => compare_chains(table, parameters, &chains, &rules),
            (Err(error), _) | (_, Err(error)) => vec![unknown(format!("chains of {table}"), &error)],
        };
        for set in SetName::ALL {
            let items = self.items.iter().filter(|item| item.set == set).cloned();
            let elements: Vec<Element> = items.map(Item::element).collect();
            if !elements.is_empty() {
                self.find_in_set(nftables, table, set, elements, &mut objects);
            }
        }
        objects
    }

    fn find_in_set(
        &self,
        nftables: &mut dyn Nftables,
        table: &TableKey,
        set: SetName,
        elements: Vec<Element>,
        objects: &mut Vec<KernelObject>,
    ) {
        let keys = elements.iter().map(Element::key_only);
        let found = match nftables.find_elements(&Elements::new(set.key(table), keys)) {
            Ok(found) => found,
            Err(error) if error.is_not_found() => {
                objects.push(KernelObject::missing(format!("set {table} {set}")));
                return;
            }
            Err(error) => {
                objects.push(unknown(format!("set {table} {set}"), &error));
                return;
            }
        };
        let mut found = found.into_iter();
        for element in elements {
            let desired = self.notation(table, set, &element);
            objects.push(match found.next().flatten() {
                None => KernelObject::missing(desired),
                Some(read) if read.data == element.data => KernelObject::same(desired),
                Some(read) => KernelObject::different(desired, self.notation(table, set, &read)),
            });
        }
    }

    /// `add element ip kernlink frontends { 10.96.0.1 . tcp . 80 : 1 }`.
    fn notation(&self, table: &TableKey, set: SetName, element: &Element) -> String {
        let add = [Operation::add(Elements::new(set.key(table), [element.clone()]))];
        let commands = Commands::new(&add).with_sets([set.set(table, self.family)]);
        let text = commands.to_string();
        text.trim_end().to_owned()
    }
}

fn unknown(what: String, error: &Error) -> KernelObject {
    KernelObject::unknown(what, ErrorChain(error).to_string())
}

/// The chains that each packet to a Service may pass, one object for those that are as they should be.
fn compare_chains(
    table: &TableKey,
    parameters: &Parameters,
    chains: &[Chain],
    rules: &[Rule],
) -> Vec<KernelObject> {
    let skeleton = Skeleton::new(table, parameters);
    let mut objects = Vec::new();
    let mut same = 0;
    for part in [&skeleton.base, &skeleton.inner] {
        for chain in &part.chains {
            let name = format!("chain {table} {}", chain.key.name);
            let of_chain = |rules: &[Rule]| rules.iter().filter(|rule| rule.chain == chain.key).count();
            let (desired, found) = (of_chain(&part.rules), of_chain(rules));
            if !chains.iter().any(|known| known.key == chain.key) {
                objects.push(KernelObject::missing(name));
            } else if desired != found {
                let of = format!("{name} with {desired} rules");
                objects.push(KernelObject::different(of, format!("{found} rules")));
            } else {
                same += 1;
            }
        }
    }
    if same > 0 {
        objects.push(KernelObject::same(format!(
            "{same} chains of table {table} with their rules"
        )));
    }
    objects
}

#[cfg(all(test, feature = "fake"))]
mod tests {
    use kernlink_engine::{DataPath, Found};
    use kernlink_nftables::{Fake, TableFlags, Value};
    use kernlink_services::Protocol;

    use super::*;
    use crate::config::Config;
    use crate::item::frontend_value;
    use crate::layout::Slot;
    use crate::operation::Create;

    fn states(objects: &[KernelObject]) -> Vec<(&str, bool)> {
        let state = |object: &KernelObject| matches!(object.found, Found::Same(_));
        objects
            .iter()
            .map(|object| (object.desired.as_str(), state(object)))
            .collect()
    }

    #[test]
    fn what_is_missing_in_the_kernel_is_named_in_the_notation_of_nft() {
        let state = State::new(&Config::new("n"));
        let (slot, parameters) = (Slot::First, state.parameters(Family::Ipv4));
        let table = slot.table(Family::Ipv4);
        let key = FrontendKey {
            address: "10.96.0.1".parse().unwrap(),
            protocol: Protocol::Tcp,
            port: 80,
        };
        let item = Item::new(SetName::Frontends, frontend_value(&key)).with_value(Value::port(1));
        let elements = FrontendElements {
            family: Family::Ipv4,
            table: Some((table.clone(), parameters.clone())),
            items: vec![item.clone()],
        };
        let mut kernel = Fake::new();
        assert_eq!(
            states(&elements.find(&mut kernel)),
            [("table ip kernlink", false)]
        );
        let creation = Create {
            slot,
            parameters,
            replaces: false,
            has_base_chains: true,
        };
        kernel.apply(&creation.operations(TableFlags::empty())).unwrap();
        let name = "add element ip kernlink frontends { 10.96.0.1 . tcp . 80 : 1 }";
        let found = elements.find(&mut kernel);
        assert_eq!(states(&found).last(), Some(&(name, false)), "{found:?}");
        let add = |value: u16| {
            let item = item.clone().with_value(Value::port(value));
            Operation::add(Elements::new(SetName::Frontends.key(&table), [item.element()]))
        };
        kernel.apply(&[add(2)]).unwrap();
        let found = elements.find(&mut kernel);
        assert_eq!(
            found.last().map(|object| &object.found),
            Some(&Found::Different(name.replace(": 1", ": 2")))
        );
        let set = Operation::flush_set(SetName::Frontends.key(&table));
        kernel.apply(&[set, add(1)]).unwrap();
        let found = elements.find(&mut kernel);
        assert!(states(&found).iter().all(|(_, is_same)| *is_same), "{found:?}");
        assert_eq!(states(&found).last(), Some(&(name, true)));

        let chain = kernel.rules(&table, None).unwrap().remove(0).chain;
        let count = kernel.rules(&table, Some(&chain.name)).unwrap().len();
        kernel.apply(&[Operation::flush_chain(chain.clone())]).unwrap();
        let found = elements.find(&mut kernel);
        let desired = format!("chain {table} {} with {count} rules", chain.name);
        assert_eq!(
            found.iter().find(|object| object.desired == desired),
            Some(&KernelObject::different(&*desired, "0 rules"))
        );
    }
}
