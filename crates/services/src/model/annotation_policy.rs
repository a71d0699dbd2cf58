//! Which options Services may set by annotations.

use std::collections::BTreeSet;

use super::annotation::{annotation_field, is_known_annotation, known_annotations};
use crate::event::Reason;

/// Which options Services may set by annotations. The default permits all of them to every Service: an option concerns the traffic of
/// its own Service only. What is not permitted is ignored, with an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnotationPolicy {
    /// The names of the permitted annotations, without the prefix `kernlink.io/`. `None`: all. Empty: no annotation is permitted.
    pub names: Option<BTreeSet<String>>,
    /// The namespaces of the Services whose annotations are permitted. `None`: all. Empty: no annotation is permitted.
    pub namespaces: Option<BTreeSet<String>>,
}

impl AnnotationPolicy {
    /// Permits no annotation.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            names: Some(BTreeSet::new()),
            namespaces: None,
        }
    }

    /// Whether Services of a namespace may set the annotation with this name (without the prefix).
    #[must_use]
    pub fn permits(&self, namespace: &str, name: &str) -> bool {
        self.permits_namespace(namespace) && self.names.as_ref().is_none_or(|names| names.contains(name))
    }

    /// Whether Services of a namespace may set any annotation.
    pub(crate) fn permits_any(&self, namespace: &str) -> bool {
        self.permits_namespace(namespace) && self.names.as_ref().is_none_or(|names| !names.is_empty())
    }

    fn permits_namespace(&self, namespace: &str) -> bool {
        let namespaces = self.namespaces.as_ref();
        namespaces.is_none_or(|namespaces| namespaces.contains(namespace))
    }

    /// Why an annotation is not permitted. `None` if it is.
    pub(crate) fn refusal(&self, namespace: &str, name: &str) -> Option<Reason> {
        if self.permits(namespace, name) {
            return None;
        }
        let why = if self.permits_namespace(namespace) {
            "not permitted by kernlink.serviceAnnotations of the configuration".to_owned()
        } else {
            format!(
                "not permitted in namespace {namespace} by kernlink.serviceAnnotationNamespaces of the configuration"
            )
        };
        let field = annotation_field(name);
        Some(Reason::NotPermitted { field, why })
    }

    /// Checks the names.
    ///
    /// # Errors
    /// The first name that is not an annotation, and the valid ones.
    pub fn validate(&self) -> Result<(), String> {
        let mut names = self.names.iter().flatten();
        match names.find(|name| !is_known_annotation(name)) {
            Some(name) => Err(format!(
                "{name:?} is not an annotation; valid: {}",
                known_annotations()
            )),
            None => Ok(()),
        }
    }
}
