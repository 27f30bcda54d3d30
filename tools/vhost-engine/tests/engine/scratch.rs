// SPDX-License-Identifier: GPL-2.0

use vhost_engine::engine::addr::{Segment, Uva};
use vhost_engine::engine::error::Error;
use vhost_engine::engine::scratch::{Extent, Scratch, Segments, BATCH, MAX_SEGMENTS};

#[test]
fn the_room_of_a_worker_is_less_than_eight_pages() {
    assert!(size_of::<Scratch>() <= 8 * 4096);
    assert_eq!((BATCH, MAX_SEGMENTS), (64, 1024));
}

#[test]
fn the_1025th_segment_is_one_too_many() {
    let mut all = Box::new([Segment::default(); MAX_SEGMENTS]);
    let mut segments = Segments::new(&mut all, Extent::default());
    let segment = Segment {
        addr: Uva(1),
        len: 2,
    };
    for _ in 0..1024 {
        segments.push(segment).unwrap();
    }
    assert_eq!(segments.push(segment), Err(Error::TooManySegments));
    assert_eq!(segments.extent().segments, 1024);
    assert_eq!(*all, [segment; 1024]);
}

#[test]
fn the_1025th_descriptor_of_a_packet_is_one_too_many() {
    let mut all = Box::new([Segment::default(); MAX_SEGMENTS]);
    let extent = Extent {
        segments: 3,
        descs: 1000,
    };
    let mut segments = Segments::new(&mut all, extent);
    for _ in 0..24 {
        segments.count_desc().unwrap();
    }
    assert_eq!(segments.count_desc(), Err(Error::TooManySegments));
    assert_eq!(
        segments.extent(),
        Extent {
            descs: 1024,
            ..extent
        }
    );
}
