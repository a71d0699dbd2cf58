//! Other programs that change the ruleset, or keep a client from changing it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kernlink_kernel_tests::kernel::is_in_vm;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{since, tools, wait};
use kernlink_nftables::{
    Chain, Client, DataType, Element, Elements, Error, Event, Expression, Item, Monitor, MonitorScope,
    Nftables, ObjectData, Operation, Set, Table, TableFamily, TableFlags, TableKey, UserData, Value,
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
        // The owner keeps it, and a table that never had an owner does not get one.
        let without_owner = Operation::add(Table::new(table()).with_flags(TableFlags::PERSIST));
        owner.apply(&[without_owner]).unwrap_err();
        let free = TableKey::new(TableFamily::Ip, "free");
        let owned = Table::new(free.clone()).with_flags(TableFlags::OWNER);
        owner.apply(&[Operation::add(Table::new(free.clone()))]).unwrap();
        owner.apply(&[Operation::add(owned.clone())]).unwrap_err();
        owner.apply(&[Operation::delete(free.clone())]).unwrap();
        owner.apply(&[Operation::add(owned)]).unwrap();
        drop(owner);
        // A program that another test starts at this moment has the socket too, until it is executed.
        wait::until(|| match other.table(&free) {
            Ok(None) => Ok(()),
            table => Err(format!("{table:?}")),
        });
        // The next process takes it over.
        other.apply(&add).unwrap();
        other.apply(&[Operation::delete(table().chain("a"))]).unwrap();
    });
}

#[test]
fn a_table_of_an_owner_is_left_alone_by_others_and_ends_with_the_owner() {
    since!(5, 12);
    NetNs::new().run(|| {
        let (mut owner, mut other) = (client(), client());
        let owned = Table::new(table()).with_flags(TableFlags::OWNER);
        owner.apply(&[Operation::add(owned)]).unwrap();
        let chain = Operation::add(Chain::new(table().chain("a")));
        for refused in [chain.clone(), Operation::delete(table())] {
            let error = other.apply(&[refused]).unwrap_err();
            assert!(error.is_permission_denied(), "{error:?}");
            let reason = std::error::Error::source(&error).unwrap().to_string();
            assert!(reason.contains("another socket owns the table"), "{reason}");
        }
        nft("flush ruleset");
        owner.apply(&[chain]).unwrap();
        assert_eq!(other.chains(&table()).unwrap().len(), 1);
        drop(owner);
        // A program that another test starts at this moment has the socket too, until it is executed.
        wait::until(|| match other.table(&table()) {
            Ok(None) => Ok(()),
            table => Err(format!("{table:?}")),
        });
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
        assert!(client.tables(None).unwrap_err().is_permission_denied());
        assert!(client.ruleset().unwrap_err().is_permission_denied());
        let monitor = Monitor::open(MonitorScope::All, None).map(drop);
        assert!(monitor.unwrap_err().is_permission_denied());
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
        // The kernel changes the hash table of a set without a size while it is listed, some time after the elements were added.
        let set = Set::new(table().set("s"), &[DataType::Mark]).with_size(10_000);
        let elements = (0..10_000_u32).map(|number| Element::new(Value::host_u32(number)));
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
            10_000
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
        assert_eq!(client.list_elements(&key).unwrap().len(), 10_000);
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

/// Another program replaces the elements of both sets of [`two_sets`], without a pause, until `read` met [`meetings`] changes: it failed because
/// of them, or what it read was written by another change than the time before. `read` returns the changes that wrote what it read.
fn while_both_sets_are_replaced(read: impl Fn(&mut Client) -> Result<BTreeSet<Vec<u8>>, Error>) {
    let end = AtomicBool::new(false);
    let mut other = client();
    let (mut reader, end) = (client(), &end);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for change in 1.. {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                other.apply(&replace_both(change)).unwrap();
            }
        });
        let _ended = ends_when_dropped(end);
        let meetings = meetings();
        let (mut met, mut last) = (0, BTreeSet::new());
        while met < meetings {
            match read(&mut reader) {
                Ok(written_by) => {
                    assert_eq!(written_by.len(), 1, "{written_by:?}");
                    met += usize::from(written_by != last);
                    last = written_by;
                }
                Err(error) => {
                    assert!(
                        matches!(error, Error::Interrupted { attempts: 10, .. }),
                        "{error:?}"
                    );
                    met += 1;
                }
            }
        }
    });
}

