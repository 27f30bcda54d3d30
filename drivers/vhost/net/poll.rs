// SPDX-License-Identifier: GPL-2.0

//! The busy-poll helper that tx and rx share. C: `vhost_net_busy_poll()`.

use super::{Item, Net, RX, TX};
use crate::{
    dirty_log::MappedMemory,
    engine::{
        busy_poll,
        host::{End, Watch, Window},
        memory::GuestMemory,
        policy::{Plan, Settings},
        split::SplitQueue,
    },
    kapi::{clock, owner::OwnerMemory, param, socket::NetSocket},
    kick::{self, Event},
    vring::{Backend, Io, Locked, Vring},
    worker::Worker,
};
use core::cell::Cell;
use kernel::sync::ArcBorrow;

/// Nanoseconds between looks at the threads of the owner.
const GUEST_LOOK: u64 = 8192;

/// Whose turn it is.
#[derive(Clone, Copy)]
pub(super) struct Turn<'a> {
    pub(super) item: ArcBorrow<'a, Item>,
    pub(super) worker: &'a Worker<Net>,
    /// The vring: [`RX`] or [`TX`].
    pub(super) index: usize,
    pub(super) memory: OwnerMemory,
}

/// One run's view of the device, for its busy-poll window.
pub(super) struct Poller<'a> {
    pub(super) turn: &'a Turn<'a>,
    /// The vring of the run.
    pub(super) vring: &'a Vring<Net>,
    /// The socket behind the vring of the run.
    pub(super) socket: &'a NetSocket,
}

impl Poller<'_> {
    /// Whether a vring that has nothing to do is to sleep, whatever comes.
    #[inline]
    pub(super) fn is_off(&self) -> bool {
        self.vring.polling.is_off()
    }

    /// Does what is planned for a vring that has nothing to do. `own` is the
    /// virtqueue of the run, and `mem` its memory. `None` if it is to sleep.
    #[inline(never)]
    pub(super) fn poll<M: GuestMemory>(&self, own: &SplitQueue, mem: &M) -> Option<Window> {
        let Vring { polling, stats, .. } = self.vring;
        // Before the rest: what is set later ends the window.
        let version = polling.version();
        let settings = polling.settings().capped(param::poll_max());
        let limits = Limits::new(version, &settings);
        // To find out in a window would cost more than to sleep.
        if settings.gives_way() && !clock::single_task_running() {
            return None;
        }

        match polling.plan(&settings, stats) {
            Plan::Sleep => None,
            Plan::Poll(units) => {
                let window = self.spin(own, mem, &limits, units)?;
                let found = matches!(window.end, End::Packet | End::Work);
                polling.polled(window.ns, found, stats);
                Some(window)
            }
            Plan::Turn(_) if settings.guest && !self.turn.worker.owner().runs() => {
                polling.stop(stats);
                None
            }
            Plan::Turn(ns) => Some(Window { end: End::Turn, ns }),
        }
    }

    /// Polls the socket and both rings until something shows or `units` are
    /// over. `None` if the other vring is in use.
    ///
    /// The other vring is tried, never waited for: a lock order between the
    /// two runs could not be kept.
    #[inline(never)]
    fn spin<M: GuestMemory>(
        &self,
        own: &SplitQueue,
        mem: &M,
        limits: &Limits,
        units: u64,
    ) -> Option<Window> {
        let [rx, tx] = self.turn.item.device.vrings();
        let (paired, paired_index) = if self.turn.index == RX {
            (tx, TX)
        } else {
            (rx, RX)
        };
        let mut other = paired.try_lock()?;
        // A ring that cannot be reached shows in its own run.
        let kicks = self.take_over(&mut other);
        let (window, socket_ready) = {
            // Looked up once: whoever changes the IOTLB ends the window.
            let ring = (kicks != Kicks::Unusable).then(|| other.mapped(&self.turn.memory));
            let watch = View {
                poller: self,
                rx,
                tx,
                own,
                mem,
                other: ring.and_then(|mem| Some((&other, mem.ok()?))),
                limits,
            };
            let stats = &self.vring.stats;
            stats.poll_begins(units.saturating_mul(1024));
            let window = clock::on_this_cpu(|| busy_poll::spin(&watch, units));
            stats.poll_ended(window);
            (window, watch.socket_ready())
        };
        if kicks == Kicks::On {
            self.hand_over(&mut other, paired_index, socket_ready);
        }
        Some(window)
    }

    /// Turns the kicks of the other vring off, if it is in use. Answers how they
    /// were.
    #[inline(never)]
    fn take_over(&self, other: &mut Locked<'_, Net>) -> Kicks {
        if other.backend.is_none() || !other.queue.is_set_up() {
            return Kicks::Unusable;
        }
        let kicks = if other.queue.kicks_are_on() {
            Kicks::On
        } else {
            Kicks::Off
        };
        let off = other.with_ring(self.turn.memory, |queue, mem| queue.kicks_off(mem));
        if off.is_ok() {
            kicks
        } else {
            Kicks::Unusable
        }
    }

    /// Lets the other vring's own run take what showed, or be kicked again.
    ///
    /// C: `vhost_net_busy_poll_try_queue()`. An rx ring without data to put
    /// into it needs no run, so kicks come back on. Those that were off before
    /// stay off, which C's do not: that vring has a run to come, or waits for
    /// something else than a kick. It would be kicked for nothing.
    #[inline(never)]
    fn hand_over(&self, other: &mut Locked<'_, Net>, index: usize, socket_ready: bool) {
        let wanted = index == TX || socket_ready;

        let run = other.with_ring(self.turn.memory, |queue, mem| {
            let run = if wanted && !queue.avail_empty(mem) {
                true
            } else {
                matches!(queue.kicks_on(mem), Ok(true)) && wanted
            };
            if run {
                let _ = queue.kicks_off(mem);
            }
            run
        });
        if matches!(run, Ok(true)) {
            self.turn
                .worker
                .queue(self.turn.item, kick::bit(index, Event::Kick));
        }
    }
}

