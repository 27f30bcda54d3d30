// SPDX-License-Identifier: GPL-2.0

//! A vring: a virtqueue with its eventfds, its backend and its lock.

use crate::{
    dirty_log::Log,
    engine::{features::HeaderLen, layout, split::SplitQueue},
    ioctl::{self, FileArg},
    iotlb::VringIotlb,
    kapi::{
        atomic,
        eventfd::{EventFd, KickFile},
        index::VringIndex,
        number,
        owner::OwnerMemory,
        socket::{NetSocket, SocketName},
        tap::{RxQueue, TxQueue},
        trace,
        wait::PollEntry,
        zerocopy::ZeroCopy,
    },
    kick::Waker,
    polling::Polling,
    stats::Stats,
    table::MemTable,
    worker::Work,
};
use core::{
    mem,
    ops::{Deref, DerefMut},
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        lock::{mutex::MutexBackend, Guard},
        new_mutex, Arc, Mutex,
    },
};

/// Vrings of one device.
pub(crate) const VRINGS: usize = 2;

/// `VHOST_VRING_F_LOG`, the only flag that a vring address may have.
const F_LOG: u32 = 1 << 0;

/// The socket behind a vring, and the way of its packets.
pub(crate) struct Backend<W: Work> {
    pub(crate) socket: NetSocket,
    /// Waits for the socket to have a packet, or room for one.
    pub(crate) poll: PollEntry<Waker<W>>,
    pub(crate) io: Io,
    /// If packets may be sent from the owner's memory.
    pub(crate) zerocopy: Option<ZeroCopy<Waker<W>>>,
}

/// The way of the packets.
pub(crate) enum Io {
    /// From the socket to the guest.
    Rx(RxQueue),
    /// From the guest to the socket.
    Tx(TxQueue),
}

/// Whether a vring waits for its socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// It does.
    Yes,
    /// It waits for a kick.
    No,
    /// It waits for a kick, and chains came meanwhile.
    NoButNews,
}

/// What the lock of a vring protects.
pub(crate) struct State<W: Work> {
    pub(crate) queue: SplitQueue,
    pub(crate) table: Option<Arc<MemTable>>,
    pub(crate) backend: Option<Backend<W>>,
    pub(crate) call: Option<EventFd>,
    pub(crate) err: Option<EventFd>,
    pub(crate) header: HeaderLen,
    pub(crate) log: Log,
    /// With `VIRTIO_F_ACCESS_PLATFORM`.
    pub(crate) iotlb: Option<VringIotlb>,
    /// Acknowledged backend features.
    pub(crate) backend_features: u64,
    /// Acknowledged features, of which `event_idx` lays out the rings.
    features: [u64; 2],
    kick: Option<PollEntry<Waker<W>>>,
}

impl<W: Work> State<W> {
    const fn new() -> Self {
        Self {
            queue: SplitQueue::new(),
            table: None,
            backend: None,
            call: None,
            err: None,
            header: HeaderLen::NONE,
            log: Log::new(),
            iotlb: None,
            backend_features: 0,
            features: [0; 2],
            kick: None,
        }
    }

    /// Sets the acknowledged features and the header lengths they imply.
    pub(crate) fn set_features(&mut self, features: [u64; 2]) {
        let [word, _] = features;

        self.features = features;
        self.queue.set_features(word);
        self.header = HeaderLen::of(&features);
    }

    /// Chains were returned, outside of a run, and the driver wants a call, or
    /// not.
    pub(crate) fn returned(&self, wants_call: bool) {
        if let (true, Some(call)) = (wants_call, &self.call) {
            call.signal();
        }
    }

    /// Tells the owner that the ring is broken.
    pub(crate) fn signal_err(&self) {
        if let Some(err) = &self.err {
            err.signal();
        }
    }

    fn set_num(&mut self, arg: usize) -> Result {
        if self.backend.is_some() {
            return Err(EBUSY);
        }
        let num = layout::check_num(ioctl::read_state(arg)?).ok_or(EINVAL)?;
        self.queue.set_num(num);
        Ok(())
    }

    fn set_base(&mut self, arg: usize) -> Result {
        if self.backend.is_some() {
            return Err(EBUSY);
        }
        let base = u16::try_from(ioctl::read_state(arg)?).map_err(|_| EINVAL)?;
        self.queue.set_base(base);
        Ok(())
    }

