//! Any strings as names and texts of a rule: refused, or written as one line that says what was meant.
#![no_main]

use kernlink_iptables_restore::matches::SetDirection;
use kernlink_iptables_restore::targets::Log;
use kernlink_iptables_restore::{
    Argument, ChainName, Comment, Condition, Edit, Family, InterfacePattern, LogPrefix, Match, Restore, Rule,
    Ruleset, SetName, Style, Table, Target,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|strings: (&str, &str, &str, &str, &str, &str)| {
    let (chain, comment, interface, set, prefix, word) = strings;
    let Ok(name) = ChainName::new(chain).or_else(|_| ChainName::new("FINE")) else {
        return;
    };
    let mut rule = Rule::new();
    if let Ok(comment) = Comment::new(comment) {
        rule = rule.with(Match::Comment(comment));
    }
    if let Ok(pattern) = InterfacePattern::new(interface) {
        rule = rule.with(Match::InInterface(Condition::Not(pattern)));
    }
    if let Ok(set) = SetName::new(set) {
        rule = rule.with(Match::set(set, &[SetDirection::Destination]));
    }
    rule = match LogPrefix::new(prefix) {
        Ok(prefix) => rule.with_target(Target::Log(Box::new(Log {
            prefix: Some(prefix),
            ..Log::default()
        }))),
        Err(_) => rule.jump(name),
    };
    let restore = Restore::new(Family::Ipv6)
        .with(Table::Mangle, Edit::declare(name))
        .with(Table::Mangle, Edit::append(name, rule.clone()));
    for style in [Style::SAVE, Style::RESTORE, Style::KUBE_PROXY] {
        let Ok(text) = restore.render_checked(style) else {
            continue;
        };
        assert_eq!(text.split('\n').count(), 5, "{text:?}");
        let read: Ruleset = text.parse().expect("what was rendered is read");
        let chain = read.chain(Table::Mangle, &name).expect("the chain is there");
        assert!(chain.rules().eq([&rule]), "{text}");
    }
    // A word of what has no type stays one word.
    if let Ok(word) = Argument::new(word) {
        let text = format!("-m unheard-of --of {word}");
        let read: Rule = text.parse().expect("a rendered word is read");
        assert_eq!(read.render(Style::SAVE).parse(), Ok(read), "{text}");
    }
});
