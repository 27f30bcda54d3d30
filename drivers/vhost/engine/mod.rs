// SPDX-License-Identifier: GPL-2.0

//! The data path of vhost-net: everything that is virtio, nothing that is kernel.
//!
//! Core-only Rust without `unsafe`, allocation, locks or logging. It runs in
//! the module and, unchanged, under host tests. What it needs from outside
//! comes through four traits: [`memory::GuestMemory`], [`host::Host`],
//! [`net::backend::TxBackend`] and [`net::backend::RxBackend`].
//!
//! Guest and owner are hostile. Every field is read once into a copy, the copy
//! is checked, the copy is used. Ring indices wrap, sizes are checked, slices
//! are asked with `get()`: no input makes this code panic, loop without end, or
//! touch memory that the address map does not name.
//!
//! A file imports only from lower floors:
//!
//! | floor | files |
//! | --- | --- |
//! | 8 | `net/tx`, `net/rx` |
//! | 7 | `net/run` |
//! | 6 | `net/mod`, `net/header`, `net/backend` |
//! | 5 | `chain`, `busy_poll`, `dirty_log`, `ring_map` |
//! | 4 | `batch`, `translate`, `host` |
//! | 3 | `split`, `desc`, `scratch`, `miss` |
//! | 2 | `memory`, `iotlb` |
//! | 1 | `error`, `policy` |
//! | 0 | `adaptive`, `addr`, `layout`, `features`, `budget`, `continuous`, `counters`, `notify` |

#![forbid(unsafe_code)]

pub mod adaptive;
pub mod addr;
pub mod batch;
pub mod budget;
pub mod busy_poll;
pub mod chain;
pub mod continuous;
pub mod counters;
pub mod desc;
pub mod dirty_log;
pub mod error;
pub mod features;
pub mod host;
pub mod iotlb;
pub mod layout;
pub mod memory;
pub mod miss;
pub mod net;
pub mod notify;
pub mod policy;
pub mod ring_map;
pub mod scratch;
pub mod split;
pub mod translate;
