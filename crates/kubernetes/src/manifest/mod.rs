//! Services, EndpointSlices and Nodes from Kubernetes YAML or JSON, as printed by `kubectl get -o yaml`.
//!
//! A text is a stream of YAML documents separated by `---`, or a sequence of JSON values. A document is an object or a list of objects
//! (`List`, `ServiceList` and so on). Objects of other kinds are counted and ignored.
//!
//! An object with an invalid field is ignored, with an [`Error`] that names file, document, object and field; the other objects are
//! read. Of an invalid endpoint, Node address or pod network only that part is ignored. A file may be truncated, or a part of it may not
//! be YAML. So [`Objects::missing`] lists the objects that are in the text and could not be read, as far as they are known, and
//! [`Objects::into_changes`] fails if there are any.
//!
//! ```
//! use kernlink_kubernetes::manifest::read;
//!
//! let text = "
//! apiVersion: v1
//! kind: Service
//! metadata: {name: web, namespace: shop}
//! spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
//! ---
//! apiVersion: v1
//! kind: Service
//! metadata: {name: dns, namespace: shop}
//! spec: {clusterIP: 10.96.0.11, ports: [{port: 530000}]}
//! ";
//! let objects = read("shop.yaml", text);
//! assert_eq!(objects.services.len(), 1);
//! assert_eq!(
//!     objects.errors[0].to_string(),
//!     "shop.yaml: document 2 (line 6): Service shop/dns: spec.ports[0].port: 530000 is not a port (1 to 65535)",
//! );
//! assert!(objects.into_changes().is_err(), "shop/dns would be removed");
//! ```
//!
//! # A file that changes
//!
//! If a file is read again after a change, [`Objects::keep_from`] keeps the earlier version of every object that can no longer be read.
//!
//! ```
//! use kernlink_kubernetes::manifest::read;
//!
//! let service = |name| format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n---\n");
//! let first = read("all.yaml", &(service("a") + &service("b")));
//! // The second document becomes invalid.
//! let mut second = read("all.yaml", &(service("a") + "kind: ["));
//! second.keep_from(&first);
//! assert_eq!(second.services, first.services);
//! assert_eq!(second.errors.len(), 1);
//! let changes = second.into_changes()?;
//! # assert_eq!(changes.len(), 6);
//! # Ok::<(), kernlink_kubernetes::manifest::Incomplete>(())
//! ```

mod reader;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::{self, Write};

use kernlink_services::escape::EscapeWriter;
use kernlink_services::{Change, EndpointSlice, Kind, Node, ObjectChange, ObjectName, Service};

pub use self::reader::{MAX_TEXT, read};

/// The objects of one or more texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Objects {
    /// Services, in the order of the text.
    pub services: Vec<Service>,
    /// EndpointSlices, in the order of the text.
    pub endpoint_slices: Vec<EndpointSlice>,
    /// Nodes, in the order of the text.
    pub nodes: Vec<Node>,
    /// The number of objects of other kinds, by kind. A kind of another API group with the name `Service`, `EndpointSlice` or `Node`
    /// includes the group: `Service.serving.knative.dev`.
    pub other: BTreeMap<String, usize>,
    /// All errors, in the order of the text.
    pub errors: Vec<Error>,
    /// The objects that are in the text but, because of an error, not in the three lists.
    pub missing: Missing,
    /// Whether a text was read. False for the default.
    is_read: bool,
}

/// The objects that are in a text and could not be read, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// The objects with a known kind and name.
    pub named: BTreeSet<(Kind, ObjectName)>,
    /// Whether there may be more objects: a part of the text is not YAML, or has no valid kind or name.
    pub unnamed: bool,
}

impl Missing {
    /// Whether every object of the text was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && !self.unnamed
    }

    /// Whether an object of this kind and name may be missing.
    #[must_use]
    pub fn may_include(&self, kind: Kind, name: &ObjectName) -> bool {
        self.unnamed || self.named.contains(&(kind, name.clone()))
    }
}

impl Objects {
    /// Converts the objects to full lists of a source. Objects that the source delivered before and that are not in the lists are
    /// removed.
    ///
    /// A truncated text is detected if it ends inside a list or inside JSON, and in most other cases. It is not detected if it ends
    /// between two YAML documents, or between two fields of a YAML document with a single object.
    ///
    /// [`Self::errors`] is not used; report it before. Errors about a part of an object that is ignored, such as an endpoint, do not
    /// cause a failure.
    ///
    /// # Errors
    ///
    /// [`Incomplete`], with the objects, if objects are [missing](Self::missing).
    pub fn into_changes(self) -> Result<Vec<Change>, Incomplete> {
        if self.missing.is_empty() {
            Ok(self.into_changes_without_missing())
        } else {
            Err(Incomplete {
                objects: Box::new(self),
            })
        }
    }

