//! The figures that `docs/benchmarks.md` documents, and their comparison with measured ones.
//!
//! A figure is a row of a table in the document: its name, as the benchmark prints it, in backquotes, perhaps with a note after it; its
//! value with its unit, which is left out for ratios; its aim.

use std::{collections::BTreeMap, fmt};

use anyhow::{Context, Result, bail, ensure};

use crate::watchers;

/// The document, relative to the root of the workspace.
pub(crate) const DOCUMENT: &str = "docs/benchmarks.md";
/// The unit that benchmarks print for a ratio.
const RATIO: &str = "ratio";
/// The texts before the two factors in the document.
const FACTOR_OF_RATIOS: &str = "a ratio may differ by a factor of ";
const FACTOR_OF_UNITS: &str = "a figure with a unit by a factor of ";

/// A line `figure NAME VALUE UNIT` of a benchmark.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
}

impl Figure {
    /// The part of the name before the first dot.
    pub(crate) fn group(&self) -> &str {
        group(&self.name)
    }
}

fn group(name: &str) -> &str {
    name.split_once('.').map_or(name, |(group, _)| group)
}

/// The group of the figures that have nothing to do with this project: they tell how fast the machine is.
pub(crate) const MACHINE: &str = "machine";

/// What the names of the figures of kube-proxy contain.
const KUBE_PROXY: &str = "kube_proxy";

/// How slow the machine is, by figures of the group `machine`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Machine {
    /// Compared with the machine on which the values were measured.
    values: Slowness,
    /// Compared with the machine for which the aims are, which the aims of the group tell.
    aims: Slowness,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { values, aims } = self;
        write!(f, "{values} the times of the values, {aims} those of the aims")
    }
}

/// How many times as long the work of the group `machine` takes, from the piece of work that is slowed down least to the one that is slowed down most.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slowness {
    least: f64,
    most: f64,
}

impl Default for Slowness {
    fn default() -> Self {
        Self {
            least: 1.0,
            most: 1.0,
        }
    }
}

impl Slowness {
    fn new(mut factors: Vec<f64>) -> Result<Self> {
        factors.sort_by(f64::total_cmp);
        match (factors.first(), factors.last()) {
            (Some(&least), Some(&most)) => Ok(Self { least, most }),
            _ => bail!("{DOCUMENT} has no figure of the group {MACHINE}"),
        }
    }

    /// What a figure in this unit is multiplied with, at least and at most. 1 for what does not depend on the speed of the machine.
    fn of(self, unit: &str) -> Self {
        let (what, each) = unit.split_once('/').unwrap_or((unit, ""));
        match (what, each) {
            ("ns" | "µs" | "ms" | "s", _) => self,
            (_, "s") => Self {
                least: 1.0 / self.most,
                most: 1.0 / self.least,
            },
            _ => Self::default(),
        }
    }
}

impl fmt::Display for Slowness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least, most } = self;
        write!(f, "{least:.1} to {most:.1} times")
    }
}

/// What the document has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Documented {
    figures: BTreeMap<String, Row>,
    /// The factor by which a measured ratio may differ from the documented one, in both directions.
    factor_of_ratios: f64,
    /// The same for figures with a unit, which depend on the machine.
    factor_of_units: f64,
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    value: f64,
    unit: String,
    aim: Option<Aim>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Aim {
    /// `5 or less`
    AtMost(f64),
    /// `5 or more`
    AtLeast(f64),
    /// `under 5`
    Under(f64),
    /// `about 5`: within the factor of the document.
    About(f64),
}

impl Documented {
    /// Reads the document.
    ///
    /// # Errors
    ///
    /// If a row that begins with the name of a figure is invalid, if a name occurs twice, or if a factor is missing.
    pub(crate) fn parse(text: &str) -> Result<Documented> {
        let words: Vec<_> = text.split_whitespace().collect();
        let prose = words.join(" ");
        let mut figures = BTreeMap::new();
        for line in text.lines() {
            let Some((name, row)) = row(line).with_context(|| format!("invalid row `{line}`"))? else {
                continue;
            };
            ensure!(
                figures.insert(name.clone(), row).is_none(),
                "`{name}` has two rows"
            );
        }
        ensure!(!figures.is_empty(), "no row with a figure");
        Ok(Documented {
            figures,
            factor_of_ratios: factor(&prose, FACTOR_OF_RATIOS)?,
            factor_of_units: factor(&prose, FACTOR_OF_UNITS)?,
        })
    }

