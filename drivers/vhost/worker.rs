// SPDX-License-Identifier: GPL-2.0

//! A thread that does the pending work of devices.
//!
//! What a device may ask for is a bit in one word of its own: per vring a kick
//! and a socket event. The worker holds a list of the devices whose word is not
//! empty. In one pass it takes the whole list, takes each word, and runs each
//! bit once; bits that are set meanwhile belong to the next pass, so that no
//! vring starves another.
//!
//! A flush is a ticket. The worker notes which tickets were drawn *before* it
//! takes the list, so that whatever was queued before a ticket was drawn has
//! run when the ticket is served. A ticket that is not served is work by
//! itself: it needs no bit, which a pass that does not serve it could take.

use crate::{
    engine::scratch::Scratch,
    kapi::{
        atomic, clock,
        coverage::Coverage,
        owner::{self, OwnerMemory, OwnerMm},
        process::Process,
        task::{self, Kind, Runner, Task, TaskSlot},
        user_memory,
        work::{WorkItem, WorkList},
    },
    wakeup::Stopwatch,
};
use kernel::{
    new_condvar, new_mutex,
    prelude::*,
    str::CString,
    sync::{
        atomic::{Atomic, Full, Release},
        Arc, ArcBorrow, CondVar, Mutex,
    },
};

/// A device, as its worker sees it.
pub(crate) trait Work: Send + Sync + Sized + 'static {
    /// Does what one bit asks for. Sleeps.
    fn run(
        item: ArcBorrow<'_, WorkItem<Self>>,
        worker: &Worker<Self>,
        bit: u32,
        memory: OwnerMemory,
        scratch: &mut Scratch,
    );

    /// A kick came that asks for `bit`. Any context.
    fn kicked(&self, bit: u32);
}

/// The thread takes work.
const RUNNING: u32 = 0;
/// The thread was told to end: it takes no new work, but does what it has.
const ENDING: u32 = 1;
/// No work will be done any more.
const ENDED: u32 = 2;

/// A worker, shared by its thread, its devices and those who wake it.
#[pin_data]
pub(crate) struct Worker<W: Work> {
    list: WorkList<W>,
    thread: TaskSlot,
    state: Atomic<u32>,
    pub(crate) stopwatch: Stopwatch,
    /// The process that the devices serve.
    owner: Process,
    /// Of the creator of the worker.
    coverage: Coverage,
    /// The thread found nothing to do, and nothing has run since.
    slept: Atomic<u32>,
    /// Flush tickets drawn.
    drawn: Atomic<u64>,
    /// Flush tickets served. Written under `flush_lock`.
    served: Atomic<u64>,
    #[pin]
    flush_lock: Mutex<()>,
    #[pin]
    flushed: CondVar,
}

impl<W: Work> Worker<W> {
    /// Creates a worker. [`Worker::start`] gives it a thread.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let owner = Process::current()?;