    /// C: `vhost_vring_set_addr()`.
    fn set_addr(&mut self, arg: usize) -> Result {
        let addr = ioctl::read_addr(arg)?;

        if addr.flags & !F_LOG != 0 {
            return Err(EOPNOTSUPP);
        }
        if !layout::aligned(addr.avail, addr.used | addr.log) {
            return Err(EINVAL);
        }
        // Without a backend the size may not be known yet: it is checked
        // when the backend comes.
        let log_used = (addr.flags & F_LOG != 0).then_some(addr.log);
        if self.backend.is_some()
            && !(self.rings_ok(addr.desc, addr.avail, addr.used)
                && self.log_used_ok(self.log.base, log_used))
        {
            return Err(EINVAL);
        }
        self.queue.set_addresses(addr.desc, addr.avail, addr.used);
        self.log.used = log_used;
        Ok(())
    }
}

/// One vring of a device.
#[pin_data]
pub(crate) struct Vring<W: Work> {
    #[pin]
    state: Mutex<State<W>>,
    /// Those outside the worker who wait for the lock.
    waiters: Atomic<i32>,
    #[pin]
    pub(crate) polling: Polling,
    /// Kicks received.
    kicks: Atomic<u64>,
    /// What is seen of `state` from outside.
    pub(crate) stats: Stats,
    /// The name of the backend. Nobody sleeps under this lock.
    #[pin]
    backend_name: Mutex<SocketName>,
}

impl<W: Work> Vring<W> {
    /// The vring `index` of the device of number `device`.
    pub(crate) fn new(device: u64, index: usize) -> impl PinInit<Self> {
        pin_init!(Self {
            state <- new_mutex!(State::new(), "Vring::state"),
            waiters: Atomic::new(0),
            polling <- Polling::new(),
            kicks: Atomic::new(0),
            stats: Stats::of(device, index),
            backend_name <- new_mutex!(SocketName::NONE, "Vring::backend_name"),
        })
    }

    /// Locks the vring for the owner; a busy-poll window that is open ends.
    pub(crate) fn lock(&self) -> Locked<'_, W> {
        self.waiters.fetch_add(1, Relaxed);
        let guard = self.state.lock();
        self.waiters.fetch_sub(1, Relaxed);

        self.locked(guard)
    }

    fn locked<'a>(&'a self, state: Guard<'a, State<W>, MutexBackend>) -> Locked<'a, W> {
        Locked {
            state,
            stats: &self.stats,
        }
    }

    /// Locks the vring for a run of the worker.
    pub(crate) fn lock_for_run(&self) -> Locked<'_, W> {
        self.locked(self.state.lock())
    }

    /// Locks the vring if nobody has it, for the run of the other one.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_, W>> {
        self.state.try_lock().map(|state| self.locked(state))
    }

    /// Whether somebody outside the worker waits for the lock.
    #[inline]
    pub(crate) fn wanted(&self) -> bool {
        atomic::load(&self.waiters) != 0
    }

    /// Counts a kick. Any context.
    pub(crate) fn kicked(&self) {
        trace::kick(move || (self.stats.id(),));
        if number::COUNTS {
            self.kicks.add(1, Relaxed);
        }
    }

    /// Kicks received.
    pub(crate) fn kicks(&self) -> u64 {
        atomic::load(&self.kicks)
    }

    /// The name of the backend that is attached.
    pub(crate) fn backend_name(&self) -> SocketName {
        *self.backend_name.lock()
    }

    /// Shows the name of the backend.
    pub(crate) fn set_backend_name(&self, name: SocketName) {
        *self.backend_name.lock() = name;
    }

    /// Takes out all that the owner gave. The backend is gone by now.
    #[inline(never)]
    pub(crate) fn reset(&self) {
        let mut state = self.lock();
        let old = mem::replace(&mut *state, State::new());
        self.kicks.store(0, Relaxed);
        self.stats.reset();
        state.show_setup();
        self.stats.show_backend_features(0);
        drop(state);
        drop(old);
    }

    /// Stops listening to kicks. C: `vhost_dev_stop()`.
    pub(crate) fn stop_kick(&self) {
        if let Some(kick) = &mut self.lock().kick {
            kick.stop();
        }
    }
}

/// A locked vring.
pub(crate) struct Locked<'a, W: Work> {
    state: Guard<'a, State<W>, MutexBackend>,
    pub(crate) stats: &'a Stats,
}

impl<W: Work> Deref for Locked<'_, W> {
    type Target = State<W>;

    fn deref(&self) -> &State<W> {
        &self.state
    }
}

