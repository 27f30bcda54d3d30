// SPDX-License-Identifier: GPL-2.0

//! What the module's polling policies cost, on arrivals of packets that are made up or recorded.
//!
//! The policies are those of the engine, the very files that the module is built from. [`waits`] is one queue that has its
//! worker's CPU to itself, where the cheapest that anybody could do is known; [`machine`] is many queues on few CPUs.

#![forbid(unsafe_code)]
#![allow(
    clippy::float_arithmetic,
    reason = "random times and ratios, in user space"
)]

pub mod args;
pub mod machine;
pub mod plot;
pub mod policy;
pub mod report;
pub mod trace;
pub mod waits;

/// Nanoseconds of a microsecond.
pub const US: u64 = 1_000;
