#![doc = include_str!("../README.md")]

mod error;
#[cfg(feature = "kube-proxy-config")]
pub mod kube_proxy_config;
#[cfg(any(feature = "manifest", feature = "kube-proxy-config"))]
mod typed;
#[cfg(any(feature = "manifest", feature = "kube-proxy-config"))]
mod yaml;

pub use error::FieldError;
