// SPDX-License-Identifier: GPL-2.0

//! The busy-poll helper that tx and rx share. C: `vhost_net_busy_poll()`.

use super::{Item, Net, RX, TX};
use crate::{
    engine::{
        busy_poll,
        host::{Watch, Window},
        memory::GuestMemory,
        split::SplitQueue,
    },
    kapi::{
        clock::{self, MigrateDisabled},
        owner::OwnerMemory,
        socket::NetSocket,
    },
    kick::{self, Event},
    vring::{Backend, Io, Locked, Vring},
    worker::Worker,
};
use kernel::sync::ArcBorrow;

/// Whose turn it is.
#[derive(Clone, Copy)]
pub(super) struct Turn<'a> {
    pub(super) item: ArcBorrow<'a, Item>,
    pub(super) worker: &'a Worker<Net>,
    /// The vring: [`RX`] or [`TX`].
    pub(super) index: usize,
    /// Its busy-poll window, in units of 1,024 ns.
    pub(super) window: u32,
    /// Of what was set about its polling, see `Polling::version`.
    pub(super) version: u32,
    pub(super) memory: OwnerMemory,
}

/// One run's view of the device, for its busy-poll window.
pub(super) struct Poller<'a> {
    pub(super) turn: Turn<'a>,
    /// The socket behind the vring of the run.
    pub(super) socket: &'a NetSocket,
}

impl Poller<'_> {
    /// Polls the socket and both rings until something shows or the window
    /// closes. `own` is the virtqueue of the run, and `mem` its memory. `None`
    /// if there is no window, or the other vring is in use.
    ///
    /// The other vring is tried, never waited for: a lock order between the
    /// two runs could not be kept.
    pub(super) fn poll<M: GuestMemory>(&self, own: &SplitQueue, mem: &M) -> Option<Window> {
        if self.turn.window == 0 {
            return None;
        }
        let [rx, tx] = self.turn.item.device.vrings();
        let (paired, paired_index) = if self.turn.index == RX {
            (tx, TX)
        } else {
            (rx, RX)
        };
        let mut other = paired.try_lock()?;
        // A ring that cannot be reached shows in its own run.
        let usable = other.backend.is_some()
            && other.queue.is_set_up()
            && other
                .with_ring(self.turn.memory, |queue, mem| queue.kicks_off(mem))
                .is_ok();
        let (window, socket_ready) = {
            let watch = View {
                poller: self,
                rx,
                tx,
                own,
                mem,
                other: usable.then_some(&other),
            };
            let _pinned = MigrateDisabled::new();
            let window = busy_poll::spin(&watch, self.turn.window.into());
            (window, watch.socket_ready())
        };
        if usable {
            self.hand_over(&mut other, paired_index, socket_ready);
        }
        Some(window)
    }

    /// Lets the other vring's own run take what showed, or be kicked again.
    ///
    /// C: `vhost_net_busy_poll_try_queue()`. An rx ring without data to put
    /// into it needs no run, so kicks come back on.
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

/// What the loop looks at.
struct View<'a, M> {
    poller: &'a Poller<'a>,
    rx: &'a Vring<Net>,
    tx: &'a Vring<Net>,
    own: &'a SplitQueue,
    mem: &'a M,
    other: Option<&'a Locked<'a, Net>>,
}

impl<M: GuestMemory> View<'_, M> {
    /// Whether the ring of the vring `index` is empty, or of no use.
    #[inline]
    fn empty(&self, index: usize) -> bool {
        let memory = &self.poller.turn.memory;

        if self.poller.turn.index == index {
            self.own.avail_empty(self.mem)
        } else {
            self.other.is_none_or(|other| other.avail_empty(memory))
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
        let Turn { index, version, .. } = self.poller.turn;
        let own = if index == RX { self.rx } else { self.tx };

        // A window that was set anew counts at once.
        self.rx.wanted() || self.tx.wanted() || own.polling.version() != version
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
        match self.other.and_then(|other| other.backend.as_ref()) {
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
