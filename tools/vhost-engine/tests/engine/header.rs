// SPDX-License-Identifier: GPL-2.0

use proptest::prelude::*;
use vhost_engine::engine::addr::{Segment, Uva};
use vhost_engine::engine::error::Error;
use vhost_engine::engine::net::header::*;

use crate::arena::{Arena, BASE};
use crate::rig::cases;

/// A header with a checksum to fill in.
fn header(hdr_len: u16, start: u16, offset: u16) -> Vec<u8> {
    let mut bytes = vec![1, 0];
    for field in [hdr_len, 0, start, offset, 0] {
        bytes.extend(field.to_le_bytes());
    }
    bytes
}

fn hdr_len(header: &[u8]) -> u16 {
    u16::from_le_bytes([header[2], header[3]])
}

#[test]
fn hdr_len_grows_to_cover_the_checksum() {
    let mut bytes = header(14, 34, 16);
    assert!(fix_csum(&mut bytes, 100));
    assert_eq!(hdr_len(&bytes), 52);
}

#[test]
fn a_hdr_len_that_covers_the_checksum_stays() {
    let mut bytes = header(54, 34, 16);
    let before = bytes.clone();
    assert!(fix_csum(&mut bytes, 100));
    assert_eq!(bytes, before);
}

#[test]
fn a_checksum_past_the_end_of_the_frame_is_a_lie() {
    assert!(fix_csum(&mut header(0, 34, 64), 100));
    assert!(!fix_csum(&mut header(0, 34, 65), 100));
    assert!(
        !fix_csum(&mut header(200, 34, 65), 100),
        "whatever hdr_len says"
    );
}

#[test]
fn offsets_whose_sum_takes_17_bits_are_a_lie() {
    assert!(!fix_csum(&mut header(0, 0xffff, 0xffff), 100));
    assert!(!fix_csum(&mut header(0, 0xffff, 0xffff), usize::MAX));
    assert!(
        !fix_csum(&mut header(0, 0xffff, 0), 100),
        "0x10001 is 1 in 16 bits"
    );
}

#[test]
fn without_the_flag_nothing_is_checked() {
    let mut bytes = header(0, 0xffff, 0xffff);
    bytes[0] = 0xfe;
    let before = bytes.clone();
    assert!(fix_csum(&mut bytes, 12));
    assert_eq!(bytes, before);
}

#[test]
fn a_frame_without_a_header_has_nothing_to_check() {
    assert!(fix_csum(&mut [], 60));
    assert!(fix_csum(&mut [1; 9], 60));
}

#[test]
fn a_blank_header_says_nothing_but_num_buffers() {
    let mut wanted = [0; 24];
    wanted[10..12].copy_from_slice(&[1, 2]);
    assert_eq!(blank([1, 2]), wanted);
}

fn segments(lens: &[u64]) -> Vec<Segment> {
    // 100 bytes apart, so that a write past a segment shows.
    let at = |i| Uva(BASE + 100 * i as u64);
    let one = |(i, len): (usize, &u64)| Segment {
        addr: at(i),
        len: *len,
    };
    lens.iter().enumerate().map(one).collect()
}

/// The addresses of a stream's bytes, one by one.
fn stream(segments: &[Segment]) -> Vec<u64> {
    let bytes = |s: &Segment| s.addr.0..s.addr.0 + s.len;
    segments.iter().flat_map(bytes).collect()
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn what_is_skipped_is_the_front_of_the_stream(
        lens in prop::collection::vec(0_u64..20, 0..8),
        bytes in 0_usize..60,
    ) {
        let mut all = segments(&lens);
        let before = stream(&all);
        let left = skip(&mut all, bytes);
        prop_assert_eq!(stream(&all[..left]), &before[bytes.min(before.len())..]);
        prop_assert!(all[..left].iter().all(|segment| segment.len > 0));
    }

    #[test]
    fn bytes_are_written_at_their_place_of_the_stream(
        lens in prop::collection::vec(0_u64..20, 0..8),
        offset in 0_usize..40,
        len in 1_usize..12,
    ) {
        let mem = Arena::new(1000);
        let all = segments(&lens);
        let data: Vec<u8> = (1..=len as u8).collect();
        let places = stream(&all);
        let fits = offset + len <= places.len();
        let got = write_at(&mem, &all, offset as u64, &data);
        prop_assert_eq!(got, if fits { Ok(()) } else { Err(Error::Fault) });
        if fits {
            let written: Vec<u8> = places[offset..offset + len]
                .iter()
                .map(|at| mem.peek::<1>(*at)[0])
                .collect();
            prop_assert_eq!(written, data);
        }
        // And nowhere else.
        for at in BASE..BASE + 1000 {
            let place = places.iter().position(|p| *p == at);
            let inside = place.is_some_and(|i| (offset..offset + len).contains(&i));
            prop_assert!(inside || mem.peek::<1>(at) == [0]);
        }
    }
}
