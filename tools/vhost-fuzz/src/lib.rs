// SPDX-License-Identifier: GPL-2.0

//! Fuzz targets of the engine: hostile drivers and owners, made of bytes.
//!
//! A target takes bytes as what a driver or an owner does, does it, and panics
//! if something is not as it must be. The memory, sockets and rings around the
//! engine are those of its tests, and so are the models. Overflow checks and
//! debug assertions are on.

#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::single_range_in_vec_init,
    reason = "a target fails by panicking, and takes what it needs of the engine's tests"
)]

use arbitrary::{Arbitrary, Unstructured};

#[path = "../../vhost-engine/tests/engine/arena.rs"]
mod arena;
#[path = "../../vhost-engine/tests/engine/iotlb_model.rs"]
mod iotlb_model;
#[path = "../../vhost-engine/tests/engine/mocks.rs"]
mod mocks;
#[path = "../../vhost-engine/tests/engine/model.rs"]
mod model;
#[path = "../../vhost-engine/tests/engine/rig.rs"]
mod rig;
#[path = "../../vhost-engine/tests/engine/zerocopy_socket.rs"]
mod zerocopy_socket;

mod driver;
mod iotlb;
mod rings;
mod spy;
mod vring;

/// A way to run bytes.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// What the bytes mean, for people.
    pub show: fn(&[u8]) -> String,
}

pub const TARGETS: [Target; 3] = [
    Target {
        name: "rings",
        run: |bytes| read(bytes).map_or((), rings::run),
        show: |bytes| show::<rings::Case>(bytes),
    },
    Target {
        name: "vring",
        run: |bytes| read(bytes).map_or((), vring::run),
        show: |bytes| show::<vring::Case>(bytes),
    },
    Target {
        name: "iotlb",
        run: |bytes| read(bytes).map_or((), iotlb::run),
        show: |bytes| show::<iotlb::Case>(bytes),
    },
];

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

fn read<'a, T: Arbitrary<'a>>(bytes: &'a [u8]) -> Option<T> {
    T::arbitrary_take_rest(Unstructured::new(bytes)).ok()
}

fn show<'a, T: Arbitrary<'a> + std::fmt::Debug>(bytes: &'a [u8]) -> String {
    format!("{:#?}", read::<T>(bytes))
}
