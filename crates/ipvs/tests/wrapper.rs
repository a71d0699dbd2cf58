//! Tables that are not the kernel's: what an implementation of one's own gets for four methods, and behind pointers.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;

use kernlink_ipvs::{
    Error, Fake, Ipvs, Operation, RealServerStatus, Scheduler, Timeouts, VirtualServer, VirtualServerKey,
    VirtualServerStatus, contract,
};

/// No more than a table must have, and one operation refused.
struct StandIn<I> {
    table: I,
    refused: Option<VirtualServerKey>,
}

impl<I: Ipvs> StandIn<I> {
    fn over(table: I) -> Self {
        Self { table, refused: None }
    }
}

impl<I: Ipvs> Ipvs for StandIn<I> {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let execute = |operation: &Operation| {
            if operation.virtual_server().is_some() && operation.virtual_server() == self.refused {
                return Err(Error::custom(operation.describe(), "the address is reserved"));
            }
            self.table.execute_one(operation.clone())
        };
        operations.iter().map(execute).collect()
    }

    fn list_virtual_servers(&mut self) -> Result<Vec<VirtualServerStatus>, Error> {
        self.table.list_virtual_servers()
    }

    fn list_real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<RealServerStatus>, Error> {
        self.table.list_real_servers(key)
    }

    fn timeouts(&mut self) -> Result<Timeouts, Error> {
        self.table.timeouts()
    }
}

#[test]
fn four_methods_keep_the_contract_but_for_daemons() {
    for check in contract::CHECKS {
        if !check.name.contains("daemon") {
            println!("{}", check.name);
            (check.run)(&mut StandIn::over(Fake::new()));
        }
    }
}

#[test]
fn a_table_behind_pointers_keeps_the_contract() {
    for check in contract::CHECKS {
        println!("{}", check.name);
        let mut boxed: Box<dyn Ipvs> = Box::new(Fake::new());
        let mut pointer = &mut boxed;
        (check.run)(&mut pointer);
    }
}

#[test]
fn a_stand_in_fails_in_its_own_words() {
    let mut fake = Fake::new();
    let reserved = VirtualServerKey::tcp(Ipv4Addr::new(10, 96, 0, 10), 80);
    let mut table = StandIn {
        table: &mut fake as &mut dyn Ipvs,
        refused: Some(reserved),
    };
    for error in [
        table
            .ensure_virtual_server(&VirtualServer::new(reserved, Scheduler::RR))
            .unwrap_err(),
        table.zero(&reserved).unwrap_err(),
    ] {
        assert!(!error.is_not_found() && !error.is_invalid() && !error.is_outcome_unknown());
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(cause, "the address is reserved");
    }
    table
        .add_virtual_server(&VirtualServer::new(
            VirtualServerKey::udp(Ipv4Addr::new(10, 96, 0, 10), 80),
            Scheduler::RR,
        ))
        .unwrap();
    for error in [table.list_daemons().unwrap_err(), table.info().unwrap_err()] {
        assert!(matches!(error, Error::Custom { .. }), "{error:?}");
    }
    assert_eq!(fake.executed().len(), 1);
}
