//! Comparable listings of the client and of the tool `conntrack`, and flows that are added without packets.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use kernlink_conntrack::{Client, Conntrack, Filter, NewFlow, Operation, Tuple, Zone};
use kernlink_kernel_tests::tools;

/// A line of `conntrack -L` or of the client without values that change with time and use.
pub(crate) fn normalized(line: &str) -> String {
    let has_timeout = line
        .split_whitespace()
        .nth(4)
        .is_some_and(|word| word.parse::<u32>().is_ok());
    let words = line
        .split_whitespace()
        .enumerate()
        .map(|(index, word)| {
            if index == 4 && has_timeout {
                "TIMEOUT"
            } else {
                word
            }
        })
        .filter(|word| !word.starts_with("delta-time=") && !word.starts_with("use="));
    words.collect::<Vec<_>>().join(" ")
}

pub(crate) fn tool_list(options: &[&str]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    // The tool lists both families unless an option has a family.
    let text = tools::must("conntrack", &[&["-L", "-o", "extended,id"], options].concat());
    all.extend(text.lines().map(normalized));
    all
}

pub(crate) fn client_list(client: &mut Client, filter: &Filter) -> BTreeSet<String> {
    let flows = client.list(filter).unwrap();
    flows.iter().map(|flow| normalized(&flow.to_string())).collect()
}

pub(crate) fn host(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

pub(crate) fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Adds 80 flows: 40 of each family, to two ports, in three zones, with five marks.
pub(crate) fn populate(client: &mut Client) {
    let mut operations = Vec::new();
    for number in 1..=40_u16 {
        for (source, service) in [("10.0.0.1", "10.96.0.1"), ("[fd00::1]", "[fd96::1]")] {
            let port = 1000 + number;
            let target = if number % 2 == 0 { 53 } else { 80 };
            let tuple = Tuple::udp(
                socket(&format!("{source}:{port}")),
                socket(&format!("{service}:{target}")),
            );
            let flow = NewFlow::new(tuple, Duration::from_secs(600))
                .with_zone(Zone::new(number % 3))
                .with_mark(u32::from(number % 5));
            operations.push(Operation::Add(flow));
        }
    }
    for outcome in client.execute(&operations) {
        outcome.unwrap();
    }
}
