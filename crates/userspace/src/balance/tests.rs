//! The choice of endpoints.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn endpoint(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 80))
}

fn backends(numbers: impl IntoIterator<Item = u8>) -> Vec<Backend> {
    numbers
        .into_iter()
        .map(|number| Backend::new(endpoint(number)))
        .collect()
}

fn client(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, number])
}

fn balancer(numbers: impl IntoIterator<Item = u8>) -> Balancer {
    let mut balancer = Balancer::new(7);
    balancer.set_backends(&backends(numbers));
    balancer
}

fn sticky(numbers: impl IntoIterator<Item = u8>, seconds: u64) -> Balancer {
    let mut balancer = balancer(numbers);
    balancer.set_affinity(affinity(seconds));
    balancer
}

fn affinity(seconds: u64) -> Option<Affinity> {
    let timeout = Duration::from_secs(seconds);
    Some(Affinity { timeout, prefix: 32 })
}

#[test]
fn without_endpoints_nothing_is_chosen() {
    let now = Instant::now();
    assert_eq!(balancer([]).choose(client(1), Attempt::First, now), None);
    assert_eq!(sticky([], 10).choose(client(1), Attempt::First, now), None);
}

#[test]
fn endpoints_are_chosen_in_turn_and_the_first_one_follows_the_last_one() {
    let now = Instant::now();
    let mut balancer = balancer(1..=5);
    let mut round = || -> Vec<SocketAddr> {
        (0..5)
            .map(|_| balancer.choose(client(1), Attempt::First, now).unwrap())
            .collect()
    };
    let first = round();
    assert_eq!(first, round());
    let each: BTreeSet<SocketAddr> = first.into_iter().collect();
    assert_eq!(each, (1..=5).map(endpoint).collect());
}

