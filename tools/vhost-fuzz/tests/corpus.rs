// SPDX-License-Identifier: GPL-2.0

//! What the fuzzer has kept, and what it has found before, passes.

use std::fs;
use std::path::Path;

use vhost_fuzz::{Target, TARGETS};

/// Runs the files of a target's corpus; answers how many there are.
fn replay(target: &Target) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name);
    let files = fs::read_dir(folder).unwrap();
    let files = files.map(|file| file.unwrap().path());
    files
        .map(|file| (target.run)(&fs::read(file).unwrap()))
        .count()
}

#[test]
fn each_target_passes_what_it_starts_from() {
    for target in &TARGETS {
        assert!(replay(target) > 0, "{} has no corpus", target.name);
    }
}

#[test]
fn bytes_mean_something_to_each_target() {
    for target in &TARGETS {
        assert!(
            (target.show)(&[0x5a; 200]).contains("steps"),
            "{}",
            target.name
        );
    }
}
