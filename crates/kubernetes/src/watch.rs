//! The answers of an API server to lists and watches, as changes.
//!
//! This module reads bytes only; the program sends the requests. Each object is converted and reduced to the fields of
//! [`kernlink_services`] before the next one is read. An object that is invalid is an [`Item`] without a change and does not affect the
//! others.
//!
//! ```
//! use kernlink_kubernetes::Converter;
//! use kernlink_kubernetes::kernlink_services::Kind;
//! use kernlink_kubernetes::watch::{Event, read_event};
//!
//! let line = br#"{"type":"MODIFIED","object":{"apiVersion":"v1","kind":"Service",
//!     "metadata":{"name":"web","namespace":"shop","resourceVersion":"7"},"spec":{"ports":[{"port":80}]}}}"#;
//! let event = read_event(Kind::Service, line, &mut Converter::new())?;
//! let Event::Item { item, resource_version } = event else {
//!     panic!("{event:?}");
//! };
//! assert_eq!(item.name.unwrap().to_string(), "shop/web");
//! assert!(item.change.is_some());
//! assert_eq!(resource_version, "7");
//! # Ok::<(), kernlink_kubernetes::watch::Unreadable>(())
//! ```

mod object;
pub mod protobuf;

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::time::Duration;

use kernlink_services::escape::EscapeWriter;
use kernlink_services::{Change, Kind, ObjectChange, ObjectName};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use self::object::ApiObject;
use crate::deserialize::object_or_default;
use crate::error::FieldError;
use crate::objects::partial::{self, Object};
use crate::objects::{Converter, DEFAULT_NAMESPACE, value};

/// An object of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The name. `None` if it is invalid.
    pub name: Option<ObjectName>,
    /// The object as an [`ObjectChange::Upsert`], or [`ObjectChange::Delete`] if the event deletes it. `None` if the object is invalid.
    pub change: Option<Change>,
    /// All invalid fields. If there is a change, they concern parts of the object that are ignored, such as single endpoints, and values that
    /// are not known.
    pub errors: Vec<FieldError>,
}

/// A list, or a part of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The objects.
    pub items: Vec<Item>,
    /// The version of the list, from which a watch continues.
    pub resource_version: String,
    /// The value of the parameter `continue` for the next page. Empty: this is the last one.
    pub continue_token: String,
}

/// A line of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all events are items, and they are read one at a time"
)]
pub enum Event {
    /// An object was added, changed or deleted.
    Item {
        /// The object.
        item: Item,
        /// Its version, from which another watch continues. Empty if the server sent none.
        resource_version: String,
    },
    /// There was no change up to this version.
    Bookmark {
        /// The version.
        resource_version: String,
        /// Whether the events before this one are the initial list that `sendInitialEvents` asks for.
        ends_initial_list: bool,
    },
    /// The watch has failed.
    Error(Status),
    /// An event of an unknown type, which has no effect.
    Unknown(String),
}

/// Why a request failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status. 0 if the server sent none.
    pub code: u16,
    /// A word for programs, such as `Expired`. May be empty.
    pub reason: String,
    /// A text for people.
    pub message: String,
    /// Words for programs about the details, such as `ResourceVersionTooLarge`.
    pub causes: Vec<String>,
    /// The time to wait before the request is repeated, if the server names one.
    pub retry_after: Option<Duration>,
}

impl Status {
    /// Whether the requested version is no longer known, or not yet: a list must be read again.
    #[must_use]
    pub fn needs_list(&self) -> bool {
        self.code == 410
            || ["Gone", "Expired"].contains(&&*self.reason)
            || self.causes.iter().any(|cause| cause == "ResourceVersionTooLarge")
    }
}

impl fmt::Display for Status {
    /// `message (410 Expired)`, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = EscapeWriter(f);
        match (&*self.message, &*self.reason) {
            ("", "") => write!(f, "status {}", self.code),
            ("", reason) => write!(f, "{reason} ({})", self.code),
            (message, "") => write!(f, "{message} ({})", self.code),
            (message, reason) => write!(f, "{message} ({} {reason})", self.code),
        }
    }
}

