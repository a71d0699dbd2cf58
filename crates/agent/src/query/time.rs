//! Times in answers.

use std::time::SystemTime;

use jiff::Timestamp;

/// RFC 3339 in UTC, with milliseconds.
pub(crate) fn text(time: SystemTime) -> String {
    match Timestamp::try_from(time) {
        Ok(time) => format!("{time:.3}"),
        // Beyond the year 9999.
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_time_is_printed_as_in_rfc_3339() {
        assert_eq!(
            text(UNIX_EPOCH + Duration::from_millis(1_500)),
            "1970-01-01T00:00:01.500Z"
        );
    }
}