    /// The figures whose names are this text and a number of Services, such as `1000x10`: the number and the time in seconds, in the order of
    /// the numbers. Figures that are no times are left out.
    pub(crate) fn by_services(&self, name: &str) -> Vec<(f64, f64)> {
        let mut times: Vec<(f64, f64)> = self
            .figures
            .iter()
            .filter_map(|(figure, row)| {
                let (services, _) = figure.strip_prefix(name)?.split_once('x')?;
                let seconds = match normal(&row.unit).as_str() {
                    "us" => 1e-6,
                    "ms" => 1e-3,
                    "s" => 1.0,
                    _ => return None,
                };
                Some((services.parse().ok()?, row.value * seconds))
            })
            .collect();
        times.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        times
    }

    /// How slow the machine is, by figures of the group `machine`.
    ///
    /// # Errors
    ///
    /// If a figure of the group is not documented, has no aim `N or less`, is not measured, or is 0.
    pub(crate) fn machine(&self, measured: &[Figure]) -> Result<Machine> {
        let (mut values, mut aims) = (Vec::new(), Vec::new());
        for (name, row) in self.figures.iter().filter(|(name, _)| group(name) == MACHINE) {
            let figure = measured.iter().find(|figure| figure.name == *name);
            let figure = figure.with_context(|| format!("{name} is documented, not measured"))?;
            let Some(Aim::AtMost(aim)) = row.aim else {
                bail!("{name}: expected an aim `N or less`");
            };
            ensure!(
                [figure.value, row.value, aim].iter().all(|number| *number > 0.0),
                "{name}: expected more than 0"
            );
            values.push(figure.value / row.value);
            aims.push(figure.value / aim);
        }
        Ok(Machine {
            values: Slowness::new(values)?,
            aims: Slowness::new(aims)?,
        })
    }

    /// What does not hold: of the measured figures, each with the machine at that time, and of the documented ones of the
    /// requested group, or of all groups but those that run only if they are requested. Those of kube-proxy are measured only if it was given.
    pub(crate) fn compare(
        &self,
        measured: &[(Figure, Machine)],
        requested: Option<&str>,
        has_kube_proxy: bool,
    ) -> Vec<String> {
        let mut findings = Vec::new();
        for (figure, machine) in measured {
            match self.figures.get(&figure.name) {
                Some(row) => self.compare_one(figure, *machine, row, &mut findings),
                None => findings.push(format!(
                    "{}: measured {}, not documented",
                    figure.name,
                    Quantity(figure.value, &figure.unit)
                )),
            }
        }
        let missing = self.figures.iter().filter(|(name, _)| {
            let is_requested = match requested {
                Some(requested) => requested == group(name),
                None => group(name) != watchers::GROUP,
            };
            is_requested
                && group(name) != MACHINE
                && (has_kube_proxy || !name.contains(KUBE_PROXY))
                && !measured.iter().any(|(figure, _)| figure.name == **name)
        });
        findings.extend(missing.map(|(name, row)| {
            format!(
                "{name}: documented {}, not measured",
                Quantity(row.value, &row.unit)
            )
        }));
        findings
    }

    fn compare_one(&self, figure: &Figure, machine: Machine, row: &Row, findings: &mut Vec<String>) {
        let name = &figure.name;
        if normal(&figure.unit) != normal(&row.unit) {
            findings.push(format!(
                "{name}: measured in {}, documented in {}",
                figure.unit, row.unit
            ));
            return;
        }
        let measured = Quantity(figure.value, &row.unit);
        let factor = if row.unit == RATIO {
            self.factor_of_ratios
        } else {
            self.factor_of_units
        };
        let values = machine.values.of(&row.unit);
        if !is_within(figure.value, row.value, values, factor) {
            let documented = Quantity(row.value, &row.unit);
            findings.push(format!(
                "{name}: measured {measured}, documented {documented}: not within a factor of {factor}"
            ));
        }
        if let Some(aim) = row.aim
            && !aim.holds(figure.value, machine.aims.of(&row.unit), factor)
        {
            findings.push(format!("{name}: measured {measured} misses the aim: {aim}"));
        }
    }
}

