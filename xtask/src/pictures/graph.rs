//! A graph without circles in rows, of which each arrow leads downwards.

use std::collections::{BTreeMap, BTreeSet};

/// The names, each with those that it depends on.
pub(super) type Graph = BTreeMap<String, BTreeSet<String>>;

/// The graph without arrows that a longer way implies.
pub(super) fn reduced(graph: &Graph) -> Graph {
    let mut reduced = graph.clone();
    for (name, below) in graph {
        let implied: BTreeSet<&String> = below.iter().flat_map(|next| beyond(graph, next)).collect();
        if let Some(of_name) = reduced.get_mut(name) {
            of_name.retain(|other| !implied.contains(other));
        }
    }
    reduced
}

/// All names that `name` depends on, also by others.
fn beyond<'a>(graph: &'a Graph, name: &str) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&String> = graph.get(name).into_iter().flatten().collect();
    while let Some(name) = next.pop() {
        if found.insert(name) {
            next.extend(graph.get(name).into_iter().flatten());
        }
    }
    found
}

/// A box, or a place in a row that an arrow passes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    Name(String),
    Passed { from: String, to: String, row: usize },
}

/// Nodes with their places.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// The lowest row first; from the left.
    pub(super) rows: Vec<Vec<Node>>,
    /// The middle of each node, from the left.
    pub(super) places: BTreeMap<Node, f64>,
    /// The nodes that each arrow visits, from the top.
    pub(super) arrows: Vec<Vec<Node>>,
}

impl Layout {
    /// Orders each row so that arrows are short, with `width` of a node and a gap between two.
    pub(super) fn new(graph: &Graph, width: &dyn Fn(&Node) -> f64, gap: f64) -> Self {
        let mut layout = Self::in_rows(graph);
        let mut above: BTreeMap<Node, Vec<Node>> = BTreeMap::new();
        let mut below: BTreeMap<Node, Vec<Node>> = BTreeMap::new();
        for arrow in &layout.arrows {
            for pair in arrow.windows(2) {
                if let [upper, lower] = pair {
                    below.entry(upper.clone()).or_default().push(lower.clone());
                    above.entry(lower.clone()).or_default().push(upper.clone());
                }
            }
        }
        let both: BTreeMap<Node, Vec<Node>> = layout
            .rows
            .iter()
            .flatten()
            .map(|node| {
                let neighbours = [above.get(node), below.get(node)].into_iter().flatten();
                (node.clone(), neighbours.flatten().cloned().collect())
            })
            .collect();
        for row in &layout.rows {
            place(row, &mut layout.places, width, gap);
        }
        for sweep in 0..24 {
            let neighbours = [&below, &above, &both][sweep % 3];
            for row in &mut layout.rows {
                let places = &layout.places;
                let mean = |node: &Node| {
                    let near = neighbours.get(node).map_or(&[][..], Vec::as_slice);
                    let near: Vec<f64> = near.iter().filter_map(|node| places.get(node).copied()).collect();
                    if near.is_empty() {
                        places.get(node).copied().unwrap_or_default()
                    } else {
                        near.iter().sum::<f64>() / near.len() as f64
                    }
                };
                let means: BTreeMap<Node, f64> = row.iter().map(|node| (node.clone(), mean(node))).collect();
                row.sort_by(|one, other| means[one].total_cmp(&means[other]));
                layout.places.extend(means);
                place(row, &mut layout.places, width, gap);
            }
        }
        let left = |(node, place): (&Node, &f64)| place - width(node) / 2.0;
        let least = layout.places.iter().map(left).fold(f64::INFINITY, f64::min);
        layout.places.values_mut().for_each(|place| *place -= least);
        layout
    }

    /// The width of all nodes.
    pub(super) fn width(&self, width: &dyn Fn(&Node) -> f64) -> f64 {
        let right = |(node, place): (&Node, &f64)| place + width(node) / 2.0;
        self.places.iter().map(right).fold(0.0, f64::max)
    }

    fn in_rows(graph: &Graph) -> Self {
        let mut layout = Self::default();
        let mut row_of: BTreeMap<&String, usize> = BTreeMap::new();
        for name in graph.keys() {
            let row = height(graph, name);
            row_of.insert(name, row);
            if layout.rows.len() <= row {
                layout.rows.resize(row + 1, Vec::new());
            }
            layout.rows[row].push(Node::Name(name.clone()));
        }
        for (from, below) in graph {
            for to in below {
                let mut arrow = vec![Node::Name(from.clone())];
                for row in (row_of[to] + 1..row_of[from]).rev() {
                    let (from, to) = (from.clone(), to.clone());
                    let node = Node::Passed { from, to, row };
                    layout.rows[row].push(node.clone());
                    arrow.push(node);
                }
                arrow.push(Node::Name(to.clone()));
                layout.arrows.push(arrow);
            }
        }
        layout
    }
}

/// The number of arrows of the longest way down.
fn height(graph: &Graph, name: &str) -> usize {
    let below = graph.get(name).into_iter().flatten();
    below.map(|next| height(graph, next) + 1).max().unwrap_or(0)
}

/// Moves the nodes of a row apart, near to their places.
fn place(row: &[Node], places: &mut BTreeMap<Node, f64>, width: &dyn Fn(&Node) -> f64, gap: f64) {
    let desired: Vec<f64> = row
        .iter()
        .map(|node| places.get(node).copied().unwrap_or_default())
        .collect();
    let mut placed: Vec<f64> = Vec::with_capacity(row.len());
    for (number, node) in row.iter().enumerate() {
        let least = number
            .checked_sub(1)
            .map(|before| placed[before] + (width(&row[before]) + width(node)) / 2.0 + gap);
        placed.push(least.map_or(desired[number], |least| desired[number].max(least)));
    }
    let moved: f64 = placed
        .iter()
        .zip(&desired)
        .map(|(placed, desired)| placed - desired)
        .sum();
    let back = moved / row.len().max(1) as f64;
    places.extend(
        row.iter()
            .cloned()
            .zip(placed.into_iter().map(|place| place - back)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &[&str])]) -> Graph {
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        edges
            .iter()
            .map(|(name, below)| ((*name).to_owned(), set(below)))
            .collect()
    }

    #[test]
    fn arrows_that_a_longer_way_implies_are_left_out() {
        let all = graph(&[("a", &[]), ("b", &["a"]), ("c", &["a", "b"]), ("d", &["a", "c"])]);
        let expected = graph(&[("a", &[]), ("b", &["a"]), ("c", &["b"]), ("d", &["c"])]);
        assert_eq!(reduced(&all), expected);
    }

    #[test]
    fn each_arrow_leads_down_and_no_two_nodes_of_a_row_overlap() {
        let graph = graph(&[
            ("a", &[]),
            ("b", &[]),
            ("c", &["a"]),
            ("d", &["c", "b"]),
            ("e", &["d", "c", "a"]),
        ]);
        let layout = Layout::new(&graph, &|_| 10.0, 2.0);
        let row = |node: &Node| layout.rows.iter().position(|row| row.contains(node)).unwrap();
        assert_eq!(layout.arrows.len(), 6);
        for arrow in &layout.arrows {
            assert!(
                arrow.windows(2).all(|pair| row(&pair[0]) == row(&pair[1]) + 1),
                "{arrow:?}"
            );
        }
        for row in &layout.rows {
            for pair in row.windows(2) {
                assert!(
                    layout.places[&pair[1]] - layout.places[&pair[0]] >= 11.9,
                    "{row:?}"
                );
            }
        }
        assert!(layout.places.values().all(|place| *place >= 4.9));
    }
}
