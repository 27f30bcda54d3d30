// SPDX-License-Identifier: GPL-2.0

//! Tests of the engine: one file for each of its files, the spec's "MUST"s for
//! a device in `spec.rs`, and hostile guests in `hostile.rs`.
//!
//! `arena.rs`, `model.rs`, `in_order_model.rs`, `iotlb_model.rs` and `mocks.rs`
//! are the world around it. The drivers of the models are written from virtio 1.3 and take
//! nothing from the engine.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::single_range_in_vec_init,
    clippy::unwrap_used,
    reason = "a test fails by panicking, and nobody calls it"
)]

mod arena;
mod in_order_model;
mod iotlb_model;
mod mocks;
mod model;
mod rig;
mod zerocopy_socket;

mod adaptive;
mod batch;
mod block;
mod budget;
mod busy_poll;
mod chain;
mod continuous;
mod counters;
mod desc;
mod dirty_log;
mod features;
mod header;
mod hostile;
mod in_order;
mod in_order_random;
mod iotlb;
mod iotlb_runs;
mod layout;
mod miss;
mod notify;
mod policy;
mod ring_map;
mod rx;
mod rx_drops;
mod scratch;
mod spec;
mod split;
mod translate;
mod tunnel;
mod tx;
mod tx_drops;
mod tx_zerocopy;
mod tx_zerocopy_random;
