// SPDX-License-Identifier: GPL-2.0

//! Tests of a vhost-net driver that run in a VM. See the program, `main.rs`.

#![forbid(unsafe_code)]

pub mod arrays;
pub mod clients;
pub mod counters;
pub mod dice;
pub mod dirty_log;
pub mod disturbed;
pub mod fairness;
pub mod faults;
pub mod found;
pub mod hostile;
pub mod inject;
pub mod iotlb;
pub mod parameters;
pub mod patience;
pub mod poison;
pub mod polling;
pub mod published;
pub mod pump;
pub mod races;
pub mod raw_ring;
pub mod report;
pub mod rig;
pub mod script;
pub mod soak;
pub mod stop;
pub mod stuck;
pub mod toggles;
pub mod windows;
pub mod workers;
pub mod zerocopy;
