//! Parsing of manifests.

use k8s_openapi::Resource;
use k8s_openapi::api::{core::v1, discovery};
use kernlink_services::Kind;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{Error, Objects};
use crate::error::FieldError;
use crate::objects::{Converted, Converter, value};
use crate::{deserialize, yaml};

/// The largest size of a text, in bytes: 512 MiB. A list of 50 000 Services with ten endpoints each is about 150 MiB of YAML.
pub const MAX_TEXT: usize = 512 << 20;

/// The largest depth of lists in lists. Kubernetes does not use them, but concatenated output may contain them.
const MAX_LISTS: usize = 5;

/// Parses a text. `file` is used in errors only.
///
/// A text of more than [`MAX_TEXT`] bytes is an error, and so is a document with more than 64 levels or with aliases that expand to more
/// than 100 000 nodes.
#[must_use]
pub fn read(file: &str, text: &str) -> Objects {
    let mut reader = Reader {
        file,
        document: 1,
        line: 1,
        objects: Objects {
            is_read: true,
            ..Objects::default()
        },
        converter: Converter::new(),
    };
    if text.len() > MAX_TEXT {
        let reason = format!("text of {} bytes; at most {MAX_TEXT} are supported", text.len());
        reader.reject_text("", error("", reason));
        return reader.objects;
    }
    reader.document = 0;
    for (line, document) in documents(text) {
        for (offset, parsed) in yaml::parse_all(document) {
            reader.document += 1;
            reader.line = line + offset;
            match parsed {
                Ok(value) => reader.object(value, &Head::default(), 0),
                Err(reason) => reader.reject_text("", error("", reason)),
            }
        }
    }
    reader.objects.remove_found_from_missing();
    reader.objects
}

/// Splits a stream at its document markers. Returns each document with the line at which it begins. Three dashes or dots at the beginning
/// of a line are a marker in any context, even inside a block scalar (YAML 1.2, 9.1.2). So an invalid document does not affect the
/// others.
fn documents(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = Some((1, text));
    std::iter::from_fn(move || {
        let (start_line, text) = rest.take()?;
        let mut at = 0;
        for (line, piece) in (start_line..).zip(text.split_inclusive('\n')) {
            let content = piece.trim_end();
            let is_marker = content == "---"
                || content == "..."
                || content.starts_with("--- ")
                || content.starts_with("---\t");
            if is_marker {
                // The rest of the line after the dashes belongs to the next document.
                let (document, next) = text.split_at(at);
                rest = Some((line, next.get(3..).unwrap_or_default()));
                return Some((start_line, document));
            }
            at += piece.len();
        }
        Some((start_line, text))
    })
}

/// The kind and API version of an object.
#[derive(Default)]
struct Head {
    kind: String,
    api_version: String,
}

impl<'de> Deserialize<'de> for Head {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct Fields {
            kind: Option<String>,
            api_version: Option<String>,
        }

        let fields: Fields = deserialize::object_or_default(deserializer)?;
        Ok(Self {
            kind: fields.kind.unwrap_or_default(),
            api_version: fields.api_version.unwrap_or_default(),
        })
    }
}

/// Collects the objects and errors of a text.
struct Reader<'a> {
    file: &'a str,
    document: usize,
    line: usize,
    objects: Objects,
    converter: Converter,
}

