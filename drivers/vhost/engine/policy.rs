// SPDX-License-Identifier: GPL-2.0

//! How long a vring polls that has nothing to do.

use super::adaptive::Adaptive;
use super::adaptive::Wait;
use super::continuous::Continuous;

/// Nanoseconds of a unit in which windows are given (C: `busy_clock()`).
pub const UNIT: u64 = 1024;

/// What a wake-up is worth, in delays from the wake-up of a worker until it
/// runs. That is the only part of the price that can be measured. There is the
/// way to sleep, the driver's kick (the exit of a guest), the interrupt to
/// another CPU, the caches that are cold, and who waits for the packet.
const WORTH: u64 = 8;
/// The delay that is assumed as long as none was measured.
const UNKNOWN_DELAY: u64 = 5_000;
/// The longest delay that counts: a worker that runs later has waited for other
/// tasks, and to poll would not help it.
const MAX_DELAY: u64 = 50_000;

/// What decides how long a vring polls (`VHOST_NET_RS_POLL_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The window, as in C.
    Fixed,
    /// The price of a wake-up; the window is the most.
    Adaptive,
    /// Polls without a pause while there is much to do, else as fixed.
    Continuous,
}

impl Policy {
    /// All of them, by number.
    const ALL: [Self; 3] = [Self::Fixed, Self::Adaptive, Self::Continuous];

    /// The policy that user space knows by `number`.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.number() == number)
    }

    /// What user space knows it by.
    pub const fn number(self) -> u32 {
        match self {
            Self::Fixed => 0,
            Self::Adaptive => 1,
            Self::Continuous => 2,
        }
    }

    /// What people know it by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Adaptive => "adaptive",
            Self::Continuous => "continuous",
        }
    }
}

/// What was set about the polling of a vring. Times are in units of 1,024 ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What decides.
    pub policy: Policy,
    /// The window, or the most that the adaptive policy polls.
    pub window: u32,
    /// Not while another task wants the CPU.
    pub competitor: bool,
    /// Not while no thread of the owner runs.
    pub guest: bool,
    /// Continuous polling begins at so many packets a millisecond; 0 is never.
    pub start_rate: u32,
    /// It ends after so long without work.
    pub stop_idle: u32,
}

impl Settings {
    /// What is left of them where nobody may poll longer than `max`.
    #[must_use]
    pub fn capped(self, max: u32) -> Self {
        Self {
            window: self.window.min(max),
            stop_idle: self.stop_idle.min(max),
            ..self
        }
    }

    /// Whether the vring leaves the CPU to any other task that wants it. The
    /// adaptive policy does, as it may cost nobody anything.
    pub fn gives_way(&self) -> bool {
        self.competitor || self.policy == Policy::Adaptive
    }
}

/// What to do now that there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Sleep.
    Sleep,
    /// Poll for so many units of 1,024 ns.
    Poll(u64),
    /// Let the others have their turn, then look again. Since the last look
    /// that found nothing so many nanoseconds have passed.
    Turn(u64),
}

/// A wait that is not over.
#[derive(Clone, Copy, Debug)]
struct Open {
    since: u64,
    polled: u64,
}

/// What one vring polls by. Times are in nanoseconds, of one clock.
#[derive(Clone, Debug)]
pub struct Poll {
    adaptive: Adaptive,
    continuous: Continuous,
    open: Option<Open>,
    /// When the last look found nothing, while polling continuously.
    looked: Option<u64>,
    /// What the adaptive policy chose last.
    chosen: u64,
}

/// The price of a wake-up, if `delay` nanoseconds pass until the worker runs;
/// 0 if that is not known.
pub fn price(delay: u64) -> u64 {
    let delay = match delay {
        0 => UNKNOWN_DELAY,
        delay => delay.min(MAX_DELAY),
    };
    delay.saturating_mul(WORTH)
}

impl Poll {
    /// Of a vring that has not polled yet.
    pub const fn new() -> Self {
        Self {
            adaptive: Adaptive::new(),
            continuous: Continuous::new(),
            open: None,
            looked: None,
            chosen: 0,
        }
    }

    /// What to do at `now`, there being nothing to do; `packets` were moved in
    /// all, and a wake-up takes `delay`, see [`price`].
    pub fn plan(&mut self, settings: &Settings, now: u64, packets: u64, delay: u64) -> Plan {
        match settings.policy {
            Policy::Fixed => {}
            Policy::Adaptive => {
                // A look after the last poll found something.
                self.over(now, false, delay);
                let ceiling = u64::from(settings.window).saturating_mul(UNIT);
                self.chosen = self.adaptive.window(price(delay), ceiling);
                self.open = Some(Open {
                    since: now,
                    polled: 0,
                });
                return match self.chosen.div_ceil(UNIT) {
                    0 => Plan::Sleep,
                    units => Plan::Poll(units),
                };
            }
            Policy::Continuous => {
                let idle = u64::from(settings.stop_idle).saturating_mul(UNIT);
                let rate = settings.start_rate;
                let looked = self.looked.take().unwrap_or(now);
                if self.continuous.goes_on(now, packets, rate, idle) {
                    self.looked = Some(now);
                    return Plan::Turn(now.saturating_sub(looked));
                }
            }
        }
        match settings.window {
            0 => Plan::Sleep,
            units => Plan::Poll(units.into()),
        }
    }

    /// Ends continuous polling: something is in the way.
    pub fn stop(&mut self, now: u64, packets: u64) {
        self.continuous.stop(now, packets);
        self.looked = None;
    }

    /// The window that [`Poll::plan`] asked for took `ns`; `found` if there is
    /// something to do, else the worker is to sleep.
    pub fn polled(&mut self, ns: u64, found: bool, delay: u64) {
        if let Some(open) = &mut self.open {
            open.polled = ns;
            let now = open.since.saturating_add(ns);
            if found {
                self.over(now, false, delay);
            }
        }
    }

    /// There is something to do again since `now`, for which the worker was
    /// woken if it `slept`.
    pub fn over(&mut self, now: u64, slept: bool, delay: u64) {
        if let Some(Open { since, polled }) = self.open.take() {
            let length = now.saturating_sub(since).max(polled);
            let wait = Wait {
                length,
                polled,
                slept,
            };
            self.adaptive.learn(wait, price(delay));
        }
    }

    /// Whether a wait is not over.
    pub fn waits(&self) -> bool {
        self.open.is_some()
    }

    /// The window that the adaptive policy chose last, in nanoseconds.
    pub fn chosen(&self) -> u64 {
        self.chosen
    }
}

impl Default for Poll {
    fn default() -> Self {
        Self::new()
    }
}
