//! Matches and targets of iptables that the rules of iptables mode can do without.

use kernlink_netfilter::Extension;

/// Answers clients of Services without endpoints. Without it `DROP` is used.
pub(super) const REJECT: Extension = Extension {
    name: "REJECT",
    modules: ["ipt_REJECT", "ip6t_REJECT"],
    without: "clients of Services without endpoints get no answer",
};

/// All of them. Every other match and target is necessary for the Services whose rules have it; accounting objects are not extensions.
pub(super) const ALL: [Extension; 1] = [REJECT];
