//! `-j SET`: change an ipset.

use crate::matches::SetReference;
use crate::options::{Options, decimal, once, once_flag};
use crate::render::Printer;

/// An entry made of the packet, and what happens to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SetTarget {
    /// What happens.
    pub action: SetAction,
    /// The set.
    pub set: SetReference,
    /// `--exist`: renew the time-out of an entry that is there.
    pub exist: bool,
    /// `--timeout`: seconds; none means the set's own.
    pub timeout: Option<u32>,
}

/// What happens to the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetAction {
    /// `--add-set`
    Add,
    /// `--del-set`
    Delete,
}

impl SetTarget {
    /// The action with the set's own time-out.
    pub fn new(action: SetAction, set: SetReference) -> Self {
        SetTarget {
            action,
            set,
            exist: false,
            timeout: None,
        }
    }

    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let flag = options.flag()?;
        flag.plain()?;
        let action = match flag.name {
            "--add-set" => SetAction::Add,
            "--del-set" => SetAction::Delete,
            _ => return None,
        };
        let mut target = SetTarget::new(action, SetReference::read(options)?);
        while let Some(flag) = options.flag() {
            flag.plain()?;
            match flag.name {
                "--exist" => once_flag(&mut target.exist)?,
                "--timeout" => once(&mut target.timeout, decimal(options.next()?)?)?,
                _ => return None,
            }
        }
        Some(target)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.word("-j SET");
        out.word(match self.action {
            SetAction::Add => "--add-set",
            SetAction::Delete => "--del-set",
        });
        self.set.print(out);
        out.flag("--exist", self.exist);
        out.option("--timeout", &self.timeout);
    }
}
