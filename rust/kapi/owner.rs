// SPDX-License-Identifier: GPL-2.0

//! Who owns a device: the process, its memory, its rights.
//!
//! C header: [`include/linux/sched/mm.h`](srctree/include/linux/sched/mm.h)

use crate::bindings;
use core::ptr;
use kernel::current;
use kernel::mm::MmWithUser;
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::types::NotThreadSafe;

/// The address space of a device's owner, kept alive.
///
/// Dropping it may free the address space. Sleeps.
#[derive(Clone)]
pub(crate) struct OwnerMm(ARef<MmWithUser>);

impl OwnerMm {
    /// That of the current task. `None` for a kernel thread.
    pub(crate) fn current() -> Option<Self> {
        current!().mm().map(|mm| Self(ARef::from(mm)))
    }

    /// The memory in it, if the current task runs in it. C:
    /// `vhost_dev_check_owner()`.
    pub(crate) fn memory(&self) -> Option<OwnerMemory> {
        // INVARIANT: Just looked.
        current!()
            .mm()
            .is_some_and(|mm| ptr::eq(mm, &*self.0))
            .then_some(OwnerMemory(NotThreadSafe))
    }

    /// The address space, for C.
    pub(super) fn as_raw(&self) -> *mut bindings::mm_struct {
        self.0.as_raw()
    }
}

/// Access to the owner's memory, which is that of the current task.
///
/// Who has none, as a process that is not the owner or a kernel thread that
/// runs in no address space, has no way to read or write through addresses that
/// the owner chose. The methods are those of the engine's `GuestMemory`.
///
/// # Invariants
///
/// As long as the value can be used, the current task runs in the address space
/// of an [`OwnerMm`].
///
/// A value cannot leave its thread. A user's thread keeps its address space
/// until it has left the system call, or the worker's function, that the value
/// was made in; a kernel thread leaves it when all that safe code does is over
/// (`kthread_main()` in `task.rs`).
#[derive(Clone, Copy)]
pub(crate) struct OwnerMemory(NotThreadSafe);

impl OwnerMemory {
    /// Access without a look at where the current task runs.
    ///
    /// # Safety
    ///
    /// The current task must run in the address space of an [`OwnerMm`], and
    /// stay there until no value made here can be used any more.
    #[inline]
    pub(super) unsafe fn assume() -> Self {
        // INVARIANT: By the contract.
        Self(NotThreadSafe)
    }
}

/// The current thread's id in the initial pid namespace.
pub(crate) fn current_tid() -> i32 {
    current!().pid()
}

/// The current process's id in the initial pid namespace.
pub(crate) fn current_tgid() -> i32 {
    current!().tgid()
}

/// Whether the current task has `CAP_NET_ADMIN` in the initial user namespace.
pub(crate) fn capable_net_admin() -> bool {
    // CAST: a constant that fits.
    // SAFETY: The function takes any capability that there is.
    unsafe { bindings::capable(bindings::CAP_NET_ADMIN as c_int) }
}
