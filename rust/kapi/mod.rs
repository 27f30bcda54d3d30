// SPDX-License-Identifier: GPL-2.0

//! Safe wrappers of what the driver needs of the kernel; one C concept a file.
//!
//! The only Rust with `unsafe`, beside the bindings. A safe function here is
//! sound for all arguments that safe code can pass, in any order and on any
//! thread, and when a value is forgotten instead of dropped: what C holds on to
//! is on the heap and keeps a reference to this module. There is one exception,
//! which the kernel crate's registrations share: a [`chrdev::Registration`] must
//! not be forgotten, and could not be unloaded if it kept such a reference.
//! Deadlock and leaks are not excluded; the functions that can bring them say
//! so.

pub(crate) mod atomic;
pub(crate) mod chrdev;
pub(crate) mod clock;
pub(crate) mod coverage;
pub(crate) mod dirty_log;
pub(crate) mod eventfd;
pub(crate) mod file;
pub(crate) mod index;
pub(crate) mod iter;
pub(crate) mod module;
pub(crate) mod number;
pub(crate) mod owner;
pub(crate) mod param;
pub(crate) mod process;
pub(crate) mod socket;
pub(crate) mod tap;
pub(crate) mod task;
pub(crate) mod trace;
pub(crate) mod user_memory;
pub(crate) mod wait;
pub(crate) mod work;
pub(crate) mod zerocopy;
