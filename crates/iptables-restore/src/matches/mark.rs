//! `-m mark` and `-m connmark`.

use crate::condition::Condition;
use crate::wire::options::Options;
use crate::wire::render::Printer;

macro_rules! mark_match {
    ($(#[$doc:meta])* $name:ident, $option:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name {
            /// The required value of the masked bits.
            pub value: u32,
            /// The compared bits; `None` means all.
            pub mask: Option<u32>,
        }

        impl $name {
            pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Condition<Self>> {
                let flag = options.flag()?;
                (flag.name == "--mark").then_some(())?;
                let (value, mask) = options.mark()?;
                Some(flag.condition($name { value, mask }))
            }

            pub(super) fn print(test: &Condition<Self>, out: &mut Printer<'_>) {
                out.literal($option);
                out.required("--mark", test, |out, mark| out.mark(mark.value, mark.mask));
            }

            /// The tools do not print a mask of all bits.
            pub(super) fn normal_form(mut self) -> Self {
                self.mask = self.mask.filter(|mask| *mask != u32::MAX);
                self
            }
        }
    };
}

mark_match! {
    /// The packet's mark.
    MarkMatch, "-m mark"
}

mark_match! {
    /// The flow's mark.
    ConnmarkMatch, "-m connmark"
}
