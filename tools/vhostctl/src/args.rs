// SPDX-License-Identifier: GPL-2.0

//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

use crate::target::Target;

/// Lists, watches and tunes the live vhost-net devices of this host, without the help of the programs that own them.
///
/// DEVICE is PID (all devices that the process owns or holds), PID:FD (one device), or the name of a virtual machine or of
/// an interface; without one, all devices are meant. What the vhost_net_rs module says of its devices is read from
/// /proc/PID/fdinfo/FD. Of devices of C's module is shown what can be known.
///
/// Exit status: 0 if all was done; 1 if a file or call failed; 2 if the command line is wrong; 3 if no device is what was
/// named; 4 if a right is missing, also where not all could be seen; 5 if the device refused, or its driver cannot.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Print JSON: one value, or one a line from what goes on printing
    #[arg(long, global = true)]
    pub json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the live devices: who owns them, which interfaces, how full the rings are
    List(Selection),
    /// Print all that the driver says of devices, since they were opened or, with --interval, as it changes
    Stat(StatOptions),
    /// Watch the rates of all vrings, as top does for processes
    Top(TopOptions),
    /// Print how vrings poll: window, policy and limits
    Get(Selection),
    /// Set how vrings poll, and print what is set then
    Set(SetOptions),
    /// Follow the module's tracepoints
    Trace(TraceOptions),
    /// Print all numbers for Prometheus, or write them to a file for node_exporter
    Export(ExportOptions),
    /// Set windows by the load of the host, and give back what was found at the end (SIGINT, SIGTERM, SIGHUP)
    Tune(TuneOptions),
}

/// Which devices.
#[derive(Args, Clone, Debug)]
pub struct Selection {
    /// PID, PID:FD, or name of a virtual machine or interface; again for more [default: all]
    #[arg(value_name = "DEVICE")]
    pub targets: Vec<Target>,
}

/// Options of `set`.
#[derive(Args, Debug)]
pub struct SetOptions {
    /// PID, PID:FD, or name of a virtual machine or interface; again for more
    #[arg(value_name = "DEVICE", required_unless_present = "all")]
    pub targets: Vec<Target>,
    /// All devices of the host
    #[arg(long, conflicts_with = "targets")]
    pub all: bool,
    /// One vring only [default: both]
    #[arg(long, value_name = "VRING")]
    pub vring: Option<VringName>,
    /// What to set.
    #[command(flatten)]
    pub settings: Settings,
}

/// What `set` sets; what is not given stays as it is.
#[derive(Args, Clone, Debug, Default)]
#[group(required = true, multiple = true)]
pub struct Settings {
    /// Busy-polling window in microseconds, the most that a vring polls at a time; 0 is off
    #[arg(long, value_name = "US")]
    pub window: Option<u32>,
    /// What decides how long a vring polls
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<PolicyName>,
    /// Stop polling while another task wants the CPU
    #[arg(long, value_name = "BOOL")]
    pub stop_on_competitor: Option<bool>,
    /// Stop polling while no thread of the guest runs
    #[arg(long, value_name = "BOOL")]
    pub stop_on_guest: Option<bool>,
    /// Packets a millisecond at which continuous polling starts; 0 is never
    #[arg(long, value_name = "N")]
    pub start_rate: Option<u32>,
    /// Microseconds without work after which continuous polling ends; 0 sets the default
    #[arg(long, value_name = "US")]
    pub stop_idle: Option<u32>,
}

/// Options of `trace`.
#[derive(Args, Debug)]
pub struct TraceOptions {
    /// Which devices.
    #[command(flatten)]
    pub selection: Selection,
    /// Event to follow; again for more [default: all of the module's]
    #[arg(short, long, value_name = "EVENT")]
    pub event: Vec<String>,
    /// End after N events
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// Options of `export`.
#[derive(Args, Debug)]
pub struct ExportOptions {
    /// Which devices.
    #[command(flatten)]
    pub selection: Selection,
    /// Replace this file at once in place of printing; for node_exporter, a .prom in its textfile directory
    #[arg(long, value_name = "FILE")]
    pub textfile: Option<PathBuf>,
    /// Format [default: openmetrics; prometheus for a file]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Write the file again every S seconds
    #[arg(short, long, value_name = "S", requires = "textfile", value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub interval: Option<u64>,
}

/// A format of Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// OpenMetrics 1.0
    Openmetrics,
    /// The text format 0.0.4, which node_exporter's textfile collector reads
    Prometheus,
}

