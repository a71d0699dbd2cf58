#![cfg_attr(feature = "manifest", doc = include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "manifest"),
    doc = "Kubernetes API objects, manifests and `KubeProxyConfiguration` as plain types. See the README for the features."
)]

#[cfg(any(feature = "manifest", feature = "watch", feature = "kube-proxy-config"))]
mod deserialize;
mod error;
#[cfg(feature = "kube-proxy-config")]
pub mod kube_proxy_config;
#[cfg(feature = "manifest")]
pub mod manifest;
#[cfg(feature = "objects")]
pub mod objects;
#[cfg(any(feature = "manifest", feature = "watch", feature = "kube-proxy-config"))]
mod type_error;
#[cfg(feature = "watch")]
pub mod watch;
#[cfg(any(feature = "manifest", feature = "kube-proxy-config"))]
mod yaml;

#[cfg(feature = "objects")]
pub use k8s_openapi;
pub use kernlink_services;

pub use self::error::FieldError;
#[cfg(feature = "kube-proxy-config")]
pub use self::kube_proxy_config::KubeProxyConfiguration;
#[cfg(feature = "manifest")]
pub use self::manifest::Objects;
#[cfg(feature = "objects")]
pub use self::objects::{Converted, Converter};
