//! Priorities of base chains as `nft` prints them.

use crate::chain::Hook;
use crate::table_family::TableFamily;

/// The name of a priority, with the difference to it if that is small.
pub(super) fn priority(family: TableFamily, hook: Hook, priority: i32) -> String {
    let names: &[(i32, &str)] = match family {
        TableFamily::Ip | TableFamily::Ip6 | TableFamily::Inet => &[
            (-300, "raw"),
            (-150, "mangle"),
            (-100, "dstnat"),
            (0, "filter"),
            (50, "security"),
            (100, "srcnat"),
        ],
        TableFamily::Arp | TableFamily::Netdev => &[(0, "filter")],
        TableFamily::Bridge => &[(-300, "dstnat"), (-200, "filter"), (100, "out"), (300, "srcnat")],
        TableFamily::Unknown(_) => &[],
    };
    let is_valid = |name: &str| match (family, name) {
        (_, "dstnat") => {
            matches!(hook, Hook::Prerouting | Hook::Output)
                && (hook == Hook::Prerouting || family == TableFamily::Bridge)
        }
        (_, "srcnat") => hook == Hook::Postrouting,
        (TableFamily::Bridge, "out") => hook == Hook::Output,
        _ => true,
    };
    let near = names
        .iter()
        .filter(|(_, name)| is_valid(name))
        .find(|(number, _)| (number - priority).abs() <= 10);
    match near {
        Some((number, name)) if *number == priority => (*name).to_owned(),
        Some((number, name)) if priority > *number => format!("{name} + {}", priority - number),
        Some((number, name)) => format!("{name} - {}", number - priority),
        None => priority.to_string(),
    }
}
