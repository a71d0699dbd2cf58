//! Other programs that change the ruleset, or keep a client from changing it.

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{since, tools};
use kernlink_nftables::{
    Chain, DataType, Element, Elements, Error, Nftables, Operation, Set, Table, TableFlags, UserData, Value,
};

use crate::{client, listing, nft, table};

#[test]
fn a_change_of_another_program_between_reading_and_writing_is_noticed() {
    NetNs::new().run(|| {
        let mut client = client();
        client.apply(&[Operation::add(Table::new(table()))]).unwrap();
        let generation = client.generation().unwrap();
        nft("add table ip6 other");
        let add = [Operation::add(Chain::new(table().chain("a")))];
        let outcome = client.execute_at(Some(generation), &add).remove(0);
        assert!(outcome.unwrap_err().is_generation_changed());
        let generation = client.generation().unwrap();
        assert_eq!(client.execute_at(Some(generation), &add), [Ok(())]);
    });
}

#[test]
fn a_table_that_another_program_deleted_is_not_found() {
    NetNs::new().run(|| {
        let mut client = client();
        let set = Set::new(table().set("s"), &[DataType::Service]);
        client
            .apply(&[Operation::add(Table::new(table())), Operation::add(set)])
            .unwrap();
        nft("flush ruleset");
        let elements = Elements::new(table().set("s"), [Element::new(Value::port(1))]);
        let error = client.apply(&[Operation::add(elements.clone())]).unwrap_err();
        assert!(error.is_not_found(), "{error:?}");
        assert_eq!(error.to_string(), "cannot add element ip t s");
        assert!(client.find_elements(&elements).unwrap_err().is_not_found());
    });
}

#[test]
fn a_table_that_another_socket_owns_cannot_be_changed() {
    since!(6, 9);
    NetNs::new().run(|| {
        let flags = TableFlags::OWNER | TableFlags::PERSIST;
        let add = [Operation::add(Table::new(table()).with_flags(flags))];
        let mut owner = client();
        owner.apply(&add).unwrap();
        assert!(owner.table(&table()).unwrap().unwrap().owner.is_some());
        let mut other = client();
        let error = other
            .apply(&[Operation::add(Chain::new(table().chain("a")))])
            .unwrap_err();
        assert!(error.is_permission_denied(), "{error:?}");
        let reason = std::error::Error::source(&error).unwrap().to_string();
        assert!(reason.contains("another socket owns the table"), "{reason}");
        nft("flush ruleset");
        owner
            .apply(&[Operation::add(Chain::new(table().chain("a")))])
            .unwrap();
        drop(owner);
        // The next process takes it over.
        other.apply(&add).unwrap();
        other.apply(&[Operation::delete(table().chain("a"))]).unwrap();
    });
}

/// Set for the process that the test below starts.
const INSIDE: &str = "KERNLINK_WITHOUT_CAPABILITY";

/// The test runs itself again as root without `CAP_NET_ADMIN`.
#[test]
fn without_the_capability_every_operation_is_refused_at_once() {
    const NAME: &str = "neighbours::without_the_capability_every_operation_is_refused_at_once";
    if std::env::var_os(INSIDE).is_some() {
        let mut client = client();
        let add = Operation::add(Table::new(table()));
        for outcome in client.execute(&[add.clone(), add.clone(), add]) {
            let error = outcome.unwrap_err();
            assert!(error.is_permission_denied(), "{error:?}");
            assert!(matches!(error, Error::TransactionRefused { .. }), "{error:?}");
            assert!(
                std::error::Error::source(&error)
                    .unwrap()
                    .to_string()
                    .contains("CAP_NET_ADMIN")
            );
        }
        return;
    }
    NetNs::new().run(|| {
        let program = std::env::current_exe().unwrap();
        let inside = format!("{INSIDE}=1");
        let capabilities = ["--bounding-set", "-net_admin", "--inh-caps", "-net_admin"];
        let mut arguments = vec![&*inside, "setpriv"];
        arguments.extend(capabilities);
        arguments.extend([program.to_str().unwrap(), NAME, "--exact"]);
        let output = tools::run("env", &arguments).unwrap_or_else(|error| panic!("{error}"));
        assert!(output.contains("1 passed"), "{output}");
    });
}

#[test]
fn elements_of_maximal_size_are_written_and_read() {
    NetNs::new().run(|| {
        let types = [DataType::Ipv6Address; 4];
        let map = Set::map(table().set("m"), &types, &types);
        let elements: Vec<Element> = (0..2_000_u32)
            .map(|number| {
                let mut key = [7; 64];
                key[..4].copy_from_slice(&number.to_be_bytes());
                let mut element = Element::new(key).with_value([9; 64]);
                let mut user_data = UserData::new();
                user_data.push(0, &[b'x'; 252]);
                element.user_data = user_data;
                element
            })
            .collect();
        let mut client = client();
        client
            .apply(&[
                Operation::add(Table::new(table())),
                Operation::add(map),
                Operation::add(Elements::new(table().set("m"), elements.clone())),
            ])
            .unwrap();
        let mut read = client.list_elements(&table().set("m")).unwrap();
        read.sort_by(|one, other| one.key.cmp(&other.key));
        assert!(read == elements);
    });
}

#[test]
fn a_change_during_a_listing_of_elements_is_noticed() {
    NetNs::new().run(|| {
        let (mut client, mut other) = (client(), client());
        let set = Set::new(table().set("s"), &[DataType::Mark]);
        let elements = (0..50_000_u32).map(|number| Element::new(Value::host_u32(number)));
        client
            .apply(&[
                Operation::add(Table::new(table())),
                Operation::add(set),
                Operation::add(Elements::new(table().set("s"), elements)),
            ])
            .unwrap();
        let key = table().set("s");
        assert_eq!(
            client.elements(&key).unwrap().filter(Result::is_ok).count(),
            50_000
        );
        let mut listed = client.elements(&key).unwrap();
        assert!(listed.next().unwrap().is_ok());
        other
            .apply(&[Operation::add(Chain::new(table().chain("a")))])
            .unwrap();
        let error = listed.find_map(Result::err).unwrap();
        assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
        drop(listed);
        // The rest of the listing is discarded.
        assert_eq!(client.list_elements(&key).unwrap().len(), 50_000);
    });
}

#[test]
fn a_transaction_of_many_megabytes_is_executed_as_a_whole() {
    NetNs::new().run(|| {
        let mut client = client();
        let chains =
            (0..20_000).map(|number| Operation::add(Chain::new(table().chain(format!("chain-{number}")))));
        let mut operations = vec![Operation::add(Table::new(table()))];
        operations.extend(chains);
        operations.push(Operation::delete(table().chain("missing")));
        let outcomes = client.execute(&operations);
        assert!(outcomes.last().unwrap().as_ref().unwrap_err().is_not_found());
        assert!(
            outcomes[..20_001]
                .iter()
                .all(|outcome| { matches!(outcome, Err(Error::NotExecuted { refused: 20_001 })) })
        );
        assert_eq!(listing(), "");
        operations.pop();
        client.apply(&operations).unwrap();
        assert_eq!(client.chains(&table()).unwrap().len(), 20_000);
        assert_eq!(
            tools::must("nft", &["list", "chains"])
                .matches("chain chain-")
                .count(),
            20_000
        );
    });
}