        Arc::pin_init(
            pin_init!(Self {
                list: WorkList::new(),
                thread: TaskSlot::new(),
                state: Atomic::new(RUNNING),
                stopwatch: Stopwatch::new(),
                owner,
                coverage: Coverage::of_caller(),
                slept: Atomic::new(0),
                drawn: Atomic::new(0),
                served: Atomic::new(0),
                flush_lock <- new_mutex!((), "Worker::flush_lock"),
                flushed <- new_condvar!("Worker::flushed"),
            }),
            GFP_KERNEL,
        )
    }

    /// Starts the thread, to work in `mm`, the calling process's.
    ///
    /// Its name is `vhost-` and the id of the calling thread, as management
    /// tools expect (C: `vhost_worker_create()`).
    ///
    /// # Errors
    ///
    /// `ENOMEM` for whatever reason there is no thread, as in C.
    pub(crate) fn start(self: &Arc<Self>, kind: Kind, mm: &OwnerMm) -> Result<Task<Self>> {
        let name = CString::try_from_fmt(fmt!("vhost-{}", owner::current_tid()))?;
        let scratch = user_memory::new_scratch()?;
        Task::start(self.clone(), scratch, kind, mm, &name).map_err(|_| ENOMEM)
    }

    /// Ends the thread. Sleeps until it is gone; work that is left is dropped.
    pub(crate) fn stop(&self, task: Task<Self>) {
        self.state.store(ENDING, Release);
        task.stop();
        self.end();
    }

    /// Thread id of the worker in the initial pid namespace; 0 before it ran.
    pub(crate) fn tid(&self) -> i32 {
        self.thread.pid()
    }

    /// Asks for the work of `bits`. Any context.
    ///
    /// Answers `false` if the worker takes no more (C: `vhost_vq_work_queue()`).
    pub(crate) fn queue(&self, item: ArcBorrow<'_, WorkItem<W>>, bits: u32) -> bool {
        if atomic::load(&self.state) != RUNNING {
            return false;
        }
        self.stopwatch.wakes();
        if self.list.queue(item, bits) {
            self.thread.wake();
        }
        // The list's update is a full barrier: either `end()` finds the item
        // there, or its state is seen here.
        if atomic::load(&self.state) == ENDED {
            drop(self.list.take());
            return false;
        }
        true
    }

    /// Whether any device has new work for this worker, a hint for the busy-poll
    /// loop (C: `vhost_vq_has_work()`).
    ///
    /// What this pass has taken and not run yet does not count, as in C: two
    /// vrings that poll would send each other back into the queue for ever.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.list.is_empty() || self.owes_flush()
    }

    /// Whether the thread was woken since it last did some work, which begins
    /// now.
    #[inline]
    pub(crate) fn has_slept(&self) -> bool {
        // Its own thread alone changes it.
        let slept = atomic::load(&self.slept) != 0;
        if slept {
            atomic::store(&self.slept, 0);
        }
        slept
    }

    /// The process that the devices serve, that of the creator of the worker.
    pub(crate) fn owner(&self) -> &Process {
        &self.owner
    }

    /// Whether a flush ticket is not served.
    #[inline]
    fn owes_flush(&self) -> bool {
        atomic::load(&self.served) < atomic::load_acquire(&self.drawn)
    }

    /// Sleeps until all that was queued before has run, or never will.
    ///
    /// C: `vhost_dev_flush()`.
    pub(crate) fn flush(&self) {
        let ticket = self.drawn.fetch_add(1, Full).wrapping_add(1);
        self.thread.wake();

        let mut guard = self.flush_lock.lock();
        while atomic::load_acquire(&self.served) < ticket
            && atomic::load_acquire(&self.state) != ENDED
        {
            self.flushed.wait(&mut guard);
        }
    }

    /// Runs what is pending; `false` if nothing is.
    #[inline]
    fn run_pending(&self, memory: OwnerMemory, scratch: &mut Scratch) -> bool {
        // Before the list is taken: see the top of this file.
        let ticket = atomic::load_acquire(&self.drawn);
        if self.list.is_empty() && !self.owes_flush() {
            self.stopwatch.sleeps();
            atomic::store(&self.slept, 1);
            return false;
        }
        self.run_listed(ticket, memory, scratch);
        true
    }

    /// Runs what is in the list, then serves the tickets up to `ticket`. On a
    /// stack of its own: a pass that finds nothing costs nothing of it.
    #[inline(never)]
    fn run_listed(&self, ticket: u64, memory: OwnerMemory, scratch: &mut Scratch) {
        task::set_running();

        for mut item in self.list.take() {
            let mut bits = item.take();

            while bits != 0 {
                let rest = bits & bits.wrapping_sub(1);

                self.coverage.collect(|| {
                    W::run(item.borrow(), self, bits & !rest, memory, scratch);
                });
                clock::cond_resched();
                bits = rest;
            }
        }

        if atomic::load(&self.served) < ticket {
            self.serve(ticket);
        }
    }

    /// Marks the tickets up to `ticket` as served.
    #[cold]
    fn serve(&self, ticket: u64) {
        let _guard = self.flush_lock.lock();
        self.served.store(ticket, Release);
        self.flushed.notify_all();
    }

    /// Drops what is left and lets every flusher go.
    fn end(&self) {
        self.state.xchg(ENDED, Full);
        drop(self.list.take());

        // A flusher looks at the state under this lock, then sleeps.
        let _guard = self.flush_lock.lock();
        self.flushed.notify_all();
    }
}

impl<W: Work> Runner for Worker<W> {
    type Room = KBox<Scratch>;

    // A wake-up before the thread is there finds none to wake; but what was
    // queued for it is found by the look at the list that follows.
    fn thread(&self) -> &TaskSlot {
        &self.thread
    }

    fn pass(&self, memory: OwnerMemory, scratch: &mut KBox<Scratch>) -> bool {
        self.run_pending(memory, scratch)
    }

    fn killed(&self) {
        // What is left is dropped. The signal is gone by now: memory that the
        // dying owner serves, and nobody else, would stop a run for ever, and
        // with it whoever closes the device.
        self.end();
    }
}
