//! What a Service may ask for beyond Kubernetes.

use std::collections::BTreeMap;

use crate::event::Reason;

/// What a Service asks for beyond Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {}

/// Reads the annotations.
pub(crate) fn options(_annotations: &BTreeMap<String, String>, _say: impl FnMut(Reason)) -> Options {
    Options {}
}
