// SPDX-License-Identifier: GPL-2.0

//! A device: its owner, its vrings, its memory table, its worker.
//!
//! Lock order: the device, then its vrings by index. A run holds the vring it
//! serves and only *tries* to lock the other one. Nothing that waits for the
//! worker may hold a vring's lock.

use crate::{
    ioctl::{self, FileArg},
    iotlb::{self, Channel},
    kapi::{
        eventfd::EventFd,
        index::VringIndex,
        owner::{self, OwnerMemory, OwnerMm},
        param,
        task::{Kind, Task},
        trace,
        work::WorkItem,
    },
    kick::{self, Event, Waker},
    polling,
    table::MemTable,
    vring::{Then, Vring, VRINGS},
    worker::{Work, Worker},
};
use core::mem;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        lock::mutex::MutexBackend,
        lock::Guard,
        new_mutex, Arc, ArcBorrow, Mutex,
    },
};

/// The process whose memory a device uses.
struct Owner<W: Work> {
    mm: OwnerMm,
    worker: Arc<Worker<W>>,
    /// Its id in the initial pid namespace.
    tgid: i32,
}

/// A worker and its thread.
struct Thread<W: Work> {
    worker: Arc<Worker<W>>,
    task: Task<Worker<W>>,
}

/// What the lock of a device protects.
pub(crate) struct Control<W: Work> {
    /// There is an owner as long as there is one.
    thread: Option<Thread<W>>,
    table: Option<Arc<MemTable>>,
}

impl<W: Work> Control<W> {
    /// Has the worker, if there is one, run the `vrings` that are true as if
    /// they were kicked.
    pub(crate) fn look_again(&self, item: ArcBorrow<'_, WorkItem<W>>, vrings: [bool; VRINGS]) {
        let Some(thread) = &self.thread else {
            return;
        };
        for (index, wanted) in vrings.into_iter().enumerate() {
            if wanted {
                thread.worker.queue(item, kick::bit(index, Event::Kick));
            }
        }
    }

    /// Waits until the worker has done all that was asked before.
    pub(crate) fn flush(&self) {
        if let Some(thread) = &self.thread {
            thread.worker.flush();
        }
    }
}

/// Devices that were opened.
static DEVICES: Atomic<u64> = Atomic::new(0);

/// A device with [`VRINGS`] vrings.
#[pin_data]
pub(crate) struct Device<W: Work> {
    /// Its number, counted from 1: no other device has or had it.
    id: u64,
    #[pin]
    control: Mutex<Control<W>>,
    /// Written under `control`. Nobody sleeps under this lock: other processes
    /// ask for it, while the owner decides how long an ioctl takes.
    #[pin]
    owner: Mutex<Option<Owner<W>>>,
    /// Whether the worker is a thread of the owner, the next one's if there is
    /// none (C: `fork_owner`). Written under `control`, read by anybody.
    fork_from_owner: Atomic<bool>,
    #[pin]
    vrings: [Vring<W>; VRINGS],
    #[pin]
    channel: Channel<VRINGS>,
}

