// SPDX-License-Identifier: GPL-2.0

//! Many queues, each with a worker, on few CPUs that nothing else runs on.

use std::collections::VecDeque;

use serde::Serialize;
use vhost_engine::engine::adaptive::Wait;

use crate::policy::{Decider, Policy};
use crate::US;

/// What a worker has the CPU for, at most, while another waits: a tick at 250 Hz.
pub const SLICE: u64 = 4_000 * US;
/// What moving a packet takes, if nothing else is said.
pub const SERVICE: u64 = 3_000;

/// What things take, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// To sleep and be woken: CPU time, and delay where the CPU is free.
    pub price: u64,
    /// To move a packet.
    pub service: u64,
    /// The most that a worker has the CPU for, while another waits for it.
    pub slice: u64,
}

/// What it came to. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Packets moved.
    pub events: u64,
    /// Time spent polling.
    pub polled: u64,
    /// Wake-ups.
    pub woken: u64,
    /// From a packet's arrival until it is moved, but for the moving: in all.
    pub late: u64,
    /// The same, the most.
    pub latest: u64,
    /// When the last packet was moved.
    pub end: u64,
}

struct Queue {
    arrivals: VecDeque<u64>,
    decider: Decider,
    moved: u64,
    asleep: bool,
    /// Since when it waits, and how long it polled.
    wait: Option<(u64, u64)>,
}

struct Cpu {
    times: Times,
    queues: Vec<Queue>,
    /// Workers that want the CPU.
    ready: VecDeque<usize>,
    now: u64,
    load: Load,
}

/// Runs queues that have these `arrivals`, each list in order, on `cpus` CPUs.
pub fn run(arrivals: &[Vec<u64>], cpus: usize, policy: Policy, times: Times) -> Load {
    let mut total = Load::default();
    for cpu in 0..cpus {
        let own = arrivals.iter().skip(cpu).step_by(cpus);
        let queue = |arrivals: &Vec<u64>| Queue {
            arrivals: arrivals.iter().copied().collect(),
            decider: Decider::new(policy),
            moved: 0,
            asleep: true,
            wait: None,
        };
        let load = Cpu {
            times,
            queues: own.map(queue).collect(),
            ready: VecDeque::new(),
            now: 0,
            load: Load::default(),
        }
        .run();
        total.events += load.events;
        total.polled += load.polled;
        total.woken += load.woken;
        total.late += load.late;
        total.latest = total.latest.max(load.latest);
        total.end = total.end.max(load.end);
    }
    total
}

impl Cpu {
    fn run(mut self) -> Load {
        loop {
            self.admit(self.now);
            if let Some(index) = self.ready.pop_front() {
                self.turn(index);
            } else if let Some(next) = self.next_arrival() {
                self.now = self.now.max(next);
            } else {
                return self.load;
            }
        }
    }

    /// When the first packet comes for a worker that sleeps.
    fn next_arrival(&self) -> Option<u64> {
        let asleep = self.queues.iter().filter(|queue| queue.asleep);
        asleep
            .filter_map(|queue| queue.arrivals.front().copied())
            .min()
    }

    /// Wakes the workers whose packets came until `now`, in their order.
    fn admit(&mut self, now: u64) {
        let mut woken: Vec<(u64, usize)> = Vec::new();
        for (index, queue) in self.queues.iter_mut().enumerate() {
            match queue.arrivals.front() {
                Some(&at) if queue.asleep && at <= now => {
                    queue.asleep = false;
                    woken.push((at, index));
                }
                _ => {}
            }
        }
        woken.sort_unstable();
        self.ready.extend(woken.into_iter().map(|(_, index)| index));
    }

    /// A worker has the CPU, until it sleeps or another's turn comes.
    fn turn(&mut self, index: usize) {
        let start = self.now;
        let Times { price, slice, .. } = self.times;
        let queue = &mut self.queues[index];
        if let Some((since, polled)) = queue.wait.take() {
            let arrived = queue.arrivals.front().copied().unwrap_or(since);
            let wait = Wait {
                length: arrived.saturating_sub(since),
                polled,
                slept: true,
            };
            queue.decider.learn(wait, since, queue.moved, price);
            self.load.woken += 1;
            self.now += price;
        } else if queue.moved == 0 {
            self.load.woken += 1;
            self.now += price;
        }
        loop {
            self.serve(index);
            self.admit(self.now);
            if !self.ready.is_empty() && self.now - start >= slice {
                // It goes on, if it has work, when the others had theirs.
                let has_work = self.queues[index]
                    .arrivals
                    .front()
                    .is_some_and(|&at| at <= self.now);
                if has_work {
                    self.ready.push_back(index);
                    return;
                }
            }
            if !self.poll(index, start + slice) {
                return;
            }
        }
    }

    /// Moves what is there.
    fn serve(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        while let Some(&at) = queue.arrivals.front().filter(|&&at| at <= self.now) {
            queue.arrivals.pop_front();
            let late = self.now - at;
            self.now += self.times.service;
            queue.moved += 1;
            self.load.events += 1;
            self.load.late += late;
            self.load.latest = self.load.latest.max(late);
            self.load.end = self.now;
        }
    }

    /// Waits for the next packet; answers whether it came before the worker slept.
    fn poll(&mut self, index: usize, slice_end: u64) -> bool {
        let others = self.next_other(index);
        let queue = &mut self.queues[index];
        let since = self.now;
        let price = self.times.price;
        let window = queue.decider.window(since, queue.moved, price);
        // What ends it before its time: another worker that wants the CPU, seen at once or when the slice is over.
        let mut end = since.saturating_add(window);
        if !self.ready.is_empty() || others.is_some() {
            let wanted = if self.ready.is_empty() {
                others.unwrap_or(since)
            } else {
                since
            };
            end = end.min(if queue.decider.gives_way() {
                wanted
            } else {
                wanted.max(slice_end).max(since)
            });
        }
        let next = queue.arrivals.front().copied();
        let won = next.filter(|&at| at <= end);
        // Nothing comes any more: who waits for that is not counted.
        let polled = won.or(next.map(|_| end)).unwrap_or(since) - since;
        self.load.polled += polled;
        self.now = since + polled;
        if won.is_some() {
            let wait = Wait {
                length: polled,
                polled,
                slept: false,
            };
            queue.decider.learn(wait, since, queue.moved, price);
            return true;
        }
        queue.wait = Some((since, polled));
        queue.asleep = true;
        false
    }

    /// When the first packet comes for another worker that sleeps.
    fn next_other(&self, index: usize) -> Option<u64> {
        let others = self.queues.iter().enumerate();
        let asleep = others.filter(|(other, queue)| *other != index && queue.asleep);
        asleep
            .filter_map(|(_, queue)| queue.arrivals.front().copied())
            .min()
    }
}
