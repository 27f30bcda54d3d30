// SPDX-License-Identifier: GPL-2.0

use std::collections::HashSet;

use vhost_engine::engine::counters::{Counters, COUNT, NAMES};

#[test]
fn names_and_values_are_in_the_same_order() {
    let counters = Counters {
        packets: 1,
        calls_suppressed: 2,
        drop_stop: 3,
        ..Counters::ZERO
    };
    let of = |name: &str| {
        let at = NAMES.iter().position(|n| *n == name).unwrap();
        counters.values()[at]
    };
    assert_eq!(of("packets"), 1);
    assert_eq!(of("calls-suppressed"), 2);
    assert_eq!(of("drop-stop"), 3);
    assert_eq!(counters.values().iter().sum::<u64>(), 6);
}

#[test]
fn every_counter_has_a_name_of_its_own_that_fits_a_line() {
    let names: HashSet<_> = NAMES.iter().collect();
    assert_eq!(names.len(), COUNT);
    for name in NAMES {
        assert!(
            name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'),
            "{name}"
        );
    }
    assert_eq!(size_of::<Counters>(), 8 * COUNT);
}
