// SPDX-License-Identifier: GPL-2.0

//! One descriptor, decoded from one copy (virtio 1.3, section 2.7.5).

use super::addr::Iova;
use super::error::Access;
use super::layout;
use super::memory::RawDesc;

/// A descriptor in host order. Nothing in it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Desc {
    /// Address of the buffer.
    pub addr: Iova,
    /// Length of the buffer, in bytes.
    pub len: u32,
    /// `VIRTQ_DESC_F_*`; unknown bits are ignored.
    pub flags: u16,
    /// See [`Desc::next`].
    next: u16,
}

impl Desc {
    /// Decodes a copy of a descriptor.
    #[inline]
    pub fn new(raw: RawDesc) -> Self {
        Self {
            addr: Iova(u64::from_le(raw.addr)),
            len: u32::from_le(raw.len),
            flags: u16::from_le(raw.flags),
            next: u16::from_le(raw.next),
        }
    }

    /// The next descriptor of the chain, if it goes on.
    #[inline]
    pub fn next(&self) -> Option<u16> {
        (self.flags & layout::DESC_F_NEXT != 0).then_some(self.next)
    }

    /// What the device may do with the buffer.
    #[inline]
    pub fn access(&self) -> Access {
        if self.flags & layout::DESC_F_WRITE != 0 {
            Access::Write
        } else {
            Access::Read
        }
    }

    /// Whether this is a buffer, no table, for `access`.
    #[inline]
    pub fn is_buffer(&self, access: Access) -> bool {
        self.flags & (layout::DESC_F_INDIRECT | layout::DESC_F_WRITE) == flag(access)
    }

    /// Whether this is a whole chain in itself, for `access`.
    #[inline]
    pub fn is_alone_for(&self, access: Access) -> bool {
        const KIND: u16 = layout::DESC_F_NEXT | layout::DESC_F_INDIRECT | layout::DESC_F_WRITE;

        self.flags & KIND == flag(access)
    }

    /// Whether the buffer is a table of descriptors.
    #[inline]
    pub fn is_indirect(&self) -> bool {
        self.flags & layout::DESC_F_INDIRECT != 0
    }

    /// Whether this is a whole chain in itself.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.flags & (layout::DESC_F_NEXT | layout::DESC_F_INDIRECT) == 0
    }
}

/// The flag of buffers for `access`.
#[inline]
fn flag(access: Access) -> u16 {
    match access {
        Access::Read => 0,
        Access::Write => layout::DESC_F_WRITE,
    }
}
