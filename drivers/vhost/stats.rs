// SPDX-License-Identifier: GPL-2.0

//! What anybody may see of a vring without its lock, which a run holds for as
//! long as its owner lets it wait.

use crate::{
    engine::{
        counters::{self, Counter, Counters, COUNT, NAMES},
        host::Window,
        split::SplitQueue,
    },
    kapi::{
        number::{Numbers, COUNTS},
        trace,
    },
};
use kernel::prelude::*;

/// Numbers beside the counters.
#[derive(Clone, Copy)]
enum Shown {
    /// Entries of the ring.
    Size,
    /// The avail index as last read, and above its 16 bits the used index.
    Indices,
    /// Acknowledged features 0 to 63, then 64 to 127.
    Features,
    FeaturesHigh,
    /// Acknowledged backend features.
    BackendFeatures,
    /// What a wake-up costs, see [`Stats::wakeup_ns`].
    WakeupNs,
    /// The device's number, and which of its vrings this is.
    Device,
    Vring,
    /// Of the run that is traced: the packets and the bytes before it, and why it
    /// ended, a counter's number. `TracedRun` is 1 if there is one.
    TracedRun,
    PacketsBefore,
    BytesBefore,
    Ended,
}

const SHOWN: usize = 12;

/// The name of a counter, for C.
fn name(counter: Counter) -> &'static CStr {
    // CAST: counters are numbered from 0.
    counters::name_of(counter as u64)
}

/// The numbers of one vring. Whoever changes them holds the vring's lock.
pub(crate) struct Stats {
    counters: Numbers<COUNT>,
    shown: Numbers<SHOWN>,
}

impl Stats {
    /// Those of a vring that nobody uses.
    ///
    /// In traces it is the vring `index` of the device of number `device`.
    pub(crate) fn of(device: u64, index: usize) -> Self {
        let this = Self {
            counters: Numbers::new(),
            shown: Numbers::new(),
        };
        this.set(Shown::Device, device);
        // CAST: an index below 2.
        this.set(Shown::Vring, index as u64);
        this
    }

    /// What the vring is called in traces.
    pub(crate) fn id(&self) -> trace::Id {
        trace::Id {
            device: self.shown(Shown::Device),
            // CAST: as it was stored.
            vring: self.shown(Shown::Vring) as u32,
        }
    }

    /// Adds to a counter, and traces what is an event.
    #[inline(always)]
    pub(crate) fn count(&self, counter: Counter, n: u64) {
        match counter {
            Counter::Calls => trace::call_made(move || (self.id(),)),
            Counter::CallsSuppressed => trace::call_suppressed(move || (self.id(),)),
            _ if counter.is_drop() => trace::drop(move || (self.id(), name(counter), n)),
            _ if counter.is_error() && n != 0 => {
                trace::error(move || (self.id(), name(counter), n))
            }
            _ => {}
        }
        if counter.ends_run() && trace::run_end_is_on() {
            // CAST: counters are numbered from 0.
            self.set(Shown::Ended, counter as u64);
        }
        if COUNTS {
            // CAST: counters are numbered from 0.
            self.counters.add(counter as usize, n);
        }
    }

    /// A counter as it is.
    pub(crate) fn get(&self, counter: Counter) -> u64 {
        // CAST: counters are numbered from 0.
        self.counters.get(counter as usize)
    }

    /// The counters as they are.
    pub(crate) fn counters(&self) -> Counters {
        // CAST: counters are numbered from 0.
        Counters::read(|counter| self.counters.get(counter as usize))
    }

