// SPDX-License-Identifier: GPL-2.0

//! What the fuzzer has kept, and what it has found before, passes.

use std::fs;
use std::path::Path;

use vhost_fuzz::{Target, TARGETS};

/// Runs the files of a folder of this crate; answers how many there are.
fn replay(target: &Target, kind: &str) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(kind)
        .join(target.name);
    let Ok(files) = fs::read_dir(folder) else {
        return 0;
    };
    let files = files.map(|file| file.unwrap().path());
    files
        .map(|file| (target.run)(&fs::read(file).unwrap()))
        .count()
}

#[test]
fn each_target_passes_what_it_starts_from() {
    for target in &TARGETS {
        assert!(
            replay(target, "corpus") > 0,
            "{} has no corpus",
            target.name
        );
    }
}

#[test]
fn what_was_found_is_mended() {
    for target in &TARGETS {
        replay(target, "found");
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
