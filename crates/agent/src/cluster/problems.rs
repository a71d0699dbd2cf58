//! Texts about what is invalid.

/// Texts about invalid objects, or invalid parts of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    /// The texts: one for each invalid field.
    pub texts: Vec<String>,
    /// The number of further invalid fields.
    pub others: usize,
}

impl Problems {
    /// Whether nothing is invalid.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.others == 0
    }

    /// Adds later ones, and keeps the first texts: at most `max` of them.
    pub(crate) fn append(&mut self, later: Self, max: usize) {
        let count = later.texts.len();
        let room = max.saturating_sub(self.texts.len());
        self.texts.extend(later.texts.into_iter().take(room));
        self.others += later.others + count.saturating_sub(room);
    }
}

impl From<Vec<String>> for Problems {
    fn from(texts: Vec<String>) -> Self {
        Self { texts, others: 0 }
    }
}
