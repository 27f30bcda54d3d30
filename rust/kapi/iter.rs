// SPDX-License-Identifier: GPL-2.0

//! What `read(2)` and `write(2)` copy to and from.
//!
//! The kernel crate's types assert what they are made of, which is a panic in
//! the object.
//!
//! C header: [`include/linux/uio.h`](srctree/include/linux/uio.h)

use crate::bindings;

/// Where a `read(2)` goes.
///
/// # Invariants
///
/// The iterator is a destination, valid as long as `'a`.
pub(crate) struct Dest<'a>(&'a mut bindings::iov_iter);

impl<'a> Dest<'a> {
    /// # Safety
    ///
    /// `iter` must be the iterator of a read in progress, and nobody else's
    /// during `'a`.
    pub(super) unsafe fn new(iter: *mut bindings::iov_iter) -> Self {
        // INVARIANT: By the contract.
        // SAFETY: By the contract it is valid and ours.
        Self(unsafe { &mut *iter })
    }

    /// Bytes of room.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: The iterator is valid.
        unsafe { bindings::vnr_iter_len(self.0) }
    }

    /// Copies `from`; answers how many bytes went through. Sleeps.
    pub(crate) fn write(&mut self, from: &[u8]) -> usize {
        // SAFETY: `from` is valid for reading its length; by the invariant the
        // iterator takes bytes.
        unsafe { bindings::_copy_to_iter(from.as_ptr().cast(), from.len(), self.0) }
    }
}

/// Where a `write(2)` comes from.
///
/// # Invariants
///
/// The iterator is a source, valid as long as `'a`.
pub(crate) struct Source<'a>(&'a mut bindings::iov_iter);

impl<'a> Source<'a> {
    /// # Safety
    ///
    /// `iter` must be the iterator of a write in progress, and nobody else's
    /// during `'a`.
    pub(super) unsafe fn new(iter: *mut bindings::iov_iter) -> Self {
        // INVARIANT: By the contract.
        // SAFETY: By the contract it is valid and ours.
        Self(unsafe { &mut *iter })
    }

    /// Copies the next bytes to `to`; answers how many came. Sleeps.
    pub(crate) fn read(&mut self, to: &mut [u8]) -> usize {
        // SAFETY: `to` is valid for writing its length; by the invariant the
        // iterator gives bytes.
        unsafe { bindings::_copy_from_iter(to.as_mut_ptr().cast(), to.len(), self.0) }
    }
}
