// SPDX-License-Identifier: GPL-2.0

//! What anybody may see of a vring without its lock, which a run holds for as
//! long as its owner lets it wait.

use crate::{
    engine::{
        counters::{self, Counter, Counters, COUNT},
        split::SplitQueue,
    },
    kapi::number::{Numbers, COUNTS},
};

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
}

const SHOWN: usize = 6;

/// The numbers of one vring. Whoever changes them holds the vring's lock.
pub(crate) struct Stats {
    counters: Numbers<COUNT>,
    shown: Numbers<SHOWN>,
}

impl Stats {
    /// Those of a vring that nobody uses.
    pub(crate) const fn new() -> Self {
        Self {
            counters: Numbers::new(),
            shown: Numbers::new(),
        }
    }

    /// Adds to a counter.
    #[inline(always)]
    pub(crate) fn count(&self, counter: Counter, n: u64) {
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
        self.counters.all().into()
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
