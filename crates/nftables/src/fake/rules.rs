//! What the kernel checks about rules, elements and references.

use std::collections::BTreeMap;

use kernlink_netlink::Errno;

use super::content::{FakeTable, StoredElements};
use crate::element::{Element, ElementFlags};
use crate::expression::{Expression, NatKind};
use crate::object::ObjectKey;
use crate::register::Register;
use crate::rule::Rule;
use crate::set::{MapData, Set, SetFlags, SetKey};
use crate::verdict::{Data, Verdict};
use crate::{ChainType, Hook};

/// The longest chain of jumps (`NFT_JUMP_STACK_SIZE`).
pub(super) const JUMP_LIMIT: usize = 16;

fn check_verdict(table: &FakeTable, verdict: &Verdict) -> Result<(), Errno> {
    let Some(name) = verdict.chain() else {
        return Ok(());
    };
    match table.chains.get(name) {
        None => Err(Errno::ENOENT),
        Some(target) if target.chain.base.is_some() => Err(Errno::EOPNOTSUPP),
        Some(_) => Ok(()),
    }
}

pub(super) fn check_element(table: &FakeTable, set: &Set, element: &Element) -> Result<(), Errno> {
    let is_end = element.flags.contains(ElementFlags::INTERVAL_END);
    if !element.flags.contains(ElementFlags::CATCHALL) && element.key.len() != set.key_length as usize {
        return Err(Errno::EINVAL);
    }
    if is_end && !set.flags.contains(SetFlags::INTERVAL) {
        return Err(Errno::EINVAL);
    }
    if element.key_end.is_some() && !set.flags.contains(SetFlags::CONCAT) {
        return Err(Errno::EINVAL);
    }
    if element.timeout.is_some() && !set.flags.contains(SetFlags::TIMEOUT) {
        return Err(Errno::EINVAL);
    }
    if element.expiration > element.timeout.or(set.timeout) {
        return Err(Errno::ERANGE);
    }
    match (set.data, &element.data, &element.object) {
        (None, None, None) => Ok(()),
        (Some(_), None, None) if is_end => Ok(()),
        (Some(MapData::Values { length, .. }), Some(Data::Value(value)), None)
            if value.len() == length as usize =>
        {
            Ok(())
        }
        (Some(MapData::Verdicts), Some(Data::Verdict(verdict)), None) => check_verdict(table, verdict),
        (Some(MapData::Objects(kind)), None, Some(name)) => {
            if table.objects.contains_key(&(kind, name.clone())) {
                Ok(())
            } else {
                Err(Errno::ENOENT)
            }
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Bytes of the data registers that an expression of the rule has written.
struct Written([bool; 64]);

impl Written {
    fn range(register: Register, length: u32) -> Result<std::ops::Range<usize>, Errno> {
        let start = register.index().ok_or(Errno::ERANGE)? as usize * 4;
        let end = start + length.next_multiple_of(4) as usize;
        if length == 0 || end > 64 {
            return Err(Errno::ERANGE);
        }
        Ok(start..end)
    }

    fn write(&mut self, register: Register, length: u32) -> Result<(), Errno> {
        let range = Self::range(register, length)?;
        self.0.get_mut(range).ok_or(Errno::ERANGE)?.fill(true);
        Ok(())
    }

    fn read(&self, register: Register, length: u32) -> Result<(), Errno> {
        let bytes = self.0.get(Self::range(register, length)?).ok_or(Errno::ERANGE)?;
        if bytes.contains(&false) {
            Err(Errno::ENODATA)
        } else {
            Ok(())
        }
    }
}

pub(super) fn check_rule(table: &FakeTable, rule: &Rule) -> Result<(), Errno> {
    let chain = table.chains.get(&rule.chain.name).ok_or(Errno::ENOENT)?;
    let base = chain.chain.base.as_ref();
    let mut written = Written([false; 64]);
    let find = |name: &str| table.sets.get(name);
    for expression in &rule.expressions {
        if let Some(name) = expression.set() {
            check_set_use(find(name).ok_or(Errno::ENOENT)?, expression)?;
        }
        match expression {
            Expression::Immediate(immediate) => {
                if let Data::Verdict(verdict) = &immediate.data {
                    check_verdict(table, verdict)?;
                }
            }
            Expression::ObjectReference(object) => {
                let key = (object.kind, object.name.clone());
                table.objects.get(&key).ok_or(Errno::ENOENT)?;
            }
            Expression::FlowOffload(flow) => {
                table.flowtables.get(&flow.flowtable).ok_or(Errno::ENOENT)?;
            }
            Expression::NumberGenerator(generator) => {
                if generator.modulus == 0 {
                    return Err(Errno::ERANGE);
                }
                generator
                    .offset
                    .checked_add(generator.modulus - 1)
                    .ok_or(Errno::EOVERFLOW)?;
            }
            Expression::Hash(hash) if hash.modulus == 0 => return Err(Errno::ERANGE),
            Expression::Nat(nat) => {
                let hooks = match nat.kind {
                    NatKind::Source => [Hook::Postrouting, Hook::Input],
                    _ => [Hook::Prerouting, Hook::Output],
                };
                if base.is_some_and(|base| base.chain_type != ChainType::Nat || !hooks.contains(&base.hook)) {
                    return Err(Errno::EOPNOTSUPP);
                }
            }
            Expression::Masquerade(_)
                if base.is_some_and(|base| {
                    base.chain_type != ChainType::Nat || base.hook != Hook::Postrouting
                }) =>
            {
                return Err(Errno::EOPNOTSUPP);
            }
            _ => {}
        }
        for (register, length) in expression.reads(find) {
            written.read(register, length)?;
        }
        if let Some((register, length)) = expression.writes(find) {
            written.write(register, length)?;
        }
    }
    Ok(())
}

fn check_set_use(set: &Set, expression: &Expression) -> Result<(), Errno> {
    match expression {
        Expression::Lookup(lookup) => {
            let is_inverted = lookup.flags.contains(crate::LookupFlags::INVERT);
            match (set.data, lookup.destination) {
                (None, Some(_)) => Err(Errno::EINVAL),
                (_, Some(_)) if is_inverted => Err(Errno::EINVAL),
                (Some(MapData::Verdicts), Some(register)) if register != Register::VERDICT => {
                    Err(Errno::EINVAL)
                }
                _ => Ok(()),
            }
        }
        Expression::Dynset(dynset) => {
            if dynset.timeout.is_some() && !set.flags.contains(SetFlags::TIMEOUT) {
                return Err(Errno::EOPNOTSUPP);
            }
            if !set.flags.contains(SetFlags::EVAL) && set.size.is_some() {
                return Err(Errno::EOPNOTSUPP);
            }
            match (set.data, dynset.data) {
                (Some(MapData::Values { .. }), Some(_)) | (None, None) => Ok(()),
                _ => Err(Errno::EINVAL),
            }
        }
        Expression::ObjectMap(_) if !matches!(set.data, Some(MapData::Objects(_))) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

fn expressions(table: &FakeTable) -> impl Iterator<Item = &Expression> {
    let rules = table.chains.values().flat_map(|content| &content.rules);
    rules.flat_map(|rule| &rule.expressions)
}

fn elements<'a>(
    table: &'a FakeTable,
    all: &'a BTreeMap<SetKey, StoredElements>,
    is_relevant: impl Fn(&Set) -> bool,
) -> impl Iterator<Item = &'a Element> {
    let sets = table.sets.values().filter(move |set| is_relevant(set));
    sets.filter_map(|set| all.get(&set.key))
        .flat_map(|stored| stored.elements.values().map(|stored| &stored.element))
}

fn element_chain(element: &Element) -> Option<&str> {
    match &element.data {
        Some(Data::Verdict(verdict)) => verdict.chain(),
        _ => None,
    }
}

pub(super) fn is_set_used(table: &FakeTable, name: &str) -> bool {
    expressions(table).any(|expression| expression.set() == Some(name))
}

pub(super) fn is_flowtable_used(table: &FakeTable, name: &str) -> bool {
    expressions(table)
        .any(|expression| matches!(expression, Expression::FlowOffload(flow) if *flow.flowtable == *name))
}

pub(super) fn is_chain_used(table: &FakeTable, all: &BTreeMap<SetKey, StoredElements>, name: &str) -> bool {
    expressions(table).any(|expression| expression.chain() == Some(name))
        || elements(table, all, |set| set.data == Some(MapData::Verdicts))
            .any(|element| element_chain(element) == Some(name))
}

pub(super) fn is_object_used(
    table: &FakeTable,
    all: &BTreeMap<SetKey, StoredElements>,
    key: &ObjectKey,
) -> bool {
    let is_reference = |expression: &Expression| matches!(expression, Expression::ObjectReference(object) if (object.kind, &object.name) == (key.kind, &key.name));
    expressions(table).any(is_reference)
        || elements(table, all, |set| set.data == Some(MapData::Objects(key.kind)))
            .any(|element| element.object.as_ref() == Some(&key.name))
}

/// Walks the chains that base chains reach.
pub(super) fn check_jumps(table: &FakeTable, all: &BTreeMap<SetKey, StoredElements>) -> Result<(), Errno> {
    // How deep the jumps of a chain are, of those that were walked.
    let mut depths = BTreeMap::new();
    for (name, content) in &table.chains {
        if content.chain.base.is_some() && depth(table, all, name, &mut Vec::new(), &mut depths)? > JUMP_LIMIT
        {
            return Err(Errno::EMLINK);
        }
    }
    Ok(())
}

fn depth<'a>(
    table: &'a FakeTable,
    all: &'a BTreeMap<SetKey, StoredElements>,
    chain: &'a str,
    path: &mut Vec<&'a str>,
    depths: &mut BTreeMap<&'a str, usize>,
) -> Result<usize, Errno> {
    if let Some(depth) = depths.get(chain) {
        return Ok(*depth);
    }
    if path.contains(&chain) || path.len() > JUMP_LIMIT {
        return Err(Errno::EMLINK);
    }
    let Some(content) = table.chains.get(chain) else {
        return Ok(0);
    };
    path.push(chain);
    let mut deepest = 0;
    for expression in content.rules.iter().flat_map(|rule| &rule.expressions) {
        let jump = expression.chain();
        let set = expression.set();
        let is_map =
            |candidate: &Set| candidate.data == Some(MapData::Verdicts) && set == Some(&*candidate.key.name);
        for target in jump
            .into_iter()
            .chain(elements(table, all, is_map).filter_map(element_chain))
        {
            deepest = deepest.max(depth(table, all, target, path, depths)? + 1);
        }
    }
    path.pop();
    depths.insert(chain, deepest);
    Ok(deepest)
}