impl Reader<'_> {
    /// Reads an object or a list. An item of a list that has no kind or API version has that of the list.
    fn object(&mut self, mut value: Value, of_list: &Head, depth: usize) {
        let (head, errors) = deserialize::from_value::<Head>(&mut value);
        let mut head = head.unwrap_or_default();
        if !errors.is_empty() {
            errors.into_iter().for_each(|error| self.reject_text("", error));
            return;
        }
        if head.kind.is_empty() {
            head.kind.clone_from(&of_list.kind);
        }
        if head.api_version.is_empty() {
            head.api_version.clone_from(&of_list.api_version);
        }
        if head.kind.is_empty() {
            return self.reject_text("", error("kind", "is missing"));
        }
        if let Some(kind) = head.kind.strip_suffix("List") {
            let api_version = if kind.is_empty() {
                String::new()
            } else {
                head.api_version
            };
            let of_list = Head {
                kind: kind.to_owned(),
                api_version,
            };
            return self.list(value, &of_list, depth);
        }
        match head.kind.as_str() {
            v1::Service::KIND => {
                if let Some(value) = self.of_version::<v1::Service>(Kind::Service, &head, value) {
                    self.service(value);
                }
            }
            discovery::v1::EndpointSlice::KIND => {
                let kind = Kind::EndpointSlice;
                if let Some(value) = self.of_version::<discovery::v1::EndpointSlice>(kind, &head, value) {
                    self.endpoint_slice(value);
                }
            }
            v1::Node::KIND => {
                if let Some(value) = self.of_version::<v1::Node>(Kind::Node, &head, value) {
                    self.node(value);
                }
            }
            kind if is_truncated(kind, &head.api_version) => {
                let reason =
                    format!("{kind:?} is not a kind, but the beginning of one; the text may be truncated");
                self.reject_text("", error("kind", reason));
            }
            _ => self.other(&head, &value),
        }
    }

    /// Counts an object of another kind. It is an error if there is no such kind: of the API groups of the kinds that are read, all kinds are
    /// known. An object of such a name may be the one that was meant.
    fn other(&mut self, head: &Head, value: &Value) {
        let Head { kind, api_version } = head;
        let is_kind = match group(api_version) {
            "" if api_version.is_empty() && KUSTOMIZE_KINDS.contains(&kind.as_str()) => true,
            "" => CORE_KINDS.contains(&kind.as_str()),
            group => group != discovery::v1::EndpointSlice::GROUP,
        };
        if is_kind {
            return self.count_other(kind.clone());
        }
        let version = if api_version.is_empty() {
            "v1, and apiVersion is missing"
        } else {
            api_version
        };
        let kinds = KINDS.map(|kind| kind.to_string()).join(", ");
        let reason = format!("{kind:?} is not a kind of {version}; kinds that are read: {kinds}");
        self.report("", error("kind", reason));
        KINDS.iter().for_each(|kind| self.add_missing(*kind, value, true));
    }

    fn list(&mut self, mut value: Value, of_list: &Head, depth: usize) {
        let name = format!("{}List", of_list.kind);
        if depth >= MAX_LISTS {
            return self.reject_text("", error("", format!("more than {MAX_LISTS} nested lists")));
        }
        let items = match value.get_mut("items").map(Value::take) {
            None | Some(Value::Null) => return,
            Some(Value::Array(items)) => items,
            Some(_) => return self.reject_text(&name, error("items", "expected a list")),
        };
        for (position, item) in items.into_iter().enumerate() {
            let known = self.objects.errors.len();
            self.object(item, of_list, depth + 1);
            // The field of an object without a name includes its position in the list.
            for error in self.objects.errors.iter_mut().skip(known) {
                if !error.object.contains(' ') {
                    let field = FieldError {
                        field: std::mem::take(&mut error.field),
                        reason: String::new(),
                    };
                    error.field = field.inside(format_args!("items[{position}]")).field;
                }
            }
        }
    }

    /// The value, if it has the API version of `T`. An object of another API group is counted as another kind; another version of this
    /// group is an error.
    fn of_version<T: Resource>(&mut self, kind: Kind, head: &Head, value: Value) -> Option<Value> {
        if head.api_version == T::API_VERSION {
            return Some(value);
        }
        let group = group(&head.api_version);
        // The groups of Kubernetes that have no such kind; a group of another API has a dot.
        let is_mistaken = !group.contains('.') || group == discovery::v1::EndpointSlice::GROUP;
        if !is_mistaken && group != T::GROUP {
            self.count_other(format!("{}.{group}", T::KIND));
            return None;
        }
        let reason = if head.api_version.is_empty() {
            "is missing".to_owned()
        } else {
            format!(
                "{:?} is not supported; expected {:?}",
                head.api_version,
                T::API_VERSION
            )
        };
        self.reject(kind, &value, vec![error("apiVersion", reason)]);
        self.add_missing(kind, &value, true);
        None
    }

    fn service(&mut self, mut value: Value) {
        let converted = value::service(&mut self.converter, &mut value);
        if let Some(service) = self.accept(Kind::Service, &value, converted) {
            self.objects.services.push(service);
        }
    }

    fn endpoint_slice(&mut self, mut value: Value) {
        let converted = value::endpoint_slice(&mut self.converter, &mut value);
        if let Some(slice) = self.accept(Kind::EndpointSlice, &value, converted) {
            self.objects.endpoint_slices.push(slice);
        }
    }

    fn node(&mut self, mut value: Value) {
        let converted = value::node(&mut self.converter, &mut value);
        if let Some(node) = self.accept(Kind::Node, &value, converted) {
            self.objects.nodes.push(node);
        }
    }

    /// Returns the object, if it is valid, and reports the errors.
    fn accept<T>(&mut self, kind: Kind, value: &Value, converted: Converted<T>) -> Option<T> {
        if converted.object.is_none() {
            self.add_missing(kind, value, value::has_valid_name(&converted.errors));
        }
        if !converted.errors.is_empty() {
            self.reject(kind, value, converted.errors);
        }
        converted.object
    }

    fn add_missing(&mut self, kind: Kind, value: &Value, is_named: bool) {
        match value::name(kind, value).filter(|_| is_named) {
            Some(name) => _ = self.objects.missing.named.insert((kind, name)),
            None => self.objects.missing.unnamed = true,
        }
    }

    fn reject(&mut self, kind: Kind, value: &Value, errors: Vec<FieldError>) {
        let object = describe(kind, value);
        for error in errors {
            self.report(&object, error);
        }
    }

    /// Reports a part of the text that may contain any object.
    fn reject_text(&mut self, object: &str, error: FieldError) {
        self.objects.missing.unnamed = true;
        self.report(object, error);
    }

    fn report(&mut self, object: &str, error: FieldError) {
        self.objects.errors.push(Error {
            file: self.file.to_owned(),
            document: self.document,
            line: self.line,
            object: object.to_owned(),
            field: error.field,
            reason: error.reason,
        });
    }

    fn count_other(&mut self, kind: String) {
        *self.objects.other.entry(kind).or_default() += 1;
    }
}

