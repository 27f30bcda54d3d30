// SPDX-License-Identifier: GPL-2.0

//! References to open files.
//!
//! C header: [`include/linux/file.h`](srctree/include/linux/file.h)

use crate::bindings;
use core::ptr::NonNull;
use kernel::prelude::*;

/// A reference to an open file.
///
/// # Invariants
///
/// Points at a live `struct file` and owns one reference to it.
pub(crate) struct FileRef(NonNull<bindings::file>);

// SAFETY: The reference may be given up on any thread.
unsafe impl Send for FileRef {}
// SAFETY: Shared use only compares and copies the pointer.
unsafe impl Sync for FileRef {}

impl FileRef {
    /// Takes a reference to the file behind `fd` of the current task.
    ///
    /// # Errors
    ///
    /// `EBADF` if `fd` is not open.
    pub(crate) fn from_fd(fd: i32) -> Result<Self> {
        // SAFETY: The helper accepts any integer and any task.
        let file = unsafe { bindings::vnr_fget(fd) };
        // INVARIANT: Not NULL, so the helper took a reference.
        NonNull::new(file).map(Self).ok_or(EBADF)
    }

    /// The file, valid as long as `self` lives.
    pub(crate) fn as_ptr(&self) -> *mut bindings::file {
        self.0.as_ptr()
    }
}

impl PartialEq for FileRef {
    /// Whether both are one open file.
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Drop for FileRef {
    fn drop(&mut self) {
        // SAFETY: By the invariant the reference is ours to give up.
        unsafe { bindings::fput(self.0.as_ptr()) };
    }
}
