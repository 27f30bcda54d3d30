// SPDX-License-Identifier: GPL-2.0

//! Threads that work in the owner's memory, of either kind that C has.
//!
//! C headers: [`include/linux/sched/vhost_task.h`](srctree/include/linux/sched/vhost_task.h),
//! [`include/linux/kthread.h`](srctree/include/linux/kthread.h)

use super::atomic;
use super::module::ModuleRef;
use super::owner::OwnerMemory;
use super::owner::OwnerMm;
use crate::bindings;
use core::cell::UnsafeCell;
use core::ptr;
use core::ptr::NonNull;
use kernel::current;
use kernel::error::from_err_ptr;
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Full;
use kernel::sync::Arc;
use kernel::sync::Completion;
use kernel::task;

/// What a thread does.
pub(crate) trait Runner: Send + Sync + 'static {
    /// What the thread has to itself.
    type Room: Send;

    /// Where the thread is put, before its first pass.
    fn thread(&self) -> &TaskSlot;

    /// Looks for work once and does it; `false` if there is none.
    ///
    /// Called again and again, with the task's state already
    /// `TASK_INTERRUPTIBLE`: a wake-up that comes after the look is not lost.
    /// If there is work, [`set_running`] comes first. After `false` the thread
    /// sleeps until it is woken.
    fn pass(&self, memory: OwnerMemory, room: &mut Self::Room) -> bool;

    /// The owner was killed: the thread ends when this returns. It may not wait
    /// for the owner, of which no signal frees it any more.
    ///
    /// Not called if the thread is being stopped, nor of a kernel thread, which
    /// goes on.
    fn killed(&self);
}

/// Sets the current task's state to `TASK_RUNNING`. C:
/// `__set_current_state()`.
#[inline]
pub(crate) fn set_running() {
    // SAFETY: The helper takes nothing, and a task may always run.
    unsafe { bindings::vnr_set_running() }
}

/// What a thread belongs to. C: `enum` of `VHOST_FORK_OWNER_TASK` and others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The owner's process: its limits, its cgroups, its end.
    Owner,
    /// The kernel; it is in the cgroups that the owner was in.
    Kernel,
}

/// A thread that works in the owner's memory. C: `struct vhost_worker_ops`.
///
/// Dropping it stops the thread and sleeps until it has ended; its own thread
/// would wait for ever.
///
/// # Invariants
///
/// `handle` is live and ours to stop. Until it has ended, its thread uses
/// `data`, and the code, which `_module` keeps.
pub(crate) struct Task<R: Runner> {
    handle: Handle,
    _data: Pin<KBox<Data<R>>>,
    _module: ModuleRef,
}

/// What C knows a thread by.
#[derive(Clone, Copy)]
enum Handle {
    Owner(NonNull<bindings::vhost_task>),
    Kernel(NonNull<bindings::task_struct>),
}

/// What a thread has.
#[pin_data]
struct Data<R: Runner> {
    runner: Arc<R>,
    mm: OwnerMm,
    /// Used by the thread, in a pass.
    room: UnsafeCell<R::Room>,
    /// The thread runs in `mm`.
    #[pin]
    ready: Completion,
}

// SAFETY: Any thread may stop the task; what it owns can be sent.
unsafe impl<R: Runner> Send for Task<R> {}
// SAFETY: There is no shared use.
unsafe impl<R: Runner> Sync for Task<R> {}

impl<R: Runner> Task<R> {
    /// Starts a thread in `mm`, in which the current task must run, to which
    /// `room` belongs. `name` is cut after 15 bytes.
    ///
    /// A kernel thread is in the current task's cgroups when this returns.
    ///
    /// # Errors
    ///
    /// `EPERM` if the current task runs elsewhere, `ENOMEM`, `EAGAIN` at a
    /// limit, `EINTR` if it is killed, and what the cgroups answer.
    pub(crate) fn start(
        runner: Arc<R>,
        room: R::Room,
        kind: Kind,
        mm: &OwnerMm,
        name: &CStr,
    ) -> Result<Self> {
        if mm.memory().is_none() {
            return Err(EPERM);
        }

        let module = ModuleRef::get()?;
        let (mm, room) = (mm.clone(), UnsafeCell::new(room));
        let init = pin_init!(Data { runner, mm, room, ready <- Completion::new() });
        let data = KBox::pin_init(init, GFP_KERNEL)?;
        let raw = ptr::from_ref(&*data).cast_mut().cast();
        let handle = match kind {
            Kind::Owner => Handle::Owner(create_task::<R>(raw, name)?),
            Kind::Kernel => Handle::Kernel(create_kthread::<R>(raw, name)?),
        };
        // INVARIANT: The thread is new, and has the fields beside it. It does
        // not run yet; but whether or not it ever did, it can be stopped.
        let this = Self {
            handle,
            _data: data,
            _module: module,
        };
        this.run()?;
        Ok(this)
    }

