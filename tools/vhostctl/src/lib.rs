// SPDX-License-Identifier: GPL-2.0

//! Lists, watches and tunes the live vhost-net devices of a host.
//!
//! [`device::snapshot`] looks at the host: `scan` finds the descriptors, [`fdinfo`] sorts what the driver says. The commands
//! print it ([`list`], [`stat`]), or what changed between two ([`rates`], [`top`]).

#![forbid(unsafe_code)]

pub mod app;
pub mod args;
pub mod control;
pub mod device;
pub mod export;
pub mod failure;
pub mod fdinfo;
pub mod governor;
pub mod host;
pub mod list;
mod process;
pub mod rates;
pub mod rights;
mod scan;
pub mod signals;
pub mod stat;
pub mod table;
pub mod target;
pub mod top;
pub mod trace;
pub mod tune;
