//! Where the packets of a new connection to a frontend go, in each mode.

use super::{
    quoted,
    svg::{Anchor, Drawing, LINE},
};

/// A mode, the folder of its sources, and what it does at each of [`STAGES`]: lines of text.
struct Mode {
    name: &'static str,
    folder: &'static str,
    stages: [&'static [&'static str]; 4],
}

/// Where a packet passes, from the network to an endpoint.
const STAGES: [&str; 4] = ["prerouting", "routing", "forward or input", "postrouting"];

const MODES: [Mode; 4] = [
    Mode {
        name: "nftables",
        folder: "crates/nftables-mode/src",
        stages: [
            &[
                "`filter-prerouting-pre-dnat`: a source that",
                "is not in the source ranges is dropped",
                "`nat-prerouting`: map `frontends`, then a",
                "random index of map `endpoints`;",
                "the destination is this endpoint",
            ],
            &["to the endpoint"],
            &[
                "`filter-forward`, `filter-input`: what was not",
                "translated: `check-endpoints`: rejected, or",
                "dropped with policy Local;",
                "`check-services`: no such port: rejected",
            ],
            &[
                "`nat-postrouting`: masquerade what has the",
                "mark, and a pod that reached itself",
            ],
        ],
    },
    Mode {
        name: "iptables",
        folder: "crates/iptables-mode/src",
        stages: [
            &[
                "`KUBE-SERVICES`: a rule for each frontend",
                "`KUBE-SVC-` for cluster IPs, else `KUBE-EXT-`",
                "or, with source ranges, `KUBE-FW-`:",
                "one of the endpoints, by chance",
                "`KUBE-SEP-`: the destination is this endpoint",
            ],
            &["to the endpoint"],
            &[
                "`KUBE-SERVICES`, `KUBE-EXTERNAL-SERVICES`:",
                "without an endpoint rejected or dropped",
                "`KUBE-PROXY-FIREWALL`: other sources dropped",
                "`KUBE-FORWARD`: what has the mark is accepted",
            ],
            &["`KUBE-POSTROUTING`: masquerade what has", "the mark"],
        ],
    },
    Mode {
        name: "IPVS",
        folder: "crates/ipvs-mode/src",
        stages: [
            &[
                "`KUBE-SERVICES`: sets of frontends;",
                "sets the mark for masquerading,",
                "and accepts",
            ],
            &[
                "virtual IPs are addresses of a dummy link:",
                "the packet is for this node",
            ],
            &[
                "`KUBE-PROXY-FIREWALL`: other sources dropped",
                "`KUBE-IPVS-FILTER`: unserved ports rejected",
                "IPVS: a virtual server; its scheduler chooses",
                "a real server, which is the new destination",
            ],
            &[
                "`KUBE-POSTROUTING`: masquerade what has the",
                "mark, and a pod that reached itself",
            ],
        ],
    },
    Mode {
        name: "userspace",
        folder: "crates/userspace/src",
        stages: [
            &[
                "`KUBE-PORTALS-CONTAINER`,",
                "`KUBE-NODEPORT-CONTAINER`: a rule for each",
                "frontend; the destination is a listening",
                "port of this node",
            ],
            &["the packet is for this node"],
            &[
                "`KUBE-NODEPORT-NON-LOCAL`: dropped with",
                "policy Local without an endpoint here",
                "agent: accepts, resets other sources,",
                "chooses, connects and copies",
            ],
            &["the agent's own connection, from", "an address of this node"],
        ],
    },
];

const LEFT: i32 = 16;
const NAMES: i32 = 134;
const WIDTH: i32 = 330;
const GAP: i32 = 12;
const TOP: i32 = 48;
/// Between two stages.
const BETWEEN: i32 = 26;

pub(super) fn draw() -> String {
    let number = |number: usize| i32::try_from(number).unwrap_or_default();
    let left = |mode: usize| LEFT + NAMES + number(mode) * (WIDTH + GAP);
    let lines = |stage: usize| {
        let of_modes = MODES.iter().map(|mode| mode.stages[stage].len());
        number(of_modes.max().unwrap_or_default())
    };
    let height = |stage: usize| lines(stage) * LINE + 16;
    let mut tops = vec![TOP];
    for stage in 0..STAGES.len() {
        tops.push(tops[stage] + height(stage) + BETWEEN);
    }
    let end = tops[STAGES.len()];
    let mut drawing = Drawing::new(
        "Where a packet goes",
        "In each mode: what happens to a packet from the network to a frontend, until it reaches an endpoint.",
        left(MODES.len()) + LEFT - GAP,
        end + 70,
    );
    for (stage, name) in STAGES.into_iter().enumerate() {
        drawing.text(
            "title",
            Anchor::Start,
            (LEFT, tops[stage] + height(stage) / 2 + 4),
            name,
        );
    }
    drawing.text("title", Anchor::Start, (LEFT, end + 20), "endpoint");
    for (number, mode) in MODES.iter().enumerate() {
        let x = left(number);
        let middle = x + WIDTH / 2;
        drawing.text("title", Anchor::Middle, (middle, 30), mode.name);
        for (stage, lines) in mode.stages.iter().enumerate() {
            drawing.rectangle("box", (x, tops[stage]), WIDTH, height(stage));
            for (line, text) in (1..).zip(lines.iter()) {
                drawing.text("", Anchor::Start, (x + 10, tops[stage] + 4 + line * LINE), text);
            }
            let bottom = tops[stage] + height(stage);
            drawing.arrow(&[(middle, bottom), (middle, bottom + BETWEEN)]);
        }
        drawing.rectangle("strong", (middle - 60, end), 120, 30);
        drawing.text("", Anchor::Middle, (middle, end + 20), "endpoint");
    }
    let note = "The first packet of a connection from the network to a frontend. What a process of the node sends passes output in place of prerouting.";
    drawing.text("", Anchor::Start, (LEFT, end + 56), note);
    drawing.finish()
}

/// The names of chains and maps, in the sources of their mode.
pub(super) fn named() -> Vec<(&'static str, String)> {
    let mut named = Vec::new();
    for mode in &MODES {
        let texts = mode.stages.iter().flat_map(|lines| lines.iter());
        named.extend(
            texts
                .flat_map(|text| quoted(text))
                .map(|name| (mode.folder, format!("\"{name}"))),
        );
    }
    named
}
