//! Random numbers from a seed.

/// Random numbers. The same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(2).wrapping_add(1));
        // Numbers of neighbouring seeds are alike at first.
        for _ in 0..8 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// A number below a limit; 0 if the limit is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let next = usize::try_from(self.next()).unwrap_or_default();
        next.checked_rem(limit).unwrap_or_default()
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of these; `None` if there is none.
    pub fn choose<T>(&mut self, mut from: Vec<T>) -> Option<T> {
        let index = self.below(from.len());
        (!from.is_empty()).then(|| from.swap_remove(index))
    }
}
