//! Enums of kernel numbers.

/// Compares, orders and hashes an enum by its kernel number, so that `Unknown` with a known number is equal to the variant of the
/// number.
macro_rules! by_number {
    ($name:ident) => {
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.number() == other.number()
            }
        }

        impl Eq for $name {}

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.number().cmp(&other.number())
            }
        }

        impl std::hash::Hash for $name {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                self.number().hash(state);
            }
        }
    };
}

pub(crate) use by_number;