/// The changes that a listing meets before the test ends. In the VM, where everything takes ten times as long, a tenth.
fn meetings() -> usize {
    if is_in_vm() { 6 } else { 60 }
}

/// Sets `end` when it is dropped, also by a panic: the other thread ends then.
fn ends_when_dropped(end: &AtomicBool) -> impl Drop + '_ {
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    End(end)
}

/// The elements of each of [`two_sets`]: so many that a listing has several messages, of at most 32 KiB each, and changes happen between them.
const IN_EACH: u32 = 4_000;

fn two_sets() -> [Operation; 3] {
    let set = |name| Operation::add(Set::new(table().set(name), &[DataType::Mark; 2]));
    [Operation::add(Table::new(table())), set("a"), set("b")]
}

/// Replaces the elements of both sets by elements that begin with the number of the change.
fn replace_both(change: u32) -> Vec<Operation> {
    let key = |number: u32| [change.to_be_bytes(), number.to_be_bytes()].concat();
    let elements = |name| Elements::new(table().set(name), (0..IN_EACH).map(|n| Element::new(&*key(n))));
    let replace = |name| {
        [
            Operation::flush_set(table().set(name)),
            Operation::add(elements(name)),
        ]
    };
    [replace("a"), replace("b")].concat()
}

/// The changes that wrote the elements.
fn changes(elements: &[Element]) -> BTreeSet<Vec<u8>> {
    elements
        .iter()
        .map(|element| element.key.as_bytes()[..4].to_vec())
        .collect()
}

#[test]
fn elements_that_change_all_the_time_are_listed_as_they_were_at_one_time() {
    NetNs::new().run(|| {
        client().apply(&two_sets()).unwrap();
        client().apply(&replace_both(0)).unwrap();
        while_both_sets_are_replaced(|client| {
            let listed = client.list_elements(&table().set("a"))?;
            assert_eq!(listed.len(), IN_EACH as usize);
            Ok(changes(&listed))
        });
    });
}

#[test]
fn a_ruleset_that_changes_all_the_time_is_listed_as_it_was_at_one_time() {
    NetNs::new().run(|| {
        client().apply(&two_sets()).unwrap();
        client().apply(&replace_both(0)).unwrap();
        while_both_sets_are_replaced(|client| {
            let ruleset = client.ruleset()?;
            let sets = &ruleset.tables[0].sets;
            assert_eq!(sets[0].elements.len(), IN_EACH as usize);
            assert_eq!(changes(&sets[0].elements), changes(&sets[1].elements));
            Ok(changes(&sets[0].elements))
        });
        // A refused listing leaves the client usable.
        let mut client = client();
        assert_eq!(client.ruleset().unwrap().tables[0].sets.len(), 2);
    });
}

#[test]
fn a_table_that_is_deleted_while_the_ruleset_is_listed_is_in_the_listing_or_not() {
    NetNs::new().run(|| {
        let end = AtomicBool::new(false);
        let (mut other, mut reader, end) = (client(), client(), &end);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    other.apply(&two_sets()).unwrap();
                    other.apply(&[Operation::delete(table())]).unwrap();
                }
            });
            let _ended = ends_when_dropped(end);
            for _ in 0..300 {
                match reader.ruleset() {
                    Ok(ruleset) => match &*ruleset.tables {
                        [] => {}
                        [table] => assert_eq!(table.sets.len(), 2),
                        tables => panic!("{tables:?}"),
                    },
                    Err(error) => assert!(
                        matches!(error, Error::Interrupted { attempts: 10, .. }),
                        "{error:?}"
                    ),
                }
            }
        });
    });
}

