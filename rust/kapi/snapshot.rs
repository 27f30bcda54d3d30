// SPDX-License-Identifier: GPL-2.0

//! Numbers that one thread publishes and any thread reads, without a lock.

use crate::bindings;
use core::cell::UnsafeCell;

/// `N` numbers. Each is read whole; the set is not of one moment.
pub(crate) struct Snapshot<const N: usize>(UnsafeCell<[u64; N]>);

// SAFETY: The numbers are only accessed by the helpers, which use single loads
// and stores (`READ_ONCE()`, `WRITE_ONCE()`): racing is part of the contract.
unsafe impl<const N: usize> Sync for Snapshot<N> {}

impl<const N: usize> Snapshot<N> {
    /// All zero.
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new([0; N]))
    }

    /// Replaces the numbers. Any context.
    #[inline]
    pub(crate) fn publish(&self, values: &[u64; N]) {
        // SAFETY: Both point at `N` numbers; the target is written as said at
        // the `Sync` implementation.
        unsafe { bindings::vnr_snapshot_write(self.0.get().cast(), values.as_ptr(), N) };
    }

    /// Reads the numbers. Any context.
    pub(crate) fn read(&self) -> [u64; N] {
        let mut values = [0; N];
        // SAFETY: As in `publish`, the other way round.
        unsafe { bindings::vnr_snapshot_read(values.as_mut_ptr(), self.0.get().cast(), N) };
        values
    }
}