    /// Lets the new thread run.
    fn run(&self) -> Result {
        match self.handle {
            Handle::Owner(task) => {
                // SAFETY: The task is live and was not started before.
                unsafe { bindings::vhost_task_start(task.as_ptr()) };
                Ok(())
            }
            Handle::Kernel(task) => {
                // SAFETY: The task is live: it does not end before it is told.
                unsafe { bindings::wake_up_process(task.as_ptr()) };
                // Before that the kernel moves it to no cgroup.
                self._data.ready.wait_for_completion();
                // SAFETY: As above.
                to_result(unsafe { bindings::vnr_kthread_join_cgroups(task.as_ptr()) })
            }
        }
    }

    /// Stops the thread and sleeps until it has ended.
    pub(crate) fn stop(self) {}
}

impl<R: Runner> Drop for Task<R> {
    fn drop(&mut self) {
        match self.handle {
            // SAFETY: By the invariant the task is ours to stop; it was
            // started, as `start()` does nothing that fails before.
            Handle::Owner(task) => unsafe { bindings::vhost_task_stop(task.as_ptr()) },
            Handle::Kernel(task) => {
                // What it answers tells whether the thread ever ran.
                // SAFETY: By the invariant the task is live and ours to stop.
                unsafe { bindings::kthread_stop(task.as_ptr()) };
            }
        }
    }
}

/// Makes a thread of the current process that waits to be started.
fn create_task<R: Runner>(data: *mut c_void, name: &CStr) -> Result<NonNull<bindings::vhost_task>> {
    let name = name.as_char_ptr();
    // SAFETY: The callbacks have the types that are asked for, and the name is
    // copied. What must hold when they are called is the invariant of `Task`.
    let task =
        unsafe { bindings::vhost_task_create(Some(pass::<R>), Some(killed::<R>), data, name) };
    let task = from_err_ptr(task)?;
    NonNull::new(task).ok_or(ENOMEM)
}

/// Makes a kernel thread that waits to be started.
fn create_kthread<R: Runner>(
    data: *mut c_void,
    name: &CStr,
) -> Result<NonNull<bindings::task_struct>> {
    let name = name.as_char_ptr();
    // SAFETY: As in `create_task()`.
    let task = unsafe { bindings::vnr_kthread_create(Some(kthread_main::<R>), data, name) };
    let task = from_err_ptr(task)?;
    NonNull::new(task).ok_or(ENOMEM)
}

/// Called by the thread for each pass.
///
/// # Safety
///
/// `data` must point at a live [`Data`], the current task be its thread, and run
/// in its `mm` as long as it does not return from here.
unsafe extern "C" fn pass<R: Runner>(data: *mut c_void) -> bool {
    // SAFETY: By the contract; `Data` is shared.
    let this = unsafe { &*data.cast::<Data<R>>() };
    this.runner.thread().set_current();
    // SAFETY: Only this function uses the room, only one thread calls it, and
    // it does not call itself: what `Runner::pass()` gets it cannot keep.
    let room = unsafe { &mut *this.room.get() };
    // SAFETY: By the contract: a value cannot leave the thread, nor be used
    // when `pass()` has returned and it ends.
    let memory = unsafe { OwnerMemory::assume() };
    this.runner.pass(memory, room)
}

/// Called by the thread when its process was killed.
///
/// # Safety
///
/// `data` must point at a live [`Data`].
unsafe extern "C" fn killed<R: Runner>(data: *mut c_void) {
    // SAFETY: By the contract; `Data` is shared.
    unsafe { &*data.cast::<Data<R>>() }.runner.killed();
}

/// What a kernel thread does until it is told to end.
///
/// # Safety
///
/// `data` must point at a live [`Data`], and the current task be a kernel
/// thread that runs in no address space.
unsafe extern "C" fn kthread_main<R: Runner>(data: *mut c_void) -> c_int {
    // SAFETY: By the contract; `Data` is shared.
    let this = unsafe { &*data.cast::<Data<R>>() };
    let mm = this.mm.as_raw();
    this.runner.thread().set_current();

    // SAFETY: By the contract; and `this.mm` keeps it in use.
    unsafe { bindings::kthread_use_mm(mm) };
    this.ready.complete_all();
    // SAFETY: The current task is a kernel thread. The callback's contract
    // holds: it is the thread of `data` and runs in `mm`, and no safe code runs
    // when that ends.
    unsafe { bindings::vnr_kthread_loop(Some(pass::<R>), data) };
    // SAFETY: It was used above.
    unsafe { bindings::kthread_unuse_mm(mm) };
    0
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
    #[inline]
    pub(crate) fn set_current(&self) {
        if atomic::load(&self.0).is_null() {
            self.fill();
        }
    }

    #[cold]
    fn fill(&self) {
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
        unsafe { atomic::load_acquire(&self.0).as_ref() }
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
