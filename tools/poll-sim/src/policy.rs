// SPDX-License-Identifier: GPL-2.0

//! Policies, and one queue's state of each.

use std::fmt;
use std::str::FromStr;

use vhost_engine::engine::adaptive::{Adaptive, Wait};
use vhost_engine::engine::continuous::Continuous;

use crate::US;

/// The fixed windows that everything is compared with, in microseconds.
pub const WINDOWS: [u64; 12] = [0, 1, 5, 7, 10, 15, 20, 25, 50, 100, 200, 500];

/// A policy and its settings; times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Polls for this long.
    Fixed(u64),
    /// Polls until something comes.
    Forever,
    /// Polls as the past advises, at most this long.
    Adaptive(u64),
    /// From so many packets a millisecond on, until this long without one.
    Continuous(u32, u64),
}

impl Policy {
    /// All fixed windows, polling for ever, and the adaptive policy with the longest of the windows as its ceiling.
    pub fn all() -> Vec<Self> {
        let mut all: Vec<Self> = WINDOWS.into_iter().map(Self::Fixed).collect();
        all.extend([
            Self::Forever,
            Self::Adaptive(500),
            Self::Continuous(20, 1000),
        ]);
        all
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(us) => write!(out, "fixed:{us}"),
            Self::Forever => write!(out, "forever"),
            Self::Adaptive(us) => write!(out, "adaptive:{us}"),
            Self::Continuous(rate, us) => write!(out, "continuous:{rate}:{us}"),
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let number = |text: &str| text.parse().map_err(|_| format!("'{text}' is no number"));
        match parts[..] {
            ["fixed", us] => number(us).map(Self::Fixed),
            ["forever"] => Ok(Self::Forever),
            ["adaptive", us] => number(us).map(Self::Adaptive),
            ["continuous", rate, us] => {
                let rate = rate.parse().map_err(|_| format!("'{rate}' is no rate"))?;
                Ok(Self::Continuous(rate, number(us)?))
            }
            _ => Err("a policy is fixed:US, forever, adaptive:US or continuous:RATE:US".into()),
        }
    }
}

/// What a queue goes by.
#[derive(Clone, Debug)]
pub struct Decider {
    policy: Policy,
    adaptive: Adaptive,
    continuous: Continuous,
}

impl Decider {
    /// Of a queue that has had nothing to do yet.
    pub fn new(policy: Policy) -> Self {
        let (adaptive, continuous) = (Adaptive::new(), Continuous::new());
        Self {
            policy,
            adaptive,
            continuous,
        }
    }

    /// How many nanoseconds to poll at `now`, after so many `packets`, if a wake-up costs `price` nanoseconds.
    pub fn window(&mut self, now: u64, packets: u64, price: u64) -> u64 {
        match self.policy {
            Policy::Fixed(us) => us * US,
            Policy::Forever => u64::MAX,
            Policy::Adaptive(us) => self.adaptive.window(price, us * US),
            Policy::Continuous(rate, us) => {
                let idle = us * US;
                let on = self.continuous.goes_on(now, packets, rate, idle);
                if on {
                    idle
                } else {
                    0
                }
            }
        }
    }

    /// Whether it leaves the CPU to another task that wants it.
    pub fn gives_way(&self) -> bool {
        matches!(self.policy, Policy::Adaptive(_))
    }

    /// A wait is over that began at `since`, when there were so many `packets`.
    pub fn learn(&mut self, wait: Wait, since: u64, packets: u64, price: u64) {
        match self.policy {
            Policy::Adaptive(_) => self.adaptive.learn(wait, price),
            // It looked in vain until the end of its time.
            Policy::Continuous(..) if wait.slept && wait.polled > 0 => {
                self.continuous.stop(since + wait.polled, packets);
            }
            _ => {}
        }
    }
}
