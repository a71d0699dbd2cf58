//! `-j SET`: change an ipset.

use crate::matches::SetReference;
use crate::wire::options::{Options, decimal, once, once_flag};
use crate::wire::render::Printer;

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
    /// `--map-set`: set of the packet what the entry holds for it (`skbinfo`); at least one. Kernel 3.18, table mangle.
    Map {
        /// `--map-mark`: the mark.
        mark: bool,
        /// `--map-prio`: the priority.
        priority: bool,
        /// `--map-queue`: the queue of the network device.
        queue: bool,
    },
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
            "--map-set" => return Self::read_map(options),
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

    fn read_map(options: &mut Options<'_, '_>) -> Option<Self> {
        let set = SetReference::read(options)?;
        let (mut mark, mut priority, mut queue) = (false, false, false);
        while let Some(flag) = options.flag() {
            flag.plain()?;
            once_flag(match flag.name {
                "--map-mark" => &mut mark,
                "--map-prio" => &mut priority,
                "--map-queue" => &mut queue,
                _ => return None,
            })?;
        }
        Some(SetTarget::new(
            SetAction::Map {
                mark,
                priority,
                queue,
            },
            set,
        ))
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.word("-j SET");
        out.word(match self.action {
            SetAction::Add => "--add-set",
            SetAction::Delete => "--del-set",
            SetAction::Map { .. } => "--map-set",
        });
        self.set.print(out);
        if let SetAction::Map {
            mark,
            priority,
            queue,
        } = self.action
        {
            out.flag("--map-mark", mark);
            out.flag("--map-prio", priority);
            out.flag("--map-queue", queue);
        }
        out.flag("--exist", self.exist);
        out.option("--timeout", &self.timeout);
    }
}
