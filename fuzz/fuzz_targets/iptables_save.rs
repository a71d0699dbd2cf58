//! Any text as the output of iptables-save: it is read or refused with a line, and what was read renders to text
//! that reads the same. A lenient read takes any text, and equals the strict one where there is one.
#![no_main]

use kernlink_iptables_restore::{Error, Ruleset, Style};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let lenient = Ruleset::parse_lenient(text);
    let lines = text.split('\n').count();
    assert!(lenient.unreadable().iter().all(|line| line.line <= lines));
    // The lines that were not skipped parse strictly.
    let rendered = lenient.render(Style::SAVE).parse::<Ruleset>();
    assert_eq!(
        rendered.map(|ruleset| ruleset.rule_count()),
        Ok(lenient.rule_count())
    );
    match text.parse::<Ruleset>() {
        Ok(ruleset) => {
            assert_eq!(ruleset, lenient);
            let again: Ruleset = ruleset.render(Style::SAVE).parse().unwrap();
            assert!(again.tables().eq(ruleset.tables()));
        }
        Err(Error::Parse { line, .. }) => assert!(line >= 1 && line <= text.split('\n').count()),
        Err(other) => panic!("{other}"),
    }
});
