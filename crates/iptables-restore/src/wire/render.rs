//! Rendering of rules and rule sets.

use std::fmt::{Display, Write as _};

use crate::argument::Argument;
use crate::chain::ChainName;
use crate::condition::Condition;
use crate::restore::Edit;
use crate::rule::Rule;
use crate::ruleset::{Chain, CountedRule, TableRules};
use crate::style::{MarkStyle, Style, TextStyle};
use crate::table::{Counters, Policy, Table};
use crate::wire::token::{needs_quotes, push_quoted};

/// Appends the arguments of a rule to a line.
pub(crate) struct Printer<'o> {
    pub(crate) out: &'o mut String,
    pub(crate) style: Style,
}

impl Printer<'_> {
    /// Text that never needs quotes, after a space.
    pub(crate) fn literal(&mut self, text: &str) {
        self.out.push(' ');
        self.out.push_str(text);
    }

    /// A name that the tools print without quotes; quoted only if it needs quotes.
    pub(crate) fn name(&mut self, name: &str) {
        self.out.push(' ');
        if needs_quotes(name) {
            push_quoted(self.out, name);
        } else {
            self.out.push_str(name);
        }
    }

    /// A comment or prefix.
    pub(crate) fn text(&mut self, text: &str) {
        self.out.push(' ');
        let bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        let quoted = match self.style.texts {
            TextStyle::Quoted => true,
            TextStyle::QuotedWhereNeeded => text.is_empty() || !text.bytes().all(bare),
        };
        if quoted && self.style == Style::KUBE_PROXY && !text.contains(['"', '\\']) {
            // kube-proxy does not escape single quotes; the tools do.
            self.out.push('"');
            self.out.push_str(text);
            self.out.push('"');
        } else if quoted {
            push_quoted(self.out, text);
        } else {
            self.out.push_str(text);
        }
    }

    pub(crate) fn verbatim(&mut self, arguments: &[Argument]) {
        for argument in arguments {
            argument.push_spaced(self.out);
        }
    }

    /// A value whose `Display` contains no whitespace.
    pub(crate) fn value(&mut self, value: impl Display) {
        self.out.push(' ');
        self.joined(value);
    }

    /// As [`value`](Self::value), without a space before it.
    pub(crate) fn joined(&mut self, value: impl Display) {
        // Writing to a string cannot fail.
        let _ = write!(self.out, "{value}");
    }

    /// `value` or `value/mask`.
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

    /// `! OPTION` or `OPTION`, then the value by `print`; nothing if there is no condition.
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

    /// As [`condition`](Self::condition), if there always is one.
    pub(crate) fn required<T>(
        &mut self,
        option: &str,
        condition: &Condition<T>,
        print: impl FnOnce(&mut Self, &T),
    ) {
        if condition.is_negated() {
            self.literal("!");
        }
        self.literal(option);
        print(self, condition.value());
    }

    /// As [`condition`](Self::condition), with the value's `Display`.
    pub(crate) fn test<T: Display>(&mut self, option: &str, condition: &Option<Condition<T>>) {
        self.condition(option, condition, |out, value| out.value(value));
    }

    /// `OPTION VALUE` if there is a value.
    pub(crate) fn option<T: Display>(&mut self, option: &str, value: &Option<T>) {
        if let Some(value) = value {
            self.literal(option);
            self.value(value);
        }
    }

    /// `OPTION` if it is set.
    pub(crate) fn flag(&mut self, option: &str, set: bool) {
        if set {
            self.literal(option);
        }
    }

    /// `! OPTION` or `OPTION` for a test without a value.
    pub(crate) fn bare(&mut self, option: &str, condition: &Option<Condition<()>>) {
        self.condition(option, condition, |_, ()| ());
    }
}

/// Appends a table as `iptables-save` prints it.
pub(crate) fn render_table(out: &mut String, table: Table, rules: &TableRules, style: Style) {
    out.push('*');
    out.push_str(table.as_str());
    out.push('\n');
    for (name, chain) in rules.chains() {
        let Chain { policy, counters, .. } = chain;
        render_declaration(out, name, *policy, *counters);
    }
    for (name, chain) in rules.chains() {
        for CountedRule { rule, counters } in &chain.rules {
            render_append(out, name, rule, *counters, style);
        }
    }
    out.push_str("COMMIT\n");
}

/// Appends the line of an edit, with its line feed.
pub(crate) fn render_edit(out: &mut String, edit: &Edit, style: Style) {
    let mut command = |option: &str, chain: &ChainName| {
        out.push_str(option);
        out.push_str(chain.as_str());
    };
    match edit {
        Edit::Declare {
            chain,
            policy,
            counters,
        } => return render_declaration(out, chain, *policy, *counters),
        Edit::Append {
            chain,
            rule,
            counters,
        } => return render_append(out, chain, rule, *counters, style),
        Edit::Insert {
            chain,
            position,
            rule,
        } => {
            command("-I ", chain);
            if let Some(position) = position {
                out.push(' ');
                out.push_str(&position.to_string());
            }
            rule.render_into(out, style);
        }
        Edit::NewChain { chain } => command("-N ", chain),
        Edit::Delete { chain, rule } => {
            command("-D ", chain);
            rule.render_into(out, style);
        }
        Edit::DeleteAt { chain, position } => {
            command("-D ", chain);
            out.push(' ');
            out.push_str(&position.to_string());
        }
        Edit::Flush { chain } => command("-F ", chain),
        Edit::DeleteChain { chain } => command("-X ", chain),
    }
    out.push('\n');
}

fn render_declaration(out: &mut String, chain: &ChainName, policy: Option<Policy>, counters: Counters) {
    out.push(':');
    out.push_str(chain.as_str());
    out.push_str(match policy {
        Some(Policy::Accept) => " ACCEPT ",
        Some(Policy::Drop) => " DROP ",
        None => " - ",
    });
    out.push_str(&counters.to_string());
    out.push('\n');
}

fn render_append(out: &mut String, chain: &ChainName, rule: &Rule, counters: Option<Counters>, style: Style) {
    if let Some(counters) = counters {
        out.push_str(&counters.to_string());
        out.push(' ');
    }
    out.push_str("-A ");
    out.push_str(chain.as_str());
    rule.render_into(out, style);
    out.push('\n');
}
