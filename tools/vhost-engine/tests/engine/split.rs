// SPDX-License-Identifier: GPL-2.0

use vhost_engine::engine::error::Error;
use vhost_engine::engine::split::SplitQueue;

use crate::arena::Kind;
use crate::model::*;
use crate::rig::{arena, World, EVENT_IDX};

fn queue(world: &World<'_>, features: u64, base: u16) -> SplitQueue {
    let (_, place, _) = world;
    let mut queue = SplitQueue::new();
    queue.set_num(place.num);
    queue.set_addresses(place.desc, place.avail, place.used);
    queue.set_features(features);
    queue.set_base(base);
    queue
}

#[test]
fn a_new_queue_has_one_entry_and_no_addresses() {
    let queue = SplitQueue::new();
    assert_eq!(
        (queue.num(), queue.base(), queue.is_set_up()),
        (1, 0, false)
    );
}

#[test]
fn one_address_of_three_is_enough_to_be_set_up() {
    for at in 0..3 {
        let mut parts = [0; 3];
        parts[at] = 4;
        let mut queue = SplitQueue::new();
        queue.set_addresses(parts[0], parts[1], parts[2]);
        assert!(queue.is_set_up());
    }
}

#[test]
fn a_size_that_no_ring_can_have_is_not_taken() {
    let mut queue = SplitQueue::new();
    queue.set_num(256);
    for num in [0, 3, 65535] {
        queue.set_num(num);
        assert_eq!(queue.num(), 256);
    }
}

#[test]
fn starting_turns_kicks_on_and_takes_the_used_index_from_the_ring() {
    let world = arena(8);
    let (mem, place, _) = &world;
    mem.poke_u16(place.used, 1);
    mem.poke_u16(place.used_idx(), 77);
    let mut queue = queue(&world, 0, 5);
    queue.start(mem).unwrap();
    assert_eq!((mem.peek_u16(place.used), queue.base()), (0, 5));
    assert!(mem.touched(Kind::Read, place.used_idx()..place.used_idx() + 2));
}

#[test]
fn starting_fails_on_a_used_ring_that_is_not_there() {
    let world = arena(8);
    let (mem, place, _) = &world;
    mem.holes
        .replace(vec![place.used_idx()..place.used_idx() + 2]);
    assert_eq!(queue(&world, 0, 0).start(mem), Err(Error::Fault));
    mem.holes.replace(vec![place.used..place.used + 1]);
    assert_eq!(queue(&world, 0, 0).start(mem), Err(Error::Fault));
}

#[test]
fn kicks_are_turned_off_once_and_only_without_event_indices() {
    let world = arena(8);
    let (mem, place, _) = &world;
    let mut queue = queue(&world, 0, 0);
    queue.start(mem).unwrap();
    queue.kicks_off(mem).unwrap();
    assert_eq!(mem.peek_u16(place.used), 1);
    mem.forget_touches();
    queue.kicks_off(mem).unwrap();
    assert_eq!(mem.calls.get(), 0, "they are off");

    let mut queue = self::queue(&world, EVENT_IDX, 0);
    queue.start(mem).unwrap();
    mem.forget_touches();
    queue.kicks_off(mem).unwrap();
    assert_eq!(mem.calls.get(), 0);
}

#[test]
fn chains_that_came_before_kicks_were_on_are_told() {
    for features in [0, EVENT_IDX] {
        let world = arena(8);
        let (mem, place, _) = &world;
        let mut driver = Driver::new(mem, *place, 65535);
        driver.event_idx = features != 0;
        let mut queue = queue(&world, features, 65535);
        queue.start(mem).unwrap();
        queue.kicks_off(mem).unwrap();

        assert_eq!(queue.kicks_on(mem), Ok(false));
        assert!(driver.would_kick());
        queue.kicks_off(mem).unwrap();
        driver.add(&[out(0, 1)]);
        assert_eq!(queue.kicks_on(mem), Ok(true));
        // They are known now: only more of them are news.
        assert_eq!(queue.kicks_on(mem), Ok(false));
        assert!(driver.would_kick());
    }
}

#[test]
fn kicks_are_turned_on_before_a_fence_and_the_index_read_behind_it() {
    for features in [0, EVENT_IDX] {
        let world = arena(8);
        let (mem, place, _) = &world;
        let mut queue = queue(&world, features, 0);
        queue.start(mem).unwrap();
        queue.kicks_off(mem).unwrap();
        mem.forget_touches();
        queue.kicks_on(mem).unwrap();
        let place_of_wish = if features == 0 {
            place.used
        } else {
            place.avail_event()
        };
        let wanted = [
            (Kind::Write, place_of_wish),
            (Kind::Fence, 0),
            (Kind::Read, place.avail_idx()),
        ];
        assert_eq!(mem.order(), wanted);
    }
}

#[test]
fn avail_event_is_the_last_index_read_not_the_next_chain() {
    let world = arena(8);
    let (mem, place, _) = &world;
    let mut driver = Driver::new(mem, *place, 0);
    driver.event_idx = true;
    driver.add(&[out(0, 1)]);
    driver.add(&[out(0, 1)]);
    let mut queue = queue(&world, EVENT_IDX, 0);
    queue.start(mem).unwrap();
    assert_eq!(queue.kicks_on(mem), Ok(true));
    assert_eq!(mem.peek_u16(place.avail_event()), 0);
    assert_eq!(queue.kicks_on(mem), Ok(false));
    assert_eq!((mem.peek_u16(place.avail_event()), queue.base()), (2, 0));
}

#[test]
fn an_avail_index_that_jumps_breaks_the_ring() {
    let world = arena(8);
    let (mem, place, _) = &world;
    let mut queue = queue(&world, 0, 100);
    queue.start(mem).unwrap();
    for (idx, good) in [
        (100, true),
        (108, true),
        (109, false),
        (99, false),
        (40000, false),
    ] {
        mem.poke_u16(place.avail_idx(), idx);
        assert_eq!(queue.kicks_on(mem).is_ok(), good, "{idx}");
    }
}

#[test]
fn a_full_ring_of_the_largest_size_is_no_jump() {
    let world = arena(32768);
    let (mem, place, _) = &world;
    let mut queue = queue(&world, 0, 65000);
    queue.start(mem).unwrap();
    mem.poke_u16(place.avail_idx(), 65000_u16.wrapping_add(32768));
    assert_eq!(queue.kicks_on(mem), Ok(true));
    mem.poke_u16(place.avail_idx(), 65000_u16.wrapping_add(32769));
    assert_eq!(queue.kicks_on(mem), Err(Error::BadRing));
}

#[test]
fn a_ring_is_empty_until_its_index_moves() {
    let world = arena(8);
    let (mem, place, _) = &world;
    let mut driver = Driver::new(mem, *place, 65535);
    let mut queue = queue(&world, 0, 65535);
    queue.start(mem).unwrap();
    assert!(queue.avail_empty(mem));
    driver.add(&[out(0, 1)]);
    assert!(!queue.avail_empty(mem));
    queue.kicks_on(mem).unwrap();
    assert!(!queue.avail_empty(mem), "read, but not served");
}

#[test]
fn a_ring_that_cannot_be_read_is_not_called_empty() {
    let world = arena(8);
    let (mem, place, _) = &world;
    let mut queue = queue(&world, 0, 0);
    queue.start(mem).unwrap();
    mem.poke_u16(place.avail_idx(), 9);
    assert!(!queue.avail_empty(mem), "a jump");
    mem.poke_u16(place.avail_idx(), 0);
    mem.holes.replace(vec![place.avail..place.avail + 4]);
    assert!(!queue.avail_empty(mem), "a fault");
}
