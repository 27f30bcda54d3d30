// SPDX-License-Identifier: GPL-2.0

use vhost_engine::engine::layout::*;

#[test]
fn sizes_are_those_of_section_2_7() {
    for num in [1, 2, 256, 32768] {
        let n = u64::from(num);
        assert_eq!(desc_bytes(num), 16 * n);
        assert_eq!(avail_bytes(num, true), 6 + 2 * n);
        assert_eq!(used_bytes(num, true), 6 + 8 * n);
    }
}

#[test]
fn without_event_indices_the_rings_end_two_bytes_earlier() {
    assert_eq!(avail_bytes(8, false), 4 + 16);
    assert_eq!(used_bytes(8, false), 4 + 64);
}

#[test]
fn event_indices_lie_behind_the_rings() {
    assert_eq!(used_event(256), 4 + 512);
    assert_eq!(avail_event(256), 4 + 2048);
    assert_eq!(used_elem(3), 4 + 24);
}

#[test]
fn ring_sizes_are_the_powers_of_two_up_to_32768() {
    let good = (0..=0x2_0000).filter_map(check_num).collect::<Vec<_>>();
    let powers = (0..=15).map(|bit| 1 << bit).collect::<Vec<u16>>();
    assert_eq!(good, powers);
    assert_eq!(check_num(u32::MAX), None);
    assert_eq!(check_num(0x1_0001), None);
}

#[test]
fn avail_needs_even_and_used_needs_four_byte_addresses() {
    assert!(aligned(2, 4));
    assert!(!aligned(1, 4));
    assert!(!aligned(2, 2));
    assert!(!aligned(2, u64::MAX));
}
