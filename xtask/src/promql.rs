//! The metrics and labels that an expression of PromQL uses.

/// A metric with the labels of its matchers, such as `up{job="a"}`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) metric: String,
    pub(crate) labels: Vec<String>,
}

/// What an expression uses.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Expression {
    pub(crate) selectors: Vec<Selector>,
    /// The labels of `by`, `on` and their like.
    pub(crate) grouping: Vec<String>,
}

/// Words before a list of labels in parentheses.
const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Words that are not metrics.
const OPERATORS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];

impl Expression {
    pub(crate) fn read(text: &str) -> Self {
        let mut read = Self::default();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            if is_word(first) {
                rest = read.word(rest);
            } else if matches!(first, '"' | '\'') {
                rest = after_literal(rest);
            } else if first == '[' {
                // A range.
                rest = rest.split_once(']').map_or("", |(_, rest)| rest);
            } else {
                rest = &rest[first.len_utf8()..];
            }
        }
        read
    }

    /// Reads a word, and what belongs to it. Returns the rest.
    fn word<'a>(&mut self, text: &'a str) -> &'a str {
        let (word, rest) = split_word(text);
        let next = rest.trim_start();
        // A number, with the unit of a duration.
        if word.starts_with(|letter: char| letter.is_ascii_digit()) || OPERATORS.contains(&word) {
            return rest;
        }
        if GROUPING.contains(&word) {
            let Some((list, rest)) = next.strip_prefix('(').and_then(|list| list.split_once(')')) else {
                return rest;
            };
            self.grouping
                .extend(list.split(',').map(|label| label.trim().to_owned()));
            return rest;
        }
        // A function, or an aggregation, whose labels may come first.
        if next.starts_with('(') || GROUPING.contains(&split_word(next).0) {
            return rest;
        }
        let (labels, rest) = match next.strip_prefix('{') {
            Some(matchers) => matchers_of(matchers),
            None => (Vec::new(), rest),
        };
        let metric = word.to_owned();
        self.selectors.push(Selector { metric, labels });
        rest
    }
}

/// The labels of matchers, and what follows them.
fn matchers_of(text: &str) -> (Vec<String>, &str) {
    let mut labels = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first == '}' {
            return (labels, &rest[1..]);
        } else if is_word(first) {
            let (label, after) = split_word(rest);
            labels.push(label.to_owned());
            rest = after;
        } else if matches!(first, '"' | '\'') {
            rest = after_literal(rest);
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    (labels, rest)
}

fn is_word(letter: char) -> bool {
    // `$` begins a variable of a dashboard.
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':' | '$')
}

fn split_word(text: &str) -> (&str, &str) {
    text.split_at(text.find(|letter| !is_word(letter)).unwrap_or(text.len()))
}

/// What follows a string literal, which begins with its quotation mark.
fn after_literal(text: &str) -> &str {
    let mut letters = text.char_indices();
    let quote = letters.next().map(|(_, letter)| letter);
    while let Some((place, letter)) = letters.next() {
        if letter == '\\' {
            letters.next();
        } else if Some(letter) == quote {
            return &text[place + letter.len_utf8()..];
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selectors(text: &str) -> Vec<String> {
        let read = Expression::read(text);
        let selectors = read.selectors.into_iter();
        selectors
            .map(|selector| format!("{}{:?}", selector.metric, selector.labels))
            .collect()
    }

    #[test]
    fn metrics_are_found_among_functions_operators_and_labels() {
        let text = "histogram_quantile(0.99, sum by (job, le) (rate(a_bucket{job=\"x }\", code!~'4..'}[5m]))) > 30\n\
                    and on (job) b unless max(c offset 1h) by (pod) or vector(0)";
        assert_eq!(selectors(text), ["a_bucket[\"job\", \"code\"]", "b[]", "c[]"]);
        assert_eq!(Expression::read(text).grouping, ["job", "le", "job", "pod"]);
    }

    #[test]
    fn variables_of_dashboards_are_in_literals_and_ranges() {
        let text = "rate(a{instance=~\"$instance\"}[$__rate_interval]) / b";
        assert_eq!(selectors(text), ["a[\"instance\"]", "b[]"]);
    }

    #[test]
    fn unfinished_expressions_end() {
        for text in ["a{b=\"", "a{b", "sum by (a", "rate(a[5m", "\"\\", "µ a"] {
            let _ = Expression::read(text);
        }
        assert_eq!(selectors("µ a"), ["a[]"]);
    }
}
