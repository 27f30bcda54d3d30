// SPDX-License-Identifier: GPL-2.0

use vhost_engine::engine::budget::Budget;

#[test]
fn the_256th_turn_is_the_last() {
    let mut budget = Budget::new();
    let turns = (1..).find(|_| budget.spend(0));
    assert_eq!(turns, Some(256));
}

#[test]
fn the_turn_that_reaches_half_a_mebibyte_is_the_last() {
    let mut budget = Budget::new();
    assert!(!budget.spend(0x7ffff));
    assert!(budget.spend(1));
}

#[test]
fn lengths_beyond_all_bounds_end_the_run() {
    for bytes in [u64::MAX, 1 << 40, 1 << 48, 0_u64.wrapping_sub(1 << 40)] {
        let mut budget = Budget::new();
        assert!(budget.spend(bytes), "{bytes:#x}");
        assert!(budget.spend(bytes), "{bytes:#x}");
    }
}

#[test]
fn a_descriptor_walked_counts_as_64_bytes() {
    let mut budget = Budget::new();
    budget.charge(8191);
    assert!(!budget.spend(63));
    assert!(budget.spend(1));
    budget = Budget::new();
    budget.charge(usize::MAX);
    assert!(budget.spend(0));
}

#[test]
fn more_is_announced_only_if_another_turn_comes() {
    let mut budget = Budget::new();
    assert!(budget.allows_more(0x7ffff));
    assert!(!budget.allows_more(0x80000));
    for _ in 0..254 {
        assert!(budget.allows_more(1));
        assert!(!budget.spend(1));
    }
    assert!(budget.allows_more(1));
    assert!(!budget.spend(1));
    assert!(!budget.allows_more(1), "the 256th");
}
