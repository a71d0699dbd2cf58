//! What a change and a first sync take, by the number of Services: the figures of `docs/benchmarks.md`.

use anyhow::{Result, ensure};

use super::svg::{Anchor, Drawing, Point};
use crate::figures::Documented;

/// The beginnings of the names of figures, and what they are.
const LINES: [(&str, &str); 4] = [
    (
        "iptables_mode.one_change_ms.legacy.",
        "one change of an endpoint, iptables mode, legacy tools",
    ),
    (
        "iptables_mode.one_change_ms.nft.",
        "one change of an endpoint, iptables mode, nft tools",
    ),
    (
        "nftables_mode.one_change_us.",
        "one change of an endpoint, nftables mode",
    ),
    ("nftables_mode.cold_s.", "first sync, nftables mode"),
];
/// The scales, as exponents of 10: of Services, and of seconds.
const SERVICES: (f64, f64) = (2.7, 5.0);
const SECONDS: (f64, f64) = (-5.0, 1.0);
const TICKS_OF_SERVICES: [(f64, &str); 4] = [
    (1_000.0, "1 000"),
    (5_000.0, "5 000"),
    (10_000.0, "10 000"),
    (50_000.0, "50 000"),
];
const TICKS_OF_SECONDS: [(f64, &str); 7] = [
    (1e-5, "10 µs"),
    (1e-4, "100 µs"),
    (1e-3, "1 ms"),
    (1e-2, "10 ms"),
    (1e-1, "100 ms"),
    (1.0, "1 s"),
    (10.0, "10 s"),
];
const LEFT: i32 = 80;
const TOP: i32 = 40;
const WIDTH: i32 = 560;
const HEIGHT: i32 = 300;

/// Draws the figures of a document.
///
/// # Errors
///
/// If the document has no figures of one of the lines.
pub(super) fn draw(figures: &Documented) -> Result<String> {
    let mut drawing = Drawing::new(
        "Time by the number of Services",
        "The time of one change and of a first sync, by the number of Services. Both scales are logarithmic.",
        LEFT + WIDTH + 24,
        TOP + HEIGHT + 56 + 20 * i32::try_from(LINES.len())?,
    );
    let bottom = TOP + HEIGHT;
    drawing.text(
        "title",
        Anchor::Start,
        (LEFT, 24),
        "Time by the number of Services, each with ten endpoints",
    );
    for (services, name) in TICKS_OF_SERVICES {
        let (x, _) = place((services, 1.0));
        drawing.line("faint", &[(x, TOP), (x, bottom)]);
        drawing.text("", Anchor::Middle, (x, bottom + 20), name);
    }
    for (seconds, name) in TICKS_OF_SECONDS {
        let (_, y) = place((1_000.0, seconds));
        drawing.line("faint", &[(LEFT, y), (LEFT + WIDTH, y)]);
        drawing.text("", Anchor::Start, (16, y + 4), name);
    }
    for (number, (name, what)) in LINES.into_iter().enumerate() {
        let class = format!("line line-{number}");
        let points: Vec<Point> = figures.by_services(name).into_iter().map(place).collect();
        ensure!(
            points.len() > 1,
            "no figures `{name}...` of several numbers of Services"
        );
        drawing.line(&class, &points);
        for (x, y) in points {
            drawing.line(&class, &[(x - 3, y), (x + 3, y)]);
        }
        let y = bottom + 46 + 20 * i32::try_from(number)?;
        drawing.line(&class, &[(LEFT, y), (LEFT + 40, y)]);
        drawing.text("", Anchor::Start, (LEFT + 50, y + 4), what);
    }
    Ok(drawing.finish())
}

/// Where a number of Services and a number of seconds are.
fn place((services, seconds): (f64, f64)) -> Point {
    let part = |value: f64, (least, most): (f64, f64)| (value.log10() - least) / (most - least);
    let x = f64::from(LEFT) + part(services, SERVICES) * f64::from(WIDTH);
    let y = f64::from(TOP + HEIGHT) - part(seconds, SECONDS) * f64::from(HEIGHT);
    (x.round() as i32, y.round() as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_number_is_more_to_the_right_and_a_longer_time_is_higher() {
        assert_eq!(place((100_000.0, 10.0)), (LEFT + WIDTH, TOP));
        let ((x, y), (other_x, other_y)) = (place((1_000.0, 0.1)), place((5_000.0, 1.0)));
        assert!(x < other_x && y > other_y);
    }
}
