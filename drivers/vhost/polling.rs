// SPDX-License-Identifier: GPL-2.0

//! How a vring polls: what was set, and what it has learnt.
//!
//! It lies outside the vring's lock, which a run holds for as long as its
//! owner's memory lets it wait: others than the owner set it, too.

use crate::{
    engine::{
        counters::Counter,
        policy::{Plan, Policy, Poll, Settings},
    },
    ioctl::RawPoll,
    kapi::{atomic, clock, param},
    stats::Stats,
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Mutex,
    },
};

/// The longest `stop_idle_us`: one second.
const MAX_STOP_IDLE: u32 = 1_000_000;

/// Not while another task wants the CPU.
const COMPETITOR: u32 = 1 << 0;
/// Not while no thread of the owner runs.
const GUEST: u32 = 1 << 1;

/// The polling of one vring. Set under the lock of the device's owner, read by
/// anybody: what is read during a change may be partly old.
#[pin_data]
pub(crate) struct Polling {
    window: Atomic<u32>,
    policy: Atomic<u32>,
    flags: Atomic<u32>,
    start_rate: Atomic<u32>,
    stop_idle: Atomic<u32>,
    /// Changes whenever something is set.
    version: Atomic<u32>,
    /// `poll` has a wait that is not over.
    waits: Atomic<u32>,
    /// The window that the adaptive policy chose last, in nanoseconds.
    chosen: Atomic<u64>,
    /// Used by the worker, and when all is reset.
    #[pin]
    poll: Mutex<Poll>,
}

impl Polling {
    /// That of a new device.
    pub(crate) fn new() -> impl PinInit<Self> {
        let settings = param::poll_defaults();
        pin_init!(Self {
            window: Atomic::new(settings.window),
            policy: Atomic::new(settings.policy.number()),
            flags: Atomic::new(flags(&settings)),
            start_rate: Atomic::new(settings.start_rate),
            stop_idle: Atomic::new(settings.stop_idle),
            version: Atomic::new(0),
            waits: Atomic::new(0),
            chosen: Atomic::new(0),
            poll <- new_mutex!(Poll::new(), "Polling::poll"),
        })
    }

    /// Makes all as it is in a new device.
    #[inline(never)]
    pub(crate) fn reset(&self) {
        let settings = param::poll_defaults();
        *self.poll.lock() = Poll::new();
        self.waits.store(0, Relaxed);
        self.chosen.store(0, Relaxed);
        self.window.store(settings.window, Relaxed);
        self.set(&settings);
    }

