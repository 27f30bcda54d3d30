// SPDX-License-Identifier: GPL-2.0

//! Tests of a vhost-net driver, to be run in a VM (`scripts/tests/vm`).
//!
//! Results are lines that `scripts/test` counts. With `--reference` the driver is known to have faults (C's has): they are
//! shown, and it is a failure if none is seen, as then the tests are blind.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use vm_tests::report::{Mode, Report};
use vm_tests::{
    arrays, clients, counters, dirty_log, disturbed, fairness, faults, found, hostile, inject,
    iotlb, parameters, polling, published, races, soak, stop, stuck, toggles, windows, workers,
    zerocopy,
};

/// Tests of a vhost-net driver
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Device node
    #[arg(long, global = true, default_value = "/dev/vhost-net")]
    node: PathBuf,
    /// Expect faults, and show them
    #[arg(long, global = true)]
    reference: bool,
    /// Run only tests whose names contain this
    #[arg(long, global = true, default_value = "")]
    only: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Rings that break the rules
    Hostile,
    /// Everything that stops a device
    Stop {
        /// Stop it under traffic, N times each, however long that takes
        #[arg(long, value_name = "N")]
        races: Option<usize>,
        /// With kernel threads as workers
        #[arg(long)]
        kthread: bool,
    },
    /// Finished packets in a long busy-polling window
    Published,
    /// Busy-polling windows that must close
    Windows,
    /// How vrings poll, and who may say so
    Polling {
        /// How often a driver sleeps at any moment
        #[arg(long, value_name = "N", default_value_t = 3000)]
        sleeps: u32,
    },
    /// Features that change under traffic
    Toggles,
    /// Faults that were found once
    Found,
    /// Faults that others had
    Faults,
    /// Floods, and who else wants to work: to be run in virtual time
    Fairness,
    /// Allocations and copies that fail
    Inject,
    /// What the module's parameters change: prints it, to be compared
    Parameters {
        /// Entries that an address map keeps, if that is to be seen
        #[arg(long)]
        entries: Option<u64>,
    },
    /// Counters and tracepoints
    Counters,
    /// Workers of both kinds
    Workers,
    /// The log of dirty pages, compared with snapshots of memory
    DirtyLog,
    /// Address translation by the owner
    Iotlb,
    /// Pairs of everything that changes or ends a device, at the same time
    Races(races::Options),
    /// Mixed traffic on many devices that come, change and go
    Soak(soak::Options),
    /// Programs of calls and scribbles, led by the code that they reach; on a kernel with kcov
    Fuzz(races::fuzz::Options),
    /// Packets that are sent from the guest's memory
    Zerocopy,
    /// Part of `zerocopy`: own a device with packets in flight
    #[command(hide = true)]
    ZerocopyOwner {
        /// How to stop it
        how: zerocopy::Stop,
    },
    /// Interfaces that go down, change and go away
    Disturbed,
    /// The calls of programs that use vhost-net, in their order
    Clients,
    /// Part of `clients`: own a device that another process opened
    #[command(hide = true)]
    Client {
        /// The client's name
        name: String,
    },
    /// Part of `stop`: own a device with traffic
    #[command(hide = true)]
    Owner(stop::OwnerArgs),
    /// Part of `stop`: have a device open, and kick it
    #[command(hide = true)]
    Holder,
    /// Part of `races`: own a device with traffic, and change it
    #[command(hide = true)]
    RaceOwner(races::Setup),
    /// Part of `workers`: own the device that standard input is
    #[command(hide = true)]
    WorkerProcess {
        /// What to do with it
        role: workers::Role,
        /// What its worker is to be
        kind: u8,
    },
    /// Part of `polling`: own a device, or try to tune the one that standard input is
    #[command(hide = true)]
    PollingProcess {
        /// Which of them
        role: polling::Role,
        /// The node
        path: PathBuf,
    },
    /// Part of `found`: pass a feature array without end
    #[command(hide = true)]
    LongArray {
        /// Whether to set features, or to get them
        #[arg(action = clap::ArgAction::Set)]
        set: bool,
    },
    /// Part of `found`: own a device whose worker waits
    #[command(hide = true)]
    StuckOwner,
    /// Part of `soak`: own many devices
    #[command(hide = true)]
    SoakGeneration(soak::Generation),
    /// Whether standard input is OpenMetrics, to the letter
    Openmetrics,
    /// Part of `stop`: keep standard input open
    #[command(hide = true)]
    Keeper,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let good = run(&args).unwrap_or_else(|err| {
        eprintln!("vm-tests: {err:#}");
        false
    });
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run(args: &Args) -> anyhow::Result<bool> {
    let mode = if args.reference {
        Mode::Reference
    } else {
        Mode::Strict
    };
    let (node, only) = (args.node.as_path(), args.only.as_str());
    let suite = |name, run: &dyn Fn(&mut Report)| {
        let mut report = Report::new(name, mode);
        run(&mut report);
        Ok(report.finish())
    };
    match &args.command {
        Command::Hostile => suite("hostile", &|report| hostile::run(node, only, report)),
        Command::Stop { races, kthread } => suite("stop", &|report| {
            let (races, kthread) = (*races, *kthread);
            stop::run(node, only, stop::Options { races, kthread }, report);
        }),
        Command::Published => suite("published", &|report| published::run(node, only, report)),
        Command::Windows => suite("windows", &|report| windows::run(node, only, report)),
        Command::Polling { sleeps } => suite("polling", &|report| {
            polling::run(node, only, *sleeps, report);
        }),
        Command::PollingProcess { role, path } => polling::main(*role, path).map(|()| true),
        Command::Toggles => suite("toggles", &|report| toggles::run(node, only, report)),
        Command::Found => suite("found", &|report| found::run(node, only, report)),
        Command::Fairness => suite("fairness", &|report| fairness::run(node, only, report)),
        Command::Faults => suite("faults", &|report| faults::run(node, only, report)),
        Command::Inject => suite("inject", &|report| inject::run(node, only, report)),
        Command::DirtyLog => suite("dirty-log", &|report| dirty_log::run(node, only, report)),
        Command::Iotlb => suite("iotlb", &|report| iotlb::run(node, only, report)),
        Command::Races(options) => suite("races", &|report| {
            races::run(node, only, options, report);
        }),
        Command::Soak(options) => suite("soak", &|report| soak::run(node, options, report)),
        Command::SoakGeneration(generation) => soak::generation(node, *generation).map(|()| true),
        Command::Fuzz(options) => suite("fuzz", &|report| races::fuzz::run(node, options, report)),
        Command::RaceOwner(setup) => races::owner(node, *setup).map(|()| true),
        Command::Parameters { entries } => parameters::print(node, *entries).map(|()| true),
        Command::Zerocopy => suite("zerocopy", &|report| zerocopy::run(node, only, report)),
        Command::ZerocopyOwner { how } => zerocopy::main(node, *how).map(|()| true),
        Command::Counters => suite("counters", &|report| counters::run(node, only, report)),
        Command::Workers => suite("workers", &|report| workers::run(node, only, report)),
        Command::WorkerProcess { role, kind } => workers::main(*role, *kind).map(|()| true),
        Command::LongArray { set } => arrays::main(*set).map(|()| true),
        Command::StuckOwner => stuck::main(node).map(|()| true),
        Command::Clients => suite("clients", &|report| clients::run(node, only, report)),
        Command::Client { name } => clients::owner(name).map(|()| true),
        Command::Disturbed => suite("disturbed", &|report| disturbed::run(node, only, report)),
        Command::Owner(args) => stop::owner(node, args).map(|()| true),
        Command::Openmetrics => openmetrics(),
        Command::Keeper => loop {
            std::thread::park();
        },
        Command::Holder => stop::holder().map(|()| true),
    }
}

/// Reads standard input as OpenMetrics, and prints how many families there are.
fn openmetrics() -> anyhow::Result<bool> {
    let text = std::io::read_to_string(std::io::stdin())?;
    let parsed = openmetrics_parser::openmetrics::parse_openmetrics(&text)
        .map_err(|err| anyhow::anyhow!("{err}"))?;
    println!("{} families", parsed.families.len());
    Ok(true)
}
