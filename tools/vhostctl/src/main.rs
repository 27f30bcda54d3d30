// SPDX-License-Identifier: GPL-2.0

//! `vhostctl`: see `--help`.

#![forbid(unsafe_code)]

use clap::Parser;
use std::io::{stdout, Write};
use std::process::ExitCode;
use vhostctl::app;
use vhostctl::args::Cli;
use vhostctl::failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = stdout().lock();
    let done = app::run(&cli, &mut out);
    match done.and(out.flush().map_err(Failure::from)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::Closed) {
                eprintln!("vhostctl: {failure}");
            }
            ExitCode::from(failure.status())
        }
    }
}
