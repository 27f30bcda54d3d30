// SPDX-License-Identifier: GPL-2.0

//! Plots of the documentation: bars, C's above ours.

use std::path::Path;

use anyhow::{anyhow, Result};
use plotters::prelude::*;

use crate::sections::Section;
use crate::table;

const C: RGBColor = RGBColor(150, 150, 150);
const OURS: RGBColor = RGBColor(0, 114, 178);
const WIDTH: u32 = 720;
/// Pixels of a case, and of what is around all.
const CASE: usize = 26;
const AROUND: usize = 110;

/// A case and a figure of each driver.
#[derive(Clone, Debug, PartialEq)]
struct Bar {
    case: String,
    c: f64,
    ours: f64,
}

/// Which figure of which section goes into which file.
const PLOTS: [(&str, &str, &str, &str); 4] = [
    (
        "bench-worker.svg",
        "costs",
        "worker",
        "Instructions of the worker for a packet",
    ),
    ("bench-kicks.svg", "notify", "kicks", "Kicks for a packet"),
    (
        "bench-growth.svg",
        "growth",
        "worker",
        "Many devices: instructions of the workers for a packet",
    ),
    (
        "bench-round-trip.svg",
        "pingpong",
        "p50",
        "Round trip, median, virtual us",
    ),
];

/// Writes the plots of what was measured.
///
/// # Errors
///
/// A folder that cannot be written to.
pub fn all(folder: &Path, rows: &[table::Row], sections: &[Section]) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let own = rows.iter().map(|row| Bar {
        case: row.case.clone(),
        c: row.c.column_1,
        ours: row.ours.column_1,
    });
    let own: Vec<Bar> = own.collect();
    write(
        &folder.join("bench-own.svg"),
        "The driver's own instructions for a packet",
        &own,
    )?;
    for (file, section, figure, title) in PLOTS {
        let bars = bars(sections, section, figure);
        if !bars.is_empty() {
            write(&folder.join(file), title, &bars)?;
        }
    }
    Ok(())
}

/// The cases that both drivers have a figure of.
fn bars(sections: &[Section], name: &str, title: &str) -> Vec<Bar> {
    let rows = sections.iter().filter(|section| section.name == name);
    let bar = |row: &crate::sections::Row| {
        let (_, pair) = row.figures.iter().find(|(known, _)| *known == title)?;
        Some(Bar {
            case: row.case.clone(),
            c: pair.c?.median,
            ours: pair.ours?.median,
        })
    };
    rows.flat_map(|section| section.rows.iter().filter_map(bar))
        .collect()
}

fn write(path: &Path, title: &str, bars: &[Bar]) -> Result<()> {
    draw(path, title, bars).map_err(|err| anyhow!("{}: {err}", path.display()))
}

#[expect(clippy::float_arithmetic, reason = "places in a picture")]
fn draw(path: &Path, title: &str, bars: &[Bar]) -> Result<(), Box<dyn std::error::Error>> {
    let height = u32::try_from(bars.len() * CASE + AROUND)?;
    let most = bars
        .iter()
        .map(|bar| bar.c.max(bar.ours))
        .fold(0.0, f64::max);
    let count = bars.len() as f64; // CAST: A few.
    let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(170)
        .build_cartesian_2d(0.0..most * 1.1 + f64::EPSILON, count..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .y_labels(0)
        .light_line_style(WHITE)
        .draw()?;
    for (name, colour, top, figure) in [
        ("C", C, 0.1, (|bar| bar.c) as fn(&Bar) -> f64),
        ("vhost_net_rs", OURS, 0.5, |bar| bar.ours),
    ] {
        let rectangle = |(row, bar): (usize, &Bar)| {
            let y = row as f64 + top; // CAST: A few.
            Rectangle::new([(0.0, y), (figure(bar), y + 0.4)], colour.filled())
        };
        chart
            .draw_series(bars.iter().enumerate().map(rectangle))?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    let label = TextStyle::from(("sans-serif", 12).into_font());
    for (row, bar) in bars.iter().enumerate() {
        let (_, y) = chart.backend_coord(&(0.0, row as f64 + 0.3)); // CAST: A few.
        area.draw_text(&bar.case, &label, (14, y))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Figure;
    use crate::sections::{Pair, Row};
    use std::collections::BTreeMap;

    fn section() -> Section {
        let figure = |value| Figure::new([value]);
        let row = |case: &str, c| Row {
            case: case.to_owned(),
            figures: vec![(
                "worker",
                Pair {
                    c,
                    ours: figure(50.0),
                    ratio: None,
                },
            )],
            failed: Vec::new(),
        };
        Section {
            name: "costs",
            title: "",
            rows: vec![row("tx-64", figure(100.0)), row("ours alone", None)],
            environment: BTreeMap::new(),
        }
    }

    #[test]
    fn cases_of_both_drivers_become_bars() {
        let bars = bars(&[section()], "costs", "worker");
        let only = Bar {
            case: "tx-64".to_owned(),
            c: 100.0,
            ours: 50.0,
        };
        assert_eq!(bars, [only]);
    }

    #[test]
    fn plots_name_what_they_show() {
        let folder = std::env::temp_dir().join(format!("vhost-bench-plots-{}", std::process::id()));
        all(&folder, &[], &[section()]).unwrap();
        let text = std::fs::read_to_string(folder.join("bench-worker.svg")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        for word in ["tx-64", "vhost_net_rs", "Instructions of the worker"] {
            assert!(text.contains(word), "{word} is not in\n{text}");
        }
    }
}
