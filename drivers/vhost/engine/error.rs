// SPDX-License-Identifier: GPL-2.0

//! What can go wrong on a virtqueue. Errnos are made in the glue.

use super::addr::Iova;

/// What a descriptor or a mapping allows the device to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The device reads.
    Read,
    /// The device writes.
    Write,
}

/// Why a virtqueue cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Memory that a ring or a table lies in cannot be reached.
    Fault,
    /// The ring breaks the rules of virtio 1.3, section 2.7.
    BadRing,
    /// A chain or a packet needs more segments than the device takes.
    TooManySegments,
    /// The address map has no entry for `iova`.
    Unmapped {
        /// The first address without an entry.
        iova: Iova,
        /// What the device wanted to do there.
        access: Access,
    },
    /// The address map has an entry for the address, without the permission.
    Denied,
}

/// A result whose error is [`Error`].
pub type Result<T = ()> = core::result::Result<T, Error>;
