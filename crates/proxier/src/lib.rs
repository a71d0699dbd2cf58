#![doc = include_str!("../README.md")]

pub mod apply;
pub mod backends;
pub mod config;
pub mod desired;
mod duration;
pub mod error;
pub mod event;
pub mod family;
#[cfg(any(feature = "manifest", feature = "kube-proxy-config"))]
#[cfg_attr(
    not(all(feature = "manifest", feature = "kube-proxy-config")),
    allow(dead_code, reason = "each of the two features uses a part of it")
)]
mod field;
#[cfg(feature = "kube-proxy-config")]
pub mod kube_proxy_config;
pub mod model;
mod name_map;
pub mod observe;
pub mod observed;
mod one_line;
pub mod plan;
pub mod proxier;
pub mod source;
#[cfg(any(feature = "manifest", feature = "kube-proxy-config"))]
mod yaml;
