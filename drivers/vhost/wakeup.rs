// SPDX-License-Identifier: GPL-2.0

//! How long it takes to wake the worker: from the wake-up to the run.
//!
//! Reading the clock costs more than all counters of a run, so one wake-up in
//! [`ONE_IN`] is measured, the first one included. Nothing here is ordered: if
//! two wakers meet, or a waker and the worker, one measurement is wrong, and
//! [`LONGEST_NS`] bounds what that does.

use crate::kapi::{
    clock,
    number::{Numbers, COUNTS},
};

/// Of so many sleeps one is measured: an odd number, so that two vrings that
/// take turns are both measured.
const ONE_IN: i64 = 7;
/// A measurement that is longer counts as this, in nanoseconds.
const LONGEST_NS: u64 = 1_000_000;

/// The stopwatch of a worker.
pub(crate) struct Stopwatch {
    /// Below zero: the sleeps to come that are not measured. Zero: the worker
    /// sleeps, and whoever wakes it writes the time here, which is above.
    state: Numbers<1>,
}

impl Stopwatch {
    /// Ready to measure the first sleep.
    pub(crate) fn new() -> Self {
        let this = Self {
            state: Numbers::new(),
        };
        this.set(-1);
        this
    }

    /// The worker found nothing to do and goes to sleep.
    #[inline(always)]
    pub(crate) fn sleeps(&self) {
        let state = self.get();
        if COUNTS && state < 0 {
            self.set(state.wrapping_add(1));
        }
    }

    /// The worker is about to be woken. Any context.
    #[inline(always)]
    pub(crate) fn wakes(&self) {
        if self.get() == 0 {
            self.start();
        }
    }

    /// A run begins. Answers how long ago the wake-up was, in nanoseconds, if it
    /// was measured.
    #[inline(always)]
    pub(crate) fn runs(&self) -> Option<u64> {
        if self.get() < 0 {
            None
        } else {
            self.stop()
        }
    }

    #[cold]
    fn start(&self) {
        // CAST: 63 bits of nanoseconds are 292 years.
        self.set(clock::local_clock() as i64);
    }

    #[cold]
    fn stop(&self) -> Option<u64> {
        // CAST: not below zero.
        let start = self.get() as u64;
        self.set(if start == 0 { -1 } else { -ONE_IN });
        // Zero if CPUs do not agree on the time.
        let ns = clock::local_clock().saturating_sub(start);
        (start != 0).then_some(ns.min(LONGEST_NS))
    }

    #[inline(always)]
    fn get(&self) -> i64 {
        if !COUNTS {
            return -1;
        }
        // CAST: as it was stored.
        self.state.get(0) as i64
    }

    #[inline(always)]
    fn set(&self, state: i64) {
        // CAST: the same 64 bits.
        self.state.set(0, state as u64);
    }
}
