//! The manifests in `dist/kubernetes`, with components.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A file or folder of `dist`.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist").join(name)
}

pub(crate) fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

/// A file of `dist`.
pub(crate) fn read(name: &str) -> Value {
    yaml(&fs::read_to_string(path(name)).unwrap())
}

pub(crate) fn array(value: &Value) -> Vec<Value> {
    value.as_array().unwrap().clone()
}

/// The names of the components.
pub(crate) fn components() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path("kubernetes/components"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The DaemonSet with these components, in order.
pub(crate) fn daemonset(components: &[&str]) -> Value {
    let mut manifest = read("kubernetes/daemonset.yaml");
    for component in components {
        let component = read(&format!("kubernetes/components/{component}/kustomization.yaml"));
        assert_eq!(component["kind"], "Component");
        for patch in array(&component["patches"]) {
            for field in ["kind", "name"] {
                let of_manifest = manifest.pointer(if field == "kind" {
                    "/kind"
                } else {
                    "/metadata/name"
                });
                assert_eq!(patch["target"].get(field), of_manifest);
            }
            for operation in array(&yaml(patch["patch"].as_str().unwrap())) {
                apply(&operation, &mut manifest);
            }
        }
    }
    manifest
}

/// An operation of a JSON patch. Panics if it does not fit.
fn apply(operation: &Value, manifest: &mut Value) {
    let (parent, name) = operation["path"].as_str().unwrap().rsplit_once('/').unwrap();
    let target = manifest.pointer_mut(parent).unwrap();
    match operation["op"].as_str().unwrap() {
        "add" if name == "-" => target.as_array_mut().unwrap().push(operation["value"].clone()),
        "add" => {
            let previous = target
                .as_object_mut()
                .unwrap()
                .insert(name.to_owned(), operation["value"].clone());
            assert!(previous.is_none(), "{operation}");
        }
        "remove" => {
            let removed = target.as_object_mut().unwrap().remove(name);
            assert!(removed.is_some(), "{operation}");
        }
        other => panic!("{other} is not used"),
    }
}

/// The arguments of a container, with the files of this folder.
pub(crate) fn arguments(manifest: &Value, pointer: &str, files: &Path) -> Vec<String> {
    let arguments = array(manifest.pointer(pointer).unwrap());
    let arguments = arguments.iter().map(|argument| argument.as_str().unwrap());
    arguments
        .map(|argument| {
            let argument = argument.replace("/etc/kube-proxy", &files.display().to_string());
            argument.replace("$(NODE_NAME)", "node-a")
        })
        .collect()
}