    /// Name and value of each counter.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let names = NAMES.iter().enumerate();
        names.map(|(index, name)| (*name, self.counters.get(index)))
    }

    /// A window for busy polling opens, for so many nanoseconds.
    #[inline(always)]
    pub(crate) fn poll_begins(&self, window_ns: u64) {
        trace::poll_begin(move || (self.id(), window_ns));
    }

    /// It is over.
    #[inline(always)]
    pub(crate) fn poll_ended(&self, window: Window) {
        if let Some(why) = window.end.counter() {
            trace::poll_end(move || (self.id(), name(why), window.ns));
        }
    }

    /// A run begins.
    #[inline(always)]
    pub(crate) fn run_begins(&self) {
        trace::run_begin(move || (self.id(),));
        if trace::run_end_is_on() {
            self.set(Shown::TracedRun, 1);
            self.set(Shown::PacketsBefore, self.get(Counter::Packets));
            self.set(Shown::BytesBefore, self.get(Counter::Bytes));
        }
    }

    /// A run ended. One that was not traced from its beginning is left out.
    #[inline(always)]
    pub(crate) fn run_ends(&self) {
        if trace::run_end_is_on() {
            self.trace_run_end();
        }
    }

    #[cold]
    fn trace_run_end(&self) {
        if self.shown(Shown::TracedRun) == 0 {
            return;
        }
        self.set(Shown::TracedRun, 0);
        let counters = self.counters();
        let packets = counters
            .packets
            .wrapping_sub(self.shown(Shown::PacketsBefore));
        let bytes = counters.bytes.wrapping_sub(self.shown(Shown::BytesBefore));
        let ended = self.shown(Shown::Ended);
        trace::run_end(|| (self.id(), counters::name_of(ended), packets, bytes));
    }

    /// Starts to count anew.
    pub(crate) fn reset(&self) {
        for index in 0..COUNT {
            self.counters.set(index, 0);
        }
        self.set(Shown::WakeupNs, 0);
    }

    /// Shows where a run is.
    #[inline(always)]
    pub(crate) fn show_indices(&self, queue: &SplitQueue) {
        if COUNTS {
            let [avail, used] = queue.indices().map(u64::from);
            self.set(Shown::Indices, avail | used << 16);
        }
    }

    /// Shows what an ioctl may have changed.
    pub(crate) fn show_setup(&self, queue: &SplitQueue, [low, high]: [u64; 2]) {
        self.set(Shown::Size, queue.num().into());
        self.set(Shown::Features, low);
        self.set(Shown::FeaturesHigh, high);
        self.show_indices(queue);
    }

    /// Entries of the ring; it has one before it gets more.
    pub(crate) fn size(&self) -> u64 {
        self.shown(Shown::Size).max(1)
    }

    /// The avail index as last read, and the used index as last written.
    pub(crate) fn indices(&self) -> [u64; 2] {
        let both = self.shown(Shown::Indices);
        [both & 0xffff, both >> 16]
    }

    /// Acknowledged features, bits 0 to 63 and above.
    pub(crate) fn features(&self) -> [u64; 2] {
        [Shown::Features, Shown::FeaturesHigh].map(|what| self.shown(what))
    }

    /// Shows the acknowledged backend features.
    pub(crate) fn show_backend_features(&self, features: u64) {
        self.set(Shown::BackendFeatures, features);
    }

    /// Acknowledged backend features.
    pub(crate) fn backend_features(&self) -> u64 {
        self.shown(Shown::BackendFeatures)
    }

    /// Notes how long it took to wake the worker for this vring.
    pub(crate) fn woken_after(&self, ns: u64) {
        self.set(Shown::WakeupNs, counters::smooth(self.wakeup_ns(), ns));
    }

    /// Smoothed mean of the time from a wake-up, the worker being asleep, to the
    /// run; 0 before the first was measured.
    pub(crate) fn wakeup_ns(&self) -> u64 {
        self.shown(Shown::WakeupNs)
    }

    fn set(&self, what: Shown, value: u64) {
        // CAST: numbered from 0.
        self.shown.set(what as usize, value);
    }

    fn shown(&self, what: Shown) -> u64 {
        // CAST: numbered from 0.
        self.shown.get(what as usize)
    }
}
