//! The names of the annotations of kernlink.

/// The prefix of all annotations of kernlink.
pub const ANNOTATION_PREFIX: &str = "kernlink.io/";

/// The annotations, without the prefix, that data paths interpret.
pub const DATA_PATH_ANNOTATIONS: &[&str] =
    &["forwarding-method", "one-packet", "scheduler", "scheduler-flags"];

/// The annotations, without the prefix, that are interpreted here.
pub(super) const ANNOTATIONS: [&str; 3] = ["affinity-mask", "drain-timeout", "weights"];

/// Whether there is an annotation with this name (without the prefix).
#[must_use]
pub fn is_known_annotation(name: &str) -> bool {
    ANNOTATIONS.contains(&name) || DATA_PATH_ANNOTATIONS.contains(&name)
}

/// All annotations without the prefix, sorted and separated by commas.
#[must_use]
pub fn known_annotations() -> String {
    let mut names = [&ANNOTATIONS[..], DATA_PATH_ANNOTATIONS].concat();
    names.sort_unstable();
    names.join(", ")
}

/// The path of an annotation in its Service, for events: `metadata.annotations[kernlink.io/weights]`.
#[must_use]
pub fn annotation_field(name: &str) -> String {
    format!("metadata.annotations[{ANNOTATION_PREFIX}{name}]")
}
