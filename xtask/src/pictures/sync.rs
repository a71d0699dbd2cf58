//! One sync as a sequence: who passes what to whom.

use super::{
    quoted,
    svg::{Anchor, Drawing, Point},
};

/// The participants, from the left, each with what it is.
const PARTICIPANTS: [(&str, &str); 6] = [
    ("source", "API server, folder"),
    ("`Runner`", "a thread"),
    ("`Proxier`", "the sync algorithm"),
    ("`Services`", "model, arbitration"),
    ("data path", "one of the modes"),
    ("kernel", "or a fake"),
];
const SOURCE: usize = 0;
const RUNNER: usize = 1;
const PROXIER: usize = 2;
const SERVICES: usize = 3;
const DATA_PATH: usize = 4;
const KERNEL: usize = 5;

/// What is passed, in order. From a participant to itself: what it does.
const STEPS: [(usize, usize, &str); 16] = [
    (SOURCE, RUNNER, "`Change`: an object, or a full list"),
    (RUNNER, SERVICES, "`change`: stored, and what it affects is noted"),
    (RUNNER, RUNNER, "`Schedule`: when, with other changes"),
    (RUNNER, PROXIER, "`sync`, with the time"),
    (
        PROXIER,
        KERNEL,
        "read: everything the first time, later single objects",
    ),
    (
        PROXIER,
        SERVICES,
        "`update`: resolve what changed, decide the owners",
    ),
    (SERVICES, PROXIER, "`Changes`: frontends, owners, endpoints"),
    (
        PROXIER,
        DATA_PATH,
        "compile: desired objects of these, their keys are dirty",
    ),
    (
        DATA_PATH,
        PROXIER,
        "`Plan`: what differs of the dirty keys, as steps in phases",
    ),
    (PROXIER, KERNEL, "apply: every step that depends on no failed one"),
    (KERNEL, PROXIER, "an outcome for each operation"),
    (PROXIER, DATA_PATH, "done: the observed value is the desired one"),
    (PROXIER, PROXIER, "failed: `Retries` has the next attempt"),
    (
        PROXIER,
        KERNEL,
        "hand-over: remove what nothing needs of other modes",
    ),
    (PROXIER, RUNNER, "`Synced`: report, events, time of the next sync"),
    (RUNNER, RUNNER, "status, metrics; a `Notice` for the program"),
];
/// Where what the picture names is.
const SOURCES: [&str; 2] = ["crates/engine/src", "crates/services/src"];

const LEFT: i32 = 90;
const COLUMN: i32 = 196;
const TOP: i32 = 76;
const STEP: i32 = 40;

pub(super) fn draw() -> String {
    let number = |number: usize| i32::try_from(number).unwrap_or_default();
    let place = |participant: usize| LEFT + number(participant) * COLUMN;
    let bottom = TOP + number(STEPS.len()) * STEP + 10;
    let mut drawing = Drawing::new(
        "One sync",
        "A change of a source becomes operations on the kernel. docs/tour.md has the values.",
        place(PARTICIPANTS.len() - 1) + LEFT,
        bottom + 16,
    );
    for (participant, (name, what)) in PARTICIPANTS.into_iter().enumerate() {
        let x = place(participant);
        drawing.line("faint", &[(x, 60), (x, bottom)]);
        drawing.rectangle("box", (x - 76, 14), 152, 46);
        drawing.text("title", Anchor::Middle, (x, 33), name);
        drawing.text("", Anchor::Middle, (x, 51), what);
    }
    for (step, (from, to, text)) in STEPS.into_iter().enumerate() {
        let y = TOP + number(step + 1) * STEP - 10;
        let (begin, end) = (place(from), place(to));
        let middle: Point = ((begin + end) / 2, y - 6);
        if from == to {
            let loop_end = begin + 24;
            drawing.arrow(&[(begin, y - 12), (loop_end, y - 12), (loop_end, y), (begin, y)]);
            drawing.text("label", Anchor::Start, (loop_end + 8, y - 2), text);
        } else {
            // The background of the text would hide a part of the arrow.
            drawing.text("label", Anchor::Middle, middle, text);
            drawing.arrow(&[(begin, y), (end, y)]);
        }
    }
    drawing.finish()
}

/// The names of types and functions: each is in the engine or in services.
pub(super) fn named() -> Vec<(&'static str, String)> {
    let of_services = ["Services", "Change", "Changes", "change", "update"];
    let texts = PARTICIPANTS.iter().flat_map(|(name, _)| quoted(name));
    let texts = texts.chain(STEPS.iter().flat_map(|(_, _, text)| quoted(text)));
    let folder = |name: &str| SOURCES[usize::from(of_services.contains(&name))];
    // As a definition, not in the text of a comment.
    let defined = |name: &str| {
        let is_type = name.starts_with(char::is_uppercase);
        let keyword = match name {
            "Change" | "Notice" => "enum",
            _ if is_type => "struct",
            _ => "fn",
        };
        format!("{keyword} {name}")
    };
    texts.map(|name| (folder(name), defined(name))).collect()
}
