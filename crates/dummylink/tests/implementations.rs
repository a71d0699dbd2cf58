//! Other implementations of `DummyLinks`: those with the required methods only, and pointers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kernlink_dummylink::{
    DummyLink, DummyLinks, Error, Fake, HostAddress, Link, LinkAddress, LinkName, LocalRoute, Operation,
    Ownership, Selection, contract,
};

/// Implements the required methods only. Refuses one operation.
struct Wrapper<L> {
    links: L,
    refused: Option<Operation>,
}

impl<L: DummyLinks> Wrapper<L> {
    fn new(links: L) -> Self {
        Self { links, refused: None }
    }
}

impl<L: DummyLinks> DummyLinks for Wrapper<L> {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let execute = |operation: &Operation| {
            if self.refused.as_ref() == Some(operation) {
                return Err(Error::custom(operation, "the address is reserved"));
            }
            self.links.execute_one(operation.clone())
        };
        operations.iter().map(execute).collect()
    }

    fn links(&mut self) -> Result<Vec<Link>, Error> {
        self.links.links()
    }

    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, Error> {
        self.links.list(selection)
    }
}

/// Implements the required methods and `routes`.
struct WithRoutes<L>(Wrapper<L>);

impl<L: DummyLinks> DummyLinks for WithRoutes<L> {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        self.0.execute(operations)
    }

    fn links(&mut self) -> Result<Vec<Link>, Error> {
        self.0.links()
    }

    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, Error> {
        self.0.list(selection)
    }

    fn routes(&mut self, link: &LinkName) -> Result<Vec<LocalRoute>, Error> {
        self.0.links.routes(link)
    }
}

/// Returns no outcomes.
struct WithoutOutcomes;

impl DummyLinks for WithoutOutcomes {
    fn execute(&mut self, _: &[Operation]) -> Vec<Result<(), Error>> {
        Vec::new()
    }

    fn links(&mut self) -> Result<Vec<Link>, Error> {
        Ok(vec![Link::new(2, "d0".parse().unwrap(), Some(Link::DUMMY))])
    }

    fn list(&mut self, _: Selection) -> Result<Vec<HostAddress>, Error> {
        Ok(Vec::new())
    }
}

fn address(last: u8) -> LinkAddress {
    LinkAddress::host([10, 0, 0, last].into()).unwrap()
}

#[test]
fn a_wrapper_with_the_required_methods_and_routes_passes_the_contract() {
    contract::run(|check| (check.run)(&mut WithRoutes(Wrapper::new(Fake::new())))).unwrap();
}

#[test]
fn pointers_pass_the_contract() {
    contract::run(|check| {
        let boxed: Box<dyn DummyLinks> = Box::new(Fake::new());
        let mut pointer: &'static mut Box<dyn DummyLinks> = Box::leak(Box::new(boxed));
        (check.run)(&mut pointer);
    })
    .unwrap();
}

#[test]
fn a_pointer_uses_the_methods_of_what_it_points_to() {
    let (link, other): (LinkName, LinkName) = ("d0".parse().unwrap(), "d1".parse().unwrap());
    let mut fake = Fake::new()
        .with_link(link, Some("dummy"), &[])
        .with_alternative_name(&link, other);
    let mut pointer: &mut dyn DummyLinks = &mut fake;
    let found = DummyLinks::link(&mut pointer, &other).unwrap();
    assert_eq!(found.map(|found| found.name), Some(link));
    // The provided method finds first names only.
    assert_eq!(Wrapper::new(&mut fake).link(&other).unwrap(), None);
}

#[test]
fn an_implementation_can_return_its_own_errors() {
    let link: LinkName = "d0".parse().unwrap();
    let mut links = Wrapper {
        links: Fake::new(),
        refused: Some(Operation::AddAddress(link, address(2))),
    };
    links.ensure_link(&DummyLink::new(link)).unwrap();
    assert!(links.exists(&link).unwrap());
    links.add(&link, &address(1)).unwrap();
    let error = links.add(&link, &address(2)).unwrap_err();
    assert_eq!(error.to_string(), "address add 10.0.0.2/32 dev d0 failed");
    assert!(!error.is_not_found() && !error.is_unsupported() && !error.is_outcome_unknown());
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "the address is reserved");
}

#[test]
fn without_routes_replace_fails_to_delete_ipv4_addresses() {
    let link: LinkName = "d0".parse().unwrap();
    let mut links = Wrapper::new(Fake::new().with_link(link, Some("dummy"), &[address(1)]));
    assert!(links.routes(&link).unwrap_err().is_unsupported());
    let both = [address(1), address(2)];
    let report = links.replace(&link, &both, &Ownership::All).unwrap();
    assert_eq!((report.done, report.failures.len()), (1, 0));
    let refused = links.replace(&link, &[], &Ownership::All).unwrap_err();
    assert!(matches!(refused, Error::NotImplemented { .. }), "{refused}");
    assert_eq!(links.list(Selection::On(link)).unwrap().len(), 2);
}

#[test]
fn the_outcome_is_unknown_if_none_was_returned() {
    let link = DummyLink::new("d0".parse().unwrap());
    assert!(
        WithoutOutcomes
            .ensure_link(&link)
            .unwrap_err()
            .is_outcome_unknown()
    );
    let report = WithoutOutcomes
        .replace(&link.name, &[address(1)], &Ownership::All)
        .unwrap();
    let [(_, error)] = report.failures.as_slice() else {
        unreachable!("{report:?}")
    };
    assert!(error.is_outcome_unknown());
}
