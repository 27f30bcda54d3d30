// SPDX-License-Identifier: GPL-2.0

//! The kernel interfaces that the tools stand on, as safe Rust.
//!
//! [`VhostNet`] is an open `/dev/vhost-net`, one method an ioctl. [`EventFd`] carries kicks and calls, [`Tap`] is the
//! backend, [`PacketSocket`] the host's end of the wire, [`netdev`] what sysfs knows of an interface.
//!
//! All `unsafe` of the tools stands in `sys.rs`, `arena.rs`, `kcov.rs`, `mark.rs` and `top.rs` of this crate, and in `vhost-count`, which QEMU loads.
//!
//! # What the types cannot promise
//!
//! A vhost device reads and writes the memory that its memory table and ring addresses name. As with `/proc/self/mem`, the type
//! system has no word for that: who calls [`VhostNet::set_mem_table`] and [`VhostNet::set_vring_addr`] names only memory
//! that is shared with the device and that no Rust reference points at.

mod arena;
mod bridge;
mod device;
mod error;
mod eventfd;
pub mod features;
pub mod iotlb;
mod kcov;
mod mark;
pub mod netdev;
pub mod numbers;
mod packet;
mod pass;
mod poll;
mod raw;
mod same;
mod stuck;
mod sys;
mod tap;
mod top;
mod xdp;

pub use arena::{try_map, Address, Arena, Gate, Place};
pub use bridge::Bridge;
pub use device::{MemoryRegion, VhostNet, VringAddr};
pub use error::{Error, Result};
pub use eventfd::{wait_readable, EventFd};
pub use kcov::Kcov;
pub use mark::{mark, Mark};
pub use packet::{PacketOptions, PacketSocket, PacketStats};
pub use pass::{fetch_file, receive_file, send_file};
pub use poll::{Policy, PollFlags, VringPoll};
pub use same::compare_files;
pub use stuck::StuckPage;
pub use tap::{Offload, Tap, TapOptions, TunFlags};
pub use top::TopMapping;
pub use xdp::{XdpAction, XdpLink};
