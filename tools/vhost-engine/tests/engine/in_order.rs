// SPDX-License-Identifier: GPL-2.0

//! `VIRTIO_F_IN_ORDER` (virtio 1.3, section 2.7.9): what the device writes.

use vhost_engine::engine::net::backend::SendError;
use vhost_engine::engine::net::Outcome;

use crate::in_order_model::*;
use crate::mocks::{RxSocket, TxSocket};
use crate::model::*;
use crate::rig::*;

#[test]
fn a_tx_batch_is_returned_with_one_element() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1 | IN_ORDER);
    let mut driver = InOrder::new(&rig, 0);
    for id in 0..40 {
        offer_frame(&rig, &mut driver, id, 1);
    }
    let mut socket = TxSocket::new(&world.0, 64, 12);
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(rig.elements(0), [0]);
    let expected: Vec<_> = (0..40).map(|head| used(head, 0)).collect();
    assert_eq!(driver.collect(), expected);
    assert_eq!((rig.queue.base(), socket.sent.len()), (40, 40));
}

#[test]
fn the_element_of_a_batch_lies_where_its_first_chain_would() {
    let world = arena(64);
    let mut rig = Rig::at(&world, V1 | IN_ORDER, 65530);
    let mut driver = InOrder::new(&rig, 65530);
    for round in 0..30 {
        let count = 1 + round % 7;
        for id in 0..count {
            offer_frame(&rig, &mut driver, id, 1);
        }
        let base = driver.last_used;
        rig.mem.forget_touches();
        rig.tx(&mut TxSocket::new(&world.0, 64, 12));
        assert_eq!(rig.elements(base), [0]);
        assert_eq!(driver.collect().len(), usize::from(count));
    }
}

#[test]
fn a_dropped_frame_is_returned_with_its_batch() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1 | IN_ORDER);
    let mut driver = InOrder::new(&rig, 0);
    offer_frame(&rig, &mut driver, 1, 1);
    driver.add(&[out(GPA, 3)]);
    driver.add(&[out(GPA, 100), inp(GPA, 100)]);
    offer_frame(&rig, &mut driver, 2, 1);
    driver.add(&[out(GPA, 3)]);
    let mut socket = TxSocket::new(&world.0, 64, 12);
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(socket.sent, [frame(1), frame(2)]);
    assert_eq!(rig.elements(0), [0]);
    assert_eq!(driver.collect().len(), 5);
    assert_eq!(
        rig.host.counters.drop_header + rig.host.counters.drop_direction,
        3
    );
}

#[test]
fn a_frame_that_waits_for_room_is_not_in_the_batch() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1 | IN_ORDER);
    let mut driver = InOrder::new(&rig, 0);
    for id in 0..5 {
        offer_frame(&rig, &mut driver, id, 2);
    }
    let mut socket = TxSocket::new(&world.0, 0, 12);
    let full = Err(SendError::Full);
    socket.answers.extend([Ok(()), Ok(()), full]);
    assert_eq!(rig.tx(&mut socket), Outcome::WaitSocket);
    assert_eq!(driver.collect(), [used(0, 0), used(2, 0)]);
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(driver.collect(), [used(4, 0), used(6, 0), used(8, 0)]);
    assert_eq!(socket.sent, (0..5).map(frame).collect::<Vec<_>>());
}

#[test]
fn an_rx_packet_is_returned_with_one_element() {
    let world = arena(16);
    let mut rig = Rig::at(&world, V1 | MRG | IN_ORDER, 14);
    let mut driver = InOrder::new(&rig, 14);
    let mut socket = RxSocket::new(&world.0, 12);
    for i in 0..9 {
        driver.add(&[inp(GPA + STRIDE * i, 30), inp(GPA + STRIDE * i + 50, 10)]);
        if i == 7 {
            break;
        }
    }
    socket.push(20, 1);
    socket.push(100, 2);
    socket.push(28, 3);
    socket.push(60, 4);
    rig.rx(&mut socket);
    // 32 bytes in one chain, 112 in three, 40 in one, 72 in two.
    assert_eq!(rig.elements(14), [0, 1, 4, 5]);
    let [full, rest] = [40, 32];
    let lens: Vec<_> = driver.collect().iter().map(|used| used.len).collect();
    assert_eq!(lens, [32, full, full, rest, 40, full, rest]);
    assert_eq!(rig.queue.base(), 14 + 7);
}