/// How the kicks of the other vring were before a window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kicks {
    /// Its own run had left them on.
    On,
    /// Its own run had left them off.
    Off,
    /// It is not in use, or cannot be reached.
    Unusable,
}

/// What ends a window before its time.
struct Limits {
    /// What `Polling::version` was.
    version: u32,
    gives_way: bool,
    guest: bool,
    /// When the threads of the owner are to be looked at.
    next: Cell<u64>,
    /// None of them ran at the last look. One may be off its CPU for a moment.
    missed: Cell<bool>,
}

impl Limits {
    fn new(version: u32, settings: &Settings) -> Self {
        Self {
            version,
            gives_way: settings.gives_way(),
            guest: settings.guest,
            next: Cell::new(0),
            missed: Cell::new(false),
        }
    }

    /// Why not to poll at `now`.
    #[inline]
    fn hinder(&self, worker: &Worker<Net>, now: u64) -> Option<End> {
        if self.gives_way && !clock::single_task_running() {
            return Some(End::Competitor);
        }
        if self.guest && now >= self.next.get() {
            self.next.set(now.saturating_add(GUEST_LOOK));
            let runs = worker.owner().runs();
            if self.missed.replace(!runs) && !runs {
                return Some(End::Guest);
            }
        }
        None
    }
}

/// What the loop looks at.
struct View<'a, M> {
    poller: &'a Poller<'a>,
    rx: &'a Vring<Net>,
    tx: &'a Vring<Net>,
    own: &'a SplitQueue,
    mem: &'a M,
    /// The other vring, and the memory that its ring is in.
    other: Option<(&'a Locked<'a, Net>, MappedMemory<'a>)>,
    limits: &'a Limits,
}

impl<M: GuestMemory> View<'_, M> {
    /// Whether the ring of the vring `index` is empty, or of no use.
    #[inline]
    fn empty(&self, index: usize) -> bool {
        match &self.other {
            _ if self.poller.turn.index == index => self.own.avail_empty(self.mem),
            Some((other, mem)) => other.queue.avail_empty(mem),
            None => true,
        }
    }
}

impl<M: GuestMemory> Watch for View<'_, M> {
    #[inline]
    fn now(&self) -> u64 {
        clock::local_clock()
    }

    #[inline]
    fn must_yield(&self) -> bool {
        clock::must_yield()
    }

    #[inline]
    fn signal_pending(&self) -> bool {
        clock::signal_pending()
    }

    #[inline]
    fn wanted(&self) -> bool {
        let own = self.poller.vring;

        // A window that was set anew counts at once.
        self.rx.wanted() || self.tx.wanted() || own.polling.version() != self.limits.version
    }

    #[inline]
    fn hindered(&self, now: u64) -> Option<End> {
        self.limits.hinder(self.poller.turn.worker, now)
    }

    #[inline]
    fn has_work(&self) -> bool {
        self.poller.turn.worker.has_work()
    }

    #[inline]
    fn socket_ready(&self) -> bool {
        if self.poller.turn.index == RX {
            // The run holds no packet: it has just found none.
            return self.poller.socket.has_rx_data();
        }
        let other = self.other.as_ref();
        match other.and_then(|(other, _)| other.backend.as_ref()) {
            Some(Backend {
                socket,
                io: Io::Rx(queue),
                ..
            }) => queue.has_cached() || socket.has_rx_data(),
            _ => false,
        }
    }

    #[inline]
    fn rx_empty(&self) -> bool {
        self.empty(RX)
    }

    #[inline]
    fn tx_empty(&self) -> bool {
        self.empty(TX)
    }

    #[inline]
    fn relax(&self) {
        clock::cpu_relax();
    }
}
