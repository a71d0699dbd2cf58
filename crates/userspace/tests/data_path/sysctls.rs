//! The limits and timeouts of connection tracking.

use std::time::Duration;

use kernlink_host::{FakeSysctls, Sysctl, SysctlError, Sysctls};
use kernlink_services::Family;

use super::support::*;

const CLOSE_WAIT: &str = "net.netfilter.nf_conntrack_tcp_timeout_close_wait";

/// One sysctl cannot be written.
#[derive(Default)]
struct Refusing(FakeSysctls);

impl Sysctls for Refusing {
    fn execute(&mut self, sysctls: &[Sysctl]) -> Vec<Result<(), SysctlError>> {
        let execute = |sysctl: &Sysctl| match &*sysctl.name {
            CLOSE_WAIT => {
                let error = std::io::Error::from_raw_os_error(nix::libc::EROFS);
                Err(SysctlError::new("write", CLOSE_WAIT, &error))
            }
            _ => self.0.execute(std::slice::from_ref(sysctl)).remove(0),
        };
        sysctls.iter().map(execute).collect()
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError> {
        self.0.read(name)
    }
}

fn value(fixture: &mut Fixture, name: &str) -> Option<String> {
    fixture.proxier.kernel_mut().sysctls.read(name).unwrap()
}

#[test]
fn those_of_the_configuration_are_written_and_written_again() {
    let mut config = config();
    config.conntrack.tcp_close_wait = Duration::from_secs(90);
    let mut fixture = Fixture::with(&config, Tables::default(), Default::default());
    fixture.services(vec![web("web", 10)]).sync();
    assert_eq!(value(&mut fixture, CLOSE_WAIT).as_deref(), Some("90"));
    let established = "net.netfilter.nf_conntrack_tcp_timeout_established";
    assert_eq!(value(&mut fixture, established).as_deref(), Some("86400"));
    // Another program.
    let other = Sysctl::new(CLOSE_WAIT, "60");
    let kernel = fixture.proxier.kernel_mut();
    assert_eq!(kernel.sysctls.execute(&[other]), [Ok(())]);
    fixture.proxier.resync();
    let synced = fixture.sync();
    assert_eq!(synced.plan.len(), 1, "{}", synced.plan);
    assert_eq!(value(&mut fixture, CLOSE_WAIT).as_deref(), Some("90"));
    // 0 keeps the value.
    config.conntrack.tcp_close_wait = Duration::ZERO;
    let synced = fixture.set_config(&config).sync();
    assert!(synced.plan.is_empty(), "{}", synced.plan);
    assert_eq!(value(&mut fixture, CLOSE_WAIT).as_deref(), Some("90"));
}

#[test]
fn one_that_cannot_be_written_costs_no_service() {
    let mut fixture = Fixture::new();
    fixture.proxier.kernel_mut().sysctls = Box::new(Refusing::default());
    let synced = fixture.services(vec![web("web", 10)]).try_sync();
    let report = synced.to_string();
    assert_eq!(report.matches("cannot write sysctl").count(), 1, "{report}");
    assert!(synced.next.is_some());
    assert_eq!(fixture.tables.portal_rules(Family::Ipv4).len(), 2);
    assert_eq!(fixture.listening().len(), 1);
}
