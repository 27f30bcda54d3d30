// SPDX-License-Identifier: GPL-2.0

//! Compares a vhost-net driver with C's. Run in a VM by `scripts/tests/vm/60-conformance`.

#![forbid(unsafe_code)]

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use conformance::abi::Listed;
use conformance::compare::{compare, Inject, Options};
use conformance::{cases, helper, state};

/// Two vhost-net drivers, compared call by call
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make every call on both
    Compare {
        /// Node of C's driver
        #[arg(long, default_value = "/dev/vhost-net")]
        with: PathBuf,
        /// Node of the other
        #[arg(long, default_value = "/dev/vhost-net-rs")]
        node: PathBuf,
        /// Documentation/abi.rst, which lists differences that are meant
        #[arg(long)]
        abi: PathBuf,
        /// How calls are made: syscall or int80
        #[arg(long, default_value = "syscall")]
        gate: String,
        /// Only these groups, separated by commas
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// Of each group only the first of so many calls
        #[arg(long, default_value_t = NonZeroUsize::MIN)]
        every: NonZeroUsize,
        /// Make a fault on the second driver, which must be found
        #[arg(long)]
        inject: Option<Inject>,
    },
    /// Print the name of every call
    List,
    /// Part of `compare`: a process that calls on another's device
    #[command(hide = true)]
    Helper {
        caller: String,
        gate: String,
        node: PathBuf,
    },
    /// Part of `compare`: a process that becomes the owner, and ends
    #[command(hide = true)]
    Own,
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(err) => {
            println!("not ok conformance: it ran to its end\n#   {err:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<bool> {
    match command {
        Command::Compare {
            with,
            node,
            abi,
            gate,
            only,
            every,
            inject,
        } => {
            let text = std::fs::read_to_string(&abi).with_context(|| abi.display().to_string())?;
            let mut listed = Listed::parse(&text).with_context(|| abi.display().to_string())?;
            let options = Options {
                reference: &with,
                node: &node,
                gate: helper::gate_of_name(&gate).context("--gate is syscall or int80")?,
                only: &only,
                every,
                inject,
            };
            compare(&options, &mut listed)
        }
        Command::List => {
            for case in cases::all() {
                println!("{}: {}", case.group, case.name);
            }
            Ok(true)
        }
        Command::Helper { caller, gate, node } => {
            helper::main(&caller, &gate, &node).map(|()| true)
        }
        Command::Own => state::own().map(|()| true),
    }
}