#[test]
fn events_that_do_not_fit_the_receive_buffer_are_reported_as_lost() {
    NetNs::new().run(|| {
        let mut monitor = Monitor::open(MonitorScope::Changes, Some(Duration::ZERO)).unwrap();
        monitor.set_receive_buffer(4 << 10).unwrap();
        client().apply(&two_sets()).unwrap();
        for change in 0..20 {
            client().apply(&replace_both(change)).unwrap();
        }
        let events: Vec<Event> = monitor.by_ref().map(Result::unwrap).collect();
        assert!(events.contains(&Event::Overrun), "{}", events.len());
        // The monitor receives later events.
        client()
            .apply(&[Operation::add(Chain::new(table().chain("later")))])
            .unwrap();
        let later: Vec<Event> = monitor.map(Result::unwrap).collect();
        assert!(
            matches!(&*later, [Event::Added(Item::Chain(chain)), Event::Generation(_)] if &*chain.key.name == "later"),
            "{later:?}"
        );
    });
}

/// What `nft` counted in this listing.
fn counted(listing: &str) -> Vec<u64> {
    let after = |text: &str| text.split_whitespace().next().unwrap().parse().unwrap();
    listing.split("packets ").skip(1).map(after).collect()
}

#[test]
fn a_reset_returns_what_was_counted_and_sets_it_to_zero() {
    since!(6, 5);
    NetNs::new().run(|| {
        nft("table ip t {
                 counter web { packets 7 bytes 9; }
                 quota most { over 25 mbytes used 9 bytes; }
                 set s { type inet_service; counter; elements = { 80 counter packets 5 bytes 6, 81 counter packets 3 bytes 4 }; }
                 chain a { counter packets 3 bytes 4; }
                 chain b { counter packets 1 bytes 2; }
             }
             table ip other {
                 counter web { packets 70 bytes 90; }
                 chain a { counter packets 30 bytes 40; }
             }");
        let mut client = client();
        let objects = client.reset_objects(&table()).unwrap();
        assert_eq!(objects.len(), 2);
        assert!(
            objects.iter().any(|object| {
                matches!(&object.data, ObjectData::Counter(counter) if (counter.packets, counter.bytes) == (7, 9))
            }),
            "{objects:?}"
        );
        let rules = client.reset_rules(&table(), Some("a")).unwrap();
        assert!(
            matches!(&*rules[0].expressions, [Expression::Counter(counter)] if counter.packets == 3),
            "{rules:?}"
        );
        assert_eq!(rules.len(), 1);
        // Another chain and another table are not reset.
        assert_eq!(counted(&tools::must("nft", &["list", "chain", "ip", "t", "a"])), [0]);
        assert_eq!(counted(&tools::must("nft", &["list", "chain", "ip", "t", "b"])), [1]);
        assert_eq!(counted(&tools::must("nft", &["list", "table", "ip", "other"])), [70, 30]);
        assert_eq!(client.reset_rules(&table(), None).unwrap().len(), 2);
        let mut elements = client.reset_elements(&table().set("s")).unwrap();
        elements.sort_by(|one, other| one.key.cmp(&other.key));
        let packets = |elements: &[Element]| -> Vec<u64> {
            let expressions = elements.iter().flat_map(|element| &element.expressions);
            expressions
                .map(|expression| match expression {
                    Expression::Counter(counter) => counter.packets,
                    other => panic!("{other:?}"),
                })
                .collect()
        };
        assert_eq!(packets(&elements), [5, 3]);
        let again = client.reset_elements(&table().set("s")).unwrap();
        assert_eq!(packets(&again), [0, 0]);
        let listed = tools::must("nft", &["list", "table", "ip", "t"]);
        assert_eq!(counted(&listed), [0; 5], "{listed}");
        // Something that does not exist.
        let missing = TableKey::new(TableFamily::Ip, "missing");
        assert_eq!(client.reset_objects(&missing), Ok(vec![]));
        assert_eq!(client.reset_rules(&missing, None), Ok(vec![]));
    });
}