/// An answer is not what an API server sends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer of the API server is invalid: {reason}")]
pub struct Unreadable {
    /// What is invalid.
    pub reason: String,
}

/// The annotation of the bookmark that ends an initial list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

fn unreadable(error: serde_json::Error) -> Unreadable {
    Unreadable {
        reason: error.to_string(),
    }
}

/// Reads the body of a list.
///
/// # Errors
/// If it is not a list of this kind with a version. An invalid object in it is not an error.
pub fn read_page(kind: Kind, body: &[u8], converter: &mut Converter) -> Result<Page, Unreadable> {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(borrow)]
        kind: Cow<'a, str>,
        metadata: ListMeta,
        // An empty list may be null.
        #[serde(borrow, default)]
        items: Option<Vec<&'a RawValue>>,
    }

    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct ListMeta {
        resource_version: Option<String>,
        r#continue: Option<String>,
    }

    let list: List<'_> = serde_json::from_slice(body).map_err(unreadable)?;
    // Another answer must not be used as an empty list, which removes all objects.
    if list.kind != format!("{kind}List") {
        let reason = format!("kind {:?}; expected \"{kind}List\"", list.kind);
        return Err(Unreadable { reason });
    }
    let items = list.items.unwrap_or_default();
    let items = items.into_iter().map(|text| item(kind, text, converter).0);
    let resource_version = list
        .metadata
        .resource_version
        .filter(|version| !version.is_empty());
    let resource_version = resource_version.ok_or_else(|| Unreadable {
        reason: "metadata.resourceVersion is missing in a list".to_owned(),
    })?;
    Ok(Page {
        items: items.collect(),
        resource_version,
        continue_token: list.metadata.r#continue.unwrap_or_default(),
    })
}

/// Reads a line of a watch, with or without the line feed.
///
/// # Errors
/// If it is not an event. An invalid object in it is not an error.
pub fn read_event(kind: Kind, line: &[u8], converter: &mut Converter) -> Result<Event, Unreadable> {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(borrow, rename = "type")]
        event: Cow<'a, str>,
        #[serde(borrow)]
        object: &'a RawValue,
    }

    let line: Line<'_> = serde_json::from_slice(line).map_err(unreadable)?;
    match &*line.event {
        "ADDED" | "MODIFIED" => {
            let (item, resource_version) = item(kind, line.object, converter);
            Ok(Event::Item {
                item,
                resource_version,
            })
        }
        "DELETED" => {
            let metadata = metadata(line.object)?;
            let Metadata { name, namespace, .. } = metadata;
            Ok(deleted(kind, name, namespace, metadata.resource_version))
        }
        "BOOKMARK" => {
            let metadata = metadata(line.object)?;
            Ok(Event::Bookmark {
                resource_version: metadata.resource_version.unwrap_or_default(),
                ends_initial_list: metadata.annotations.is_some_and(|annotations| {
                    annotations
                        .get(INITIAL_EVENTS_END)
                        .is_some_and(|value| value == "true")
                }),
            })
        }
        "ERROR" => Ok(Event::Error(read_status(0, line.object.get().as_bytes()))),
        other => Ok(Event::Unknown(other.to_owned())),
    }
}

