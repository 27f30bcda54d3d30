// SPDX-License-Identifier: GPL-2.0

//! What the driver is to be no worse than, of C's or of its own in another case.

use std::fmt::Write;

use crate::figure::Figure;
use crate::sections::{Pair, Section};
use crate::table::{Costs, Row};

/// A figure, and what it is not to exceed.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    what: String,
    figure: f64,
    limit: f64,
}

impl Target {
    /// Whether it is met.
    pub fn is_met(&self) -> bool {
        self.figure <= self.limit
    }
}

/// Which of the drivers.
#[derive(Clone, Copy)]
enum Driver {
    C,
    Ours,
}

/// The driver's own instructions, in per cent of C's.
const OWN: [(&str, f64); 10] = [
    ("tx-64", 50.0),
    ("tx-1500", 50.0),
    ("rx-64", 50.0),
    ("rx-1500", 50.0),
    ("rr-64", 55.0),
    ("tx-64-in-order", 45.0),
    ("rx-64-in-order", 45.0),
    ("tx-64-indirect", 55.0),
    ("rx-64-indirect", 55.0),
    ("rx-1500-mergeable", 55.0),
];
/// With what it calls, and the whole worker's.
const CALLED: [(&str, f64); 2] = [("tx-64", 65.0), ("rx-64", 65.0)];
const WORKER: [(&str, f64); 2] = [("tx-64", 91.0), ("rx-64", 85.0)];
/// A case, the one that it is compared with, and the share that it may have of that, in per cent.
const AGAINST: [(&str, &str, &str, &str, f64); 6] = [
    ("costs", "worker", "tx-64-regions-16", "tx-64", 115.0),
    ("costs", "worker", "rx-64-regions-16", "rx-64", 115.0),
    (
        "costs",
        "worker",
        "tx-64-iotlb-2048",
        "tx-64-iotlb-1",
        115.0,
    ),
    (
        "costs",
        "worker",
        "rx-64-iotlb-2048",
        "rx-64-iotlb-1",
        115.0,
    ),
    ("growth", "worker", "process-64", "process-1", 105.0),
    (
        "growth",
        "system",
        "pairs-20-adaptive-50",
        "pairs-20-window-0",
        105.0,
    ),
];
/// KiB of a device with an owner.
const DEVICE: f64 = 80.0;
/// What is counted in so few that one more or less is no difference, per packet.
const NOTHING: f64 = 0.001;

struct Measured<'a> {
    sections: &'a [Section],
}

impl<'a> Measured<'a> {
    fn rows(&self, section: &'static str) -> impl Iterator<Item = &'a crate::sections::Row> + 'a {
        let sections = self.sections.iter();
        sections
            .filter(move |known| known.name == section)
            .flat_map(|known| &known.rows)
    }

    fn pair(&self, section: &str, title: &str, case: &str) -> Option<&Pair> {
        let mut sections = self.sections.iter();
        let section = sections.find(|known| known.name == section)?;
        let row = section.rows.iter().find(|row| row.case == case)?;
        let mut figures = row.figures.iter();
        figures
            .find(|(known, _)| *known == title)
            .map(|(_, pair)| pair)
    }

    fn median(&self, driver: Driver, section: &str, title: &str, case: &str) -> Option<f64> {
        let pair = self.pair(section, title, case)?;
        let figure: Figure = match driver {
            Driver::C => pair.c?,
            Driver::Ours => pair.ours?,
        };
        Some(figure.median)
    }
}

#[expect(clippy::float_arithmetic, reason = "a share")]
fn share(part: f64, whole: f64) -> f64 {
    100.0 * part / whole
}

/// The targets of what was measured.
pub fn all(rows: &[Row], sections: &[Section]) -> Vec<Target> {
    let measured = Measured { sections };
    let mut targets = Vec::new();
    let mut hold = |what: &str, cases: &[(&str, f64)], of: fn(&Costs) -> f64| {
        for (case, limit) in cases {
            targets.extend(against_c(rows, what, case, of, *limit));
        }
    };
    hold("own", &OWN, |costs| costs.column_1);
    hold("own and called", &CALLED, |costs| costs.column_2);
    hold("worker", &WORKER, |costs| costs.worker);
    targets.extend(notifications(&measured));
    targets.extend(devices(&measured));
    for (section, title, case, other, limit) in AGAINST {
        let of = |case| measured.median(Driver::Ours, section, title, case);
        targets.extend(
            of(case)
                .zip(of(other))
                .map(|(figure, other_figure)| Target {
                    what: format!("{title}, {case}, in per cent of {other}"),
                    figure: share(figure, other_figure),
                    limit,
                }),
        );
    }
    targets.extend(frames(&measured));
    targets
}

fn against_c(
    rows: &[Row],
    what: &str,
    case: &str,
    of: fn(&Costs) -> f64,
    limit: f64,
) -> Option<Target> {
    let row = rows.iter().find(|row| row.case == case)?;
    Some(Target {
        what: format!("{what}, {case}, in per cent of C's"),
        figure: share(of(&row.ours), of(&row.c)),
        limit,
    })
}

