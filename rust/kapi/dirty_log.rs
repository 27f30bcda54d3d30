// SPDX-License-Identifier: GPL-2.0

//! The owner's map of the guest's dirty pages.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h)

use super::eventfd::EventFd;
use super::owner::OwnerMemory;
use crate::bindings;
use crate::engine::dirty_log::Bitmap;
use crate::engine::error;
use crate::engine::error::Error::Fault;

/// Pages of a log have this size, whatever the machine's (C:
/// `VHOST_PAGE_SIZE`).
const PAGE_SHIFT: u32 = 12;

/// A map of dirty pages in the owner's memory, and the eventfd that tells of
/// news. Every method may sleep.
pub(crate) struct OwnerBitmap<'a> {
    base: u64,
    log_fd: Option<&'a EventFd>,
    _memory: OwnerMemory,
}

impl<'a> OwnerBitmap<'a> {
    /// The map at `base`: bit `gpa / 4096 % 8` of byte `gpa / 4096 / 8`.
    /// `log_fd` is signalled when something was logged.
    pub(crate) fn new(memory: OwnerMemory, base: u64, log_fd: Option<&'a EventFd>) -> Self {
        Self {
            base,
            log_fd,
            _memory: memory,
        }
    }
}

impl Bitmap for OwnerBitmap<'_> {
    /// Release: `smp_wmb()` in the helper, before the bits are set.
    fn mark(&self, gpa: u64, len: u64) -> error::Result {
        let Some(more) = len.checked_sub(1) else {
            return Ok(());
        };
        let first = gpa >> PAGE_SHIFT;
        let last = gpa.checked_add(more).ok_or(Fault)? >> PAGE_SHIFT;
        // The map must not wrap.
        self.base.checked_add(last >> 3).ok_or(Fault)?;

        let count = last.wrapping_sub(first).wrapping_add(1);
        // SAFETY: The helper checks every address of user space. By the
        // invariant of `_memory` the current task has an address space.
        let ret = unsafe { bindings::vnr_log_pages(self.base, first, count) };
        if ret < 0 {
            Err(Fault)
        } else {
            Ok(())
        }
    }

    fn signal(&self) {
        if let Some(log_fd) = self.log_fd {
            log_fd.signal();
        }
    }
}
