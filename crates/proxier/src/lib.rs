#![doc = include_str!("../README.md")]

pub mod config;
pub mod desired;
pub mod event;
pub mod family;
pub mod model;
pub mod source;
