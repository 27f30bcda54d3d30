// SPDX-License-Identifier: GPL-2.0

//! Eventfds: those we signal, and those we wait for.
//!
//! C header: [`include/linux/eventfd.h`](srctree/include/linux/eventfd.h)

use super::file::FileRef;
use crate::bindings;
use core::ptr::NonNull;
use kernel::error::from_err_ptr;
use kernel::prelude::*;

/// An eventfd that we signal: call and err.
///
/// # Invariants
///
/// `ctx` points at a live `struct eventfd_ctx`, and this value owns one
/// reference to it.
pub(crate) struct EventFd {
    ctx: NonNull<bindings::eventfd_ctx>,
}

// SAFETY: The reference may be given up on any thread.
unsafe impl Send for EventFd {}
// SAFETY: Signalling takes the eventfd's own lock.
unsafe impl Sync for EventFd {}

impl EventFd {
    /// Takes a reference to the eventfd behind `fd` of the current task.
    ///
    /// # Errors
    ///
    /// `EBADF` if `fd` is not open, `EINVAL` if it is not an eventfd.
    pub(crate) fn from_fd(fd: i32) -> Result<Self> {
        Self::from_file(&FileRef::from_fd(fd)?)
    }

    /// Takes a reference to the eventfd that `file` is.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not an eventfd.
    fn from_file(file: &FileRef) -> Result<Self> {
        // SAFETY: The file is live.
        let ctx = from_err_ptr(unsafe { bindings::eventfd_ctx_fileget(file.as_ptr()) })?;
        // INVARIANT: The call succeeded, so it gave us a reference to `ctx`.
        Ok(Self {
            ctx: NonNull::new(ctx).ok_or(EINVAL)?,
        })
    }

    /// Adds 1 to the eventfd's counter and wakes who waits for it. Any context
    /// but that of such a wake-up, where the kernel warns and does not signal.
    #[inline]
    pub(crate) fn signal(&self) {
        // SAFETY: By the invariant `ctx` is live.
        unsafe { bindings::eventfd_signal_mask(self.ctx.as_ptr(), 0) };
    }
}

impl Drop for EventFd {
    fn drop(&mut self) {
        // SAFETY: By the invariant the reference is ours to give up.
        unsafe { bindings::eventfd_ctx_put(self.ctx.as_ptr()) };
    }
}

/// An eventfd that we wait for: kick.
pub(crate) struct KickFile(FileRef);

impl KickFile {
    /// Takes a reference to the eventfd behind `fd` of the current task.
    ///
    /// # Errors
    ///
    /// `EBADF` if `fd` is not open, `EINVAL` if it is not an eventfd.
    pub(crate) fn from_fd(fd: i32) -> Result<Self> {
        let file = FileRef::from_fd(fd)?;
        EventFd::from_file(&file)?;
        Ok(Self(file))
    }

    /// Whether both are one open file.
    pub(crate) fn same_file(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// The file itself.
    pub(super) fn file(&self) -> &FileRef {
        &self.0
    }
}
