// SPDX-License-Identifier: GPL-2.0

//! References to this module, for what calls into its code.
//!
//! C header: [`include/linux/module.h`](srctree/include/linux/module.h)

use crate::bindings;
use kernel::prelude::*;

/// Keeps this module loaded.
///
/// # Invariants
///
/// Owns one reference to the module.
pub(crate) struct ModuleRef(());

impl ModuleRef {
    /// Takes a reference. Any context.
    ///
    /// # Errors
    ///
    /// `ENODEV` while the module is being unloaded.
    pub(crate) fn get() -> Result<Self> {
        // SAFETY: The helper takes nothing.
        if unsafe { bindings::vnr_module_get() } {
            // INVARIANT: The helper took it.
            Ok(Self(()))
        } else {
            Err(ENODEV)
        }
    }
}

impl Drop for ModuleRef {
    fn drop(&mut self) {
        // SAFETY: By the invariant the reference is ours to give up. The code
        // that runs here returns to code of this module, whose own caller holds
        // another reference: the file operations', or the loader's.
        unsafe { bindings::vnr_module_put() };
    }
}

/// Waits, when it is dropped, until no code of this module runs that nothing
/// holds the module for: a packet's end may have given up the last reference
/// and not have returned yet.
///
/// Part of what the module drops when it goes: [`super::chrdev::Registration`].
pub(super) struct Barrier;

impl Drop for Barrier {
    fn drop(&mut self) {
        // SAFETY: The helper takes nothing.
        unsafe { bindings::vnr_zerocopy_barrier() };
    }
}
