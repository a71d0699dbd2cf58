//! The elements of frontends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use kernlink_nftables::Value;
use kernlink_services::FrontendKey;

use crate::class::{self, Kind};
use crate::item::{Endpoint, Item, frontend_value};
use crate::layout::SetName;
use crate::port::{FrontendSpec, Written};
use crate::ranges;

fn indexed(frontend: &Value, index: usize) -> Value {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    Value::concat([frontend.clone(), Value::host_u32(index)])
}

/// The elements of one frontend, each key of a set once.
pub(crate) fn items(written: &Written, key: &FrontendKey, frontend: &FrontendSpec) -> Vec<Item> {
    let spec = &*written.spec;
    let value = frontend_value(key);
    let mut items = Vec::new();
    let comment = |item: Item| Item {
        comment: Some(Arc::clone(&spec.comment)),
        ..item
    };
    if !frontend.ranges.is_empty() {
        let mut ranges: BTreeSet<IpNet> = frontend.ranges.iter().map(IpNet::trunc).collect();
        if frontend.admits_node {
            // A packet from the node may have the frontend as its source.
            ranges.insert(IpNet::from(key.address));
        }
        let groups = Value::host_u32(ranges::bits(&ranges));
        items.push(comment(
            Item::new(SetName::RestrictedFrontends, value.clone()).with_value(groups),
        ));
        items.extend(ranges.into_iter().map(|net| {
            let length = Value::host_u32(u32::from(net.prefix_len()));
            let key = Value::concat([value.clone(), length, Value::from(net.addr())]);
            Item::new(SetName::AllowedSources, key)
        }));
    }
    if !spec.has_any {
        items.push(comment(Item::new(SetName::NoEndpoints, value)));
        return items;
    }
    let endpoints = written.endpoints(frontend.is_local);
    let cluster = written.endpoints(false);
    if frontend.is_local && endpoints.len() == 0 {
        items.push(comment(Item::new(SetName::NoLocalEndpoints, value.clone())));
    }
    let is_local = frontend.kind == Kind::Local;
    if endpoints.len() == 0 && !is_local {
        return items;
    }
    let number = |count: usize| match count {
        0 => 0,
        count => class::class(count, spec.affinity.is_some()),
    };
    let class = |set, count| Item::new(set, value.clone()).with_value(Value::port(number(count)));
    items.push(comment(class(SetName::Frontends, endpoints.len())));
    if frontend.kind != Kind::Internal {
        items.push(Item::new(SetName::ExternalFrontends, value.clone()));
    }
    let add = |items: &mut Vec<Item>, set, list: &mut dyn Iterator<Item = Endpoint>| {
        let has_affinity = matches!(set, SetName::AffinityEndpoints | SetName::ShortAffinityEndpoints);
        items.extend(list.enumerate().map(|(index, endpoint)| {
            let endpoint = if has_affinity {
                Value::concat([Value::port(key.port), endpoint.value()])
            } else {
                endpoint.value()
            };
            Item::new(set, indexed(&value, index)).with_value(endpoint)
        }));
    };
    add(
        &mut items,
        SetName::Endpoints,
        &mut written.endpoints(frontend.is_local),
    );
    if is_local {
        items.push(Item::new(SetName::LocalFrontends, value.clone()));
        items.push(class(SetName::ShortCircuits, cluster.len()));
        add(&mut items, SetName::ShortEndpoints, &mut written.endpoints(false));
    }
    if let Some(affinity) = &spec.affinity {
        let pool = Value::concat([Value::host_u32(affinity.timeout), Value::host_u32(affinity.pool)]);
        items.push(Item::new(SetName::AffinityPools, value.clone()).with_value(pool));
        let members = |items: &mut Vec<Item>, set, list: &mut dyn Iterator<Item = Endpoint>| {
            // An endpoint with a greater weight is in the list several times.
            let list: BTreeSet<Endpoint> = list.collect();
            items.extend(
                list.into_iter()
                    .map(|endpoint| Item::new(set, Value::concat([value.clone(), endpoint.value()]))),
            );
        };
        add(
            &mut items,
            SetName::AffinityEndpoints,
            &mut written.endpoints(frontend.is_local),
        );
        members(
            &mut items,
            SetName::AffinityMembers,
            &mut written.endpoints(frontend.is_local),
        );
        if is_local {
            add(
                &mut items,
                SetName::ShortAffinityEndpoints,
                &mut written.endpoints(false),
            );
            members(
                &mut items,
                SetName::ShortAffinityMembers,
                &mut written.endpoints(false),
            );
        }
    }
    items
}

/// The elements to delete and to add, so that the first ones become the second ones. What changes its value is in both.
pub(crate) fn difference(from: Vec<Item>, to: Vec<Item>) -> (Vec<Item>, Vec<Item>) {
    let mut before: BTreeMap<(SetName, Value), Item> = BTreeMap::new();
    for item in from {
        before.insert((item.set, item.key.clone()), item);
    }
    let mut added = Vec::new();
    let mut deleted = Vec::new();
    for item in to {
        match before.remove(&(item.set, item.key.clone())) {
            Some(known) if known == item => {}
            Some(known) => {
                deleted.push(known);
                added.push(item);
            }
            None => added.push(item),
        }
    }
    deleted.extend(before.into_values());
    (deleted, added)
}
