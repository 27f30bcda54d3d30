// SPDX-License-Identifier: GPL-2.0

use proptest::prelude::*;
use vhost_engine::engine::batch::{Batch, Head};
use vhost_engine::engine::error::Error;
use vhost_engine::engine::scratch::{Scratch, BATCH};

use crate::arena::Kind;
use crate::model::*;
use crate::rig::{arena, cases, Rig, EVENT_IDX, GPA, ON_EMPTY};

/// The next chain, if there is one.
fn peek(rig: &mut Rig<'_, '_>, batch: &mut Batch) -> Result<Option<Head>, Error> {
    let ready = batch.has_next() || batch.fetch(&mut rig.queue, rig.mem, &mut rig.scratch)?;
    ready
        .then(|| batch.head(&rig.queue, &rig.scratch))
        .transpose()
}

/// Takes all chains that are there; answers their heads.
fn take_all(rig: &mut Rig<'_, '_>, batch: &mut Batch) -> Vec<u16> {
    let mut heads = Vec::new();
    while let Some(head) = peek(rig, batch).unwrap() {
        assert_eq!(head.desc.len, u32::from(head.id) + 1);
        batch.take(&mut rig.scratch, head.id, 7 * u32::from(head.id));
        heads.push(head.id);
    }
    heads
}

fn publish(rig: &mut Rig<'_, '_>, batch: &mut Batch) -> Result<Option<bool>, Error> {
    batch.publish(&mut rig.queue, rig.mem, &rig.scratch)
}

/// Offers `count` chains whose length tells their head.
fn offer(rig: &mut Rig<'_, '_>, count: usize) -> Vec<u16> {
    let one = |_| {
        let head = rig.driver.add(&[out(GPA, 0)]);
        rig.driver
            .poke_desc(head, &desc_bytes(GPA, u32::from(head) + 1, 0, 0));
        head
    };
    (0..count).map(one).collect()
}

#[test]
fn sixty_four_chains_take_two_reads_and_are_returned_with_two_writes() {
    let world = arena(256);
    let mut rig = Rig::new(&world, EVENT_IDX);
    let offered = offer(&mut rig, 64);
    let mut batch = Batch::new(BATCH);
    batch
        .fetch(&mut rig.queue, rig.mem, &mut rig.scratch)
        .unwrap();
    assert_eq!(rig.mem.calls.get(), 2);
    for id in &offered {
        let head = peek(&mut rig, &mut batch).unwrap();
        assert_eq!(head.unwrap().id, *id);
        batch.take(&mut rig.scratch, *id, 0);
    }
    assert_eq!(rig.mem.calls.get(), 2);
    publish(&mut rig, &mut batch).unwrap();
    let fence_only = 1;
    assert_eq!(
        rig.mem.calls.get(),
        2 + 2 + fence_only,
        "the first call needs no look"
    );
}

#[test]
fn nothing_taken_publishes_nothing() {
    let world = arena(8);
    let mut rig = Rig::new(&world, 0);
    assert_eq!(publish(&mut rig, &mut Batch::new(1)), Ok(None));
    assert_eq!(rig.mem.calls.get(), 0);
}

#[test]
fn a_head_outside_the_table_breaks_the_ring_when_its_turn_comes() {
    let world = arena(8);
    let mut rig = Rig::new(&world, 0);
    let good = offer(&mut rig, 1);
    rig.driver.offer(8);
    let mut batch = Batch::new(BATCH);
    let first = peek(&mut rig, &mut batch).unwrap().unwrap();
    assert_eq!(first.id, good[0]);
    batch.take(&mut rig.scratch, first.id, 0);
    let second = peek(&mut rig, &mut batch);
    assert_eq!(second.err(), Some(Error::BadRing));
    assert_eq!(batch.taken(), 1);
}

#[test]
fn more_chains_than_the_ring_has_break_it_also_while_some_are_taken() {
    for (more, good) in [(5, true), (6, false)] {
        let world = arena(8);
        let mut rig = Rig::new(&world, 0);
        offer(&mut rig, 3);
        let mut batch = Batch::new(BATCH);
        take_all(&mut rig, &mut batch);
        rig.mem.poke_u16(rig.driver.place.avail_idx(), 3 + more);
        assert_eq!(
            peek(&mut rig, &mut batch).is_ok(),
            good,
            "3 taken, {more} more"
        );
    }
}

