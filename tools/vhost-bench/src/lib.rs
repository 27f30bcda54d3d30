// SPDX-License-Identifier: GPL-2.0

//! What `scripts/bench` measures in its machines, and the tables of it.

#![forbid(unsafe_code)]

pub mod counts;
pub mod devices;
pub mod figure;
pub mod growth;
pub mod histogram;
pub mod limit;
pub mod memory;
pub mod plot;
pub mod results;
pub mod sections;
pub mod symbols;
pub mod table;
pub mod targets;