impl<W: Work> Device<W> {
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        let id = DEVICES.fetch_add(1, Relaxed).wrapping_add(1);
        try_pin_init!(Self {
            id,
            control <- new_mutex!(
                Control {
                    thread: None,
                    table: None,
                },
                "Device::control"
            ),
            owner <- new_mutex!(None, "Device::owner"),
            fork_from_owner: Atomic::new(param::default_kind() == Kind::Owner),
            vrings <- pin_init::pin_init_array_from_fn(|index| Vring::new(*id, index)),
            channel <- Channel::new(),
        })
    }

    /// Locks the device against other ioctls.
    pub(crate) fn lock(&self) -> Guard<'_, Control<W>, MutexBackend> {
        self.control.lock()
    }

    /// The worker and the memory, if the caller is of the owner's process. C:
    /// `vhost_dev_check_owner()`.
    ///
    /// # Errors
    ///
    /// `EPERM`.
    pub(crate) fn check_owner(&self) -> Result<(Arc<Worker<W>>, OwnerMemory)> {
        let guard = self.owner.lock();
        let owner = guard.as_ref().ok_or(EPERM)?;
        let memory = owner.mm.memory().ok_or(EPERM)?;
        Ok((owner.worker.clone(), memory))
    }

    /// As [`Self::check_owner`], but a network administrator will do.
    fn check_owner_or_admin(&self) -> Result {
        let owned_by_caller = match &*self.owner.lock() {
            Some(owner) => owner.mm.memory().is_some(),
            None => return Err(EPERM),
        };
        if owned_by_caller || owner::capable_net_admin() {
            Ok(())
        } else {
            Err(EPERM)
        }
    }

    /// Its number, as traces have it.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Process id of the owner and thread id of the worker; 0 for none.
    pub(crate) fn ids(&self) -> (i32, i32) {
        match &*self.owner.lock() {
            Some(owner) => (owner.tgid, owner.worker.tid()),
            None => (0, 0),
        }
    }

    /// The messages of the IOTLB.
    pub(crate) fn channel(&self) -> &Channel<VRINGS> {
        &self.channel
    }

    /// All vrings, by index.
    pub(crate) fn vrings(&self) -> &[Vring<W>; VRINGS] {
        &self.vrings
    }

    /// The vring `index`.
    #[inline]
    pub(crate) fn vring(&self, index: VringIndex) -> &Vring<W> {
        // The index is below `VRINGS`; the mask lets the compiler know.
        &self.vrings[index.get() & (VRINGS - 1)]
    }

    /// Makes the calling process the owner. C: `vhost_dev_set_owner()`.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is one, `ENOMEM` if there is no memory or no worker.
    #[inline(never)]
    pub(crate) fn set_owner(&self) -> Result {
        let mut control = self.lock();
        if control.thread.is_some() {
            return Err(EBUSY);
        }
        let mm = OwnerMm::current().ok_or(ENOMEM)?;
        let worker = Worker::new()?;
        let task = worker.start(self.kind(), &mm)?;

        let tgid = owner::current_tgid();
        *self.owner.lock() = Some(Owner {
            mm,
            worker: worker.clone(),
            tgid,
        });
        trace::worker_create(|| (self.id, tgid));
        control.thread = Some(Thread { worker, task });
        Ok(())
    }

    /// Serves `VHOST_SET_FORK_FROM_OWNER`, of anybody.
    ///
    /// The caller waits for no lock that an owner can keep, and keeps none
    /// while its argument is read.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is an owner, `EFAULT`, `EINVAL`.
    pub(crate) fn set_fork_from_owner(&self, arg: usize) -> Result {
        if self.owner.lock().is_some() {
            return Err(EBUSY);
        }
        let kind = ioctl::read_kind(arg)?;

        let control = self.lock();
        if control.thread.is_some() {
            return Err(EBUSY);
        }
        self.set_kind(kind);
        Ok(())
    }

    /// What the thread of the worker belongs to, now or of the next owner.
    pub(crate) fn kind(&self) -> Kind {
        if self.fork_from_owner.load(Relaxed) {
            Kind::Owner
        } else {
            Kind::Kernel
        }
    }

    fn set_kind(&self, kind: Kind) {
        self.fork_from_owner.store(kind == Kind::Owner, Relaxed);
    }

    /// Ends the owner's rule: no kick, no worker, no memory of it is left.
    ///
    /// The backends are gone by now. C: `vhost_dev_cleanup()`.
    #[inline(never)]
    pub(crate) fn drop_owner(&self, control: &mut Control<W>) {
        for vring in &self.vrings {
            vring.stop_kick();
        }
        control.flush();
        for vring in &self.vrings {
            vring.reset();
        }
        self.channel.close();
        control.table = None;
        self.set_kind(param::default_kind());
        if let Some(Thread { worker, task }) = control.thread.take() {
            worker.stop(task);
            trace::worker_exit(|| (self.id, worker.tid()));
        }
        // After the worker, which uses its memory.
        let mut guard = self.owner.lock();
        let owner = guard.take();
        for vring in &self.vrings {
            vring.polling.reset();
        }
        drop(guard);
        drop(owner);
    }

    /// Gives every vring `table`. C: `vhost_set_memory()`.
    #[inline(never)]
    pub(crate) fn set_table(&self, control: &mut Control<W>, table: Arc<MemTable>) {
        for vring in &self.vrings {
            let old = vring.lock().table.replace(table.clone());
            drop(old);
        }
        control.table = Some(table);
    }

    /// Serves `VHOST_SET_MEM_TABLE`.
    #[inline(never)]
    fn read_table(&self, control: &mut Control<W>, arg: usize) -> Result {
        let table = MemTable::read(arg)?;

        for vring in &self.vrings {
            if !vring.lock().memory_ok(&table, false) {
                return Err(EFAULT);
            }
        }
        self.set_table(control, table);
        Ok(())
    }

    /// Whether buffers may be logged from now on. C: `vhost_log_access_ok()`.
    pub(crate) fn log_ok(&self, control: &Control<W>) -> bool {
        let Some(table) = &control.table else {
            // A vring that has a backend has a table.
            return true;
        };
        self.vrings
            .iter()
            .all(|vring| vring.lock().memory_ok(table, true))
    }

    /// Makes addresses I/O virtual, by a new IOTLB, or not any more.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the module's parameters allow no entry.
    pub(crate) fn set_iotlb(&self, _control: &Control<W>, on: bool) -> Result {
        let mut was_on = false;

        for vring in &self.vrings {
            let new = if on { Some(iotlb::empty()?) } else { None };
            was_on |= vring.lock().set_iotlb(new);
        }
        if on {
            self.channel.open();
        } else if was_on {
            self.channel.close();
        }
        Ok(())
    }

    /// Serves `VHOST_SET_LOG_BASE`. Other than in C, no vring gets the map if
    /// one may not use it.
    fn set_log_base(&self, arg: usize) -> Result {
        let base = ioctl::read(arg)?;

        // What makes a vring refuse it changes under the device's lock only.
        if !self
            .vrings
            .iter()
            .all(|vring| vring.lock().log_base_ok(base))
        {
            return Err(EFAULT);
        }
        for vring in &self.vrings {
            vring.lock().log.base = base;
        }
        Ok(())
    }

    /// Serves `VHOST_SET_LOG_FD`.
    fn set_log_fd(&self, arg: usize) -> Result {
        let new = match ioctl::read_fd(arg)? {
            FileArg::Bind(fd) => Some(Arc::new(EventFd::from_fd(fd)?, GFP_KERNEL)?),
            FileArg::Unbind => None,
        };
        for vring in &self.vrings {
            let old = mem::replace(&mut vring.lock().log.fd, new.clone());
            drop(old);
        }
        Ok(())
    }

    /// Serves the ioctls that every vhost device has.
    ///
    /// The order of the checks is C's, `vhost_dev_ioctl()` and then
    /// `vhost_vring_ioctl()`: the owner, the index, then the command.
    ///
    /// # Errors
    ///
    /// `EPERM`, `EFAULT` if the index cannot be read, `ENOBUFS` if it is none,
    /// then as the command has it; `ENOTTY` for an unknown command.
    #[inline(never)]
    pub(crate) fn ioctl(&self, item: ArcBorrow<'_, WorkItem<W>>, cmd: u32, arg: usize) -> Result {
        if matches!(
            cmd,
            ioctl::SET_VRING_BUSYLOOP_TIMEOUT
                | ioctl::GET_VRING_BUSYLOOP_TIMEOUT
                | ioctl::SET_POLL
                | ioctl::GET_POLL
        ) {
            return self.polling_ioctl(cmd, arg);
        }
        let mut control = self.lock();
        let (worker, _memory) = self.check_owner()?;

        let done = match cmd {
            ioctl::SET_MEM_TABLE => Some(self.read_table(&mut control, arg)),
            ioctl::SET_LOG_BASE => Some(self.set_log_base(arg)),
            ioctl::SET_LOG_FD => Some(self.set_log_fd(arg)),
            _ => None,
        };
        if let Some(result) = done {
            control.flush();
            return result;
        }

        let index = Self::read_index(arg)?;
        let then = self.vring(index).ioctl(index, cmd, arg, || {
            Waker::new(item.into(), worker, index, Event::Kick)
        })?;
        if then == Then::Flush {
            control.flush();
        }
        Ok(())
    }

    /// Serves the ioctls that an administrator may use. Takes no lock that the
    /// owner can keep.
    #[inline(never)]
    fn polling_ioctl(&self, cmd: u32, arg: usize) -> Result {
        self.check_owner_or_admin()?;
        let index = Self::read_index(arg)?;
        let polling = &self.vring(index).polling;

        match cmd {
            ioctl::GET_VRING_BUSYLOOP_TIMEOUT => {
                ioctl::write_state(arg, index.raw(), polling.window())
            }
            ioctl::GET_POLL => ioctl::write(arg, &polling.raw(index.raw())),
            ioctl::SET_POLL => {
                let settings = polling::parse(ioctl::read(arg)?)?;
                self.while_owned(|| polling.set(&settings))
            }
            _ => {
                let window = ioctl::read_state(arg)?;
                self.while_owned(|| polling.set_window(window))
            }
        }
    }

    /// Sets something of the present owner's: the next one's is not for the
    /// caller to set.
    fn while_owned(&self, set: impl FnOnce()) -> Result {
        let owner = self.owner.lock();
        owner.is_some().then(set).ok_or(EPERM)
    }

    /// Reads the index that every vring argument starts with. C:
    /// `vhost_get_vq_from_user()`.
    fn read_index(arg: usize) -> Result<VringIndex> {
        // CAST: a constant.
        VringIndex::new(ioctl::read(arg)?, VRINGS as u32).ok_or(ENOBUFS)
    }
}
