// SPDX-License-Identifier: GPL-2.0

//! `vhost-bench`: see `--help`.

#![forbid(unsafe_code)]

use anyhow::{ensure, Context, Result};
use clap::{Args, Parser, Subcommand};
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use vhost_bench::{devices, growth, histogram, limit, plot, results, sections, table, targets};

/// Measures devices, and makes tables of what scripts/bench counted.
///
/// A folder is that of one boot: `environment`, `out`, what the machine printed, and the files of vhost-count, one for each run of vhost-load.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// C and ours side by side, in instructions per packet
    Table(Tables),
    /// Measure memory and times of open devices
    Devices {
        /// Device node
        #[arg(long, value_name = "NODE", default_value = "/dev/vhost-net")]
        device: PathBuf,
        /// How many
        #[arg(long, value_name = "N", default_value_t = 64)]
        count: usize,
        /// Be the process that holds them
        #[arg(long, hide = true)]
        hold: bool,
        /// Print the results as JSON; there is no other form
        #[arg(long)]
        json: bool,
    },
    /// Have many devices send at the same time
    Growth(growth::Options),
    /// Whether a driver takes more instructions than recorded
    Limit {
        /// Folder of a boot
        folder: PathBuf,
        /// File with a case and its instructions per packet on each line
        recorded: PathBuf,
    },
    /// One driver, by function
    Functions {
        /// Folder of a boot
        folder: PathBuf,
        /// Cases, or all
        cases: Vec<String>,
        /// Each instruction of the driver, by address, in place of functions
        #[arg(long)]
        addresses: bool,
    },
}

/// What tables are made of.
#[derive(Args, Debug)]
struct Tables {
    /// Folder of a boot with C's driver
    #[arg(long, value_name = "FOLDER")]
    c: PathBuf,
    /// Folder of a boot with ours
    #[arg(long, value_name = "FOLDER")]
    ours: PathBuf,
    /// Folder of another boot with ours: the difference is the noise
    #[arg(long, value_name = "FOLDER")]
    again: Option<PathBuf>,
    /// Folder of a boot in which both drivers took turns; may be given again
    #[arg(long, value_name = "FOLDER")]
    turns: Vec<PathBuf>,
    /// Write plots to this folder
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("vhost-bench: {err:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Table(tables) => {
            let (text, failed) = tables.text()?;
            print!("{text}");
            ensure!(failed == 0, "{failed} runs failed: see FAILED");
        }
        Command::Devices {
            device,
            count,
            hold: true,
            ..
        } => devices::hold(device, *count)?,
        Command::Devices { device, count, .. } => println!("{}", devices::measure(device, *count)?),
        Command::Growth(options) => println!("{}", growth::measure(options)?),
        Command::Limit { folder, recorded } => {
            let file = recorded.display().to_string();
            let recorded = fs::read_to_string(recorded).context(file)?;
            let cases = results::read(folder)?.cases;
            print!("{}", limit::text(&cases, &recorded)?);
        }
        Command::Functions {
            folder,
            cases,
            addresses,
        } => {
            for case in results::read(folder)?.cases {
                if cases.is_empty() || cases.contains(&case.name) {
                    print!("{}", histogram::text(&case, *addresses)?);
                }
            }
        }
    }
    Ok(())
}

impl Tables {
    /// The tables, and how many runs failed.
    fn text(&self) -> Result<(String, usize)> {
        let mut sections = Vec::new();
        for folder in &self.turns {
            sections.extend(sections::read(folder)?);
        }
        let failed = sections::failed(&sections);
        let again = self.again.as_deref().map(results::read).transpose()?;
        let again = again.as_ref().map(|boot| boot.cases.as_slice());
        let (c, ours) = (results::read(&self.c)?, results::read(&self.ours)?);
        let rows = table::rows(&c.cases, &ours.cases, again)?;
        if let Some(folder) = &self.plots {
            plot::all(folder, &rows, &sections)?;
        }
        if self.json {
            let all = json!({ "environment": ours.environment, "cases": rows, "turns": sections });
            return Ok((serde_json::to_string_pretty(&all)? + "\n", failed));
        }
        let mut text = table::text(&rows) + &sections::text(&sections);
        text += &targets::text(&targets::all(&rows, &sections));
        text += "\ncounted on\n";
        let environment = ours.environment.iter();
        for (key, value) in environment.filter(|(key, _)| !key.starts_with("mitigation")) {
            text += &format!("  {key}: {value}\n");
        }
        Ok((text, failed))
    }
}
