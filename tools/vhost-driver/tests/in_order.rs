// SPDX-License-Identifier: GPL-2.0

//! The driver with `VIRTIO_F_IN_ORDER`, against memory that the tests write as a device would (virtio 1.3, section 2.7.9).

use proptest::prelude::*;
use std::sync::atomic::Ordering::Relaxed;
use vhost_driver::{Error, Gpa, GuestMemory, RingFeatures, RingLayout, Segment, Used, Virtqueue};

const IN_ORDER: RingFeatures = RingFeatures {
    event_idx: true,
    indirect: None,
    notify_on_empty: false,
    in_order: true,
};

fn queue(num: u16, start: u16) -> Virtqueue {
    let size = usize::try_from(RingLayout::size(num)).unwrap();
    let memory = GuestMemory::new(&[size], Some(Gpa(0x10_0000))).unwrap();
    let ring = RingLayout::new(u32::from(num), memory.base()).unwrap();
    Virtqueue::new(memory, ring, IN_ORDER, start).unwrap()
}

/// Adds a chain of `count` segments with room for 10 bytes each.
fn add(queue: &mut Virtqueue, count: u64, token: u32) {
    let segment = |i| Segment {
        addr: Gpa(0x20_0000 + 16 * i),
        len: 10,
        writable: true,
    };
    let segments: Vec<_> = (0..count).map(segment).collect();
    queue.add(&segments, token).unwrap();
}

fn head_at(queue: &Virtqueue, index: u16) -> u16 {
    let entry = queue.layout().avail_entry(index);
    queue.memory().load_u16(entry, Relaxed)
}

/// `flags` and `next` of a descriptor.
fn link(queue: &Virtqueue, descriptor: u16) -> (u16, u16) {
    let at = queue.layout().desc + 16 * u64::from(descriptor);
    let field = |offset| queue.memory().load_u16(at + offset, Relaxed);
    (field(12), field(14))
}

/// What a device does: an entry for the batch that begins at `first`, then the index behind it.
fn give_back(queue: &Virtqueue, first: u16, count: u16, id: u32, len: u32) {
    let (memory, entry) = (queue.memory(), queue.layout().used_entry(first));
    memory.store_u32(entry, id);
    memory.store_u32(entry + 4, len);
    let index = first.wrapping_add(count);
    memory.store_u16(queue.layout().used_idx(), index, Relaxed);
}

fn used(token: u32, len: u32) -> Used {
    Used { token, len }
}

#[test]
fn descriptors_are_used_in_the_order_of_the_table() {
    let mut queue = queue(8, 0);
    let (write, next) = (2, 1);
    for (token, count) in [(0, 3), (1, 1), (2, 2)] {
        add(&mut queue, count, token);
    }
    assert_eq!([0, 1, 2].map(|index| head_at(&queue, index)), [0, 3, 4]);
    give_back(&queue, 0, 3, 4, 0);
    while queue.pop_used().unwrap().is_some() {}
    // The table's last descriptor is followed by its first.
    add(&mut queue, 4, 3);
    assert_eq!(head_at(&queue, 3), 6);
    let links = [6, 7, 0, 1].map(|descriptor| link(&queue, descriptor));
    let more = write | next;
    assert_eq!(links, [(more, 7), (more, 0), (more, 1), (write, 0)]);
}

#[test]
fn one_entry_returns_a_batch() {
    let mut queue = queue(8, 65534);
    for token in 0..4 {
        add(&mut queue, 2, token);
    }
    give_back(&queue, 65534, 3, 4, 7);
    let popped: Vec<_> = (0..3).map(|_| queue.pop_used().unwrap().unwrap()).collect();
    // Those before the last were used up.
    assert_eq!(popped, [used(0, 20), used(1, 20), used(2, 7)]);
    assert_eq!(queue.pop_used().unwrap(), None);
    give_back(&queue, 1, 1, 6, 3);
    assert_eq!(queue.pop_used().unwrap(), Some(used(3, 3)));
    assert_eq!((queue.next_used(), queue.outstanding()), (2, 0));
}

#[test]
fn an_entry_that_names_no_chain_of_the_device_is_an_error() {
    for id in [1, 5, 7, 8, u32::MAX] {
        let mut queue = queue(8, 0);
        add(&mut queue, 2, 0);
        add(&mut queue, 2, 1);
        give_back(&queue, 0, 2, id, 0);
        let found = queue.pop_used().unwrap_err();
        assert!(
            matches!(found, Error::NotOutstanding { index: 0, id: named } if named == id),
            "{found}"
        );
    }
}

#[test]
fn a_batch_beyond_the_index_is_an_error() {
    let mut queue = queue(8, 0);
    for token in 0..3 {
        add(&mut queue, 2, token);
    }
    give_back(&queue, 0, 2, 4, 0);
    let found = queue.pop_used().unwrap_err();
    assert!(
        matches!(
            found,
            Error::BatchTooLong {
                index: 0,
                id: 4,
                pending: 2
            }
        ),
        "{found}"
    );
}

#[test]
fn a_batch_out_of_order_is_an_error() {
    let mut queue = queue(8, 0);
    for token in 0..3 {
        add(&mut queue, 1, token);
    }
    give_back(&queue, 0, 1, 1, 0);
    assert!(matches!(
        queue.pop_used().unwrap_err(),
        Error::BatchTooLong { .. }
    ));
}

#[test]
fn more_than_the_last_chain_has_room_for_is_an_error() {
    let mut queue = queue(8, 0);
    add(&mut queue, 2, 0);
    add(&mut queue, 1, 1);
    give_back(&queue, 0, 2, 2, 11);
    assert_eq!(queue.pop_used().unwrap(), Some(used(0, 20)));
    let found = queue.pop_used().unwrap_err();
    assert!(
        matches!(
            found,
            Error::UsedTooLong {
                len: 11,
                room: 10,
                ..
            }
        ),
        "{found}"
    );
}

proptest! {
    #[test]
    fn chains_come_back_in_order(
        log in 0u32..6,
        start in any::<u16>(),
        steps in prop::collection::vec((0u64..5, 0u16..9, any::<bool>()), 1..200),
    ) {
        let mut queue = queue(1 << log, start);
        let (mut token, mut popped, mut given) = (0, 0, start);
        for (segments, batch, pop) in steps {
            if segments > 0 && queue.has_room(usize::try_from(segments).unwrap()) {
                add(&mut queue, segments, token);
                token += 1;
            }
            let batch = batch.min(queue.avail_idx().wrapping_sub(given));
            if batch > 0 {
                let last = given.wrapping_add(batch - 1);
                give_back(&queue, given, batch, u32::from(head_at(&queue, last)), 5);
                given = last.wrapping_add(1);
            }
            while let Some(Used { token, .. }) = if pop { queue.pop_used().unwrap() } else { None } {
                prop_assert_eq!(token, popped);
                popped += 1;
            }
        }
    }
}
