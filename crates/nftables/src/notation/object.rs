//! Objects and flowtables as `nft` lists them.

use std::time::Duration;

use super::form::field;
use super::priority::priority;
use super::rule::Context;
use super::stateful::bytes;
use super::value::{Quoted, duration};
use crate::chain::Hook;
use crate::data_type::DataType;
use crate::expression::{Expression, QuotaFlags, Synproxy, SynproxyFlags};
use crate::flowtable::{Flowtable, FlowtableFlags};
use crate::object::{Object, ObjectData};
use crate::table_family::TableFamily;
use crate::uapi::{NFPROTO_IPV4, NFPROTO_IPV6};

/// The lines of an object between its braces.
pub(super) fn object(object: &Object) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(
        object
            .comment()
            .map(|comment| format!("comment {}", Quoted(comment))),
    );
    let context = Context::default();
    let text = |expression: Expression, prefix: &str| {
        let text = context.expression(&expression);
        text.strip_prefix(prefix).map(str::to_owned).unwrap_or(text)
    };
    match &object.data {
        ObjectData::Counter(counter) => {
            lines.push(format!("packets {} bytes {}", counter.packets, counter.bytes));
        }
        ObjectData::Quota(quota) => {
            let over = if quota.flags.contains(QuotaFlags::INVERT) {
                "over "
            } else {
                ""
            };
            let (number, unit) = bytes(quota.bytes);
            let mut line = format!("{over}{number} {unit}");
            if quota.consumed > 0 {
                let (number, unit) = bytes(quota.consumed);
                line += &format!(" used {number} {unit}");
            }
            lines.push(line);
        }
        ObjectData::Limit(limit) => lines.push(text(limit.clone().into(), "limit ")),
        ObjectData::Helper(helper) => {
            let protocol = field(DataType::Protocol, &[helper.protocol]);
            lines.push(format!("type {} protocol {protocol}", Quoted(&helper.name)));
            lines.extend(family(helper.family));
        }
        ObjectData::Timeout(timeout) => {
            lines.push(format!(
                "protocol {}",
                field(DataType::Protocol, &[timeout.protocol])
            ));
            lines.extend(family(timeout.family));
            let states = states(timeout.protocol);
            let named = timeout.timeouts.0.iter().filter_map(|(state, seconds)| {
                match states.get(usize::from(*state).wrapping_sub(1)) {
                    Some((_, default)) if default == seconds => None,
                    Some((name, _)) => Some(format!("{name} : {seconds}")),
                    None => Some(format!("{state} : {seconds}")),
                }
            });
            let named: Vec<String> = named.collect();
            lines.push(format!("policy = {{ {} }}", named.join(", ")));
        }
        ObjectData::Expectation(expectation) => {
            let protocol = field(DataType::Protocol, &[expectation.protocol]);
            lines.push(format!("protocol {protocol}"));
            lines.push(format!("dport {}", expectation.port));
            let timeout = Duration::from_millis(expectation.timeout.0.into());
            lines.push(format!("timeout {}", duration(timeout)));
            lines.push(format!("size {}", expectation.size));
            lines.extend(family(expectation.family));
        }
        ObjectData::SecurityMark(mark) => lines.push(Quoted(&mark.context).to_string()),
        ObjectData::Synproxy(synproxy) => lines.extend(parameters(synproxy)),
        data => lines.push(format!("[ {data:?} ]")),
    }
    lines
}

fn family(number: Option<u16>) -> Option<String> {
    let name = match number.map(u8::try_from) {
        Some(Ok(NFPROTO_IPV4)) => "ip",
        Some(Ok(NFPROTO_IPV6)) => "ip6",
        Some(Ok(crate::uapi::NFPROTO_INET)) => "inet",
        _ => return None,
    };
    Some(format!("l3proto {name}"))
}

/// The states with timeouts, in the order of their numbers from 1 (`CTA_TIMEOUT_TCP_*`, `CTA_TIMEOUT_UDP_*`), and the timeouts in seconds that
/// `nft` does not list, since the kernel has them without a configuration.
fn states(protocol: u8) -> &'static [(&'static str, u32)] {
    match protocol {
        6 => &[
            ("syn_sent", 120),
            ("syn_recv", 60),
            ("established", 432_000),
            ("fin_wait", 120),
            ("close_wait", 60),
            ("last_ack", 30),
            ("time_wait", 120),
            ("close", 10),
            ("syn_sent2", 120),
            ("retrans", 300),
            ("unack", 300),
        ],
        17 => &[("unreplied", 30), ("replied", 120)],
        _ => &[],
    }
}

fn parameters(synproxy: &Synproxy) -> Vec<String> {
    let mut lines = Vec::new();
    let has = |flag| synproxy.flags.contains(flag);
    if has(SynproxyFlags::MAXIMUM_SEGMENT) {
        lines.push(format!("mss {}", synproxy.maximum_segment.unwrap_or(0)));
    }
    if has(SynproxyFlags::WINDOW_SCALE) {
        lines.push(format!("wscale {}", synproxy.window_scale.unwrap_or(0)));
    }
    let names = [
        (SynproxyFlags::TIMESTAMP, "timestamp"),
        (SynproxyFlags::SACK, "sack-perm"),
    ];
    let names: Vec<&str> = names
        .iter()
        .filter(|(flag, _)| has(*flag))
        .map(|(_, name)| *name)
        .collect();
    lines.extend((!names.is_empty()).then(|| names.join(" ")));
    lines
}

/// The lines of a flowtable between its braces.
pub(super) fn flowtable(flowtable: &Flowtable) -> Vec<String> {
    let priority = priority(TableFamily::Netdev, Hook::Ingress, flowtable.priority);
    let mut lines = vec![format!("hook ingress priority {priority}")];
    let devices: Vec<String> = flowtable
        .devices
        .iter()
        .map(|device| Quoted(device).to_string())
        .collect();
    lines.push(format!("devices = {{ {} }}", devices.join(", ")));
    if flowtable.flags.contains(FlowtableFlags::HARDWARE_OFFLOAD) {
        lines.push("flags offload".to_owned());
    }
    if flowtable.flags.contains(FlowtableFlags::COUNTER) {
        lines.push("counter".to_owned());
    }
    lines
}