#[test]
fn chains_put_back_come_again_even_if_more_were_read_since() {
    let world = arena(128);
    let mut rig = Rig::new(&world, 0);
    let offered = offer(&mut rig, 100);
    for take in [1_usize, 5, 64, 65, 100] {
        let mut batch = Batch::new(1);
        for _ in 0..take {
            let head = peek(&mut rig, &mut batch).unwrap().unwrap();
            batch.take(&mut rig.scratch, head.id, 0);
        }
        let back = take as u16 - 1;
        batch.put_back(back);
        assert_eq!(batch.taken(), 1);
        assert_eq!(take_all(&mut rig, &mut batch), offered[1..], "{take}");
    }
}

#[test]
fn a_used_ring_that_faults_leaves_the_chains_with_the_device() {
    let world = arena(8);
    let (mem, place, _) = &world;
    for hole in [place.used_slot(1), place.used_idx()] {
        mem.holes.borrow_mut().clear();
        let mut rig = Rig::new(&world, 0);
        offer(&mut rig, 3);
        let mut batch = Batch::new(BATCH);
        take_all(&mut rig, &mut batch);
        mem.holes.replace(vec![hole..hole + 1]);
        assert_eq!(publish(&mut rig, &mut batch), Err(Error::Fault));
        assert_eq!((rig.queue.base(), batch.taken()), (0, 3));
        assert_eq!(rig.driver.collect(), []);
        mem.holes.borrow_mut().clear();
        publish(&mut rig, &mut batch).unwrap();
        assert_eq!((rig.queue.base(), rig.driver.collect().len()), (3, 3));
    }
}

#[test]
fn a_driver_that_wants_no_calls_gets_none() {
    let world = arena(8);
    let mut rig = Rig::new(&world, 0);
    for (flags, wanted) in [(0, true), (1, false), (0xfffe, true), (0xffff, false)] {
        rig.mem.poke_u16(rig.driver.place.avail, flags);
        offer(&mut rig, 1);
        let mut batch = Batch::new(1);
        take_all(&mut rig, &mut batch);
        assert_eq!(
            publish(&mut rig, &mut batch),
            Ok(Some(wanted)),
            "{flags:#x}"
        );
        rig.driver.collect();
    }
}

#[test]
fn running_empty_calls_anyway_with_notify_on_empty() {
    let world = arena(8);
    let mut rig = Rig::new(&world, ON_EMPTY);
    rig.mem.poke_u16(rig.driver.place.avail, 1);
    offer(&mut rig, 2);
    for wanted in [false, true] {
        let mut batch = Batch::new(1);
        let head = peek(&mut rig, &mut batch).unwrap().unwrap();
        batch.take(&mut rig.scratch, head.id, 0);
        assert_eq!(publish(&mut rig, &mut batch), Ok(Some(wanted)));
    }
}

#[test]
fn a_wish_that_cannot_be_read_is_a_wish() {
    for features in [0, EVENT_IDX] {
        let world = arena(8);
        let mut rig = Rig::new(&world, features);
        let place = rig.driver.place;
        for turn in 0..2 {
            offer(&mut rig, 1);
            let mut batch = Batch::new(1);
            take_all(&mut rig, &mut batch);
            let event = place.used_event();
            rig.mem
                .holes
                .replace(vec![place.avail..place.avail + 2, event..event + 2]);
            assert_eq!(publish(&mut rig, &mut batch), Ok(Some(true)), "{turn}");
            rig.mem.holes.borrow_mut().clear();
            rig.driver.collect();
        }
    }
}

#[test]
fn elements_index_fence_and_wish_are_touched_in_this_order() {
    for features in [0, EVENT_IDX] {
        let world = arena(8);
        let mut rig = Rig::new(&world, features);
        let place = rig.driver.place;
        for turn in 0..2 {
            offer(&mut rig, 1);
            let mut batch = Batch::new(1);
            take_all(&mut rig, &mut batch);
            rig.mem.forget_touches();
            publish(&mut rig, &mut batch).unwrap();
            rig.driver.collect();
            let mut wanted = vec![
                (Kind::Write, place.used_slot(turn)),
                (Kind::Write, place.used_idx()),
                (Kind::Fence, 0),
            ];
            match (features, turn) {
                (0, _) => wanted.push((Kind::Read, place.avail)),
                (_, 0) => {} // the first decision needs no look
                (_, _) => wanted.push((Kind::Read, place.used_event())),
            }
            assert_eq!(rig.mem.order(), wanted);
        }
    }
}

