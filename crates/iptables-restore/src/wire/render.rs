//! How values become restore text.

use std::fmt::{Display, Write as _};

use crate::condition::Condition;
use crate::wire::token::{Word, needs_quotes, push_quoted, push_spaced};

/// How values are spelled where the tools take more than one spelling. The meaning is the same in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Style {
    /// Marks and their masks.
    pub marks: MarkStyle,
    /// Texts: comments and log prefixes.
    pub texts: TextStyle,
}

impl Style {
    /// As `iptables-save` prints, so that a rule set read from it renders to the same text.
    pub const SAVE: Style = Style {
        marks: MarkStyle::Shortest,
        texts: TextStyle::QuotedWhereNeeded,
    };
    /// What restore input is written in: as [`Style::SAVE`], but texts always in quotes, so that none can
    /// be taken for an option by any version.
    pub const RESTORE: Style = Style {
        marks: MarkStyle::Shortest,
        texts: TextStyle::Quoted,
    };
    /// As kube-proxy writes its restore input: comments in quotes, marks with eight digits.
    pub const KUBE_PROXY: Style = Style {
        marks: MarkStyle::EightDigits,
        texts: TextStyle::Quoted,
    };
}

/// How many digits a mark is printed with.
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
    /// Where it is empty or holds anything but ASCII letters, digits, `_` and `-`, as `iptables-save` does.
    #[default]
    QuotedWhereNeeded,
    /// Always.
    Quoted,
}

/// Appends the words of a rule to a line.
pub(crate) struct Printer<'o> {
    pub(crate) out: &'o mut String,
    pub(crate) style: Style,
}

impl Printer<'_> {
    /// A word that never needs quotes.
    pub(crate) fn word(&mut self, word: &str) {
        self.out.push(' ');
        self.out.push_str(word);
    }

    /// A name that the tools print bare; in quotes only where it would not be read back otherwise.
    pub(crate) fn name(&mut self, name: &str) {
        self.out.push(' ');
        if needs_quotes(name) {
            push_quoted(self.out, name);
        } else {
            self.out.push_str(name);
        }
    }

    /// A free text.
    pub(crate) fn text(&mut self, text: &str) {
        self.out.push(' ');
        let bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        let quoted = match self.style.texts {
            TextStyle::Quoted => true,
            TextStyle::QuotedWhereNeeded => text.is_empty() || !text.bytes().all(bare),
        };
        if quoted && self.style == Style::KUBE_PROXY && !text.contains(['"', '\\']) {
            // kube-proxy leaves a single quote as it is, where the tools print a backslash before it.
            self.out.push('"');
            self.out.push_str(text);
            self.out.push('"');
        } else if quoted {
            push_quoted(self.out, text);
        } else {
            self.out.push_str(text);
        }
    }

    pub(crate) fn verbatim(&mut self, words: &[Word]) {
        for word in words {
            push_spaced(self.out, word);
        }
    }

    /// A value in its own notation, which holds no blank.
    pub(crate) fn value(&mut self, value: impl Display) {
        self.out.push(' ');
        self.joined(value);
    }

    /// The same with no blank before it.
    pub(crate) fn joined(&mut self, value: impl Display) {
        // Writing to a string cannot fail.
        let _ = write!(self.out, "{value}");
    }

    /// `value` or `value/mask` after a blank.
    pub(crate) fn mark(&mut self, value: u32, mask: Option<u32>) {
        self.out.push(' ');
        self.bare_mark(value);
        if let Some(mask) = mask {
            self.out.push('/');
            self.bare_mark(mask);
        }
    }

    fn bare_mark(&mut self, value: u32) {
        match self.style.marks {
            MarkStyle::Shortest => self.joined(format_args!("{value:#x}")),
            MarkStyle::EightDigits => self.joined(format_args!("{value:#010x}")),
        }
    }

    /// `! OPTION` or `OPTION`, then the value as `print` writes it; nothing if there is no condition.
    pub(crate) fn condition<T>(
        &mut self,
        option: &str,
        condition: &Option<Condition<T>>,
        print: impl FnOnce(&mut Self, &T),
    ) {
        if let Some(condition) = condition {
            self.required(option, condition, print);
        }
    }

    /// The same for a condition that is there.
    pub(crate) fn required<T>(
        &mut self,
        option: &str,
        condition: &Condition<T>,
        print: impl FnOnce(&mut Self, &T),
    ) {
        if condition.is_negated() {
            self.word("!");
        }
        self.word(option);
        print(self, condition.value());
    }

    /// The same for a value whose `Display` is its notation.
    pub(crate) fn test<T: Display>(&mut self, option: &str, condition: &Option<Condition<T>>) {
        self.condition(option, condition, |out, value| out.value(value));
    }

    /// `OPTION VALUE` if there is a value.
    pub(crate) fn option<T: Display>(&mut self, option: &str, value: &Option<T>) {
        if let Some(value) = value {
            self.word(option);
            self.value(value);
        }
    }

    /// `OPTION` if it is set.
    pub(crate) fn flag(&mut self, option: &str, set: bool) {
        if set {
            self.word(option);
        }
    }

    /// `! OPTION` or `OPTION` for a test without a value.
    pub(crate) fn bare(&mut self, option: &str, condition: &Option<Condition<()>>) {
        self.condition(option, condition, |_, ()| ());
    }
}
