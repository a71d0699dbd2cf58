//! Short strings without allocation, because a batch has a name for each operation.

use std::fmt;

/// Up to `N` bytes without NUL. Unused bytes are zero, so the derived order is that of the text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct InlineBytes<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

impl<const N: usize> InlineBytes<N> {
    /// `None` if the text is longer than `N` bytes or contains a NUL.
    pub(crate) fn new(text: &[u8]) -> Option<Self> {
        let len = u8::try_from(text.len()).ok()?;
        let mut bytes = [0; N];
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        (!text.contains(&0)).then_some(InlineBytes { bytes, len })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&self.bytes)
    }
}

impl<const N: usize> fmt::Display for InlineBytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(self.as_bytes()))
    }
}
