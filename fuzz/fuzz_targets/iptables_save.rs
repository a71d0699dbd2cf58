//! Any text as the output of iptables-save: it is read or refused with a line, and what was read renders to text
//! that reads the same.
#![no_main]

use kernlink_iptables_restore::{Error, Ruleset, Style};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match text.parse::<Ruleset>() {
        Ok(ruleset) => assert_eq!(ruleset.render(Style::SAVE).parse().as_ref(), Ok(&ruleset)),
        Err(Error::Parse { line, .. }) => assert!(line >= 1 && line <= text.split('\n').count()),
        Err(other) => panic!("{other}"),
    }
});
