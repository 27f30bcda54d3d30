// SPDX-License-Identifier: GPL-2.0

//! What `scripts/bench` counted, as tables.

#![forbid(unsafe_code)]

pub mod counts;
pub mod histogram;
pub mod limit;
pub mod results;
pub mod symbols;
pub mod table;
