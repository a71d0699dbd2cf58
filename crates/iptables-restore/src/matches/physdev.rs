//! `-m physdev`: the port of a bridge.

use crate::condition::Condition;
use crate::network::InterfacePattern;
use crate::wire::options::{Options, set_once};
use crate::wire::render::Printer;

/// Bridge ports through which a packet arrived or leaves. At least one test is required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Physdev {
    /// `--physdev-is-in`: the packet arrived through a bridge.
    pub is_in: Option<Condition<()>>,
    /// `--physdev-in`: the port through which it arrived.
    pub input: Option<Condition<InterfacePattern>>,
    /// `--physdev-is-out`: the packet leaves through a bridge.
    pub is_out: Option<Condition<()>>,
    /// `--physdev-out`: the port through which it leaves.
    pub output: Option<Condition<InterfacePattern>>,
    /// `--physdev-is-bridged`: the packet is bridged and not routed.
    pub is_bridged: Option<Condition<()>>,
}

impl Physdev {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut physdev = Physdev::default();
        while let Some(flag) = options.flag() {
            match flag.name {
                "--physdev-is-in" => set_once(&mut physdev.is_in, flag.condition(()))?,
                "--physdev-in" => set_once(&mut physdev.input, flag.condition(options.value()?))?,
                "--physdev-is-out" => set_once(&mut physdev.is_out, flag.condition(()))?,
                "--physdev-out" => set_once(&mut physdev.output, flag.condition(options.value()?))?,
                "--physdev-is-bridged" => set_once(&mut physdev.is_bridged, flag.condition(()))?,
                _ => {
                    options.put_back(&flag);
                    break;
                }
            }
        }
        Some(physdev)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-m physdev");
        out.bare("--physdev-is-in", &self.is_in);
        out.condition("--physdev-in", &self.input, |out, name| out.name(name.as_str()));
        out.bare("--physdev-is-out", &self.is_out);
        out.condition("--physdev-out", &self.output, |out, name| out.name(name.as_str()));
        out.bare("--physdev-is-bridged", &self.is_bridged);
    }
}