impl fmt::Display for Documented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{DOCUMENT}: {} figures; {FACTOR_OF_RATIOS}{}, {FACTOR_OF_UNITS}{}",
            self.figures.len(),
            self.factor_of_ratios,
            self.factor_of_units
        )
    }
}

impl Aim {
    /// On a slow machine an aim is farther; on a fast one it is not nearer.
    fn holds(self, measured: f64, slowness: Slowness, factor: f64) -> bool {
        let (least, most) = (slowness.least.min(1.0), slowness.most.max(1.0));
        match self {
            Aim::AtMost(limit) => measured <= limit * most,
            Aim::AtLeast(limit) => measured >= limit * least,
            Aim::Under(limit) => measured < limit * most,
            Aim::About(value) => is_within(measured, value, slowness, factor),
        }
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Aim::AtMost(limit) => write!(f, "{limit} or less"),
            Aim::AtLeast(limit) => write!(f, "{limit} or more"),
            Aim::Under(limit) => write!(f, "under {limit}"),
            Aim::About(value) => write!(f, "about {value}"),
        }
    }
}

/// A value with its unit.
struct Quantity<'a>(f64, &'a str);

impl fmt::Display for Quantity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quantity(value, unit) = self;
        write!(f, "{value}")?;
        if *unit == RATIO {
            return Ok(());
        }
        write!(f, " {unit}")
    }
}

/// Whether neither the measured value nor what the documented one is on this machine is more than `factor` times the other. 0 equals only itself.
fn is_within(measured: f64, documented: f64, slowness: Slowness, factor: f64) -> bool {
    measured <= documented * slowness.most * factor && documented * slowness.least <= measured * factor
}

/// Benchmarks print units in ASCII.
fn normal(unit: &str) -> String {
    unit.replace('µ', "u").to_lowercase()
}

/// The name and the rest of a row with a figure. `None` for all other lines.
fn row(line: &str) -> Result<Option<(String, Row)>> {
    let Some(rest) = line.trim().strip_prefix("| `") else {
        return Ok(None);
    };
    let Some((name, note)) = rest.split_once('`') else {
        return Ok(None);
    };
    let is_name = |text: &str| {
        text.contains('.')
            && text.split('.').all(|part| {
                !part.is_empty()
                    && part
                        .bytes()
                        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            })
    };
    if !is_name(name) {
        return Ok(None);
    }
    let cells: Vec<_> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [_, value, aim] = cells[..] else {
        bail!("{} cells; expected figure, value and aim", cells.len());
    };
    ensure!(
        !note.starts_with(", `"),
        "expected one name; each figure has a row of its own"
    );
    let (value, unit) = quantity(value)?;
    let aim = parse_aim(aim, &unit)?;
    Ok(Some((name.to_owned(), Row { value, unit, aim })))
}

fn parse_aim(text: &str, unit: &str) -> Result<Option<Aim>> {
    if text.is_empty() {
        return Ok(None);
    }
    let (kind, text): (fn(f64) -> Aim, _) = if let Some(text) = text.strip_suffix(" or less") {
        (Aim::AtMost, text)
    } else if let Some(text) = text.strip_suffix(" or more") {
        (Aim::AtLeast, text)
    } else if let Some(text) = text.strip_prefix("under ") {
        (Aim::Under, text)
    } else if let Some(text) = text.strip_prefix("about ") {
        (Aim::About, text)
    } else {
        bail!("invalid aim `{text}`; expected `N or less`, `N or more`, `under N` or `about N`");
    };
    let (value, of_aim) = quantity(text)?;
    ensure!(of_aim == unit, "the aim is in {of_aim}, the value in {unit}");
    Ok(Some(kind(value)))
}

/// A number with spaces between groups of three digits, perhaps `million`, and a unit of one word. Without a unit it is a ratio.
fn quantity(text: &str) -> Result<(f64, String)> {
    let mut words = text.split_whitespace().peekable();
    let mut number = words.next().context("the value is missing")?.to_owned();
    let is_group = |word: &&str| word.len() == 3 && word.bytes().all(|byte| byte.is_ascii_digit());
    while let Some(word) = words.next_if(is_group) {
        number.push_str(word);
    }
    let mut value: f64 = number
        .parse()
        .with_context(|| format!("invalid number `{number}`"))?;
    ensure!(
        value.is_finite() && value >= 0.0,
        "invalid number `{number}`; expected 0 or more"
    );
    if words.next_if_eq(&"million").is_some() {
        value *= 1e6;
    }
    let unit = words.next().unwrap_or(RATIO).to_owned();
    if let Some(word) = words.next() {
        bail!("unexpected `{word}`; expected a number and a unit of one word");
    }
    Ok((value, unit))
}