/// The kinds that are read.
const KINDS: [Kind; 3] = [Kind::Service, Kind::EndpointSlice, Kind::Node];

/// The kinds of kustomize, whose files need no `apiVersion`.
const KUSTOMIZE_KINDS: [&str; 2] = ["Component", "Kustomization"];

/// The other kinds of the API version `v1`, and the kubeconfig file.
const CORE_KINDS: [&str; 16] = [
    "Binding",
    "ComponentStatus",
    "Config",
    "ConfigMap",
    "Endpoints",
    "Event",
    "LimitRange",
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodTemplate",
    "ReplicationController",
    "ResourceQuota",
    "Secret",
    "ServiceAccount",
];

/// The group of an API version; that of `v1` is empty.
fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Whether a kind is the beginning of a supported one. `kubectl` prints the kind of a list after its items, and that of an EndpointSlice
/// after its endpoints, so the text may be truncated there.
fn is_truncated(kind: &str, api_version: &str) -> bool {
    let known = [
        ("", "List"),
        (v1::Service::API_VERSION, "ServiceList"),
        (discovery::v1::EndpointSlice::API_VERSION, "EndpointSliceList"),
        (v1::Node::API_VERSION, "NodeList"),
    ];
    known.iter().any(|(version, list)| {
        let is_version = api_version.is_empty() || api_version == "v1" || api_version == *version;
        is_version && list.starts_with(kind)
    })
}

fn error(field: &str, reason: impl Into<String>) -> FieldError {
    FieldError {
        field: field.to_owned(),
        reason: reason.into(),
    }
}

/// The kind and, as far as they are known, namespace and name as written.
fn describe(kind: Kind, value: &Value) -> String {
    let text = |path| value.pointer(path).and_then(Value::as_str).unwrap_or_default();
    match (text("/metadata/namespace"), text("/metadata/name")) {
        (_, "") => kind.to_string(),
        ("", name) => format!("{kind} {name}"),
        (namespace, name) => format!("{kind} {namespace}/{name}"),
    }
}
