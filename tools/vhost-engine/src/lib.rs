// SPDX-License-Identifier: GPL-2.0

//! The engine of `vhost_net_rs`, the very files that the module is built from,
//! mounted where `cargo test` can reach them.

#![no_std]

#[path = "../../../drivers/vhost/engine/mod.rs"]
pub mod engine;
