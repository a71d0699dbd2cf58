//! RFC 3339 times, as in `metadata.creationTimestamp`.

use std::time::{Duration, SystemTime};

/// Reads a time such as `2026-01-01T00:00:00Z`, with or without a fraction, with any offset. `None` if it is not one, or
/// lies before 1970.
pub(super) fn parse(text: &str) -> Option<SystemTime> {
    let bytes = text.as_bytes();
    let punctuation = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if bytes.len() < 20 || punctuation.iter().any(|&(at, byte)| bytes.get(at) != Some(&byte)) {
        return None;
    }
    let year = number(bytes, 0, 4)?;
    let month = number(bytes, 5, 2)?;
    let day = number(bytes, 8, 2)?;
    let hour = number(bytes, 11, 2)?;
    let minute = number(bytes, 14, 2)?;
    let second = number(bytes, 17, 2)?;
    if !(1..=12).contains(&month)
        || day < 1
        || day > days_in(year, month)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    let mut at = 19;
    let mut nanos = 0;
    if bytes.get(at) == Some(&b'.') {
        at += 1;
        let digits = bytes.get(at..)?.iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        for position in 0..9 {
            let digit = if position < digits {
                number(bytes, at + position, 1)?
            } else {
                0
            };
            nanos = nanos * 10 + digit;
        }
        at += digits;
    }
    let offset = match bytes.get(at..)? {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let minutes = number(bytes, at + 1, 2)? * 60 + number(bytes, at + 4, 2)?;
            if *sign == b'+' {
                minutes * 60
            } else {
                -minutes * 60
            }
        }
        _ => return None,
    };
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    let since = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanos).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

fn number(bytes: &[u8], start: usize, length: usize) -> Option<i64> {
    bytes
        .get(start..start + length)?
        .iter()
        .try_fold(0, |value, byte| {
            byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0'))
        })
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Counts days by whole years and months; years are four digits, so this is a short loop.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let before = |year: i64| year * 365 + year / 4 - year / 100 + year / 400;
    let years = before(year - 1) - before(1969);
    let months: i64 = (1..month).map(|month| days_in(year, month)).sum();
    years + months + day - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<u64> {
        parse(text).map(|time| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs())
    }

    #[test]
    fn times_of_the_date_command() {
        // date -u -d TIME +%s
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(seconds("2026-01-01T00:00:00Z"), Some(1_767_225_600));
        assert_eq!(seconds("2024-02-29T23:59:58Z"), Some(1_709_251_198));
        assert_eq!(seconds("2024-03-01T01:29:58+01:30"), Some(1_709_251_198));
        assert_eq!(seconds("2000-12-31T12:34:56.789-08:00"), Some(978_294_896));
    }

    #[test]
    fn a_fraction_orders_two_times() {
        assert!(parse("2026-01-01T00:00:00.25Z") > parse("2026-01-01T00:00:00.2Z"));
        assert!(parse("2026-01-01T00:00:00.25Z") < parse("2026-01-01T00:00:01Z"));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "2026-01-01",
            "2026-13-01T00:00:00Z",
            "2025-02-29T00:00:00Z",
            "2026-01-01T00:00:00",
            "1969-12-31T23:59:59Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00Zjunk",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
