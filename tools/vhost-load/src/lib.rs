// SPDX-License-Identifier: GPL-2.0

//! A load generator that plays a guest's network driver against a vhost-net device, and checks every payload.
//!
//! Besides the program, this is a library for tests: [`session::Session`] is a device with owner, memory, rings and tap,
//! ready to be driven, and [`guest`] the driver's side of the two rings.

#![forbid(unsafe_code)]

pub mod args;
pub mod backend;
pub mod check;
pub mod failure;
pub mod frame;
pub mod gate;
pub mod guest;
pub mod inject;
pub mod iommu;
pub mod iotlb;
pub mod line;
pub mod pace;
pub mod plan;
pub mod report;
pub mod rr;
pub mod run;
pub mod rx;
pub mod session;
pub mod sums;
pub mod tx;
pub mod vring;
pub mod wire;
pub mod worker;