#[test]
fn an_rx_packet_that_finds_too_few_chains_takes_none() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1 | MRG | IN_ORDER);
    let mut driver = InOrder::new(&rig, 0);
    let mut socket = RxSocket::new(&world.0, 12);
    let add = |driver: &mut InOrder<'_, '_>, i| driver.add(&[inp(GPA + STRIDE * i, 40)]);
    add(&mut driver, 0);
    add(&mut driver, 1);
    add(&mut driver, 2);
    socket.push(60, 1);
    socket.push(60, 2);
    assert_eq!(rig.rx(&mut socket), Outcome::WaitKick);
    assert_eq!(driver.collect(), [used(0, 40), used(1, 32)]);
    add(&mut driver, 3);
    rig.mem.forget_touches();
    assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
    assert_eq!(rig.elements(2), [0]);
    assert_eq!(driver.collect(), [used(2, 40), used(3, 32)]);
}

#[test]
fn chains_of_a_packet_that_changed_go_to_the_next_one() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1 | MRG | IN_ORDER);
    let mut driver = InOrder::new(&rig, 0);
    let mut socket = RxSocket::new(&world.0, 12);
    for i in 0..5 {
        driver.add(&[inp(GPA + STRIDE * i, 40)]);
    }
    // Three chains are taken and put back; then one, and two.
    socket.push(100, 1);
    socket.push(28, 2);
    socket.push(60, 3);
    socket.shrink = 1;
    rig.rx(&mut socket);
    assert_eq!(rig.host.counters.drop_truncated, 1);
    assert_eq!(rig.elements(0), [0, 1]);
    assert_eq!(driver.collect(), [used(0, 40), used(1, 40), used(2, 32)]);
}

#[test]
fn the_place_is_kept_after_a_stop_with_chains_of_several_descriptors() {
    for descs in 1..=4 {
        let world = arena(16);
        let mut rig = Rig::at(&world, V1 | IN_ORDER, 7);
        let mut driver = InOrder::new(&rig, 7);
        let mut socket = TxSocket::new(&world.0, 64, 12);
        for id in 0..40 {
            offer_frame(&rig, &mut driver, id, descs);
            rig.tx(&mut socket);
            driver.collect();
            // What SET_BACKEND(-1), GET and SET_VRING_BASE, SET_BACKEND do.
            let base = rig.queue.base();
            rig.queue.set_base(base);
            rig.queue.start(rig.mem).unwrap();
        }
        let expected: Vec<_> = (0..40).map(frame).collect();
        assert_eq!(socket.sent, expected, "{descs} descriptors");
    }
}

#[test]
fn a_used_event_inside_a_batch_is_called_for() {
    for (event, calls) in [(0, 1), (3, 1), (4, 0), (65535, 0)] {
        let world = arena(16);
        let mut rig = Rig::new(&world, V1 | IN_ORDER | EVENT_IDX);
        let mut driver = InOrder::new(&rig, 0);
        // The first decision after a start has nothing to go by.
        let mut socket = TxSocket::new(&world.0, 64, 12);
        offer_frame(&rig, &mut driver, 0, 1);
        rig.tx(&mut socket);
        driver.collect();
        rig.host.calls = 0;
        rig.mem
            .poke_u16(rig.driver.place.used_event(), 1_u16.wrapping_add(event));
        for id in 0..4 {
            offer_frame(&rig, &mut driver, id, 2);
        }
        rig.tx(&mut socket);
        let event = event as i16;
        assert_eq!(rig.host.calls, calls, "event {event} of a batch of 4");
    }
}

#[test]
fn a_batch_that_empties_the_ring_is_called_for_if_that_was_agreed() {
    for (features, calls) in [(V1, 0), (V1 | ON_EMPTY, 1)] {
        let world = arena(16);
        let mut rig = Rig::new(&world, features | IN_ORDER);
        let mut driver = InOrder::new(&rig, 0);
        rig.mem.poke_u16(rig.driver.place.avail, 1);
        for id in 0..4 {
            offer_frame(&rig, &mut driver, id, 2);
        }
        rig.tx(&mut TxSocket::new(&world.0, 64, 12));
        assert_eq!(rig.host.calls, calls);
    }
}

#[test]
fn chains_of_a_used_ring_that_faults_are_returned_when_it_is_there_again() {
    for hole in [0, 2] {
        let world = arena(16);
        let mut rig = Rig::new(&world, V1 | MRG | IN_ORDER);
        let mut driver = InOrder::new(&rig, 0);
        let place = rig.driver.place;
        for i in 0..4 {
            driver.add(&[inp(GPA + STRIDE * i, 40)]);
        }
        let mut socket = RxSocket::new(&world.0, 12);
        socket.push(60, 1);
        socket.push(60, 2);
        // The element of the first packet, or that of the second.
        let at = place.used_slot(hole);
        rig.mem.holes.replace(vec![at..at + 8]);
        assert!(matches!(rig.rx(&mut socket), Outcome::Broken(_)));
        assert_eq!((rig.queue.base(), driver.collect().len()), (0, 0));
        rig.mem.holes.replace(vec![]);
        socket.push(60, 3);
        rig.rx(&mut socket);
        assert_eq!(driver.collect(), [used(0, 40), used(1, 32)]);
    }
}
