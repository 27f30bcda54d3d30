// SPDX-License-Identifier: GPL-2.0

use std::collections::HashSet;

use vhost_engine::engine::counters::{smooth, Counter, Counters, COUNT, NAMES};
use vhost_engine::engine::host::End;

#[test]
fn names_values_and_numbers_are_in_the_same_order() {
    let counters = Counters {
        packets: 1,
        calls_suppressed: 2,
        drop_stop: 3,
        ..Counters::default()
    };
    let of = |name: &str, counter: Counter| {
        let at = NAMES.iter().position(|n| *n == name).unwrap();
        assert_eq!(at, counter as usize);
        counters.values()[at]
    };
    assert_eq!(of("packets", Counter::Packets), 1);
    assert_eq!(of("calls-suppressed", Counter::CallsSuppressed), 2);
    assert_eq!(of("drop-stop", Counter::DropStop), 3);
    assert_eq!(counters.values().iter().sum::<u64>(), 6);
    let again = Counters::read(|counter| counters.values()[counter as usize]);
    assert_eq!(again, counters);
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
}

#[test]
fn each_end_of_a_window_is_counted_by_its_own_name() {
    let ends = [
        (End::Time, "time"),
        (End::Packet, "packet"),
        (End::Work, "work"),
        (End::Resched, "resched"),
        (End::Signal, "signal"),
        (End::Waiter, "waiter"),
        (End::Competitor, "competitor"),
        (End::Guest, "guest"),
    ];
    for (end, name) in ends {
        let counter = end.counter().map(|counter| NAMES[counter as usize]);
        assert_eq!(counter, Some(&*format!("poll-end-{name}")), "{end:?}");
    }
    assert_eq!(End::Turn.counter(), None, "that was no window");
}

#[test]
fn a_mean_begins_with_the_first_measurement_and_follows_the_latest() {
    assert_eq!(smooth(0, 20_000), 20_000);
    assert_eq!(smooth(0, 0), 1, "0 is not measured");
    assert_eq!(smooth(1, 0), 1);
    let settled = (0..60).fold(20_000, |mean, _| smooth(mean, 80_000));
    assert!((79_000..=80_000).contains(&settled), "{settled}");
    let outlier = smooth(20_000, 1_000_000);
    assert!(outlier < 150_000, "{outlier}");
    assert_eq!(smooth(u64::MAX, u64::MAX), u64::MAX);
}