    /// As [`Self::into_changes`], but does not fail if objects are [missing](Self::missing): they are removed, although they are in the
    /// text.
    #[must_use]
    pub fn into_changes_without_missing(self) -> Vec<Change> {
        vec![
            Change::Nodes(ObjectChange::ReplaceAll(self.nodes)),
            Change::Nodes(ObjectChange::Synced),
            Change::Services(ObjectChange::ReplaceAll(self.services)),
            Change::Services(ObjectChange::Synced),
            Change::EndpointSlices(ObjectChange::ReplaceAll(self.endpoint_slices)),
            Change::EndpointSlices(ObjectChange::Synced),
        ]
    }

    /// Adds the earlier version of every [missing](Self::missing) object. `earlier` is the previous result for the same text, including
    /// the objects that it kept.
    ///
    /// If [`Missing::unnamed`] is set, all earlier objects that are not in the lists are added, including those that were deleted from
    /// the text. Afterwards [`Self::missing`] has only objects that may have been missing in `earlier` too. If `earlier` is
    /// [`Objects::default`], nothing changes.
    pub fn keep_from(&mut self, earlier: &Objects) {
        if self.missing.is_empty() || !earlier.is_read {
            return;
        }
        let missing = &self.missing;
        keep(
            Kind::Service,
            &mut self.services,
            &earlier.services,
            missing,
            |o| &o.name,
        );
        let slices = &earlier.endpoint_slices;
        keep(
            Kind::EndpointSlice,
            &mut self.endpoint_slices,
            slices,
            missing,
            |o| &o.name,
        );
        keep(Kind::Node, &mut self.nodes, &earlier.nodes, missing, |o| &o.name);
        if self.missing.unnamed {
            let named = earlier.missing.named.iter().cloned();
            self.missing.named.extend(named);
        }
        self.missing.unnamed &= earlier.missing.unnamed;
        self.missing
            .named
            .retain(|(kind, name)| earlier.missing.may_include(*kind, name));
        self.remove_found_from_missing();
    }

    /// Adds the objects of another text.
    pub fn extend(&mut self, other: Objects) {
        self.services.extend(other.services);
        self.endpoint_slices.extend(other.endpoint_slices);
        self.nodes.extend(other.nodes);
        self.errors.extend(other.errors);
        for (kind, count) in other.other {
            *self.other.entry(kind).or_default() += count;
        }
        self.missing.named.extend(other.missing.named);
        self.missing.unnamed |= other.missing.unnamed;
        self.is_read |= other.is_read;
        self.remove_found_from_missing();
    }

    /// Removes the objects from [`Self::missing`] that are also in the lists, because a text may have an object twice.
    fn remove_found_from_missing(&mut self) {
        if self.missing.named.is_empty() {
            return;
        }
        let services = self.services.iter().map(|o| (Kind::Service, &o.name));
        let slices = self
            .endpoint_slices
            .iter()
            .map(|o| (Kind::EndpointSlice, &o.name));
        let nodes = self.nodes.iter().map(|o| (Kind::Node, &o.name));
        let found: HashSet<(Kind, &ObjectName)> = services.chain(slices).chain(nodes).collect();
        self.missing
            .named
            .retain(|(kind, name)| !found.contains(&(*kind, name)));
    }
}

/// Adds the earlier objects that may be missing and are not in the list.
fn keep<T: Clone>(
    kind: Kind,
    objects: &mut Vec<T>,
    earlier: &[T],
    missing: &Missing,
    name: fn(&T) -> &ObjectName,
) {
    let present: HashSet<&ObjectName> = objects.iter().map(name).collect();
    let is_kept = |object: &&T| !present.contains(name(object)) && missing.may_include(kind, name(object));
    let kept: Vec<T> = earlier.iter().filter(is_kept).cloned().collect();
    objects.extend(kept);
}

/// The objects of a text of which some could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incomplete {
    /// The objects, errors and missing objects.
    pub objects: Box<Objects>,
}

impl fmt::Display for Incomplete {
    /// The number of errors and the first error, on one line; control characters are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = &self.objects.errors;
        write!(f, "objects could not be read ({} errors", errors.len())?;
        match errors.first() {
            Some(first) => write!(f, ", first: {first})"),
            None => f.write_str(")"),
        }
    }
}

impl std::error::Error for Incomplete {}

/// An error in a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Error {
    /// The name of the file, as passed by the caller.
    pub file: String,
    /// The position of the document in the file, from 1.
    pub document: usize,
    /// The line of the file, from 1: that of a syntax error, otherwise the first line of the document.
    pub line: usize,
    /// Kind, namespace and name of the object, `Service shop/web`, as far as they are known; empty for a syntax error.
    pub object: String,
    /// The path of the field; empty for a syntax error.
    pub field: String,
    /// What is invalid, and what is valid.
    pub reason: String,
}

impl fmt::Display for Error {
    /// All parts that are not empty, on one line; control characters are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = EscapeWriter(f);
        write!(
            f,
            "{}: document {} (line {})",
            self.file, self.document, self.line
        )?;
        for part in [&self.object, &self.field, &self.reason] {
            if !part.is_empty() {
                write!(f, ": {part}")?;
            }
        }
        Ok(())
    }
}