    /// The window, in units of 1,024 ns.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        atomic::load(&self.window)
    }

    /// Sets the window, in units of 1,024 ns. One that is open ends.
    pub(crate) fn set_window(&self, window: u32) {
        self.window.store(window, Relaxed);
        self.changed();
    }

    /// Sets all but the window. One that is open ends.
    pub(crate) fn set(&self, settings: &Settings) {
        self.policy.store(settings.policy.number(), Relaxed);
        self.flags.store(flags(settings), Relaxed);
        self.start_rate.store(settings.start_rate, Relaxed);
        self.stop_idle.store(settings.stop_idle, Relaxed);
        self.changed();
    }

    fn changed(&self) {
        self.version.fetch_add(1, Full);
    }

    /// Whether no window is ever to be opened: the common setting.
    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        self.window() == 0 && atomic::load(&self.policy) == Policy::Fixed.number()
    }

    /// Another number than before, if something was set meanwhile.
    #[inline]
    pub(crate) fn version(&self) -> u32 {
        atomic::load(&self.version)
    }

    /// What was set.
    #[inline]
    pub(crate) fn settings(&self) -> Settings {
        let flags = atomic::load(&self.flags);
        Settings {
            // Only numbers of policies are stored.
            policy: Policy::from_number(atomic::load(&self.policy)).unwrap_or(Policy::Fixed),
            window: self.window(),
            competitor: flags & COMPETITOR != 0,
            guest: flags & GUEST != 0,
            start_rate: atomic::load(&self.start_rate),
            stop_idle: atomic::load(&self.stop_idle),
        }
    }

    /// The window that the adaptive policy chose last, in nanoseconds.
    pub(crate) fn chosen(&self) -> u64 {
        atomic::load(&self.chosen)
    }

    /// What the vring is to do that has nothing to do.
    pub(crate) fn plan(&self, settings: &Settings, stats: &Stats) -> Plan {
        if settings.policy == Policy::Fixed {
            return match settings.window {
                0 => Plan::Sleep,
                units => Plan::Poll(units.into()),
            };
        }
        self.learnt_plan(settings, stats)
    }

    #[inline(never)]
    fn learnt_plan(&self, settings: &Settings, stats: &Stats) -> Plan {
        let (now, packets) = (clock::local_clock(), stats.get(Counter::Packets));
        let mut poll = self.poll.lock();
        let plan = poll.plan(settings, now, packets, stats.wakeup_ns());
        self.show(&poll);
        plan
    }

    /// Ends continuous polling: something is in the way.
    #[cold]
    pub(crate) fn stop(&self, stats: &Stats) {
        let (now, packets) = (clock::local_clock(), stats.get(Counter::Packets));
        self.poll.lock().stop(now, packets);
    }

    /// The window that was planned took `ns`; `found` if there is something to
    /// do.
    #[inline(never)]
    pub(crate) fn polled(&self, ns: u64, found: bool, stats: &Stats) {
        if atomic::load(&self.waits) != 0 {
            let mut poll = self.poll.lock();
            poll.polled(ns, found, stats.wakeup_ns());
            self.show(&poll);
        }
    }

    /// The worker has something to do, for which it was woken if it `slept`.
    #[inline]
    pub(crate) fn woken(&self, slept: bool, stats: &Stats) {
        if atomic::load(&self.waits) != 0 {
            self.end_wait(slept, stats);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_wait(&self, slept: bool, stats: &Stats) {
        let delay = stats.wakeup_ns();
        let now = clock::local_clock();
        // When it was woken.
        let now = if slept {
            now.saturating_sub(delay)
        } else {
            now
        };
        let mut poll = self.poll.lock();
        poll.over(now, slept, delay);
        self.show(&poll);
    }

    fn show(&self, poll: &Poll) {
        self.waits.store(poll.waits().into(), Relaxed);
        self.chosen.store(poll.chosen(), Relaxed);
    }

    /// What `VHOST_NET_RS_GET_POLL` answers for the vring `index`.
    pub(crate) fn raw(&self, index: u32) -> RawPoll {
        let settings = self.settings();
        let policy = settings.policy.number();
        let (rate, idle) = (settings.start_rate, settings.stop_idle);
        [index, policy, flags(&settings), rate, idle, 0, 0, 0]
    }
}

fn flags(settings: &Settings) -> u32 {
    let competitor = if settings.competitor { COMPETITOR } else { 0 };
    let guest = if settings.guest { GUEST } else { 0 };
    competitor | guest
}

/// What the argument of `VHOST_NET_RS_SET_POLL` asks for. It has no window.
///
/// # Errors
///
/// `EINVAL` for a policy, a flag or a time that there is not, or if a reserved
/// field is not 0.
pub(crate) fn parse(raw: RawPoll) -> Result<Settings> {
    let [_, policy, flags, start_rate, stop_idle, reserved @ ..] = raw;

    if flags & !(COMPETITOR | GUEST) != 0 || reserved != [0; 3] || stop_idle > MAX_STOP_IDLE {
        return Err(EINVAL);
    }
    Ok(Settings {
        policy: Policy::from_number(policy).ok_or(EINVAL)?,
        window: 0,
        competitor: flags & COMPETITOR != 0,
        guest: flags & GUEST != 0,
        start_rate,
        stop_idle: match stop_idle {
            0 => param::poll_defaults().stop_idle,
            stop_idle => stop_idle,
        },
    })
}