impl<W: Work> DerefMut for Locked<'_, W> {
    fn deref_mut(&mut self) -> &mut State<W> {
        &mut self.state
    }
}

impl<W: Work> Locked<'_, W> {
    /// Shows what an ioctl may have changed.
    pub(crate) fn show_setup(&self) {
        self.stats.show_setup(&self.queue, self.features);
    }

    /// Waits for the socket after a run that left kicks off.
    ///
    /// One that cannot be waited for, as a tap that was deleted, leaves kicks
    /// on, or nothing would ever wake the vring.
    pub(crate) fn wait_for_socket(&mut self, memory: OwnerMemory) -> Waits {
        if let Some(backend) = &mut self.backend {
            if backend.poll.restart() {
                return Waits::Yes;
            }
        }
        self.wait_for_kick(memory)
    }

    #[cold]
    #[inline(never)]
    fn wait_for_kick(&mut self, memory: OwnerMemory) -> Waits {
        match self.with_ring(memory, |queue, mem| queue.kicks_on(mem)) {
            Ok(Ok(true)) => Waits::NoButNews,
            // A ring that cannot be written shows in the next run.
            Ok(Ok(false) | Err(_)) | Err(_) => Waits::No,
        }
    }
}

/// What is left to do after a vring ioctl, without the vring's lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// Nothing.
    Done,
    /// The worker must forget what it was woken for.
    Flush,
}

impl<W: Work> Vring<W> {
    /// Serves an ioctl of this vring. C: `vhost_vring_ioctl()`.
    ///
    /// `waker` makes the waker of a new kick file.
    ///
    /// # Errors
    ///
    /// As the command has it; `ENOTTY` for an unknown one.
    pub(crate) fn ioctl(
        &self,
        index: VringIndex,
        cmd: u32,
        arg: usize,
        waker: impl FnOnce() -> Waker<W>,
    ) -> Result<Then> {
        match cmd {
            ioctl::SET_VRING_NUM => {
                let mut state = self.lock();
                state.set_num(arg)?;
                state.show_setup();
            }
            ioctl::SET_VRING_BASE => {
                let mut state = self.lock();
                state.set_base(arg)?;
                state.show_setup();
            }
            ioctl::SET_VRING_ADDR => self.lock().set_addr(arg)?,
            ioctl::GET_VRING_BASE => {
                let base = self.lock().queue.base();
                ioctl::write_state(arg, index.raw(), base.into())?;
            }
            ioctl::SET_VRING_KICK => return self.set_kick(arg, waker),
            ioctl::SET_VRING_CALL => {
                let new = event_fd(arg)?;
                let old = mem::replace(&mut self.lock().call, new);
                drop(old);
            }
            ioctl::SET_VRING_ERR => {
                let new = event_fd(arg)?;
                let old = mem::replace(&mut self.lock().err, new);
                drop(old);
            }
            _ => return Err(ENOTTY),
        }
        Ok(Then::Done)
    }

    /// Serves `VHOST_SET_VRING_KICK`.
    ///
    /// The new file stays even if it cannot be listened to, as in C.
    fn set_kick(&self, arg: usize, waker: impl FnOnce() -> Waker<W>) -> Result<Then> {
        let file = match ioctl::read_file(arg)? {
            FileArg::Bind(fd) => Some(KickFile::from_fd(fd)?),
            FileArg::Unbind => None,
        };
        let mut state = self.lock();
        let same = match (&state.kick, &file) {
            (Some(kick), Some(file)) => kick.watches(file),
            (None, None) => true,
            _ => false,
        };
        if same {
            return Ok(Then::Done);
        }

        let mut new = match file {
            Some(file) => Some(PollEntry::for_kick(file, waker())?),
            None => None,
        };
        let mut old = state.kick.take();
        if let Some(kick) = &mut old {
            kick.stop();
        }
        let started = match &mut new {
            Some(kick) => kick.start(),
            None => Ok(()),
        };
        state.kick = new;
        drop(state);

        let replaced = old.is_some();
        drop(old);
        started?;
        Ok(if replaced { Then::Flush } else { Then::Done })
    }
}

/// The eventfd that an ioctl names, or none.
fn event_fd(arg: usize) -> Result<Option<EventFd>> {
    match ioctl::read_file(arg)? {
        FileArg::Bind(fd) => Ok(Some(EventFd::from_fd(fd)?)),
        FileArg::Unbind => Ok(None),
    }
}
