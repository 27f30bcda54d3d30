// SPDX-License-Identifier: GPL-2.0

//! What documents say of the tables.

use std::fs;

use conformance::{abi::Listed, cases};

fn read(path: &str) -> String {
    let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|err| panic!("{path}: {err}"))
}

#[test]
fn the_readme_has_the_number_of_calls() {
    let count = cases::all().len();
    let count = format!("{},{:03} calls", count / 1000, count % 1000);
    let text = read("README.md");
    assert!(text.contains(&count), "README.md does not say {count}");
}

#[test]
fn the_differences_can_be_read() {
    let listed = Listed::parse(&read("Documentation/abi.rst")).unwrap();
    assert!(!listed.idle().is_empty(), "no difference is listed");
}
