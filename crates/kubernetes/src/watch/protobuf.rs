//! The same answers as protobuf, which is shorter than JSON and cheaper to read.
//!
//! An answer, and the object of an event, is an envelope: the bytes `k8s\0`, then a message `Unknown` with the kind and the bytes of the object.
//! A watch consists of frames: a length of 4 bytes, and a message `WatchEvent`. The formats are those of the package
//! [`protobuf`](https://github.com/kubernetes/apimachinery/blob/v0.36.3/pkg/runtime/serializer/protobuf/protobuf.go); the numbers of the
//! fields are those of [`runtime`](https://github.com/kubernetes/apimachinery/blob/v0.36.3/pkg/runtime/generated.proto) and
//! [`meta/v1`](https://github.com/kubernetes/apimachinery/blob/v0.36.3/pkg/apis/meta/v1/generated.proto).
//!
//! Of each object only the fields that a service proxy uses are decoded. Equal objects are equal changes in both encodings.

use bytes::{Buf, Bytes, BytesMut};
use kernlink_services::Kind;
use prost::{DecodeError, Message};

use super::object::ApiObject;
use super::{
    Event, INITIAL_EVENTS_END, Item, Page, Status, Unreadable, deleted, invalid, object_name, seconds, valid,
};
use crate::objects::Converter;
use crate::objects::partial::{self, Label, Metadata};

/// The first bytes of an envelope.
const MAGIC: [u8; 4] = *b"k8s\0";

#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
    #[prost(string, tag = "3")]
    content_encoding: String,
    #[prost(string, tag = "4")]
    content_type: String,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
struct WatchEvent {
    #[prost(string, tag = "1")]
    event: String,
    #[prost(message, optional, tag = "2")]
    object: Option<RawExtension>,
}

#[derive(Clone, PartialEq, Message)]
struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

/// A list of any kind. The objects are decoded one by one, so that one that is invalid does not affect the others.
#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    items: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct ListMeta {
    #[prost(string, tag = "2")]
    resource_version: String,
    #[prost(string, tag = "3")]
    continue_token: String,
}

/// The name and the version of an object of any kind.
#[derive(Clone, PartialEq, Message)]
struct AnyObject {
    #[prost(message, optional, tag = "1")]
    metadata: Option<AnyMetadata>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyMetadata {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "3")]
    namespace: Option<String>,
    #[prost(string, optional, tag = "6")]
    resource_version: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Bookmark {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
}

#[derive(Clone, PartialEq, Message)]
struct StatusMessage {
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(message, optional, tag = "5")]
    details: Option<StatusDetails>,
    #[prost(int32, tag = "6")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct StatusDetails {
    #[prost(message, repeated, tag = "4")]
    causes: Vec<StatusCause>,
    #[prost(int32, tag = "5")]
    retry_after_seconds: i32,
}

#[derive(Clone, PartialEq, Message)]
struct StatusCause {
    #[prost(string, tag = "1")]
    reason: String,
}

fn undecodable(error: DecodeError) -> Unreadable {
    Unreadable {
        reason: error.to_string(),
    }
}

/// Decodes an envelope. Returns the kind, and the object.
fn open(mut bytes: Bytes) -> Result<(String, Bytes), Unreadable> {
    if !bytes.starts_with(&MAGIC) {
        let reason = "it does not begin with the bytes of an object in protobuf, `k8s\\0`".to_owned();
        return Err(Unreadable { reason });
    }
    bytes.advance(MAGIC.len());
    let unknown = Unknown::decode(bytes).map_err(undecodable)?;
    for (name, value) in [
        ("contentEncoding", &unknown.content_encoding),
        ("contentType", &unknown.content_type),
    ] {
        if !value.is_empty() {
            let reason = format!("{name} {value:?} of an object in protobuf; expected none");
            return Err(Unreadable { reason });
        }
    }
    let kind = unknown.type_meta.unwrap_or_default().kind;
    Ok((kind, unknown.raw))
}

/// Reads the body of a list.
///
/// # Errors
/// If it is not a list of this kind with a version. An invalid object in it is not an error.
pub fn read_page(kind: Kind, body: Bytes, converter: &mut Converter) -> Result<Page, Unreadable> {
    let (found, raw) = open(body)?;
    // Another answer must not be used as an empty list, which removes all objects.
    if found != format!("{kind}List") {
        let reason = format!("kind {found:?}; expected \"{kind}List\"");
        return Err(Unreadable { reason });
    }
    let list = List::decode(raw).map_err(undecodable)?;
    let metadata = list.metadata.unwrap_or_default();
    if metadata.resource_version.is_empty() {
        return Err(Unreadable {
            reason: "metadata.resourceVersion is missing in a list".to_owned(),
        });
    }
    let items = list.items.into_iter().map(|raw| item(kind, raw, converter).0);
    Ok(Page {
        items: items.collect(),
        resource_version: metadata.resource_version,
        continue_token: metadata.continue_token,
    })
}

