//! Steps of sysctls and IPVS timeouts.

use kernlink_engine::plan::{Needs, Subject};
use kernlink_ipvs::{Operation, Timeouts};
use kernlink_services::Family;

use super::{Need, Planner};
use crate::key::Key;
use crate::order::Phase;
use crate::sysctls::{CONNTRACK_BUCKETS, Consequence, Sysctl, consequence};

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
        self.find_necessary_sysctls();
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

    /// Finds the sysctls without which new frontends would not work, and that do not have their values.
    fn find_necessary_sysctls(&mut self) {
        for (name, desired) in self.state.sysctls.iter_desired() {
            let Consequence::Breaks(families, _) = consequence(name) else {
                continue;
            };
            if self.state.sysctls.observed(name) == Some(desired) {
                continue;
            }
            let needs = self.builder.after(&Key::Sysctl(name.clone()), false);
            for family in families {
                self.necessary[family.index()].extend(needs.iter().cloned());
            }
        }
    }

    /// What a new virtual server or address of a family needs: the sysctls without which its traffic would not work.
    pub(super) fn sysctl_needs(&self, family: Family) -> impl Iterator<Item = Need> {
        self.necessary[family.index()].iter().cloned()
    }
}
