//! Features that old kernels do not have: they work, or the error names them.

use kernlink_kernel_tests::kernel::release;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_nftables::{
    BaseChain, Bitwise, BitwiseOperation, Chain, ChainType, Client, DataType, Element, Elements, Error,
    Expression, Hook, Inner, KernelRelease, Last, Meta, MetaKey, MetaSet, Nftables, Operation, Payload,
    PayloadBase, Register, Rule, Set, Table, TableFamily, TableFlags, TableKey, Value, uapi,
};

use crate::{client, table};

/// An operation succeeds on kernels of a release and newer ones, and is refused by older ones with an error that names the feature.
#[track_caller]
fn check<T>(feature: &str, since: KernelRelease, outcome: Result<T, Error>) {
    if release() >= since {
        if let Err(error) = outcome {
            panic!("{feature}: {error}: {error:?}");
        }
    } else {
        check_refused(feature, since, outcome);
    }
}

#[track_caller]
fn check_refused<T>(feature: &str, since: KernelRelease, outcome: Result<T, Error>) {
    let running = release();
    let error = outcome.err().unwrap();
    assert!(error.is_unsupported(), "{feature}: {error:?}");
    assert!(!error.is_not_found(), "{feature}: {error:?}");
    let requirement = error.requirement().unwrap();
    assert_eq!((requirement.feature, requirement.since), (feature, since));
    let text = match std::error::Error::source(&error) {
        Some(reason) => format!("{error}: {reason}"),
        None => error.to_string(),
    };
    let expected = format!("{feature} requires Linux {since}; this kernel is {running}");
    assert!(text.contains(&expected), "{text}");
}

/// A rule with these expressions in a base chain of a table of its own.
fn rule(family: TableFamily, expressions: Vec<Expression>) -> Result<(), Error> {
    let key = TableKey::new(family, "rules");
    let base = BaseChain::new(ChainType::Filter, Hook::Prerouting, -300);
    let mut client = client();
    client
        .apply(&[
            Operation::add(Table::new(key.clone())),
            Operation::add(Chain::new(key.chain("a")).with_base(base)),
        ])
        .unwrap();
    client.apply(&[Operation::add(Rule::new(key.chain("a"), expressions))])
}

fn counted(client: &mut Client) {
    let counter = kernlink_nftables::Counter::new();
    let set = Set::new(table().set("s"), &[DataType::Service]);
    client
        .apply(&[
            Operation::add(Table::new(table())),
            Operation::add(Chain::new(table().chain("a"))),
            Operation::add(Rule::new(table().chain("a"), vec![counter.into()])),
            Operation::add(set),
            Operation::add(Elements::new(table().set("s"), [Element::new([0, 80])])),
        ])
        .unwrap();
}

#[test]
fn what_the_kernel_is_too_old_for_is_named() {
    let register = Register::data(0);
    NetNs::new().run(|| {
        let mut client = client();
        counted(&mut client);
        let missing = Operation::destroy(table().chain("missing"));
        check("destroy", KernelRelease::new(6, 3), client.apply(&[missing]));
        let flags = TableFlags::OWNER | TableFlags::PERSIST;
        let owned = Table::new(TableKey::new(TableFamily::Ip, "owned")).with_flags(flags);
        check(
            "table flag persist",
            KernelRelease::new(6, 9),
            client.apply(&[Operation::add(owned)]),
        );
        check(
            "reset of rules",
            KernelRelease::new(6, 2),
            client.reset_rules(&table(), None),
        );
        check(
            "reset of elements",
            KernelRelease::new(6, 5),
            client.reset_elements(&table().set("s")),
        );
        // Since Linux 5.13 and 5.14.
        let ports = Operation::add(Elements::new(table().set("s"), [Element::catch_all()]));
        check(
            "catch-all element",
            KernelRelease::new(5, 13),
            client.apply(&[ports]),
        );
        check(
            "expression last",
            KernelRelease::new(5, 14),
            rule(TableFamily::Ip, vec![Last::new().into()]),
        );
    });
    NetNs::new().run(|| {
        let load = |offset: u32, register| Payload::new(register, PayloadBase::Network, offset, 4_u32);
        let mut xor = Bitwise::new(register, register, 4_u32);
        xor.operation = BitwiseOperation::Xor;
        xor.second_source = Some(Register::data(1));
        check(
            "bitwise and, or, xor of two registers",
            KernelRelease::new(6, 13),
            rule(
                TableFamily::Ip,
                vec![
                    load(12, register).into(),
                    load(16, Register::data(1)).into(),
                    xor.into(),
                ],
            ),
        );
        let inside: Expression = Meta::new(MetaKey::TransportProtocol, register).into();
        let inner = Inner::new(0_u32, uapi::NFT_INNER_VXLAN, 0x0f_u32, 8_u32, Box::new(inside));
        check(
            "expression inner",
            KernelRelease::new(6, 2),
            rule(TableFamily::Ip, vec![inner.into()]),
        );
        if release() >= KernelRelease::new(6, 4) {
            // Often a kernel is built without it.
            return;
        }
        let one = kernlink_nftables::Immediate::new(register, Value::new(&[1, 0, 0, 0]));
        check_refused(
            "meta broute",
            KernelRelease::new(6, 4),
            rule(
                TableFamily::Bridge,
                vec![one.into(), MetaSet::new(MetaKey::BridgeRoute, register).into()],
            ),
        );
    });
}
