// SPDX-License-Identifier: GPL-2.0

use vhost_engine::engine::continuous::Continuous;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Nanoseconds without work that end it.
const IDLE: u64 = 200 * US;

/// Looks once a microsecond for `us`, a packet coming each `gap` microseconds; says when it was on.
fn looks(poll: &mut Continuous, start: u64, us: u64, gap: u64, rate: u32) -> Vec<bool> {
    let look = |at| poll.goes_on(start + at * US, start / US + at / gap, rate, IDLE);
    (0..us).map(look).collect()
}

#[test]
fn a_rate_of_zero_never_starts_it() {
    let mut poll = Continuous::new();
    assert!(!looks(&mut poll, MS, 10_000, 1, 0).contains(&true));
}

#[test]
fn it_starts_at_the_rate_and_not_below() {
    for (gap, rate, starts) in [
        (10, 100, true),
        (10, 101, false),
        (1, 1000, true),
        (1, 1001, false),
    ] {
        let mut poll = Continuous::new();
        poll.stop(MS, MS / US);
        let on = looks(&mut poll, MS, 3_000, gap, rate).contains(&true);
        assert_eq!(on, starts, "a packet each {gap} us, rate {rate}");
    }
}

#[test]
fn few_packets_after_a_long_pause_do_not_start_it() {
    let mut poll = Continuous::new();
    poll.stop(0, 0);
    assert!(!poll.goes_on(1000 * MS, 50, 100, IDLE));
    // From here on packets are counted anew.
    assert!(!poll.goes_on(1000 * MS + 1, 149, 100, IDLE));
    assert!(poll.goes_on(1000 * MS + 2, 150, 100, IDLE));
}

#[test]
fn it_stops_when_nothing_comes_for_the_time_set() {
    let mut poll = Continuous::new();
    poll.stop(0, 0);
    assert!(poll.goes_on(MS, 1000, 10, IDLE));
    // Far below the rate, but in time.
    assert!(poll.goes_on(MS + IDLE, 1001, 10, IDLE));
    assert!(poll.goes_on(MS + 2 * IDLE, 1001, 10, IDLE));
    assert!(!poll.goes_on(MS + 2 * IDLE + 1, 1001, 10, IDLE));
    assert!(!poll.goes_on(MS + 2 * IDLE + 2, 1002, 10, IDLE));
}

#[test]
fn what_is_in_the_way_ends_it_at_once() {
    let mut poll = Continuous::new();
    poll.stop(0, 0);
    assert!(poll.goes_on(MS, 1000, 10, IDLE));
    poll.stop(MS, 1000);
    assert!(!poll.goes_on(MS + 1, 1000, 10, IDLE));
    // And it begins again by its rate.
    assert!(poll.goes_on(MS + 2, 1010, 10, IDLE));
}

#[test]
fn clocks_and_counters_may_be_anything() {
    let mut poll = Continuous::new();
    for now in [u64::MAX, 0, 5, u64::MAX - 1] {
        for packets in [u64::MAX, 0, 1] {
            for rate in [0, 1, u32::MAX] {
                poll.goes_on(now, packets, rate, 0);
                poll.goes_on(now, packets, rate, u64::MAX);
            }
        }
    }
}
