// SPDX-License-Identifier: GPL-2.0

//! Time and scheduling.
//!
//! C headers: [`include/linux/sched/clock.h`](srctree/include/linux/sched/clock.h),
//! [`include/linux/preempt.h`](srctree/include/linux/preempt.h)

use crate::bindings;

/// The CPU's clock in nanoseconds. C: `local_clock()`.
///
/// Monotonic on one CPU; differs between CPUs, see [`on_this_cpu`].
#[inline]
pub(crate) fn local_clock() -> u64 {
    // SAFETY: The helper takes nothing and works in any context.
    unsafe { bindings::vnr_local_clock() }
}

/// Whether another task wants this CPU or a signal is pending for this one.
#[inline]
pub(crate) fn must_yield() -> bool {
    // SAFETY: The helper takes nothing and only reads the current task's flags.
    unsafe { bindings::vnr_must_yield() }
}

/// Whether a signal is pending for the current task.
#[inline]
pub(crate) fn signal_pending() -> bool {
    // SAFETY: The helper takes nothing and only reads the current task's flags.
    unsafe { bindings::vnr_signal_pending() }
}

/// Whether no other task wants this CPU.
#[inline]
pub(crate) fn single_task_running() -> bool {
    // SAFETY: The helper takes nothing and works in any context.
    unsafe { bindings::vnr_single_task_running() }
}

/// Lets another task run if one wants this CPU. Sleeps.
#[inline]
pub(crate) fn cond_resched() {
    // SAFETY: The helper takes nothing; to sleep where that is wrong is a
    // report of the kernel's debugging, and no memory error.
    unsafe { bindings::vnr_cond_resched() }
}

/// Lets the other hyperthread run. C: `cpu_relax()`.
#[inline]
pub(crate) fn cpu_relax() {
    core::hint::spin_loop();
}

/// Does `work` with the current task kept on its CPU. It may sleep nevertheless.
///
/// A guard could be forgotten, and the task never leave its CPU again.
#[inline(always)]
pub(crate) fn on_this_cpu<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: The helper takes nothing, and the calls nest.
    unsafe { bindings::vnr_migrate_disable() };
    let result = work();
    // SAFETY: This undoes the call above, by the same task.
    unsafe { bindings::vnr_migrate_enable() };
    result
}
