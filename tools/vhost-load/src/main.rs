// SPDX-License-Identifier: GPL-2.0

//! `vhost-load`: see `--help`.

#![forbid(unsafe_code)]

use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;
use vhost_load::args::{Cli, Mode};
use vhost_load::plan::Plan;
use vhost_load::report::Report;
use vhost_load::session::Session;
use vhost_load::{rr, rx, tx};

const CHECK_FAILED: u8 = 1;
const COULD_NOT_RUN: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (options, run) = match &cli.mode {
        Mode::Tx(options) => (options, Plan::new(options).and_then(|plan| tx::run(&plan))),
        Mode::Rx(options) => (options, Plan::new(options).and_then(|plan| rx::run(&plan))),
        Mode::Rr(options) => (&options.common, round_trips(options)),
    };
    match run {
        Ok((report, session)) => {
            let status = print(&report, options.json);
            if options.linger {
                linger();
            }
            drop(session);
            status
        }
        Err(err) => {
            eprintln!("vhost-load: {err:#}");
            ExitCode::from(COULD_NOT_RUN)
        }
    }
}

fn round_trips(options: &vhost_load::args::RrOptions) -> Result<(Report, Session)> {
    let plan = Plan::new(&options.common)?;
    rr::run(&plan, options)
}

/// Waits for standard input to end.
fn linger() {
    // What cannot be read has ended as well.
    let _ended = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

fn print(report: &Report, json: bool) -> ExitCode {
    if json {
        println!("{}", report.to_json());
    } else {
        println!("{}", report.to_line());
    }
    match &report.violation {
        None => ExitCode::SUCCESS,
        Some(what) => {
            eprintln!("vhost-load: FAILED: {what}");
            ExitCode::from(CHECK_FAILED)
        }
    }
}
