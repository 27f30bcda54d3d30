// SPDX-License-Identifier: GPL-2.0

//! Room for what one run reads ahead and collects.

use super::addr::Segment;
use super::addr::Uva;
use super::error::Error;
use super::error::Result;
use super::memory::RawDesc;
use super::memory::UsedElem;

/// Heads that are read ahead, and chains after which a run publishes
/// (C: `VHOST_NET_BATCH`).
pub const BATCH: usize = 64;
/// Segments, descriptors or chains that one packet may take (C: `UIO_MAXIOV`).
pub const MAX_SEGMENTS: usize = 1024;
/// Entries of an indirect table that are read at once.
pub const TABLE_WINDOW: usize = 32;
/// Bytes of [`TABLE_WINDOW`].
pub const TABLE_BYTES: usize = TABLE_WINDOW * 16;

/// The room of one worker, about 27 KiB.
///
/// Only integers, and all of them zero is a valid value: the module takes it
/// from zeroed heap memory, and looks at the types of its fields. What is in it
/// means nothing between runs.
#[repr(C)]
pub struct Scratch {
    pub(crate) heads: [u16; BATCH],
    pub(crate) descs: [RawDesc; BATCH],
    pub(crate) segments: [Segment; MAX_SEGMENTS],
    pub(crate) table: [u8; TABLE_BYTES],
    /// A run publishes when it holds [`BATCH`] elements; the packet before that
    /// may add [`MAX_SEGMENTS`].
    pub(crate) used: [UsedElem; MAX_SEGMENTS + BATCH],
}

impl Scratch {
    /// Zeroed room, by value: for places that have a large stack.
    pub const fn new() -> Self {
        const SEGMENT: Segment = Segment {
            addr: Uva(0),
            len: 0,
        };
        const DESC: RawDesc = RawDesc {
            addr: 0,
            len: 0,
            flags: 0,
            next: 0,
        };

        Self {
            heads: [0; BATCH],
            descs: [DESC; BATCH],
            segments: [SEGMENT; MAX_SEGMENTS],
            table: [0; TABLE_BYTES],
            used: [UsedElem { id: 0, len: 0 }; MAX_SEGMENTS + BATCH],
        }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// What the packet in hand takes, of all its chains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Segments.
    pub segments: usize,
    /// Descriptors, those of empty buffers included. At most
    /// [`MAX_SEGMENTS`], so that chains of nothing do not hold the worker.
    pub descs: usize,
}

/// The segments of the packet in hand.
pub struct Segments<'a> {
    all: &'a mut [Segment; MAX_SEGMENTS],
    extent: Extent,
}

impl<'a> Segments<'a> {
    /// The packet that takes `extent` in the room `all`.
    #[inline]
    pub fn new(all: &'a mut [Segment; MAX_SEGMENTS], extent: Extent) -> Self {
        Self { all, extent }
    }

    /// What the packet takes.
    #[inline]
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Counts a descriptor.
    ///
    /// # Errors
    ///
    /// [`Error::TooManySegments`].
    #[inline]
    pub fn count_desc(&mut self) -> Result {
        if self.extent.descs >= MAX_SEGMENTS {
            return Err(Error::TooManySegments);
        }
        self.extent.descs = self.extent.descs.wrapping_add(1);
        Ok(())
    }

    /// Adds a segment.
    ///
    /// # Errors
    ///
    /// [`Error::TooManySegments`].
    #[inline]
    pub fn push(&mut self, segment: Segment) -> Result {
        let place = self
            .all
            .get_mut(self.extent.segments)
            .ok_or(Error::TooManySegments)?;
        *place = segment;
        self.extent.segments = self.extent.segments.wrapping_add(1);
        Ok(())
    }
}
