// SPDX-License-Identifier: GPL-2.0

//! How long a vring polls.

/// What decides how long a vring polls (`VHOST_NET_RS_POLL_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The window, as in C.
    Fixed,
}

impl Policy {
    /// The policy that user space knows by `number`.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Fixed),
            _ => None,
        }
    }

    /// What user space knows it by.
    pub const fn number(self) -> u32 {
        match self {
            Self::Fixed => 0,
        }
    }
}

/// What was set about the polling of a vring, but for its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What decides.
    pub policy: Policy,
    /// Continuous polling begins at so many events a millisecond; 0 is never.
    pub start_rate: u32,
    /// It ends after so many units of 1,024 ns without work.
    pub stop_idle: u32,
}

impl Settings {
    /// Those of a device that nobody set.
    pub const DEFAULT: Self = Self {
        policy: Policy::Fixed,
        start_rate: 0,
        stop_idle: 1000,
    };
}