/// Reads the body of an answer with an error status. `code` is used if the body has none. A body of another form, such as that of a proxy,
/// becomes the message, cut after 200 characters.
#[must_use]
pub fn read_status(code: u16, body: &[u8]) -> Status {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Body {
        code: Option<u16>,
        reason: Option<String>,
        message: Option<String>,
        details: Option<Details>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Details {
        causes: Option<Vec<Cause>>,
        #[serde(rename = "retryAfterSeconds")]
        retry_after: Option<u32>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Cause {
        reason: Option<String>,
    }

    match serde_json::from_slice::<Body>(body) {
        Ok(body) => {
            let details = body.details.unwrap_or_default();
            let causes = details.causes.unwrap_or_default().into_iter();
            Status {
                code: body.code.filter(|code| *code != 0).unwrap_or(code),
                reason: body.reason.unwrap_or_default(),
                message: body.message.unwrap_or_default(),
                causes: causes.filter_map(|cause| cause.reason).collect(),
                retry_after: seconds(details.retry_after.unwrap_or_default()),
            }
        }
        Err(_) => Status {
            code,
            message: String::from_utf8_lossy(body).trim().chars().take(200).collect(),
            ..Status::default()
        },
    }
}

/// A time to wait. `None` if it is 0, as where the server names none.
fn seconds(number: u32) -> Option<Duration> {
    (number > 0).then(|| Duration::from_secs(number.into()))
}

/// An object that exists, and its version.
fn item(kind: Kind, text: &RawValue, converter: &mut Converter) -> (Item, String) {
    match kind {
        Kind::Service => read::<partial::Service>(kind, text, converter),
        Kind::EndpointSlice => read::<partial::EndpointSlice>(kind, text, converter),
        Kind::Node => read::<partial::Node>(kind, text, converter),
    }
}

/// Deserializes the fields that are used, which is the usual case. If one has a wrong type, starts again with a tree of their values, in which
/// all such fields are found.
fn read<T: ApiObject>(kind: Kind, text: &RawValue, converter: &mut Converter) -> (Item, String) {
    if let Ok(Object(object)) = serde_json::from_str::<Object<T>>(text.get()) {
        let converted = object.convert(converter);
        if let Some(target) = converted.object {
            return (valid::<T>(target, converted.errors), object.version());
        }
    }
    let version = value::version(text.get());
    let mut value = match value::read(kind, text.get()) {
        Ok(value) => value,
        Err(error) => return (invalid(error.to_string()), version),
    };
    let converted = T::convert_value(converter, &mut value);
    let name = value::name(kind, &value).filter(|_| value::has_valid_name(&converted.errors));
    let item = match converted.object {
        Some(target) => valid::<T>(target, converted.errors),
        None => Item {
            name,
            change: None,
            errors: converted.errors,
        },
    };
    (item, version)
}

fn valid<T: ApiObject>(target: T::Target, errors: Vec<FieldError>) -> Item {
    let (name, change) = T::upsert(target);
    Item {
        name: Some(name),
        change: Some(change),
        errors,
    }
}

fn invalid(reason: String) -> Item {
    let field = String::new();
    Item {
        name: None,
        change: None,
        errors: vec![FieldError { field, reason }],
    }
}

/// Of a deleted object only the name matters.
fn deleted(kind: Kind, name: Option<String>, namespace: Option<String>, version: Option<String>) -> Event {
    let resource_version = version.unwrap_or_default();
    let Some(name) = object_name(kind, name, namespace) else {
        let item = invalid("metadata.name: is missing in an event of a deleted object".to_owned());
        return Event::Item {
            item,
            resource_version,
        };
    };
    let change = match kind {
        Kind::Service => Change::Services(ObjectChange::Delete(name.clone())),
        Kind::EndpointSlice => Change::EndpointSlices(ObjectChange::Delete(name.clone())),
        Kind::Node => Change::Nodes(ObjectChange::Delete(name.clone())),
    };
    let item = Item {
        name: Some(name),
        change: Some(change),
        errors: Vec::new(),
    };
    Event::Item {
        item,
        resource_version,
    }
}

/// The name of an object, if it has one.
fn object_name(kind: Kind, name: Option<String>, namespace: Option<String>) -> Option<ObjectName> {
    let name = name.filter(|name| !name.is_empty())?;
    let namespace = namespace.filter(|namespace| !namespace.is_empty());
    let namespace = namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    Some(match kind {
        Kind::Node => ObjectName::new("", name),
        _ => ObjectName::new(namespace, name),
    })
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    resource_version: Option<String>,
    annotations: Option<Value>,
}

fn metadata(text: &RawValue) -> Result<Metadata, Unreadable> {
    #[derive(Deserialize)]
    struct Object {
        #[serde(default, deserialize_with = "object_or_default")]
        metadata: Metadata,
    }

    let object: Object = serde_json::from_str(text.get()).map_err(unreadable)?;
    Ok(object.metadata)
}
