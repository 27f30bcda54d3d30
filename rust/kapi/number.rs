// SPDX-License-Identifier: GPL-2.0

//! Numbers that one thread at a time changes and any thread reads, without a
//! lock.

use core::cell::UnsafeCell;

/// Whether the driver counts. A module that does not is built to measure what
/// counting costs.
pub(crate) const COUNTS: bool = !cfg!(vnr_no_counters);

/// `N` numbers, on cache lines of their own. Each is read whole; the set is not
/// of one moment.
///
/// To change one costs what it costs with a plain integer. Whoever does must
/// keep others from doing it at the same time, or one of the changes is lost.
#[repr(C, align(64))]
pub(crate) struct Numbers<const N: usize>(UnsafeCell<[u64; N]>);

// SAFETY: The numbers are only reached by single volatile loads and stores of
// aligned words, which mean what `READ_ONCE()` and `WRITE_ONCE()` do: in the
// kernel's memory model, racing is part of the contract.
unsafe impl<const N: usize> Sync for Numbers<N> {}

impl<const N: usize> Numbers<N> {
    /// All zero.
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new([0; N]))
    }

    /// The number `index`, if there is one.
    #[inline(always)]
    fn at(&self, index: usize) -> Option<*mut u64> {
        (index < N).then(|| self.0.get().cast::<u64>().wrapping_add(index))
    }

    /// Reads a number; 0 if there is none of this index. Any context.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> u64 {
        self.at(index).map_or(0, |at| {
            // SAFETY: `at` points into the array; see the `Sync` implementation.
            unsafe { at.read_volatile() }
        })
    }

    /// Changes a number, if there is one of this index. Any context.
    #[inline(always)]
    pub(crate) fn set(&self, index: usize, value: u64) {
        if let Some(at) = self.at(index) {
            // SAFETY: As in `get`.
            unsafe { at.write_volatile(value) };
        }
    }

    /// Adds to a number, which wraps. Any context.
    #[inline(always)]
    pub(crate) fn add(&self, index: usize, n: u64) {
        self.set(index, self.get(index).wrapping_add(n));
    }
}
