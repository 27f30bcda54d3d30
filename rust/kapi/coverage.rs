// SPDX-License-Identifier: GPL-2.0

//! Coverage of code that runs for somebody else, as fuzzers need it.
//!
//! C header: [`include/linux/kcov.h`](srctree/include/linux/kcov.h)

use crate::bindings;

/// Who has the coverage of a thread's work. Nothing in a kernel without kcov.
pub(crate) struct Coverage {
    handle: u64,
}

impl Coverage {
    /// Whoever has the calling task's. C: `kcov_common_handle()`.
    pub(crate) fn of_caller() -> Self {
        // SAFETY: The helper takes nothing, and reads a field of the current
        // task that it alone changes.
        let handle = unsafe { bindings::vnr_kcov_common_handle() };
        Self { handle }
    }

    /// Does `work` for them. Sleeps; not to be nested, which kcov reports.
    ///
    /// A guard could be forgotten.
    #[inline(always)]
    pub(crate) fn collect<R>(&self, work: impl FnOnce() -> R) -> R {
        if cfg!(CONFIG_KCOV) {
            // SAFETY: Any number will do: kcov looks it up. The section ends
            // below, by the same task.
            unsafe { bindings::vnr_kcov_remote_start(self.handle) };
        }
        let result = work();
        if cfg!(CONFIG_KCOV) {
            // SAFETY: Ends the section that the current task began above, or
            // nothing, if there is none.
            unsafe { bindings::vnr_kcov_remote_stop() };
        }
        result
    }
}
