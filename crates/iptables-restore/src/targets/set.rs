//! `-j SET`: change an ipset.

use crate::matches::SetReference;
use crate::wire::options::{Options, decimal, set_flag_once, set_once};
use crate::wire::render::Printer;

/// An action on the entry of a set that corresponds to the packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SetTarget {
    /// The action.
    pub action: SetAction,
    /// The set.
    pub set: SetReference,
    /// `--exist`: reset the timeout of an existing entry.
    pub exist: bool,
    /// `--timeout`: seconds; `None` means the default of the set.
    pub timeout: Option<u32>,
}

/// An action on the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetAction {
    /// `--add-set`
    Add,
    /// `--del-set`
    Delete,
    /// `--map-set`: set fields of the packet to the values of the entry (`skbinfo`); at least one field. Kernel 3.18, table mangle.
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
    /// The action with the default timeout of the set.
    #[must_use]
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
        flag.not_negated()?;
        let action = match flag.name {
            "--add-set" => SetAction::Add,
            "--del-set" => SetAction::Delete,
            "--map-set" => return Self::read_map(options),
            _ => return None,
        };
        let mut target = SetTarget::new(action, SetReference::read(options)?);
        while let Some(flag) = options.flag() {
            flag.not_negated()?;
            match flag.name {
                "--exist" => set_flag_once(&mut target.exist)?,
                "--timeout" => set_once(&mut target.timeout, decimal(options.next()?)?)?,
                _ => return None,
            }
        }
        Some(target)
    }

    fn read_map(options: &mut Options<'_, '_>) -> Option<Self> {
        let set = SetReference::read(options)?;
        let (mut mark, mut priority, mut queue) = (false, false, false);
        while let Some(flag) = options.flag() {
            flag.not_negated()?;
            set_flag_once(match flag.name {
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
        out.literal("-j SET");
        out.literal(match self.action {
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
