// SPDX-License-Identifier: GPL-2.0

//! Indices that user space chose.
//!
//! C header: [`include/linux/nospec.h`](srctree/include/linux/nospec.h)

use crate::bindings;

/// The index of a vring, below the number of vrings that it was made for.
///
/// Also speculation never sees it above that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VringIndex(u32);

impl VringIndex {
    /// Checks `index` against the number of vrings. `None` if it is too large.
    pub(crate) fn new(index: u32, nvqs: u32) -> Option<Self> {
        if index >= nvqs {
            return None;
        }

        // SAFETY: The helper only calculates.
        Some(Self(unsafe { bindings::vnr_index_nospec(index, nvqs) }))
    }

    /// The index, as user space has it.
    pub(crate) fn raw(self) -> u32 {
        self.0
    }

    /// The index, for a slice's `get()`.
    pub(crate) fn get(self) -> usize {
        // CAST: `usize` has 64 bits.
        self.0 as usize
    }
}
