// SPDX-License-Identifier: GPL-2.0

//! One queue, whose worker has a CPU of its own and is done with a packet at once.

use serde::Serialize;
use vhost_engine::engine::adaptive::Wait;

use crate::policy::{Decider, Policy};

/// What the waits for a trace's packets came to. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Packets.
    pub events: u64,
    /// Time spent polling.
    pub polled: u64,
    /// Packets for which the worker had to be woken, by a kick.
    pub woken: u64,
    /// Polling and wake-ups.
    pub cost: u64,
    /// What they would have cost whoever knew when packets come.
    pub optimum: u64,
    /// By how much packets were late, in all.
    pub late: u64,
}

/// Lets packets come, each `gaps` after the one before is done with, if a wake-up costs `price`, in CPU time and in delay.
pub fn run(gaps: &[u64], policy: Policy, price: u64) -> Cost {
    let mut decider = Decider::new(policy);
    let mut cost = Cost::default();
    let mut now = 0;
    for &length in gaps {
        let window = decider.window(now, cost.events, price);
        let slept = length > window;
        let polled = length.min(window);
        let wait = Wait {
            length,
            polled,
            slept,
        };
        decider.learn(wait, now, cost.events, price);
        let woken = u64::from(slept);
        cost.events += 1;
        cost.polled += polled;
        cost.woken += woken;
        cost.cost += polled + woken * price;
        cost.late += woken * price;
        cost.optimum += length.min(price);
        now += length + woken * price;
    }
    cost
}
