//! Spelling of values in rendered text.

/// The spelling of values that the tools accept in several spellings. The meaning is the same in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Style {
    /// Marks and their masks.
    pub marks: MarkStyle,
    /// Comments and log prefixes.
    pub texts: TextStyle,
}

impl Style {
    /// The spelling of `iptables-save`: a rule set parsed from its output renders to the same text. The default.
    pub const SAVE: Style = Style {
        marks: MarkStyle::Shortest,
        texts: TextStyle::QuotedWhereNeeded,
    };
    /// The spelling of restore input: as [`Style::SAVE`], but texts are always quoted, so that no version of the tools
    /// parses one as an option.
    pub const RESTORE: Style = Style {
        marks: MarkStyle::Shortest,
        texts: TextStyle::Quoted,
    };
    /// The spelling of kube-proxy's restore input: comments quoted, marks with eight digits.
    pub const KUBE_PROXY: Style = Style {
        marks: MarkStyle::EightDigits,
        texts: TextStyle::Quoted,
    };
}

/// Digits of a mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MarkStyle {
    /// `0x4000`, as `iptables-save` prints it.
    #[default]
    Shortest,
    /// `0x00004000`, as kube-proxy writes it.
    EightDigits,
}

/// When a text is put in double quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TextStyle {
    /// If it is empty or contains anything but ASCII letters, digits, `_` and `-`, as `iptables-save` does.
    #[default]
    QuotedWhereNeeded,
    /// Always.
    Quoted,
}
