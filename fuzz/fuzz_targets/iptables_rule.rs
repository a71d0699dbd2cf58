//! Arbitrary text as a rule: it is parsed or rejected. A parsed rule renders as one line that parses to the same rule, in all styles
//! and in its normal form.
#![no_main]

use kernlink_iptables_restore::{Family, Rule, Style};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(rule) = text.parse::<Rule>() else { return };
    for style in [Style::SAVE, Style::RESTORE, Style::KUBE_PROXY] {
        let rendered = rule.render(style);
        assert!(!rendered.contains(['\n', '\0']));
        assert_eq!(rendered.parse::<Rule>().as_ref(), Ok(&rule), "{rendered}");
    }
    for family in Family::ALL {
        let normal = rule.normal_form(family);
        assert_eq!(normal.normal_form(family), normal);
    }
});