/// Reads a frame of a watch, without its length.
///
/// # Errors
/// If it is not an event. An invalid object in it is not an error.
pub fn read_event(kind: Kind, frame: Bytes, converter: &mut Converter) -> Result<Event, Unreadable> {
    let event = WatchEvent::decode(frame).map_err(undecodable)?;
    let object = event.object.unwrap_or_default().raw;
    let is_known = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"].contains(&&*event.event);
    if !is_known {
        return Ok(Event::Unknown(event.event));
    }
    let (found, raw) = open(object)?;
    if event.event == "ERROR" {
        return Ok(Event::Error(status(0, raw).map_err(undecodable)?));
    }
    if found != kind.to_string() {
        let reason = format!("an event has an object of the kind {found:?}; expected \"{kind}\"");
        return Err(Unreadable { reason });
    }
    match &*event.event {
        "DELETED" => {
            let metadata = AnyObject::decode(raw).map_err(undecodable)?.metadata;
            let AnyMetadata {
                name,
                namespace,
                resource_version,
            } = metadata.unwrap_or_default();
            Ok(deleted(kind, name, namespace, resource_version))
        }
        "BOOKMARK" => {
            let metadata = Bookmark::decode(raw).map_err(undecodable)?.metadata;
            let metadata = metadata.unwrap_or_default();
            let mark = Label::find(&metadata.annotations, INITIAL_EVENTS_END);
            Ok(Event::Bookmark {
                ends_initial_list: mark.is_some_and(|value| value == "true"),
                resource_version: metadata.resource_version.unwrap_or_default(),
            })
        }
        _ => {
            let (item, resource_version) = item(kind, raw, converter);
            Ok(Event::Item {
                item,
                resource_version,
            })
        }
    }
}

/// Reads the body of an answer with an error status. `code` is used if the body has none. A body of another form is read as
/// [`read_status`](super::read_status) does.
#[must_use]
pub fn read_status(code: u16, body: Bytes) -> Status {
    let object = open(body.clone()).ok().filter(|(kind, _)| kind == "Status");
    let found = object.and_then(|(_, raw)| status(code, raw).ok());
    found.unwrap_or_else(|| super::read_status(code, &body))
}

fn status(code: u16, raw: Bytes) -> Result<Status, DecodeError> {
    let status = StatusMessage::decode(raw)?;
    let details = status.details.unwrap_or_default();
    let found = u16::try_from(status.code).ok().filter(|code| *code != 0);
    Ok(Status {
        code: found.unwrap_or(code),
        reason: status.reason,
        message: status.message,
        causes: details.causes.into_iter().map(|cause| cause.reason).collect(),
        retry_after: u32::try_from(details.retry_after_seconds).ok().and_then(seconds),
    })
}

/// An object that exists, and its version.
fn item(kind: Kind, raw: Bytes, converter: &mut Converter) -> (Item, String) {
    match kind {
        Kind::Service => read::<partial::Service>(kind, raw, converter),
        Kind::EndpointSlice => read::<partial::EndpointSlice>(kind, raw, converter),
        Kind::Node => read::<partial::Node>(kind, raw, converter),
    }
}

fn read<T: ApiObject>(kind: Kind, raw: Bytes, converter: &mut Converter) -> (Item, String) {
    match T::decode(raw.clone()) {
        Ok(object) => {
            let converted = object.convert(converter);
            let item = match converted.object {
                Some(target) => valid::<T>(target, converted.errors),
                None => {
                    let metadata = object.metadata();
                    let name = metadata.and_then(|metadata| {
                        object_name(kind, metadata.name.clone(), metadata.namespace.clone())
                    });
                    Item {
                        name,
                        change: None,
                        errors: converted.errors,
                    }
                }
            };
            (item, object.version())
        }
        Err(error) => {
            // Its name may be valid: then the object stays as it was.
            let metadata = AnyObject::decode(raw).ok().and_then(|object| object.metadata);
            let AnyMetadata {
                name,
                namespace,
                resource_version,
            } = metadata.unwrap_or_default();
            let item = Item {
                name: object_name(kind, name, namespace),
                ..invalid(error.to_string())
            };
            (item, resource_version.unwrap_or_default())
        }
    }
}

/// The longest frame, in bytes: 64 MiB. An object has at most a few.
const MAX_FRAME: usize = 64 << 20;

/// Splits a watch that is received in parts into frames. An incomplete last frame is never returned.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: BytesMut,
}

impl Frames {
    /// Nothing was received.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds what was received.
    pub fn push(&mut self, part: &[u8]) {
        self.buffer.extend_from_slice(part);
    }

    /// The next complete frame, without its length. `None` until more was received.
    ///
    /// # Errors
    /// If the frame has more than 64 MiB.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, Unreadable> {
        let Some(length) = self.buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_FRAME {
            let reason = format!("a frame of {length} bytes; the longest has {MAX_FRAME}");
            return Err(Unreadable { reason });
        }
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        self.buffer.advance(4);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}
