// SPDX-License-Identifier: GPL-2.0

//! Threads of the owner's process, and what a device must know of its owner.
//!
//! C header: [`include/linux/sched/vhost_task.h`](srctree/include/linux/sched/vhost_task.h)

use super::module::ModuleRef;
use crate::bindings;
use core::ptr;
use core::ptr::NonNull;
use kernel::current;
use kernel::error::from_err_ptr;
use kernel::mm::MmWithUser;
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::sync::atomic::Acquire;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;
use kernel::task;

/// What a thread does.
pub(crate) trait Runner: Send + Sync + 'static {
    /// Looks for work once and does it; `false` if there is none.
    ///
    /// Called again and again, with the task's state already
    /// `TASK_INTERRUPTIBLE`: a wake-up that comes after the look is not lost.
    /// If there is work, [`set_running`] comes first. After `false` the thread
    /// sleeps until it is woken.
    fn pass(&self) -> bool;

    /// The owner was killed: the thread ends when this returns.
    ///
    /// Not called if the thread is being stopped.
    fn killed(&self);
}

/// Sets the current task's state to `TASK_RUNNING`. C:
/// `__set_current_state()`.
#[inline]
pub(crate) fn set_running() {
    // SAFETY: The helper takes nothing, and a task may always run.
    unsafe { bindings::vnr_set_running() }
}

/// A thread of the process that started it, with its memory. C:
/// `struct vhost_task`.
///
/// Dropping it stops the thread and sleeps until it has ended; its own thread
/// would wait for ever.
///
/// # Invariants
///
/// `task` is live and ours to stop. Its thread calls [`run`] and [`killed`]
/// with `runner`, which is alive until the thread has ended, as is the code, by
/// `_module`.
pub(crate) struct Task<R: Runner> {
    task: NonNull<bindings::vhost_task>,
    _runner: Arc<R>,
    _module: ModuleRef,
}

// SAFETY: Any thread may stop the task; what it owns can be sent.
unsafe impl<R: Runner> Send for Task<R> {}
// SAFETY: There is no shared use.
unsafe impl<R: Runner> Sync for Task<R> {}

impl<R: Runner> Task<R> {
    /// Starts a thread of the current process. `name` is cut after 15 bytes.
    ///
    /// # Errors
    ///
    /// As `vhost_task_create()` has them: `ENOMEM`, `EAGAIN` at a limit.
    /// `EINVAL` in a kernel thread.
    pub(crate) fn start(runner: Arc<R>, name: &CStr) -> Result<Self> {
        if current!().mm().is_none() {
            return Err(EINVAL);
        }

        let module = ModuleRef::get()?;
        let data = Arc::as_ptr(&runner).cast_mut().cast();
        // SAFETY: The callbacks have the types that are asked for, and the name
        // is copied. What must hold when they are called is the type's
        // invariant.
        let task = from_err_ptr(unsafe {
            bindings::vhost_task_create(Some(run::<R>), Some(killed::<R>), data, name.as_char_ptr())
        })?;
        // INVARIANT: The task is new, and made of the fields beside it.
        let this = Self {
            task: NonNull::new(task).ok_or(ENOMEM)?,
            _runner: runner,
            _module: module,
        };
        // SAFETY: The task is live and was not started before.
        unsafe { bindings::vhost_task_start(task) };
        Ok(this)
    }

    /// Stops the thread and sleeps until it has ended.
    pub(crate) fn stop(self) {}
}

impl<R: Runner> Drop for Task<R> {
    fn drop(&mut self) {
        // SAFETY: By the invariant the task is ours to stop, and it was
        // started: `start` does both or neither. The runner is dropped later.
        unsafe { bindings::vhost_task_stop(self.task.as_ptr()) };
    }
}

/// Called by the thread for each pass.
///
/// # Safety
///
/// `data` must point at a live `R`.
unsafe extern "C" fn run<R: Runner>(data: *mut c_void) -> bool {
    // SAFETY: By the contract; `R` is `Sync`.
    unsafe { &*data.cast::<R>() }.pass()
}

/// Called by the thread when its process was killed.
///
/// # Safety
///
/// `data` must point at a live `R`.
unsafe extern "C" fn killed<R: Runner>(data: *mut c_void) {
    // SAFETY: By the contract; `R` is `Sync`.
    unsafe { &*data.cast::<R>() }.killed()
}

/// A place for the task that others wake.
///
/// A worker puts itself there and then looks for work; who brings work looks
/// here afterwards. Both are fully ordered, so one of them sees the other.
///
/// # Invariants
///
/// NULL, or a task of which this owns a reference; it is set once.
pub(crate) struct TaskSlot(Atomic<*mut task::Task>);

impl TaskSlot {
    /// An empty place.
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(ptr::null_mut()))
    }

    /// Puts the current task there, if it is the first. Fully ordered then.
    pub(crate) fn set_current(&self) {
        if !self.0.load(Relaxed).is_null() {
            return;
        }

        let task = ARef::into_raw(ARef::<task::Task>::from(&**current!()));
        if self
            .0
            .cmpxchg(ptr::null_mut(), task.as_ptr(), Full)
            .is_err()
        {
            // SAFETY: The reference comes from `into_raw()` above, and nobody
            // else got it.
            drop(unsafe { ARef::from_raw(task) });
        }
    }

    /// The task, if there is one.
    fn get(&self) -> Option<&task::Task> {
        // SAFETY: By the invariant it is NULL or live as long as `self` is. The
        // load is ordered after the reference was taken.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    /// Wakes the task, if there is one. It may have ended. Any context.
    pub(crate) fn wake(&self) {
        if let Some(task) = self.get() {
            task.wake_up();
        }
    }

    /// The task's id in the initial pid namespace, 0 if there is none.
    pub(crate) fn pid(&self) -> i32 {
        self.get().map_or(0, task::Task::pid)
    }
}

impl Drop for TaskSlot {
    fn drop(&mut self) {
        if let Some(task) = NonNull::new(*self.0.get_mut()) {
            // SAFETY: By the invariant the reference is ours to give up.
            drop(unsafe { ARef::from_raw(task) });
        }
    }
}

/// The address space of a device's owner, kept alive.
///
/// Dropping it may free the address space. Sleeps.
pub(crate) struct OwnerMm(ARef<MmWithUser>);

impl OwnerMm {
    /// That of the current task. `None` for a kernel thread.
    pub(crate) fn current() -> Option<Self> {
        current!().mm().map(|mm| Self(ARef::from(mm)))
    }

    /// Whether the current task runs in it. C: `vhost_dev_check_owner()`.
    pub(crate) fn is_current(&self) -> bool {
        current!().mm().is_some_and(|mm| ptr::eq(mm, &*self.0))
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
