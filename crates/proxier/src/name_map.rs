//! Maps by object name.
//!
//! Every object is looked up by its name several times on its way to the desired state. The standard library's hash (SipHash)
//! took a fifth of the time that building it takes.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::source::ObjectName;

/// Values by the name of an object.
pub(crate) type NameMap<T> = HashMap<ObjectName, T, Keyed>;

/// Names of objects.
pub(crate) type NameSet<N = ObjectName> = HashSet<N, Keyed>;

/// Makes [`NameHasher`]s with keys of its own, which nobody outside knows: whoever can name objects must not be able to choose
/// names that fall together.
#[derive(Clone, Debug)]
pub(crate) struct Keyed {
    state: u64,
    factor: u64,
}

impl Default for Keyed {
    fn default() -> Self {
        let random = RandomState::new();
        Self {
            state: random.hash_one(0_u8),
            factor: random.hash_one(1_u8) | 1,
        }
    }
}

impl BuildHasher for Keyed {
    type Hasher = NameHasher;

    fn build_hasher(&self) -> NameHasher {
        NameHasher {
            state: self.state,
            factor: self.factor,
        }
    }
}

/// Folds the two halves of a product of what came so far and eight more bytes, as wyhash and its kin do.
pub(crate) struct NameHasher {
    state: u64,
    factor: u64,
}

impl NameHasher {
    fn fold(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.factor);
        // The halves of the product.
        self.state = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.fold(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        // With the length, so that where one text ends and the next begins makes a difference.
        self.fold(u64::from_le_bytes(last) ^ (bytes.len() as u64).rotate_right(8));
    }

    fn write_u8(&mut self, byte: u8) {
        // What follows every text; its length was taken in.
        self.state = self.state.rotate_left(5) ^ u64::from(byte);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys of no meaning, so that no run differs from another.
    const KEYED: Keyed = Keyed {
        state: 0x243f_6a88_85a3_08d3,
        factor: 0x1319_8a2e_0370_7345,
    };

    #[test]
    fn names_that_are_alike_fall_apart() {
        let mut low = HashSet::new();
        let mut high = HashSet::new();
        let mut all = HashSet::new();
        for number in 0..4_096 {
            for name in [
                ObjectName::new("default", format!("service-{number}")),
                ObjectName::new(format!("n{number}"), "web"),
            ] {
                let hash = KEYED.hash_one(&name);
                low.insert(hash & 0xfff);
                high.insert(hash >> 57);
                all.insert(hash);
            }
        }
        // 8 192 names in 4 096 places leave about 13 in 100 empty.
        assert!(low.len() > 3_000, "{}", low.len());
        assert_eq!(high.len(), 128);
        assert_eq!(all.len(), 8_192);
    }

    #[test]
    fn where_the_namespace_ends_makes_a_difference() {
        let names = [
            ("ab", "c"),
            ("a", "bc"),
            ("", "abc"),
            ("abc", ""),
            ("a\0", "bc"),
            ("a", "\0bc"),
        ];
        let hashes: HashSet<u64> = names
            .iter()
            .map(|(namespace, name)| KEYED.hash_one(ObjectName::new(*namespace, *name)))
            .collect();
        assert_eq!(hashes.len(), names.len());
    }

    #[test]
    fn two_maps_hash_differently() {
        let name = ObjectName::new("default", "web");
        assert_ne!(Keyed::default().hash_one(&name), Keyed::default().hash_one(&name));
    }
}
