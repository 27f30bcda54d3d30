// SPDX-License-Identifier: GPL-2.0

//! What is read from files and written to them.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use poll_sim::args::{Cli, Command};
use poll_sim::plot;
use poll_sim::trace::Trace;

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn read(text: &str) -> anyhow::Result<Vec<u64>> {
    let path = folder("recorded").join(format!("{}.times", text.len()));
    fs::write(&path, text).unwrap();
    Trace::File(path).gaps(2, 1)
}

#[test]
fn a_recorded_trace_is_all_that_is_in_the_file() {
    let gaps = read("# of tap0\n1000\n1500\n\n 1500 \n9000\n").unwrap();
    assert_eq!(gaps, [500, 0, 7500]);

    for (text, complaint) in [
        ("", "no two times"),
        ("1000\n", "no two times"),
        ("1000\n1.5\n", "'1.5' is no time"),
        ("1000\n999\n1001\n", "not in order"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(complaint), "{text:?}: {error}");
    }
}

#[test]
fn each_plot_has_a_line_for_each_policy() {
    let out = folder("plots");
    let args = ["poll-sim", "plots", out.to_str().unwrap(), "--count", "50"];
    let Command::Plots { folder, common } = Cli::parse_from(args).command else {
        panic!("plots are asked for");
    };
    plot::all(&folder, &common).unwrap();

    for (name, panels) in [
        ("cost-constant", 1),
        ("cost-poisson", 1),
        ("late-poisson", 1),
        ("cost-queues", 4),
        ("late-queues", 4),
    ] {
        let svg = fs::read_to_string(out.join(name).with_extension("svg")).unwrap();
        for policy in ["fixed:0", "fixed:20", "fixed:50", "forever", "adaptive:500"] {
            let shown = svg.lines().filter(|line| line.trim() == policy).count();
            assert_eq!(shown, panels, "{name}: {policy}");
        }
    }
}
