// SPDX-License-Identifier: GPL-2.0

//! What was set about the polling of a vring.
//!
//! It lies outside the vring's lock, which a run holds for as long as its
//! owner's memory lets it wait: others than the owner set it, too.

use crate::{
    engine::policy::{Policy, Settings},
    ioctl::RawPoll,
};
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Full, Relaxed},
};

/// The polling of one vring. Written under the lock of the device's owner, read
/// by anybody: what is read during a change may be partly old.
pub(crate) struct Polling {
    /// The window, or what caps it, in units of 1,024 ns.
    window: Atomic<u32>,
    policy: Atomic<u32>,
    start_rate: Atomic<u32>,
    stop_idle: Atomic<u32>,
    /// Changes whenever something is set.
    version: Atomic<u32>,
}

impl Polling {
    /// That of a new device.
    pub(crate) fn new() -> Self {
        let this = Self {
            window: Atomic::new(0),
            policy: Atomic::new(0),
            start_rate: Atomic::new(0),
            stop_idle: Atomic::new(0),
            version: Atomic::new(0),
        };
        this.reset();
        this
    }

    /// Makes all as it is in a new device.
    pub(crate) fn reset(&self) {
        self.store(Settings::DEFAULT);
        self.set_window(0);
    }

    /// The window, in units of 1,024 ns.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        self.window.load(Relaxed)
    }

    /// Sets the window, in units of 1,024 ns. One that is open ends.
    pub(crate) fn set_window(&self, window: u32) {
        self.window.store(window, Relaxed);
        self.changed();
    }

    /// Another number than before, if something was set meanwhile.
    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Relaxed)
    }

    /// What was set but for the window.
    fn settings(&self) -> Settings {
        Settings {
            // Only numbers of policies are stored.
            policy: Policy::from_number(self.policy.load(Relaxed)).unwrap_or(Policy::Fixed),
            start_rate: self.start_rate.load(Relaxed),
            stop_idle: self.stop_idle.load(Relaxed),
        }
    }

    fn store(&self, settings: Settings) {
        self.policy.store(settings.policy.number(), Relaxed);
        self.start_rate.store(settings.start_rate, Relaxed);
        self.stop_idle.store(settings.stop_idle, Relaxed);
        self.changed();
    }

    fn changed(&self) {
        self.version.fetch_add(1, Full);
    }

    /// What `VHOST_NET_RS_GET_POLL` answers for the vring `index`.
    pub(crate) fn raw(&self, index: u32) -> RawPoll {
        let Settings {
            policy,
            start_rate,
            stop_idle,
        } = self.settings();
        [index, policy.number(), 0, start_rate, stop_idle, 0, 0, 0]
    }

    /// Sets what `VHOST_NET_RS_SET_POLL` has; an open window ends.
    pub(crate) fn set(&self, settings: Settings) {
        self.store(settings);
    }
}

/// What the argument of `VHOST_NET_RS_SET_POLL` asks for.
///
/// # Errors
///
/// `EINVAL` for a policy, a flag or a time that there is not, or if a reserved
/// field is not 0.
pub(crate) fn parse(raw: RawPoll) -> Result<Settings> {
    let [_, policy, flags, start_rate, stop_idle, reserved @ ..] = raw;

    if flags != 0 || reserved != [0; 3] || stop_idle > MAX_STOP_IDLE {
        return Err(EINVAL);
    }
    Ok(Settings {
        policy: Policy::from_number(policy).ok_or(EINVAL)?,
        start_rate,
        stop_idle: match stop_idle {
            0 => Settings::DEFAULT.stop_idle,
            stop_idle => stop_idle,
        },
    })
}

/// The longest `stop_idle_us`: one second.
const MAX_STOP_IDLE: u32 = 1_000_000;
