//! Services, EndpointSlices and Nodes from Kubernetes YAML or JSON, as `kubectl get -o yaml` prints them.
//!
//! A text is a stream of documents separated by `---`, or JSON values one after the other. A document is an object or a list of
//! objects (`List`, `ServiceList` and the like). An object of another kind is counted and left out.
//!
//! An object with an invalid field is left out with an [`Error`] that names file, document, object and field; the other objects are
//! read. An endpoint, a Node address or a pod network with an invalid field is left out alone. A file can be cut in the middle, or
//! half of it may not be YAML, so [`Objects::missing`] tells what is known about the objects that are in the text and could not be
//! read, and [`Objects::into_changes`] fails as long as there are any.
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
//! If a file is read again after a change, [`Objects::keep_from`] keeps the earlier version of every object that cannot be read any
//! more.
//!
//! ```
//! use kernlink_kubernetes::manifest::read;
//!
//! let service = |name| format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n---\n");
//! let first = read("all.yaml", &(service("a") + &service("b")));
//! // Someone breaks the second document.
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
    /// How many objects of other kinds were left out, by kind. A kind of another API group that has the name of one read here
    /// includes the group: `Service.serving.knative.dev`.
    pub other: BTreeMap<String, usize>,
    /// Everything that is invalid, in the order of the text.
    pub errors: Vec<Error>,
    /// The objects that are in the text and, because of an error, not in the three lists.
    pub missing: Missing,
    /// Whether a text was read into this.
    is_read: bool,
}

/// What is known about the objects that are in a text and could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Objects with a legible kind and name.
    pub named: BTreeSet<(Kind, ObjectName)>,
    /// Whether there may be more objects: a part of the text is not YAML, or has no legible kind or name.
    pub unnamed: bool,
}

impl Missing {
    /// Whether every object of the text was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && !self.unnamed
    }

    /// Whether an object of this kind and name may be among the missing ones.
    #[must_use]
    pub fn may_include(&self, kind: Kind, name: &ObjectName) -> bool {
        self.unnamed || self.named.contains(&(kind, name.clone()))
    }
}

impl Objects {
    /// The objects as the full lists of a source. Objects that the source had before and that are not among these are removed.
    ///
    /// A text that was cut is noticed if the cut is in a list or in JSON, and in most other places. It is not noticed between two
    /// YAML documents, or between two fields of a YAML document with a single object.
    ///
    /// [`Self::errors`] is not used; report it before. Endpoints, addresses and networks that were left out alone do not make this
    /// fail.
    ///
    /// # Errors
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

    /// As [`Self::into_changes`], also if objects are [missing](Self::missing): these are removed, although they are in the text.
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

    /// Adds every [missing](Self::missing) object in its earlier version. `earlier` is the result of the last time that the same text
    /// was read, with what it kept then.
    ///
    /// If a part of the text has no legible name, all earlier objects that are not in these lists are added, also those that were
    /// deleted from the text. Afterwards [`Self::missing`] has only objects that may have been missing in `earlier` too. An
    /// [`Objects::default`] into which no text was read has nothing to add, and leaves [`Self::missing`] as it is.
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
        self.forget_found();
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
        self.forget_found();
    }

    /// Removes objects from the missing ones that are in the lists too: a text may have an object twice.
    fn forget_found(&mut self) {
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

/// Adds the earlier objects that may be missing.
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

/// Objects of which some could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incomplete {
    /// The objects, errors and missing objects.
    pub objects: Box<Objects>,
}

impl fmt::Display for Incomplete {
    /// The number of errors and the first one, on one line; control characters are escaped.
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

/// A part of a text that is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Error {
    /// The file as named by the caller.
    pub file: String,
    /// The position of the document in the file, from 1.
    pub document: usize,
    /// The line of the file, from 1: where the error is for a syntax error, where the document begins for any other.
    pub line: usize,
    /// Kind, namespace and name of the object, as far as they are known; empty for a syntax error.
    pub object: String,
    /// The path of the field; empty for a syntax error.
    pub field: String,
    /// What is wrong.
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
