// SPDX-License-Identifier: GPL-2.0

//! Results, as a table or as JSON.

use anyhow::Result;
use serde::Serialize;

use crate::machine::{self, Load, Times};
use crate::policy::Policy;
use crate::trace::Trace;
use crate::waits::{self, Cost};
use crate::US;

/// One trace under one policy.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the trace.
    pub trace: String,
    /// Name of the policy.
    pub policy: String,
    /// What it came to.
    #[serde(flatten)]
    pub cost: Cost,
    /// Packets that needed no kick, of all, in percent.
    pub kicks_saved: f64,
    /// Microseconds a packet: polling and wake-ups.
    pub cost_per_event: f64,
    /// Microseconds by which a packet was late, on average.
    pub added_latency: f64,
    /// The cost, in optima.
    pub ratio: f64,
}

/// Many queues on some CPUs under one policy.
#[derive(Clone, Debug, Serialize)]
pub struct QueuesRow {
    /// Queues.
    pub queues: usize,
    /// CPUs.
    pub cpus: usize,
    /// Name of the policy.
    pub policy: String,
    /// What it came to.
    #[serde(flatten)]
    pub load: Load,
    /// Microseconds a packet: polling and wake-ups.
    pub cost_per_event: f64,
    /// Microseconds by which a packet was late, on average.
    pub added_latency: f64,
}

/// A quotient of counts or times.
fn per(what: u64, of: u64) -> f64 {
    what as f64 / of.max(1) as f64 // CAST: For people.
}

impl Row {
    /// Runs a trace's `gaps`.
    pub fn new(trace: &Trace, gaps: &[u64], policy: Policy, price: u64) -> Self {
        let cost = waits::run(gaps, policy, price);
        Self {
            trace: trace.to_string(),
            policy: policy.to_string(),
            cost,
            kicks_saved: 100.0 - 100.0 * per(cost.woken, cost.events),
            cost_per_event: per(cost.cost, cost.events * US),
            added_latency: per(cost.late, cost.events * US),
            ratio: per(cost.cost, cost.optimum),
        }
    }
}

impl QueuesRow {
    /// Runs as many queues as there are lists of arrivals.
    pub fn new(arrivals: &[Vec<u64>], cpus: usize, policy: Policy, times: Times) -> Self {
        let load = machine::run(arrivals, cpus, policy, times);
        Self {
            queues: arrivals.len(),
            cpus,
            policy: policy.to_string(),
            load,
            cost_per_event: per(load.polled + load.woken * times.price, load.events * US),
            added_latency: per(load.late, load.events * US),
        }
    }
}

/// Arrivals of some queues, each as the trace has it, with a seed of its own.
///
/// # Errors
///
/// Those of [`Trace::gaps`].
pub fn arrivals(trace: &Trace, queues: usize, count: usize, seed: u64) -> Result<Vec<Vec<u64>>> {
    let one = |queue: usize| {
        let seed = seed.wrapping_add(queue as u64); // CAST: Widens.
        let gaps = trace.gaps(count, seed)?;
        let mut at = queue as u64 * 100; // CAST: As above.
        let time = |gap: u64| {
            at += gap;
            at
        };
        Ok(gaps.into_iter().map(time).collect())
    };
    (0..queues).map(one).collect()
}

/// Prints rows: a line each, a trace's best cost per event marked.
pub fn print(rows: &[Row]) {
    println!(
        "{:<20} {:<18} {:>9} {:>9} {:>9} {:>10} {:>9}",
        "trace", "policy", "kicks %", "cost us", "late us", "polled us", "optima"
    );
    for row in rows {
        println!(
            "{:<20} {:<18} {:>9.2} {:>9.2} {:>9.2} {:>10.2} {:>9.3}",
            row.trace,
            row.policy,
            100.0 - row.kicks_saved,
            row.cost_per_event,
            row.added_latency,
            per(row.cost.polled, row.cost.events * US),
            row.ratio
        );
    }
}

/// Prints rows of queues.
pub fn print_queues(rows: &[QueuesRow]) {
    println!(
        "{:>6} {:>5} {:<18} {:>9} {:>9} {:>10}",
        "queues", "cpus", "policy", "cost us", "late us", "latest us"
    );
    for row in rows {
        println!(
            "{:>6} {:>5} {:<18} {:>9.2} {:>9.2} {:>10.1}",
            row.queues,
            row.cpus,
            row.policy,
            row.cost_per_event,
            row.added_latency,
            per(row.load.latest, US)
        );
    }
}