#[test]
fn the_order_depends_on_the_seed_and_is_new_after_a_change() {
    let order = |seed: u64| -> Vec<SocketAddr> {
        let mut balancer = Balancer::new(seed);
        balancer.set_backends(&backends(1..=20));
        let now = Instant::now();
        (0..20)
            .map(|_| balancer.choose(client(1), Attempt::First, now).unwrap())
            .collect()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

#[test]
fn the_same_endpoints_in_another_order_do_not_restart_the_round() {
    let now = Instant::now();
    let mut balancer = balancer([1, 2, 3]);
    let first = balancer.choose(client(1), Attempt::First, now);
    balancer.set_backends(&backends([3, 1, 2, 2]));
    let second = balancer.choose(client(1), Attempt::First, now);
    assert_ne!(first, second);
}

#[test]
fn an_endpoint_that_left_is_not_chosen_and_a_new_one_is() {
    let now = Instant::now();
    let mut balancer = balancer([1, 2]);
    balancer.set_backends(&backends([2, 3]));
    let chosen: BTreeSet<_> = (0..4)
        .map(|_| balancer.choose(client(1), Attempt::First, now).unwrap())
        .collect();
    assert_eq!(chosen, [endpoint(2), endpoint(3)].into());
    balancer.set_backends(&[]);
    assert_eq!(balancer.choose(client(1), Attempt::First, now), None);
}

#[test]
fn a_client_stays_with_its_endpoint_and_others_go_on_in_turn() {
    let now = Instant::now();
    let mut balancer = sticky([1, 2, 3], 10);
    let mut ask = |number| balancer.choose(client(number), Attempt::First, now).unwrap();
    let [one, two, three] = [ask(1), ask(2), ask(3)];
    assert_eq!([ask(3), ask(1), ask(2)], [three, one, two]);
    assert_ne!(one, two);
    assert_ne!(two, three);
}

#[test]
fn affinity_ends_when_the_timeout_has_passed_since_the_last_use() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut balancer = sticky([1, 2, 3], 10);
    let first = balancer.choose(client(1), Attempt::First, at(0));
    // Each use extends it.
    assert_eq!(balancer.choose(client(1), Attempt::First, at(9)), first);
    let last_moment = at(19) - Duration::from_nanos(1);
    assert_eq!(balancer.choose(client(1), Attempt::First, last_moment), first);
    let end = last_moment + Duration::from_secs(10);
    assert_ne!(balancer.choose(client(1), Attempt::First, end), first);
}

#[test]
fn a_changed_timeout_applies_to_clients_that_are_remembered() {
    let start = Instant::now();
    let later = start + Duration::from_secs(5);
    let mut balancer = sticky([1, 2, 3], 10);
    let first = balancer.choose(client(1), Attempt::First, start);
    balancer.set_affinity(affinity(4));
    assert_ne!(balancer.choose(client(1), Attempt::First, later), first);
    let mut balancer = sticky([1, 2, 3], 4);
    let first = balancer.choose(client(1), Attempt::First, start);
    balancer.set_affinity(affinity(10));
    assert_eq!(balancer.choose(client(1), Attempt::First, later), first);
}

#[test]
fn affinity_and_endpoints_may_be_set_in_either_order() {
    let now = Instant::now();
    for affinity_first in [true, false] {
        let mut balancer = Balancer::new(1);
        if affinity_first {
            balancer.set_affinity(affinity(10));
            balancer.set_backends(&backends([1, 2]));
        } else {
            balancer.set_backends(&backends([1, 2]));
            balancer.set_affinity(affinity(10));
        }
        let first = balancer.choose(client(1), Attempt::First, now);
        for _ in 0..3 {
            assert_eq!(balancer.choose(client(1), Attempt::First, now), first);
        }
    }
}

#[test]
fn clients_of_an_endpoint_that_left_move_and_others_stay() {
    let now = Instant::now();
    let mut balancer = sticky([1, 2, 3], 10);
    let before: BTreeMap<u8, SocketAddr> = (1..=6)
        .map(|number| {
            (
                number,
                balancer.choose(client(number), Attempt::First, now).unwrap(),
            )
        })
        .collect();
    balancer.set_backends(&backends([1, 2]));
    for (number, endpoint_before) in before {
        let after = balancer.choose(client(number), Attempt::First, now).unwrap();
        assert_ne!(after, endpoint(3));
        if endpoint_before != endpoint(3) {
            assert_eq!(after, endpoint_before);
        }
    }
}

#[test]
fn after_a_failure_the_client_moves_to_the_next_endpoint_and_stays_there() {
    let now = Instant::now();
    let mut balancer = sticky([1, 2, 3], 10);
    let first = balancer.choose(client(1), Attempt::First, now).unwrap();
    balancer.set_failed(first, now);
    let second = balancer.choose(client(1), Attempt::Again, now).unwrap();
    assert_ne!(first, second);
    assert_eq!(balancer.choose(client(1), Attempt::First, now), Some(second));
}

#[test]
fn an_endpoint_that_failed_is_avoided_for_some_seconds() {
    let start = Instant::now();
    let mut balancer = balancer([1, 2]);
    balancer.set_failed(endpoint(1), start);
    for _ in 0..4 {
        assert_eq!(
            balancer.choose(client(1), Attempt::First, start),
            Some(endpoint(2))
        );
    }
    let later = start + FAILURE_MEMORY;
    let chosen: BTreeSet<_> = (0..2)
        .map(|_| balancer.choose(client(1), Attempt::First, later).unwrap())
        .collect();
    assert_eq!(chosen, [endpoint(1), endpoint(2)].into());
}

#[test]
fn if_all_endpoints_failed_all_are_tried() {
    let now = Instant::now();
    let mut balancer = balancer([1, 2]);
    balancer.set_failed(endpoint(1), now);
    balancer.set_failed(endpoint(2), now);
    let chosen: BTreeSet<_> = (0..2)
        .map(|_| balancer.choose(client(1), Attempt::First, now).unwrap())
        .collect();
    assert_eq!(chosen, [endpoint(1), endpoint(2)].into());
    balancer.set_working(endpoint(2));
    assert_eq!(balancer.choose(client(1), Attempt::First, now), Some(endpoint(2)));
    assert_eq!(balancer.choose(client(1), Attempt::First, now), Some(endpoint(2)));
}

#[test]
fn connections_are_distributed_by_weight_and_weight_0_receives_none() {
    let now = Instant::now();
    let mut balancer = Balancer::new(3);
    let weights = [(1, 5), (2, 1), (3, 2), (4, 0)];
    balancer.set_backends(&weights.map(|(number, weight)| Backend {
        address: endpoint(number),
        weight,
    }));
    let mut counts: BTreeMap<SocketAddr, u32> = BTreeMap::new();
    for _ in 0..16 {
        let chosen = balancer.choose(client(1), Attempt::First, now).unwrap();
        *counts.entry(chosen).or_default() += 1;
    }
    let expected = [(endpoint(1), 10), (endpoint(2), 2), (endpoint(3), 4)];
    assert_eq!(counts, expected.into());
}

#[test]
fn a_client_leaves_the_endpoint_that_refused_and_others_stay() {
    let now = Instant::now();
    let mut balancer = sticky([1], 10);
    for number in [1, 2] {
        assert_eq!(
            balancer.choose(client(number), Attempt::First, now),
            Some(endpoint(1))
        );
    }
    balancer.set_backends(&backends([1, 2]));
    // Not its endpoint: it was chosen for a flow before.
    balancer.set_refused(client(1), endpoint(2), now);
    assert_eq!(balancer.choose(client(1), Attempt::First, now), Some(endpoint(1)));
    balancer.set_working(endpoint(2));
    balancer.set_refused(client(1), endpoint(1), now);
    for _ in 0..2 {
        assert_eq!(balancer.choose(client(1), Attempt::First, now), Some(endpoint(2)));
    }
    assert_eq!(balancer.choose(client(2), Attempt::First, now), Some(endpoint(1)));
}

#[test]
fn a_prefix_makes_neighbours_one_client() {
    let now = Instant::now();
    let mut balancer = balancer([1, 2, 3]);
    let timeout = Duration::from_secs(10);
    balancer.set_affinity(Some(Affinity { timeout, prefix: 24 }));
    let first = balancer.choose(client(1), Attempt::First, now);
    assert_eq!(balancer.choose(client(200), Attempt::First, now), first);
    assert_ne!(balancer.choose([192, 0, 3, 1].into(), Attempt::First, now), first);
    assert_eq!(masked(client(1), 0), IpAddr::from([0, 0, 0, 0]));
    assert_eq!(
        masked("fd00:1::1".parse().unwrap(), 32),
        "fd00:1::".parse::<IpAddr>().unwrap()
    );
}

#[test]
fn the_number_of_remembered_clients_is_bounded() {
    let now = Instant::now();
    let mut balancer = sticky([1, 2, 3], 10);
    balancer.set_affinity_capacity(2);
    let first = balancer.choose(client(1), Attempt::First, now);
    let second = balancer.choose(client(2), Attempt::First, now);
    // The first client is used again, so the second one is forgotten.
    assert_eq!(balancer.choose(client(1), Attempt::First, now), first);
    balancer.choose(client(3), Attempt::First, now);
    assert_eq!(balancer.affinity_records(), 2);
    assert_eq!(balancer.choose(client(1), Attempt::First, now), first);
    assert_ne!(balancer.choose(client(2), Attempt::First, now), second);
    // Records that timed out make room.
    balancer.choose(client(9), Attempt::First, now + Duration::from_secs(10));
    assert_eq!(balancer.affinity_records(), 1);
}

proptest! {
    #[test]
    fn any_sequence_chooses_only_present_endpoints_and_keeps_the_bound(
        steps in prop::collection::vec((0u8..4, 0u8..6, 0u64..8), 1..80)
    ) {
        let mut now = Instant::now();
        let mut balancer = Balancer::new(11);
        balancer.set_affinity(affinity(5));
        balancer.set_affinity_capacity(3);
        let mut present = BTreeSet::new();
        for (what, number, seconds) in steps {
            now += Duration::from_secs(seconds);
            match what {
                0 => {
                    if !present.remove(&endpoint(number)) {
                        present.insert(endpoint(number));
                    }
                    let list: Vec<_> = present.iter().map(|address| Backend::new(*address)).collect();
                    balancer.set_backends(&list);
                }
                1 => balancer.set_failed(endpoint(number), now),
                2 => balancer.set_working(endpoint(number)),
                _ => {
                    let chosen = balancer.choose(client(number), Attempt::First, now);
                    prop_assert_eq!(chosen.is_some(), !present.is_empty());
                    prop_assert!(chosen.is_none_or(|chosen| present.contains(&chosen)));
                }
            }
            prop_assert!(balancer.affinity_records() <= 3);
        }
    }
}
