//! `-m physdev`: the port of a bridge.

use crate::condition::Condition;
use crate::network::InterfacePattern;
use crate::wire::options::{Options, once};
use crate::wire::render::Printer;

/// Which port of a bridge a packet came in or leaves by. At least one test is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Physdev {
    /// `--physdev-is-in`: came in by a bridge.
    pub is_in: Option<Condition<()>>,
    /// `--physdev-in`: port it came in by.
    pub input: Option<Condition<InterfacePattern>>,
    /// `--physdev-is-out`: leaves by a bridge.
    pub is_out: Option<Condition<()>>,
    /// `--physdev-out`: port it leaves by.
    pub output: Option<Condition<InterfacePattern>>,
    /// `--physdev-is-bridged`: is bridged and not routed.
    pub is_bridged: Option<Condition<()>>,
}

impl Physdev {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut physdev = Physdev::default();
        while let Some(flag) = options.flag() {
            match flag.name {
                "--physdev-is-in" => once(&mut physdev.is_in, flag.sign(()))?,
                "--physdev-in" => once(&mut physdev.input, flag.sign(options.value()?))?,
                "--physdev-is-out" => once(&mut physdev.is_out, flag.sign(()))?,
                "--physdev-out" => once(&mut physdev.output, flag.sign(options.value()?))?,
                "--physdev-is-bridged" => once(&mut physdev.is_bridged, flag.sign(()))?,
                _ => {
                    options.give_back(&flag);
                    break;
                }
            }
        }
        Some(physdev)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.word("-m physdev");
        out.bare("--physdev-is-in", &self.is_in);
        out.condition("--physdev-in", &self.input, |out, name| out.name(name.as_str()));
        out.bare("--physdev-is-out", &self.is_out);
        out.condition("--physdev-out", &self.output, |out, name| out.name(name.as_str()));
        out.bare("--physdev-is-bridged", &self.is_bridged);
    }
}
