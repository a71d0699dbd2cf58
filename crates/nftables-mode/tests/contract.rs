//! nftables mode passes the contract of data paths.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/node.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod node;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use kernlink_engine::contract::{Calls, Fixture, Host, Random, Request, RetireFixture};
use kernlink_engine::retire::Retire;
use kernlink_nftables_mode::retire::Retiring;
use kernlink_nftables_mode::{Config, Kernel, NftablesMode};

use crate::node::Node;

impl Host for Node {
    type DataPath = NftablesMode;

    fn kernel(&self) -> Kernel {
        Node::kernel(self)
    }

    fn owned(&self) -> String {
        Node::owned(self)
    }

    fn foreign(&self) -> String {
        Node::foreign(self)
    }

    fn served(&self, requests: &[Request]) -> Vec<BTreeSet<SocketAddr>> {
        Node::served(self, requests)
    }

    fn damage(&self, random: &mut Random) -> String {
        Node::damage(self, random)
    }
}

/// nftables mode.
#[derive(Clone, Copy, Debug)]
struct NftablesFixture;

impl Fixture for NftablesFixture {
    type DataPath = NftablesMode;
    type Host = Node;

    fn config(&self) -> Config {
        node::config()
    }

    fn host(&self, calls: &Calls) -> Node {
        Node::new(calls)
    }

    /// A listing of elements fails if the ruleset changed meanwhile.
    fn has_torn_listings(&self) -> bool {
        false
    }
}

kernlink_engine::contract_tests!(NftablesFixture);
kernlink_engine::retire_tests!(NftablesFixture);

impl RetireFixture for NftablesFixture {
    fn retiring(&self, host: &Node) -> Box<dyn Retire> {
        Box::new(Retiring::new(Box::new(host.tables.clone())))
    }
}
