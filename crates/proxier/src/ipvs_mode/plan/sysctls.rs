//! Steps of sysctls and IPVS timeouts.

use kernlink_ipvs::{Operation, Timeouts};

use super::Planner;
use crate::ipvs_mode::key::Key;
use crate::ipvs_mode::order::Phase;
use crate::ipvs_mode::sysctls::{CONNTRACK_BUCKETS, Sysctl};
use crate::plan::{Needs, Subject};

impl Planner<'_, '_, '_> {
    pub(super) fn sysctls(&mut self) {
        for difference in self.state.sysctls.differences() {
            let Some(desired) = difference.desired else {
                continue;
            };
            let is_set = match difference.observed {
                None => false,
                // More buckets than required are accepted.
                Some(observed) if **difference.key == *CONNTRACK_BUCKETS => {
                    let number = |text: &str| text.parse::<u64>().ok();
                    number(observed) >= number(desired)
                }
                Some(observed) => observed == desired,
            };
            if !is_set {
                let operation = Sysctl {
                    name: difference.key.clone(),
                    value: desired.clone(),
                };
                let key = Key::Sysctl(difference.key.clone());
                self.builder
                    .push(Phase::Sysctls, key, difference.subject, operation, Needs::none());
            }
        }
        let desired = self.state.config().ipvs_timeouts.whole_seconds();
        let agrees = self.state.timeouts.observed.is_some_and(|observed| {
            [
                (desired.tcp, observed.tcp),
                (desired.tcp_fin, observed.tcp_fin),
                (desired.udp, observed.udp),
            ]
            .into_iter()
            .all(|(desired, observed)| desired.is_zero() || desired == observed)
        });
        if self.state.timeouts.is_dirty && !desired.is_unset() && !agrees {
            let timeouts = Timeouts::new(desired.tcp, desired.tcp_fin, desired.udp);
            let operation = Operation::SetTimeouts(timeouts);
            self.builder.push(
                Phase::Sysctls,
                Key::Timeouts,
                Subject::Node,
                operation,
                Needs::none(),
            );
        }
    }
}
