//! Work on several processors.

use std::iter;
use std::num::NonZeroUsize;
use std::thread;

/// The most threads that work at the same time, including the calling one.
const MOST_THREADS: usize = 4;

/// The number of items of a part into which work on `items` items is divided for [`all_at_once`]: so many that there are at most 4 parts, no
/// more than processors that this process may use, and no more than parts of `fewest` items. The last part may have fewer than the others.
/// At least 1.
#[must_use]
pub fn part_size(items: usize, fewest: NonZeroUsize) -> usize {
    let processors = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let parts = items / fewest;
    let parts = if parts < 2 {
        1
    } else {
        parts.min(MOST_THREADS).min(processors())
    };
    items.div_ceil(parts).max(1)
}

/// Does `work` on each part at the same time and returns the results in order. The calling thread does the first part; each of the others has
/// a thread of its own, in the network namespace of the calling one. Parts whose threads cannot be started are done by the calling thread after
/// all others.
///
/// # Panics
/// If `work` panics.
pub fn all_at_once<T: Send, R: Send>(
    parts: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let mut places: Vec<Place<T, R>> = parts.into_iter().map(Place::Part).collect();
    if let Some((here, there)) = places.split_first_mut() {
        thread::scope(|scope| {
            for place in there {
                // Without a thread the part stays in its place.
                let _ = thread::Builder::new().spawn_scoped(scope, || place.fill(&work));
            }
            here.fill(&work);
        });
    }
    for place in &mut places {
        place.fill(&work);
    }
    places.into_iter().filter_map(Place::result).collect()
}

/// Does `work` on each item and returns the results in order. The items are divided into parts of [`part_size`], which are done
/// [at the same time](all_at_once).
///
/// # Panics
/// If `work` panics.
pub fn map<T: Send, R: Send>(items: Vec<T>, fewest: NonZeroUsize, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let size = part_size(items.len(), fewest);
    if items.len() <= size {
        return items.into_iter().map(work).collect();
    }
    let mut items = items.into_iter();
    let parts = iter::from_fn(|| {
        let part: Vec<T> = items.by_ref().take(size).collect();
        (!part.is_empty()).then_some(part)
    });
    let of_part = |part: Vec<T>| part.into_iter().map(&work).collect::<Vec<R>>();
    all_at_once(parts, of_part).into_iter().flatten().collect()
}

/// A part, and later its result.
enum Place<T, R> {
    Part(T),
    /// `work` panicked.
    Empty,
    Result(R),
}

impl<T, R> Place<T, R> {
    /// Does `work` unless it is done.
    fn fill(&mut self, work: impl Fn(T) -> R) {
        match std::mem::replace(self, Place::Empty) {
            Place::Part(part) => *self = Place::Result(work(part)),
            done => *self = done,
        }
    }

    fn result(self) -> Option<R> {
        match self {
            Place::Result(result) => Some(result),
            Place::Part(_) | Place::Empty => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::sync::Barrier;

    use super::*;

    fn size(items: usize, fewest: usize) -> usize {
        part_size(items, NonZeroUsize::new(fewest).unwrap())
    }

    #[test]
    fn there_are_no_more_parts_than_of_the_fewest_items() {
        assert_eq!(size(0, 10), 1);
        assert_eq!(size(19, 10), 19);
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        assert_eq!(size(20, 10), 20_usize.div_ceil(processors.min(2)));
        assert_eq!(size(1000, 10), 1000_usize.div_ceil(processors.min(4)));
    }

    #[test]
    fn all_parts_are_done_at_the_same_time_and_results_are_in_order() {
        // Each waits for all others.
        let barrier = Barrier::new(3);
        let results = all_at_once([1, 2, 3], |part| {
            barrier.wait();
            part * 10
        });
        assert_eq!(results, [10, 20, 30]);
        assert_eq!(all_at_once(Vec::<u8>::new(), |part| part), [0; 0]);
    }

    #[test]
    fn results_of_items_are_in_order() {
        let fewest = NonZeroUsize::new(3).unwrap();
        for number in 0..30_u32 {
            let expected: Vec<u32> = (0..number).map(|item| item * 2).collect();
            assert_eq!(map((0..number).collect(), fewest, |item| item * 2), expected);
        }
    }

    #[test]
    fn a_panic_of_any_part_is_one_of_the_caller() {
        for bad in [1, 2] {
            let caught = catch_unwind(|| all_at_once([1, 2], |part| assert_ne!(part, bad)));
            assert!(caught.is_err());
        }
    }
}
