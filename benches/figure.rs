//! Prints figures and measures times.

use std::{
    env,
    time::{Duration, Instant},
};

/// Prints the line `figure NAME VALUE UNIT`.
///
/// # Errors
///
/// If the name has no group, or a part of it has other characters than lower-case letters, digits and `_`; if the value is not
/// finite; if the unit is not one word.
pub fn figure(name: &str, value: f64, unit: &str) -> Result<(), String> {
    println!("{}", line(name, value, unit)?);
    Ok(())
}

fn line(name: &str, value: f64, unit: &str) -> Result<String, String> {
    let is_word = |word: &str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let parts: Vec<_> = name.split('.').collect();
    if parts.len() < 2 || !parts.iter().all(|part| is_word(part)) {
        return Err(format!(
            "invalid name `{name}`; expected `group.name` of lower-case letters, digits and `_`"
        ));
    }
    if !value.is_finite() {
        return Err(format!("{name}: invalid value {value}; expected a finite number"));
    }
    if unit.is_empty() || unit.contains(char::is_whitespace) {
        return Err(format!("{name}: invalid unit {unit:?}; expected one word"));
    }
    // More digits than the precision of the measurements.
    let decimals = if value.abs() >= 100.0 { 1 } else { 4 };
    Ok(format!("figure {name} {value:.decimals$} {unit}"))
}

/// Whether figures of this group were requested. True if no group was given.
#[must_use]
pub fn is_requested(group: &str) -> bool {
    env::var("KERNLINK_BENCH_GROUP").map_or(true, |requested| requested == group)
}

/// Repeats set-up and work `runs` times and returns the median time of the work.
///
/// An additional first run, with cold caches and kernel modules that are not loaded yet, is not counted.
///
/// # Errors
///
/// The first error of set-up or work.
pub fn median<S, T, E>(
    runs: usize,
    mut set_up: impl FnMut() -> Result<S, E>,
    mut work: impl FnMut(S) -> Result<T, E>,
) -> Result<Duration, E> {
    let mut times = Vec::with_capacity(runs);
    for run in 0..=runs {
        let prepared = set_up()?;
        let start = Instant::now();
        // Dropped after the measurement.
        let result = work(prepared)?;
        let time = start.elapsed();
        drop(std::hint::black_box(result));
        if run > 0 {
            times.push(time);
        }
    }
    times.sort();
    Ok(times.get(times.len() / 2).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_printed_with_name_value_and_unit() {
        assert_eq!(
            line("ipvs.add", 1234.56, "ops/s"),
            Ok("figure ipvs.add 1234.6 ops/s".to_owned())
        );
        let ratio = line("ipset.add.to_floor", 1.25, "ratio");
        assert_eq!(ratio, Ok("figure ipset.add.to_floor 1.2500 ratio".to_owned()));
    }

    #[test]
    fn invalid_figures_are_errors() {
        for (name, value, unit) in [
            ("add", 1.0, "ops/s"),
            ("ipvs.", 1.0, "ops/s"),
            ("ipvs.add all", 1.0, "ops/s"),
            ("Ipvs.add", 1.0, "ops/s"),
            ("ipvs.add", f64::NAN, "ops/s"),
            ("ipvs.add", 1.0, "ops per s"),
            ("ipvs.add", 1.0, ""),
        ] {
            assert!(line(name, value, unit).is_err(), "{name} {value} {unit}");
        }
    }

    #[test]
    fn work_is_repeated_and_its_error_is_returned() {
        let mut set_ups = 0;
        let mut set_up = || {
            set_ups += 1;
            Ok::<_, String>(set_ups)
        };
        assert!(median(3, &mut set_up, |_| Ok(())).is_ok());
        assert_eq!(set_ups, 4);
        let failing = median(3, || Ok(()), |()| Err::<(), _>("refused".to_owned()));
        assert_eq!(failing, Err("refused".to_owned()));
    }
}
