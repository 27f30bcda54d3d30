// SPDX-License-Identifier: GPL-2.0

//! Whether the threads of a process run.
//!
//! C header: [`include/linux/pid.h`](srctree/include/linux/pid.h)

use crate::bindings;
use core::ptr::NonNull;
use kernel::prelude::*;

/// A process, which may have ended.
///
/// # Invariants
///
/// Owns one reference to the `struct pid` of a process.
pub(crate) struct Process(NonNull<bindings::pid>);

// SAFETY: A `struct pid` may be used and released on any thread.
unsafe impl Send for Process {}
// SAFETY: As above; what it leads to is read under RCU.
unsafe impl Sync for Process {}

impl Process {
    /// That of the current task.
    ///
    /// # Errors
    ///
    /// `ESRCH` for a task that has none, which cannot be seen.
    pub(crate) fn current() -> Result<Self> {
        // SAFETY: The helper takes nothing.
        let process = unsafe { bindings::vnr_current_process() };
        // INVARIANT: The helper took the reference.
        NonNull::new(process).map(Self).ok_or(ESRCH)
    }

    /// Whether any of its threads, but for the kernel's, is on a CPU now. `true`
    /// also if it has too many to look at all. Any context.
    pub(crate) fn runs(&self) -> bool {
        // SAFETY: By the invariant the pointer is valid.
        unsafe { bindings::vnr_process_runs(self.0.as_ptr()) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SAFETY: By the invariant the reference is ours to give up.
        unsafe { bindings::vnr_put_process(self.0.as_ptr()) };
    }
}
