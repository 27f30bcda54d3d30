// SPDX-License-Identifier: GPL-2.0

//! Plots of the documentation.

use std::path::Path;

use anyhow::{anyhow, Result};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::args::Common;
use crate::machine::{self, Times};
use crate::policy::Policy;
use crate::report::{self, QueuesRow, Row};
use crate::trace::Trace;
use crate::US;

/// Policies that are plotted, and their colours.
const LINES: [(Policy, RGBColor); 5] = [
    (Policy::Fixed(0), RGBColor(120, 120, 120)),
    (Policy::Fixed(20), RGBColor(230, 159, 0)),
    (Policy::Fixed(50), RGBColor(213, 94, 0)),
    (Policy::Forever, RGBColor(86, 180, 233)),
    (Policy::Adaptive(500), RGBColor(0, 114, 78)),
];
const WIDTH: u32 = 720;
const HEIGHT: u32 = 440;

/// Queues and CPUs that are plotted.
const QUEUES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const CPUS: [usize; 4] = [1, 2, 4, 8];

/// A line of a plot: a policy, and points.
type Line = (Policy, RGBColor, Vec<(f64, f64)>);
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// What a plot says of itself.
struct Legend<'a> {
    title: &'a str,
    x: &'a str,
    y: &'a str,
    /// The values of x go up by factors of two.
    doubles: bool,
    /// The greatest y that is shown.
    top: f64,
}

/// Draws the lines into a chart, whatever its axes are, and says which is which.
macro_rules! series {
    ($chart:expr, $legend:expr, $lines:expr) => {
        $chart
            .configure_mesh()
            .x_desc($legend.x)
            .y_desc($legend.y)
            .light_line_style(WHITE)
            .draw()?;
        for (policy, colour, points) in $lines {
            let style = colour.stroke_width(2);
            $chart
                .draw_series(LineSeries::new(points.iter().copied(), style))?
                .label(policy.to_string())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
        }
        $chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    };
}

/// Writes all plots.
///
/// # Errors
///
/// A folder that cannot be written to.
pub fn all(folder: &Path, common: &Common) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let cost = |row: &Row| row.cost_per_event;
    let late = |row: &Row| row.added_latency;
    for (file, title, trace, value) in [
        (
            "cost-constant.svg",
            "One packet each so often",
            Trace::Constant as fn(u64) -> Trace,
            cost as fn(&Row) -> f64,
        ),
        (
            "cost-poisson.svg",
            "Packets at random",
            Trace::Poisson,
            cost,
        ),
        (
            "late-poisson.svg",
            "Packets at random: delay",
            Trace::Poisson,
            late,
        ),
    ] {
        let lines = sweep(trace, value, common)?;
        let axis = if file.starts_with("late") {
            "delay, us a packet"
        } else {
            "CPU time of polls and wake-ups, us a packet"
        };
        let title = format!("{title} (a wake-up costs {} us)", common.price);
        let legend = Legend {
            title: &title,
            x: "us between packets",
            y: axis,
            doubles: false,
            top: 120.0,
        };
        alone(&folder.join(file), &legend, &lines).map_err(|err| anyhow!("{err}"))?;
    }
    for (file, y, top, value) in [
        (
            "cost-queues.svg",
            "CPU time, us a packet",
            120.0,
            (|row| row.cost_per_event) as fn(&QueuesRow) -> f64,
        ),
        ("late-queues.svg", "delay, us a packet", 2000.0, |row| {
            row.added_latency
        }),
    ] {
        queues(&folder.join(file), y, top, value, common).map_err(|err| anyhow!("{err}"))?;
    }
    Ok(())
}

/// A plot of one panel.
fn alone(path: &Path, legend: &Legend<'_>, lines: &[Line]) -> Drawn {
    let area = SVGBackend::new(path, (WIDTH, HEIGHT)).into_drawing_area();
    area.fill(&WHITE)?;
    draw(&area, legend, lines)?;
    Ok(area.present()?)
}

/// One panel for so many CPUs each: a line for each policy, over the queues that share them.
fn queues(path: &Path, y: &str, top: f64, value: fn(&QueuesRow) -> f64, common: &Common) -> Drawn {
    let times = Times {
        price: common.price * US,
        service: machine::SERVICE,
        slice: machine::SLICE,
    };
    let count = usize::try_from(common.count)?;
    let trace = Trace::Poisson(100);
    let area = SVGBackend::new(path, (WIDTH * 3 / 2, HEIGHT * 3 / 2)).into_drawing_area();
    area.fill(&WHITE)?;
    for (panel, cpus) in area.split_evenly((2, 2)).iter().zip(CPUS) {
        let mut lines = LINES.map(|(policy, colour)| (policy, colour, Vec::new()));
        for queues in QUEUES.into_iter().filter(|queues| *queues >= cpus) {
            let arrivals = report::arrivals(&trace, queues, count, common.seed)?;
            for (policy, _, points) in &mut lines {
                let row = QueuesRow::new(&arrivals, cpus, *policy, times);
                points.push((queues as f64, value(&row))); // CAST: For people.
            }
        }
        let title = format!("{cpus} CPU{}", if cpus == 1 { "" } else { "s" });
        let legend = Legend {
            title: &title,
            x: "queues, each with a packet every 100 us at random",
            y,
            doubles: true,
            top,
        };
        draw(panel, &legend, &lines)?;
    }
    Ok(area.present()?)
}

/// A line for each policy, over the time between packets.
fn sweep(trace: fn(u64) -> Trace, value: fn(&Row) -> f64, common: &Common) -> Result<Vec<Line>> {
    let line = |(policy, colour): (Policy, RGBColor)| {
        let point = |us: u64| {
            let trace = trace(us);
            let gaps = trace.gaps(usize::try_from(common.count)?, common.seed)?;
            let row = Row::new(&trace, &gaps, policy, common.price * US);
            Ok((us as f64, value(&row))) // CAST: For people.
        };
        let points = (1..=120).map(point).collect::<Result<_>>()?;
        Ok((policy, colour, points))
    };
    LINES.into_iter().map(line).collect()
}

fn draw(area: &DrawingArea<SVGBackend<'_>, Shift>, legend: &Legend<'_>, lines: &[Line]) -> Drawn {
    let values = lines
        .iter()
        .flat_map(|(_, _, points)| points.iter().map(|point| point.1));
    let top = values.fold(1.0, f64::max).min(legend.top) * 1.05;
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(legend.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(50);
    if legend.doubles {
        let mut chart = builder.build_cartesian_2d((1.0..64.0).log_scale().base(2.0), 0.0..top)?;
        series!(chart, legend, lines);
    } else {
        let mut chart = builder.build_cartesian_2d(0.0..120.0, 0.0..top)?;
        series!(chart, legend, lines);
    }
    Ok(())
}
