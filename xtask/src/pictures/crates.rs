//! The libraries of the workspace, each above those that it depends on.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use cargo_metadata::{DependencyKind, Metadata};

use super::{
    graph::{Graph, Layout, Node, reduced},
    svg::{Anchor, Drawing, LETTER, Point},
};

const PREFIX: &str = "kernlink-";
/// Crates that are drawn in another colour: the crates of kernel APIs, which can be used alone.
const STRONG: [&str; 6] = crate::shape::CRATES;
const MARGIN: i32 = 24;
const HEIGHT: i32 = 30;
const ROW: i32 = 84;
const GAP: f64 = 18.0;

pub(super) fn draw(metadata: &Metadata) -> Result<String> {
    let graph = reduced(&libraries(metadata));
    ensure!(!graph.is_empty(), "the workspace has no library in crates/");
    let width = |node: &Node| match node {
        Node::Name(name) => f64::from(width_of(name)),
        Node::Passed { .. } => 6.0,
    };
    let layout = Layout::new(&graph, &width, GAP);
    let rows = layout.rows.len();
    let top = |row: usize| MARGIN + i32::try_from(rows - 1 - row).unwrap_or_default() * ROW;
    let middle = |node: &Node| MARGIN + layout.places[node].round() as i32;
    let row_of = |node: &Node| {
        layout
            .rows
            .iter()
            .position(|row| row.contains(node))
            .unwrap_or_default()
    };
    let mut drawing = Drawing::new(
        "The crates of kernlink",
        "Each crate is above those that it depends on. An arrow leads to a dependency; those that other arrows imply are left out.",
        layout.width(&width).round() as i32 + 2 * MARGIN,
        top(0) + HEIGHT + MARGIN,
    );
    for arrow in &layout.arrows {
        let mut points: Vec<Point> = Vec::new();
        for (number, node) in arrow.iter().enumerate() {
            let (x, y) = (middle(node), top(row_of(node)));
            if number + 1 == arrow.len() {
                points.push((x, y));
            } else if number == 0 {
                points.push((x, y + HEIGHT));
            } else {
                points.extend([(x, y), (x, y + HEIGHT)]);
            }
        }
        drawing.arrow(&points);
    }
    for (row, nodes) in layout.rows.iter().enumerate() {
        for node in nodes {
            let Node::Name(name) = node else { continue };
            let (width, x) = (width_of(name), middle(node));
            let class = if STRONG.contains(&name.as_str()) {
                "strong"
            } else {
                "box"
            };
            drawing.rectangle(class, (x - width / 2, top(row)), width, HEIGHT);
            drawing.text("", Anchor::Middle, (x, top(row) + 20), name);
        }
    }
    Ok(drawing.finish())
}

fn width_of(name: &str) -> i32 {
    i32::try_from(name.len()).unwrap_or_default() * LETTER + 16
}

/// The members in `crates/` without the prefix of their names, each with those that it depends on, with any feature. Dependencies of tests
/// are left out.
fn libraries(metadata: &Metadata) -> Graph {
    let folder = metadata.workspace_root.join("crates");
    let packages = metadata.workspace_packages();
    let members: Vec<_> = packages
        .iter()
        .filter(|package| package.manifest_path.starts_with(&folder))
        .collect();
    let names: BTreeSet<&str> = members.iter().map(|package| package.name.as_str()).collect();
    let short = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
    members
        .iter()
        .map(|package| {
            let dependencies = package.dependencies.iter();
            let below = dependencies
                .filter(|dependency| dependency.kind == DependencyKind::Normal)
                .map(|dependency| dependency.name.as_str())
                .filter(|name| names.contains(name));
            (short(package.name.as_str()), below.map(short).collect())
        })
        .collect()
}
