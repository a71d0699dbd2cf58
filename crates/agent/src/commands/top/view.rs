//! What the screen shows of a reading, and what keys change of it.

use std::cmp::Ordering;

use super::reading::{Numbers, Reading};

/// The columns.
pub(super) const HEADER: [&str; 6] = [
    "SERVICE",
    "FRONTEND OR ENDPOINT",
    "ACTIVE",
    "INACTIVE",
    "IN B/s",
    "OUT B/s",
];

/// The keys, for the last line of the screen.
pub(super) const KEYS: &str = "q leave  c connections  i bytes in  o bytes out  n name  r reverse  e endpoints  / filter  up down scroll";

/// By what Services are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Connections,
    BytesIn,
    BytesOut,
    Name,
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Connections => "connections",
            Sort::BytesIn => "bytes in",
            Sort::BytesOut => "bytes out",
            Sort::Name => "name",
        }
    }
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Character(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    /// Control and C.
    Interrupt,
}

/// What is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    /// Only Services with this text in their names, frontends or endpoints.
    pub(super) filter: String,
    /// Whether keys are a part of the filter.
    pub(super) is_typing: bool,
    pub(super) shows_endpoints: bool,
    /// The number of lines above the first one on the screen.
    pub(super) skipped: usize,
    pub(super) is_left: bool,
}

/// The lines that a page key scrolls.
const PAGE: usize = 10;

impl View {
    pub(super) fn new(sort: Sort, filter: String) -> Self {
        Self {
            sort,
            is_reversed: false,
            filter,
            is_typing: false,
            shows_endpoints: true,
            skipped: 0,
            is_left: false,
        }
    }

    pub(super) fn on_key(&mut self, key: Key) {
        match key {
            Key::Interrupt => self.is_left = true,
            Key::Character(character) if self.is_typing => {
                self.filter.push(character);
                self.skipped = 0;
            }
            Key::Backspace if self.is_typing => _ = self.filter.pop(),
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            Key::Character('q') => self.is_left = true,
            Key::Character('c') => self.sort_by(Sort::Connections),
            Key::Character('i') => self.sort_by(Sort::BytesIn),
            Key::Character('o') => self.sort_by(Sort::BytesOut),
            Key::Character('n') => self.sort_by(Sort::Name),
            Key::Character('r') => self.is_reversed = !self.is_reversed,
            Key::Character('e') => self.shows_endpoints = !self.shows_endpoints,
            Key::Character('/') => self.is_typing = true,
            Key::Up => self.skipped = self.skipped.saturating_sub(1),
            Key::Down => self.skipped = self.skipped.saturating_add(1),
            Key::PageUp => self.skipped = self.skipped.saturating_sub(PAGE),
            Key::PageDown => self.skipped = self.skipped.saturating_add(PAGE),
            Key::Character(_) | Key::Backspace => {}
        }
    }

    fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.is_reversed = false;
        self.skipped = 0;
    }

    /// The lines below the header.
    pub(super) fn lines(&self, reading: &Reading) -> Vec<Vec<String>> {
        let mut services: Vec<_> = reading.services.iter().collect();
        if !self.filter.is_empty() {
            services.retain(|row| {
                let endpoints = row.endpoints.iter().map(|endpoint| &endpoint.endpoint);
                let mut texts = std::iter::once(&row.service)
                    .chain(&row.frontends)
                    .chain(endpoints);
                texts.any(|text| text.contains(self.filter.as_str()))
            });
        }
        services.sort_by(|one, other| {
            let order = match self.sort {
                Sort::Connections => most_first(one.numbers.connections, other.numbers.connections),
                Sort::BytesIn => {
                    most_first(one.numbers.bytes_in_per_second, other.numbers.bytes_in_per_second)
                }
                Sort::BytesOut => most_first(
                    one.numbers.bytes_out_per_second,
                    other.numbers.bytes_out_per_second,
                ),
                Sort::Name => Ordering::Equal,
            };
            let order = order.then_with(|| one.service.cmp(&other.service));
            if self.is_reversed { order.reverse() } else { order }
        });
        let mut lines = Vec::new();
        for row in services {
            let mut frontends = row.frontends.first().cloned().unwrap_or_default();
            if row.frontends.len() > 1 {
                frontends.push_str(&format!(" +{}", row.frontends.len() - 1));
            }
            lines.push(line(row.service.clone(), frontends, row.numbers));
            if self.shows_endpoints {
                let endpoints = row.endpoints.iter();
                lines.extend(endpoints.map(|endpoint| {
                    line(
                        String::new(),
                        format!("  {}", endpoint.endpoint),
                        endpoint.numbers,
                    )
                }));
            }
        }
        lines
    }
}

