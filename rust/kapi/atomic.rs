// SPDX-License-Identifier: GPL-2.0

//! A word of bits, which the kernel crate's atomics cannot set one by one.
//!
//! C header: [`include/linux/atomic.h`](srctree/include/linux/atomic.h)

use crate::bindings;
use kernel::types::Opaque;

/// A word of bits that any thread may set and take.
#[repr(transparent)]
pub(crate) struct Bits(Opaque<bindings::atomic_t>);

// SAFETY: The word is only reached by atomic operations.
unsafe impl Send for Bits {}
// SAFETY: As above.
unsafe impl Sync for Bits {}

impl Bits {
    /// Makes a word without any bit set.
    pub(crate) const fn new() -> Self {
        Self(Opaque::new(bindings::atomic_t { counter: 0 }))
    }

    /// The word, for C.
    #[inline]
    pub(super) fn as_raw(&self) -> *const bindings::atomic_t {
        self.0.get()
    }

    /// Sets `bits` and returns the word as it was before. Fully ordered. Any
    /// context.
    #[inline]
    pub(super) fn fetch_or(&self, bits: u32) -> u32 {
        // SAFETY: The word is valid, and only used as an atomic.
        unsafe { bindings::vnr_fetch_or(self.0.get(), bits) }
    }

    /// Clears the word and returns what it was. Fully ordered. Any context.
    #[inline]
    pub(super) fn take(&self) -> u32 {
        // SAFETY: As in `fetch_or`.
        unsafe { bindings::vnr_take_bits(self.0.get()) }
    }
}
