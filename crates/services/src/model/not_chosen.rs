//! Why an endpoint receives no traffic.

use std::fmt;

/// Why an endpoint receives no traffic of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum NotChosen {
    /// It is not ready.
    NotReady,
    /// It terminates. It still accepts connections, and is used only while no other endpoint is ready.
    Terminating,
    /// It terminates, and accepts no connections.
    TerminatingNotServing,
    /// It is not on this node, and the policy is `Local`.
    OtherNode,
    /// All ready endpoints have hints for nodes, and its hints do not name this one.
    HintsOfOtherNodes,
    /// All ready endpoints have hints for zones, and its hints do not name the zone of this node.
    HintsOfOtherZones,
}

impl NotChosen {
    /// A word for programs. It does not change between releases.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            NotChosen::NotReady => "NotReady",
            NotChosen::Terminating => "Terminating",
            NotChosen::TerminatingNotServing => "TerminatingNotServing",
            NotChosen::OtherNode => "OtherNode",
            NotChosen::HintsOfOtherNodes => "HintsOfOtherNodes",
            NotChosen::HintsOfOtherZones => "HintsOfOtherZones",
        }
    }
}

impl fmt::Display for NotChosen {
    /// `not ready`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotChosen::NotReady => "not ready",
            NotChosen::Terminating => "terminating, and another endpoint is ready",
            NotChosen::TerminatingNotServing => "terminating, and not serving",
            NotChosen::OtherNode => "on another node, and the policy is Local",
            NotChosen::HintsOfOtherNodes => "its hints are for other nodes",
            NotChosen::HintsOfOtherZones => "its hints are for other zones",
        })
    }
}