/// What is not known is last.
fn most_first<T: PartialOrd>(one: Option<T>, other: Option<T>) -> Ordering {
    other.partial_cmp(&one).unwrap_or(Ordering::Equal)
}

fn line(service: String, place: String, numbers: Numbers) -> Vec<String> {
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
    vec![
        service,
        place,
        number(numbers.active),
        number(numbers.inactive),
        rate(numbers.bytes_in_per_second),
        rate(numbers.bytes_out_per_second),
    ]
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use kernlink_services::{FrontendKey, Protocol};

    use super::super::reading::{Counted, CountedTarget, directions};
    use super::super::targets::Target;
    use super::*;

    fn reading() -> Reading {
        let row = |name: &str, last: u8, counted: Counted| {
            let endpoint: SocketAddr = format!("10.0.0.{last}:8080").parse().unwrap();
            let target = Target {
                name: name.to_owned(),
                frontends: vec![FrontendKey {
                    address: format!("10.96.0.{last}").parse().unwrap(),
                    protocol: Protocol::Tcp,
                    port: 80,
                }],
                endpoints: Vec::new(),
            };
            let mut found = CountedTarget::none(&target);
            found.add(endpoint, counted);
            (target, found)
        };
        let counted = |active, bytes| Counted {
            active: Some(active),
            inactive: Some(0),
            bytes: directions(bytes),
        };
        let rows = [
            row("a/few", 1, counted(1, Some([500, 100]))),
            row("a/many", 2, counted(9, Some([10, 900]))),
            row("a/unknown", 3, Counted::UNKNOWN),
        ];
        Reading::new(Some("ipvs"), "ipvs", Some(Duration::from_secs(1)), rows)
    }

    fn services(view: &View) -> Vec<String> {
        let lines = view.lines(&reading()).into_iter();
        lines
            .map(|line| line[0].clone())
            .filter(|name| !name.is_empty())
            .collect()
    }

    #[test]
    fn keys_sort_and_what_is_not_known_is_last() {
        let mut view = View::new(Sort::default(), String::new());
        for (key, expected) in [
            ('c', ["a/many", "a/few", "a/unknown"]),
            ('i', ["a/few", "a/many", "a/unknown"]),
            ('o', ["a/many", "a/few", "a/unknown"]),
            ('n', ["a/few", "a/many", "a/unknown"]),
            ('r', ["a/unknown", "a/many", "a/few"]),
        ] {
            view.on_key(Key::Character(key));
            assert_eq!(services(&view), expected, "{key}");
        }
    }

    #[test]
    fn what_is_not_known_is_a_dash_and_never_0() {
        let view = View::new(Sort::Name, String::new());
        let lines = view.lines(&reading());
        assert_eq!(lines[0], ["a/few", "10.96.0.1:80/TCP", "1", "0", "500", "100"]);
        assert_eq!(lines[1], ["", "  10.0.0.1:8080", "1", "0", "500", "100"]);
        assert_eq!(lines[4], ["a/unknown", "10.96.0.3:80/TCP", "-", "-", "-", "-"]);
        assert_eq!(lines[5][2..], ["-", "-", "-", "-"]);
    }

    #[test]
    fn a_filter_is_typed_and_letters_of_it_are_no_keys() {
        let mut view = View::new(Sort::default(), String::new());
        for key in ['/', 'q', 'x'] {
            view.on_key(Key::Character(key));
        }
        assert!(!view.is_left && services(&view).is_empty());
        for key in [
            Key::Backspace,
            Key::Backspace,
            Key::Character('m'),
            Key::Character('a'),
            Key::Enter,
        ] {
            view.on_key(key);
        }
        assert_eq!(services(&view), ["a/many"]);
        view.on_key(Key::Escape);
        assert_eq!(services(&view).len(), 3);
        view.filter = "10.0.0.1:".to_owned();
        assert_eq!(services(&view), ["a/few"]);
        view.on_key(Key::Character('e'));
        assert_eq!(view.lines(&reading()).len(), 1);
        view.on_key(Key::Character('q'));
        assert!(view.is_left);
    }
}