fn factor(prose: &str, before: &str) -> Result<f64> {
    let (_, rest) = prose
        .split_once(before)
        .with_context(|| format!("missing text `{before}N`"))?;
    let word = rest.split(' ').next().unwrap_or_default();
    let number = word.trim_end_matches(['.', ',', ':', ';']);
    let value: f64 = number
        .parse()
        .with_context(|| format!("invalid number `{number}` after `{before}`"))?;
    ensure!(
        value.is_finite() && value >= 1.0,
        "invalid number `{number}` after `{before}`; expected 1 or more"
    );
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
A measured value need not be equal: a ratio may differ by a
factor of 1.5, and a figure with a unit by a factor of 2. See below.

| figure | value | aim |
| --- | --- | --- |
| `ipvs.over_floor.2000x10`, in the VM | 1.2 | 1.3 or less |
| `ipvs.rate` | 10.3 million messages/s | 5 million messages/s or more |
| `sync.calls`: of four processes | 5 018 calls | |
| `sync.dumps` | 0 dumps | 0 dumps or less |
| `sync.latency` | 44 µs | under 60 µs |
| `sync.growth` | 1.17 | about 1 |
";

    fn documented() -> Documented {
        Documented::parse(TEXT).unwrap()
    }

    fn figure(name: &str, value: f64, unit: &str) -> Figure {
        Figure {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
        }
    }

    #[test]
    fn figures_of_several_numbers_of_services_are_in_order_and_in_seconds() {
        let rows = "| `m.change.10000x10` | 2 ms | |\n| `m.change.1000x10` | 40 µs | |\n| `m.change.5000x10` | 7 calls | |\n\
                    | `m.changes.1000x10` | 1 s | |\n";
        let documented = Documented::parse(&format!("{TEXT}{rows}")).unwrap();
        let times = documented.by_services("m.change.");
        let expected = [(1_000.0, 40.0 * 1e-6), (10_000.0, 2.0 * 1e-3)];
        assert_eq!(times, expected);
    }

    /// All figures as documented.
    fn equal() -> Vec<Figure> {
        vec![
            figure("ipvs.over_floor.2000x10", 1.2, "ratio"),
            figure("ipvs.rate", 10.3e6, "messages/s"),
            figure("sync.calls", 5018.0, "calls"),
            figure("sync.dumps", 0.0, "dumps"),
            figure("sync.latency", 44.0, "us"),
            figure("sync.growth", 1.17, "ratio"),
        ]
    }

    fn findings_with(changed: Figure) -> Vec<String> {
        let mut measured = equal();
        measured.retain(|figure| figure.name != changed.name);
        measured.push(changed);
        documented().compare(&usual(measured), None, true)
    }

    /// Measured on a machine that is as fast as the documented one.
    fn usual(figures: Vec<Figure>) -> Vec<(Figure, Machine)> {
        at(Slowness::default(), figures)
    }

    fn at(slowness: Slowness, figures: Vec<Figure>) -> Vec<(Figure, Machine)> {
        let machine = Machine {
            values: slowness,
            aims: slowness,
        };
        figures.into_iter().map(|figure| (figure, machine)).collect()
    }

    #[test]
    fn figures_and_factors_are_read_from_the_document() {
        let documented = documented();
        assert_eq!(documented.figures.len(), 6);
        assert_eq!(
            (documented.factor_of_ratios, documented.factor_of_units),
            (1.5, 2.0)
        );
        let row = &documented.figures["ipvs.rate"];
        assert_eq!((row.value, row.unit.as_str()), (10.3e6, "messages/s"));
        assert_eq!(row.aim, Some(Aim::AtLeast(5e6)));
        assert_eq!(documented.figures["sync.calls"].value, 5018.0);
        assert_eq!(documented.figures["ipvs.over_floor.2000x10"].unit, RATIO);
    }

    #[test]
    fn the_document_of_this_repository_can_be_read() {
        let text = include_str!("../../docs/benchmarks.md");
        let documented = Documented::parse(text).unwrap();
        assert!(documented.figures.keys().any(|name| group(name) == "sync"));
    }

    #[test]
    fn what_holds_is_not_reported() {
        assert_eq!(
            documented().compare(&usual(equal()), None, true),
            Vec::<String>::new()
        );
        assert!(findings_with(figure("sync.calls", 2600.0, "calls")).is_empty());
        assert!(findings_with(figure("sync.calls", 9900.0, "calls")).is_empty());
    }

    #[test]
    fn a_value_far_from_the_documented_one_is_reported_in_both_directions() {
        for (name, value, unit) in [
            ("sync.calls", 10_100.0, "calls"),
            ("sync.calls", 2500.0, "calls"),
            ("ipvs.over_floor.2000x10", 0.7, "ratio"),
        ] {
            let findings = findings_with(figure(name, value, unit));
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(
                findings[0].starts_with(&format!("{name}: measured")),
                "{findings:?}"
            );
            assert!(findings[0].contains("not within a factor of"), "{findings:?}");
        }
    }

    #[test]
    fn a_missed_aim_is_reported_though_the_documented_value_is_near() {
        for (name, value, unit, aim) in [
            ("ipvs.over_floor.2000x10", 1.31, "ratio", "1.3 or less"),
            ("sync.latency", 60.0, "us", "under 60"),
            ("sync.growth", 1.6, "ratio", "about 1"),
        ] {
            let findings = findings_with(figure(name, value, unit));
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(
                findings[0].ends_with(&format!("misses the aim: {aim}")),
                "{findings:?}"
            );
        }
        // Both the value and the aim.
        assert_eq!(findings_with(figure("ipvs.rate", 4e6, "messages/s")).len(), 2);
        assert_eq!(findings_with(figure("sync.dumps", 1.0, "dumps")).len(), 2);
    }

    #[test]
    fn a_figure_in_another_unit_is_reported() {
        let findings = findings_with(figure("sync.latency", 44.0, "ms"));
        assert_eq!(findings, ["sync.latency: measured in ms, documented in µs"]);
    }

    #[test]
    fn figures_that_are_only_measured_or_only_documented_are_reported() {
        let mut measured = equal();
        measured.retain(|figure| figure.name != "sync.calls");
        measured.push(figure("ipvs.new", 3.0, "ratio"));
        let findings = documented().compare(&usual(measured.clone()), None, true);
        assert_eq!(
            findings,
            [
                "ipvs.new: measured 3, not documented",
                "sync.calls: documented 5018 calls, not measured"
            ]
        );
        // Of another group than the requested one nothing is expected.
        measured.retain(|figure| figure.group() == "ipvs" && figure.name != "ipvs.new");
        assert!(
            documented()
                .compare(&usual(measured), Some("ipvs"), true)
                .is_empty()
        );
    }

    #[test]
    fn figures_of_watchers_are_missing_only_if_they_are_requested() {
        let row = "| `watchers.connections` | 1 connections | |\n";
        let documented = Documented::parse(&format!("{TEXT}{row}")).unwrap();
        assert_eq!(
            documented.compare(&usual(equal()), None, true),
            Vec::<String>::new()
        );
        assert_eq!(documented.compare(&[], Some("watchers"), true).len(), 1);
    }

    #[test]
    fn times_and_rates_are_compared_at_the_speed_of_the_machine_and_nothing_else_is() {
        let slow = Slowness {
            least: 2.0,
            most: 3.0,
        };
        let with = |name: &str, value: f64, unit: &str| {
            let mut measured = equal();
            for (name, value, unit) in [
                ("ipvs.rate", 10.3e6 / 2.5, "messages/s"),
                ("sync.latency", 110.0, "us"),
                (name, value, unit),
            ] {
                measured.retain(|figure| figure.name != name);
                measured.push(figure(name, value, unit));
            }
            documented().compare(&at(slow, measured), None, true).len()
        };
        assert_eq!(with("sync.dumps", 0.0, "dumps"), 0);
        // 44 µs may be 44 × 2 / 2 to 44 × 3 × 2, and the aim is 180.
        assert_eq!(with("sync.latency", 43.0, "us"), 1);
        assert_eq!(with("sync.latency", 179.0, "us"), 0);
        assert_eq!(with("sync.latency", 181.0, "us"), 1);
        assert_eq!(with("sync.latency", 265.0, "us"), 2);
        // 10.3 million may be 10.3 / 3 / 2 to 10.3 / 2 * 2, and the aim is 5 / 3.
        assert_eq!(with("ipvs.rate", 1.72e6, "messages/s"), 0);
        assert_eq!(with("ipvs.rate", 1.69e6, "messages/s"), 1);
        assert_eq!(with("ipvs.rate", 10.4e6, "messages/s"), 1);
        assert_eq!(with("sync.calls", 10_100.0, "calls"), 1);
        assert_eq!(with("ipvs.over_floor.2000x10", 1.31, "ratio"), 1);
        // On a fast machine aims are not nearer.
        let fast = Slowness {
            least: 0.5,
            most: 0.5,
        };
        let measured = [
            figure("sync.latency", 40.0, "us"),
            figure("ipvs.rate", 6e6, "messages/s"),
        ];
        let findings = documented().compare(&at(fast, measured.to_vec()), Some("none"), true);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(
            findings[0].starts_with("ipvs.rate: measured 6000000"),
            "{findings:?}"
        );
    }

    #[test]
    fn the_machine_is_as_slow_as_its_own_figures() {
        let rows = "| `machine.a_ms` | 2 ms | 1 ms or less |\n| `machine.b_us` | 50 µs | 50 µs or less |\n";
        let documented = Documented::parse(&format!("{TEXT}{rows}")).unwrap();
        let measured = [
            figure("machine.a_ms", 5.0, "ms"),
            figure("machine.b_us", 75.0, "us"),
        ];
        let machine = documented.machine(&measured).unwrap();
        let of = |least, most| Slowness { least, most };
        assert_eq!((machine.values, machine.aims), (of(1.5, 2.5), of(1.5, 5.0)));
        assert!(documented.machine(&measured[..1]).is_err());
        assert!(super::tests::documented().machine(&measured).is_err());
        let without_aim = Documented::parse(&(TEXT.to_owned() + "| `machine.b_us` | 50 µs | |\n")).unwrap();
        assert!(without_aim.machine(&measured).is_err());
        // They are not compared themselves.
        assert!(documented.compare(&usual(equal()), None, true).is_empty());
    }

    #[test]
    fn invalid_rows_are_errors_that_show_the_row() {
        for row in [
            "| `ipvs.rate` | 1 |",
            "| `ipvs.rate` | | |",
            "| `ipvs.rate` | fast | |",
            "| `ipvs.rate` | NaN | |",
            "| `ipvs.rate` | 1, 2 | |",
            "| `ipvs.rate` | 1 message each second | |",
            "| `ipvs.rate` | 1 | 2 |",
            "| `ipvs.rate` | 1 ms | 2 s or less |",
            "| `ipvs.rate`, `other` | 1 | |",
        ] {
            let text = format!("{FACTOR_OF_RATIOS}1.5; {FACTOR_OF_UNITS}2.\n{row}\n");
            let error = format!("{:#}", Documented::parse(&text).unwrap_err());
            assert!(error.contains(row), "{error}");
        }
    }

    #[test]
    fn a_name_with_two_rows_and_a_missing_factor_are_errors() {
        let row = "| `ipvs.rate` | 1 | |\n";
        let factors = format!("{FACTOR_OF_RATIOS}1.5; {FACTOR_OF_UNITS}2.\n");
        assert!(Documented::parse(&format!("{factors}{row}{row}")).is_err());
        assert!(Documented::parse(&format!("{FACTOR_OF_RATIOS}1.5\n{row}")).is_err());
        assert!(Documented::parse(&format!("{FACTOR_OF_RATIOS}0.5; {FACTOR_OF_UNITS}2.\n{row}")).is_err());
        assert!(Documented::parse(&factors).is_err());
    }

    #[test]
    fn figures_of_kube_proxy_are_missing_only_if_it_was_given() {
        let text = TEXT.to_owned() + "| `nftables_mode.rate.kube_proxy.10` | 5 connections/s | |\n";
        let documented = Documented::parse(&text).unwrap();
        assert!(documented.compare(&usual(equal()), None, false).is_empty());
        let findings = documented.compare(&usual(equal()), None, true);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].starts_with("nftables_mode.rate.kube_proxy.10: documented"));
        let mut measured = equal();
        measured.push(figure("nftables_mode.rate.kube_proxy.10", 50.0, "connections/s"));
        assert_eq!(documented.compare(&usual(measured), None, true).len(), 1);
    }
}
