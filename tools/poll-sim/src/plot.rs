// SPDX-License-Identifier: GPL-2.0

//! Plots of the documentation.

use std::path::Path;

use anyhow::{anyhow, Result};
use plotters::prelude::*;

use crate::args::Common;
use crate::policy::Policy;
use crate::report::Row;
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

/// A line of a plot: a policy, and points.
type Line = (Policy, RGBColor, Vec<(f64, f64)>);

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
        draw(&folder.join(file), &title, axis, &lines).map_err(|err| anyhow!("{err}"))?;
    }
    Ok(())
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

fn draw(
    path: &Path,
    title: &str,
    axis: &str,
    lines: &[Line],
) -> Result<(), Box<dyn std::error::Error>> {
    let values = lines
        .iter()
        .flat_map(|(_, _, points)| points.iter().map(|point| point.1));
    let top = values.fold(1.0, f64::max).min(120.0) * 1.05;
    let area = SVGBackend::new(path, (WIDTH, HEIGHT)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..120.0, 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc("us between packets")
        .y_desc(axis)
        .light_line_style(WHITE)
        .draw()?;
    for (policy, colour, points) in lines {
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(policy.to_string())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}