/// Options of `tune`.
#[derive(Args, Debug)]
pub struct TuneOptions {
    /// Which devices.
    #[command(flatten)]
    pub selection: Selection,
    /// Idle time of the host to keep, in percent: below it windows shrink, with 5 more they grow
    #[arg(long, value_name = "PCT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub idle_min: u8,
    /// Largest window to give, in microseconds [default: what each vring has at the start]
    #[arg(long, value_name = "US")]
    pub window_max: Option<u32>,
    /// Seconds from one look to the next
    #[arg(short, long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
    /// End after N looks
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// A vring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VringName {
    /// What the guest receives from
    Rx,
    /// What the guest sends by
    Tx,
}

/// A polling policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PolicyName {
    /// For the whole window, as C's module does
    Fixed,
    /// As long as it is expected to cost less than sleeping and being woken, within the window
    Adaptive,
    /// On and on while there is work
    Continuous,
}

impl From<PolicyName> for vhost_uapi::Policy {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::Fixed => Self::Fixed,
            PolicyName::Adaptive => Self::Adaptive,
            PolicyName::Continuous => Self::Continuous,
        }
    }
}

/// Options of `stat`.
#[derive(Args, Debug)]
pub struct StatOptions {
    /// Which devices.
    #[command(flatten)]
    pub selection: Selection,
    /// Print the changes in S seconds, again and again
    #[arg(short, long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub interval: Option<u64>,
    /// With --interval, end after N times
    #[arg(short = 'n', long, value_name = "N", requires = "interval", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// Options of `top`.
#[derive(Args, Debug)]
pub struct TopOptions {
    /// Which devices.
    #[command(flatten)]
    pub selection: Selection,
    /// Print to standard output, for a file or another program
    #[arg(short, long)]
    pub batch: bool,
    /// End after N times
    #[arg(short = 'n', long = "iterations", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: Option<u64>,
    /// Seconds from one time to the next; tenths are possible
    #[arg(short, long, value_name = "S", default_value = "2", value_parser = delay)]
    pub delay: u64,
    /// Column to sort by
    #[arg(short = 'o', long, value_name = "COLUMN", default_value = "cpu")]
    pub sort: Column,
    /// Smallest first
    #[arg(short, long)]
    pub reverse: bool,
    /// Show totals since the device was opened in place of rates
    #[arg(short, long)]
    pub totals: bool,
}

/// Milliseconds, of a text of seconds with at most three decimals.
pub fn delay(text: &str) -> Result<u64, String> {
    let wrong = || "it is a number of seconds from 0.1 to 86400, such as 0.5".to_owned();
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    if whole.is_empty() || part.len() > 3 || !digits(whole) || !digits(part) {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let part: u64 = format!("{part:0<3}").parse().map_err(|_| wrong())?;
    let delay = whole.checked_mul(1000).and_then(|ms| ms.checked_add(part));
    delay
        .filter(|ms| (100..=86_400_000).contains(ms))
        .ok_or_else(wrong)
}

/// A column that `top` can sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Column {
    /// CPU of the worker
    Cpu,
    /// Packets
    Packets,
    /// Bytes
    Bytes,
    /// Kicks
    Kicks,
    /// Calls
    Calls,
    /// Busy-poll windows
    Polls,
    /// Windows that were worth it, in percent
    Won,
    /// Packets dropped
    Drops,
    /// Errors
    Errors,
    /// Process id and descriptor
    Pid,
    /// Virtual machine
    Vm,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn delays_are_seconds_and_parts_of_them() {
        assert_eq!(delay("2"), Ok(2000));
        assert_eq!(delay("0.5"), Ok(500));
        assert_eq!(delay("1.025"), Ok(1025));
        for wrong in [
            "0",
            "0.05",
            "",
            ".5",
            "-1",
            "1e3",
            "1.2345",
            "99999999999999999999",
            "86401",
        ] {
            assert!(delay(wrong).is_err(), "{wrong}");
        }
    }
}