/// No more kicks and calls than C's, and with a window of 50 us no more than with none.
#[expect(clippy::float_arithmetic, reason = "a tolerance")]
fn notifications(measured: &Measured<'_>) -> Vec<Target> {
    let mut targets = Vec::new();
    for row in measured.rows("notify") {
        let case = row.case.as_str();
        for title in ["kicks", "calls"] {
            let of = |driver, case: &str| measured.median(driver, "notify", title, case);
            let without = case
                .strip_suffix("window-50")
                .map(|start| format!("{start}window-0"));
            let without = without.and_then(|case| of(Driver::Ours, &case));
            for (limit, whose) in [(of(Driver::C, case), "C's"), (without, "those without")] {
                targets.extend(
                    of(Driver::Ours, case)
                        .zip(limit)
                        .map(|(figure, limit)| Target {
                            what: format!("{title}, {case}, against {whose}"),
                            figure,
                            limit: limit + NOTHING,
                        }),
                );
            }
        }
    }
    targets
}

fn devices(measured: &Measured<'_>) -> Vec<Target> {
    let mut targets = Vec::new();
    for row in measured.rows("devices") {
        let case = row.case.as_str();
        let of = |driver, title| measured.median(driver, "devices", title, case);
        let memory = of(Driver::Ours, "with an owner, KiB").zip(Some(DEVICE));
        let close = |title| of(Driver::Ours, title).zip(of(Driver::C, title));
        for (what, pair) in [
            ("KiB of a device with an owner", memory),
            ("close, us, against C's", close("close, us")),
            (
                "close all at once, us, against C's",
                close("close all at once, us"),
            ),
        ] {
            targets.extend(pair.map(|(figure, limit)| Target {
                what: format!("{what}, {case}"),
                figure,
                limit,
            }));
        }
    }
    targets
}

/// A tap that puts packets together saves at least what it saves with C's driver.
fn frames(measured: &Measured<'_>) -> Option<Target> {
    let of = |driver| {
        let of = |case| measured.median(driver, "costs", "worker", case);
        Some(share(of("tx-64-frames-48")?, of("tx-64-frames-0")?))
    };
    Some(Target {
        what: "worker, rx-frames 48, in per cent of 0, against C's".to_owned(),
        figure: of(Driver::Ours)?,
        limit: of(Driver::C)?,
    })
}

/// The targets for people: those that are missed first.
pub fn text(targets: &[Target]) -> String {
    let met = targets.iter().filter(|target| target.is_met()).count();
    // Writing to a string cannot fail.
    let mut text = String::new();
    let _ = writeln!(text, "\ntargets: {met} of {} are met", targets.len());
    for wanted in [false, true] {
        for target in targets.iter().filter(|target| target.is_met() == wanted) {
            let _ = writeln!(
                text,
                "{:6} {:10.4} of {:10.4}  {}",
                if wanted { "met" } else { "MISSED" },
                target.figure,
                target.limit,
                target.what
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn section(name: &'static str, title: &'static str, cases: &[(&str, f64, f64)]) -> Section {
        let row = |(case, c, ours): &(&str, f64, f64)| crate::sections::Row {
            case: (*case).to_owned(),
            figures: vec![(
                title,
                Pair {
                    c: Figure::new([*c]),
                    ours: Figure::new([*ours]),
                    ratio: None,
                },
            )],
            failed: Vec::new(),
        };
        Section {
            name,
            title: "",
            rows: cases.iter().map(row).collect(),
            environment: BTreeMap::new(),
        }
    }

    fn missed(section: Section) -> Vec<String> {
        let targets = all(&[], &[section]);
        assert!(!targets.is_empty());
        let missed = targets.into_iter().filter(|target| !target.is_met());
        missed.map(|target| target.what).collect()
    }

    #[test]
    fn own_instructions_are_held_against_c() {
        let costs = |column_1| Costs {
            column_1,
            column_2: 0.0,
            worker: column_1,
            system: 0.0,
            kicks: 0.0,
            calls: 0.0,
        };
        let row = |ours| Row {
            case: "rr-64".to_owned(),
            packets: 1,
            c: costs(100.0),
            ours: costs(ours),
            again: None,
        };
        let met = |ours| all(&[row(ours)], &[]).iter().all(Target::is_met);
        assert!(met(55.0) && !met(55.1));
        assert!(text(&all(&[row(56.0)], &[])).contains("MISSED"));
    }

    #[test]
    fn kicks_are_held_against_c_and_against_no_window() {
        let cases = |with| [("tx-window-0", 0.5, 0.5), ("tx-window-50", 0.4, with)];
        assert!(missed(section("notify", "kicks", &cases(0.4))).is_empty());
        assert_eq!(missed(section("notify", "kicks", &cases(0.45))).len(), 1);
        assert_eq!(missed(section("notify", "kicks", &cases(0.6))).len(), 2);
    }

    #[test]
    fn devices_and_growth_have_limits() {
        let memory = |kib| section("devices", "with an owner, KiB", &[("64", 220.0, kib)]);
        assert!(missed(memory(80.0)).is_empty());
        assert_eq!(missed(memory(81.0)).len(), 1);
        let growth = |last| [("process-1", 1.0, 100.0), ("process-64", 1.0, last)];
        assert!(missed(section("growth", "worker", &growth(105.0))).is_empty());
        assert_eq!(missed(section("growth", "worker", &growth(106.0))).len(), 1);
    }
}
