//! Changes of tables.

use std::fmt;

use kernlink_base::Family;

use crate::desired::Jump;
use crate::restore::Restore;
use crate::rule::Rule;
use crate::style::Style;
use crate::table::Table;
use crate::variant::tool;

/// A change of tables.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Passes an input to one `iptables-restore`.
    ///
    /// Repeating it has no effect if the input declares every chain that it fills. What it appends or inserts in other chains
    /// is added a second time.
    Restore(Restore),
    /// Adds a rule to a chain unless the chain contains it: `iptables -C`, and `iptables -I` or `-A` if the check fails.
    ///
    /// Needs no [`save`](crate::Iptables::save), so it works in tables that `iptables-save` cannot print. Positions are coarser than
    /// those of [`diff`](crate::diff): [`Position::First`](crate::Position::First) and
    /// [`Position::Before`](crate::Position::Before) insert the rule at the top, [`Position::Last`](crate::Position::Last) and
    /// [`Position::After`](crate::Position::After) append it.
    ///
    /// In a chain with an nftables rule that the tool cannot parse, `-C` sees only the rules above that rule. If it does not
    /// find the rule there, the rule is inserted at the top for any position, so that the next check finds it.
    ///
    /// The two commands are not atomic: if two programs ensure the same rule at the same time, the chain may contain it twice.
    EnsureJump {
        /// `iptables` or `ip6tables`.
        family: Family,
        /// The table of both chains.
        table: Table,
        /// The rule, its chain and its position. The chain and the chain that the rule jumps to must exist.
        jump: Box<Jump>,
    },
}

impl Operation {
    /// An [`Operation::EnsureJump`].
    #[must_use]
    pub fn ensure_jump(family: Family, table: Table, jump: Jump) -> Self {
        Operation::EnsureJump {
            family,
            table,
            jump: Box::new(jump),
        }
    }

    /// The family of the tables that it changes.
    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            Operation::Restore(restore) => restore.family,
            Operation::EnsureJump { family, .. } => *family,
        }
    }
}

impl From<Restore> for Operation {
    fn from(restore: Restore) -> Self {
        Operation::Restore(restore)
    }
}

impl fmt::Display for Operation {
    /// As shell commands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Restore(restore) => restore.fmt(f),
            Operation::EnsureJump { family, table, jump } => {
                let tool = tool(*family);
                let edit = jump.edit();
                write!(
                    f,
                    "{tool} -t {table} -C {}{} || ",
                    jump.from,
                    ShellArguments(&jump.rule)
                )?;
                write!(
                    f,
                    "{tool} -t {table} {} {}{}",
                    edit.option(),
                    jump.from,
                    ShellArguments(&jump.rule)
                )
            }
        }
    }
}

/// The arguments of a rule for a shell, in single quotes where one contains more than letters, digits and a few signs.
struct ShellArguments<'r>(&'r Rule);

impl fmt::Display for ShellArguments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for argument in self.0.arguments(Style::SAVE) {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+%@".contains(c);
            if !argument.is_empty() && argument.chars().all(plain) {
                write!(f, " {argument}")?;
            } else {
                write!(f, " '{}'", argument.replace('\'', "'\\''"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::Position;

    #[test]
    fn a_jump_prints_as_shell_commands() {
        let jump = Jump {
            from: "OUTPUT".parse().unwrap(),
            rule: "! -d 10.0.0.0/8 -m comment --comment \"it's mine\" -j KL-A"
                .parse()
                .unwrap(),
            position: Position::Last,
        };
        let operation = Operation::ensure_jump(Family::Ipv6, Table::Nat, jump);
        let rule = "'!' -d 10.0.0.0/8 -m comment --comment 'it'\\''s mine' -j KL-A";
        assert_eq!(
            operation.to_string(),
            format!("ip6tables -t nat -C OUTPUT {rule} || ip6tables -t nat -A OUTPUT {rule}")
        );
    }
}