#[test]
fn used_event_is_read_at_each_decision() {
    let world = arena(8);
    let mut rig = Rig::new(&world, EVENT_IDX);
    let event = rig.driver.place.used_event();
    // (event, wanted), one chain each; the first decision is always to call.
    for (event_at, wanted) in [(9, true), (9, false), (2, true), (2, false), (4, true)] {
        rig.mem.poke_u16(event, event_at);
        offer(&mut rig, 1);
        let mut batch = Batch::new(1);
        take_all(&mut rig, &mut batch);
        rig.mem.forget_touches();
        assert_eq!(
            publish(&mut rig, &mut batch),
            Ok(Some(wanted)),
            "{event_at}"
        );
        rig.driver.collect();
    }
    assert!(rig.mem.touched(Kind::Read, event..event + 2));
}

/// Takes `count` chains and publishes them. Whether the driver wants a call.
fn use_chains(rig: &mut Rig<'_, '_>, count: usize) -> bool {
    let mut batch = Batch::new(BATCH);
    for _ in 0..count {
        let head = peek(rig, &mut batch).unwrap().unwrap();
        batch.take(&mut rig.scratch, head.id, 0);
    }
    let wanted = publish(rig, &mut batch).unwrap().unwrap();
    rig.driver.collect();
    wanted
}

#[test]
fn after_65536_uses_without_a_decision_the_next_one_is_to_call() {
    // The decision is at index 1 and the event at 0, the last to be reached.
    for (uses, wanted) in [(65535, false), (65536, true)] {
        let world = arena(1024);
        let mut rig = Rig::new(&world, EVENT_IDX | ON_EMPTY);
        offer(&mut rig, 2);
        assert!(use_chains(&mut rig, 1), "the first decision");
        // Each of these empties the ring, which calls without a decision.
        let mut left = uses - 1;
        while left > 0 {
            let count = left.min(1000);
            offer(&mut rig, count - 1);
            assert!(use_chains(&mut rig, count));
            left -= count;
            offer(&mut rig, 1);
        }
        offer(&mut rig, 1);
        assert_eq!(use_chains(&mut rig, 1), wanted, "{uses} uses");
    }
}

proptest! {
    #![proptest_config(cases(400))]

    /// Rings of all sizes, from any index on: every head comes once, in order,
    /// and is returned once, in order, with its length.
    #[test]
    fn batches_go_round_the_ring(
        log in 0_u32..16,
        base in prop_oneof![Just(65535_u16), Just(65500), Just(0), any::<u16>()],
        want in 1_usize..80,
        fetch_max in prop_oneof![Just(usize::MAX), 1_usize..9],
        rounds in prop::collection::vec((1_usize..1000, any::<u64>()), 1..6),
    ) {
        let world = arena(1 << log);
        let mut rig = Rig::at(&world, 0, base);
        rig.mem.fetch_max.set(fetch_max);
        let mut index = base;
        for (count, seed) in rounds {
            rig.driver.shuffle(seed);
            let count = count.min(rig.driver.free());
            let offered = offer(&mut rig, count);
            let mut batch = Batch::new(want);
            let taken = take_all(&mut rig, &mut batch);
            prop_assert_eq!(&taken, &offered);
            prop_assert_eq!(rig.queue.base(), index, "nothing is used yet");
            publish(&mut rig, &mut batch).unwrap();
            index = index.wrapping_add(count as u16);
            prop_assert_eq!(rig.queue.base(), index);
            let wanted: Vec<_> = offered.iter().map(|id| (*id, 7 * u32::from(*id))).collect();
            prop_assert_eq!(rig.driver.collect(), wanted);
        }
    }
}

#[test]
fn what_is_read_ahead_and_not_taken_is_forgotten() {
    let world = arena(64);
    let mut rig = Rig::new(&world, 0);
    let offered = offer(&mut rig, 10);
    let mut batch = Batch::new(BATCH);
    batch
        .fetch(&mut rig.queue, rig.mem, &mut rig.scratch)
        .unwrap();
    *rig.scratch = Scratch::new();
    assert_eq!(rig.queue.base(), 0);
    assert_eq!(take_all(&mut rig, &mut Batch::new(BATCH)), offered);
}
