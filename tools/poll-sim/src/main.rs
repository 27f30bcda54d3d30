// SPDX-License-Identifier: GPL-2.0

//! What the module's polling policies cost.

use anyhow::{Context, Result};
use clap::Parser;
use poll_sim::args::{Cli, Command, Common};
use poll_sim::machine::{Times, SLICE};
use poll_sim::report::{self, QueuesRow, Row};
use poll_sim::trace::Trace;
use poll_sim::{plot, US};

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Waits { trace, common } => waits(&trace, &common),
        Command::Queues {
            queues,
            cpus,
            trace,
            service,
            common,
        } => {
            let times = Times {
                price: common.price * US,
                service,
                slice: SLICE,
            };
            let mut rows = Vec::new();
            for queues in queues.iter().copied().map(usize::from) {
                let count = usize::try_from(common.count)?;
                let arrivals = report::arrivals(&trace, queues, count, common.seed)?;
                for cpus in cpus
                    .iter()
                    .copied()
                    .map(usize::from)
                    .filter(|cpus| *cpus <= queues)
                {
                    let row = |policy| QueuesRow::new(&arrivals, cpus, policy, times);
                    rows.extend(common.policies().into_iter().map(row));
                }
            }
            if common.json {
                return json(&rows);
            }
            report::print_queues(&rows);
            Ok(())
        }
        Command::Plots { folder, common } => plot::all(&folder, &common)
            .with_context(|| format!("cannot write plots to {}", folder.display())),
    }
}

fn waits(traces: &[Trace], common: &Common) -> Result<()> {
    let traces = if traces.is_empty() {
        Trace::all()
    } else {
        traces.to_vec()
    };
    let mut rows = Vec::new();
    for trace in &traces {
        let gaps = trace.gaps(usize::try_from(common.count)?, common.seed)?;
        let row = |policy| Row::new(trace, &gaps, policy, common.price * US);
        rows.extend(common.policies().into_iter().map(row));
    }
    if common.json {
        return json(&rows);
    }
    report::print(&rows);
    Ok(())
}

fn json<T: serde::Serialize>(rows: &[T]) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(rows)?);
    Ok(())
}
