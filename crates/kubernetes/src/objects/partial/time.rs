//! Times.

use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use prost::Message;

/// A time. One without content is absent: Go writes it for the time 0.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Time {
    #[prost(int64, optional, tag = "1")]
    pub(crate) seconds: Option<i64>,
    #[prost(int32, optional, tag = "2")]
    pub(crate) nanos: Option<i32>,
}

impl Time {
    pub(crate) fn is_present(&self) -> bool {
        self.seconds.is_some() || self.nanos.is_some()
    }

    /// The time; `None` if it is absent or cannot be represented.
    pub(crate) fn time(&self) -> Option<SystemTime> {
        let seconds = self.seconds.filter(|_| self.is_present())?;
        let whole = Duration::from_secs(seconds.unsigned_abs());
        let whole = if seconds < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(whole)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(whole)
        };
        let nanos = i64::from(self.nanos.unwrap_or_default());
        let part = Duration::from_nanos(nanos.unsigned_abs());
        if nanos < 0 {
            whole?.checked_sub(part)
        } else {
            whole?.checked_add(part)
        }
    }
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self {
            seconds: Some(time.as_second()),
            nanos: Some(time.subsec_nanosecond()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test reports the reason by panicking")]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_before_and_after_1970() {
        let time = |text: &str| Time::from(text.parse::<Timestamp>().unwrap()).time().unwrap();
        // date -u -d TIME +%s
        let after = SystemTime::UNIX_EPOCH + Duration::new(1_767_225_600, 250_000_000);
        assert_eq!(time("2026-01-01T00:00:00.25Z"), after);
        assert_eq!(time("2026-01-01T01:30:00.25+01:30"), after);
        assert_eq!(
            time("1969-12-31T23:59:58.5Z"),
            SystemTime::UNIX_EPOCH - Duration::from_millis(1_500)
        );
    }

    #[test]
    fn a_time_without_content_or_out_of_range_is_absent() {
        let time = |seconds, nanos| Time { seconds, nanos };
        assert_eq!(time(None, None).time(), None);
        assert!(!time(None, None).is_present());
        assert_eq!(time(Some(0), Some(0)).time(), Some(SystemTime::UNIX_EPOCH));
        assert_eq!(time(Some(i64::MAX), Some(i32::MAX)).time(), None);
        assert_eq!(time(Some(i64::MIN), Some(i32::MIN)).time(), None);
    }
}
