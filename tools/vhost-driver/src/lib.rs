// SPDX-License-Identifier: GPL-2.0

//! The driver's half of a split virtqueue, written from the virtio 1.3 specification (section 2.7).
//!
//! It shares no code with the engine that it is used to test. [`GuestMemory`] is the memory that driver and device have in
//! common, [`Virtqueue`] makes chains available in it, decides on kicks, and takes back what the device has used. Nothing the
//! device writes is trusted: whatever the specification forbids it ends in an [`Error`] that says what was seen.

#![forbid(unsafe_code)]

mod error;
mod layout;
mod memory;
mod split;

pub use error::{Error, Result};
pub use layout::RingLayout;
pub use memory::{Gpa, GuestMemory, Region};
pub use split::{CallWhen, Indirect, RingFeatures, Segment, Used, Virtqueue};
