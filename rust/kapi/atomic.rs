// SPDX-License-Identifier: GPL-2.0

//! What the kernel crate's atomics lack: a word of bits, and loads and stores that
//! are not calls.
//!
//! C header: [`include/linux/atomic.h`](srctree/include/linux/atomic.h)

use crate::bindings;
use core::sync::atomic::compiler_fence;
use core::sync::atomic::Ordering;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::AtomicType;
use kernel::types::Opaque;

/// `READ_ONCE()`: what `load(Relaxed)` is, which is a call into the kernel.
#[inline(always)]
pub(crate) fn load<T: AtomicType>(atomic: &Atomic<T>) -> T {
    // SAFETY: The pointer is valid and aligned. A volatile load of a word is
    // one load, which may race with others' atomic operations: in the kernel's
    // memory model that is what `READ_ONCE()` is for.
    unsafe { atomic.as_ptr().read_volatile() }
}

/// `WRITE_ONCE()`: what `store(Relaxed)` is, which is a call into the kernel.
#[inline(always)]
pub(crate) fn store<T: AtomicType>(atomic: &Atomic<T>, value: T) {
    // SAFETY: As in `load`, of one store.
    unsafe { atomic.as_ptr().write_volatile(value) }
}

/// `smp_load_acquire()`, as `load(Acquire)`: on x86-64 the processor keeps the
/// order, and the compiler is told to.
#[inline(always)]
pub(crate) fn load_acquire<T: AtomicType>(atomic: &Atomic<T>) -> T {
    let value = load(atomic);
    compiler_fence(Ordering::Acquire);
    value
}

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
