// SPDX-License-Identifier: GPL-2.0

//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::machine;
use crate::policy::Policy;
use crate::trace::Trace;

/// Runs the module's polling policies on arrivals of packets, and says what they cost
///
/// A packet that finds the worker polling is served at once; for another one it has to be woken, which costs CPU time and
/// delays the packet. One queue has a CPU of its own and is done with a packet at once; with `queues` many share CPUs.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// One queue: what each policy costs on each trace, beside the cheapest that anybody could do
    Waits {
        /// Only this trace, again and again: constant:US, poisson:US, bursts:COUNT:US:PAUSE_US, ping-pong:US,
        /// on-off:US:ON_MS:OFF_MS, requests:OUTSTANDING, or file:PATH with nanoseconds, one packet a line [default: one of each]
        #[arg(long, value_name = "TRACE")]
        trace: Vec<Trace>,
        /// What all have in common.
        #[command(flatten)]
        common: Common,
    },
    /// Queues that share CPUs
    Queues {
        /// Queues, each with a worker
        #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4,16,64", value_parser = clap::value_parser!(u16).range(1..=64))]
        queues: Vec<u16>,
        /// CPUs that they share
        #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u16).range(1..=8))]
        cpus: Vec<u16>,
        /// How packets come to each queue
        #[arg(long, value_name = "TRACE", default_value = "poisson:100")]
        trace: Trace,
        /// Nanoseconds that moving a packet takes
        #[arg(long, value_name = "NS", default_value_t = machine::SERVICE)]
        service: u64,
        /// What all have in common.
        #[command(flatten)]
        common: Common,
    },
    /// Writes the plots of Documentation/polling.rst
    Plots {
        /// Folder to write them to
        folder: PathBuf,
        /// What all have in common.
        #[command(flatten)]
        common: Common,
    },
}

/// What all have in common.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Only this policy, again and again: fixed:US, forever, adaptive:CEILING_US or continuous:PACKETS_PER_MS:IDLE_US
    /// [default: all]
    #[arg(long, value_name = "POLICY")]
    pub policy: Vec<Policy>,
    /// Microseconds that a wake-up costs
    #[arg(long, value_name = "US", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub price: u64,
    /// Packets of each queue
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    pub count: u32,
    /// What random times begin with
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

impl Common {
    /// The policies asked for.
    pub fn policies(&self) -> Vec<Policy> {
        if self.policy.is_empty() {
            Policy::all()
        } else {
            self.policy.clone()
        }
    }
}
