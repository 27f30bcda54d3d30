// SPDX-License-Identifier: GPL-2.0

//! Packets that no buffer can hold, and rings that cannot be served.

use vhost_engine::engine::error::Error;
use vhost_engine::engine::features::HeaderLen;
use vhost_engine::engine::net::Outcome;

use crate::mocks::RxSocket;
use crate::model::*;
use crate::rig::*;
use crate::rx::{offer, packet, socket, STEP};

#[test]
fn a_packet_larger_than_the_buffer_is_dropped_and_the_buffer_kept() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 2, 100);
    let mut socket = socket(&world, &rig);
    socket.push(89, 1);
    socket.push(88, 2);
    assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
    assert_eq!(rig.driver.collect(), [(0, 100)]);
    assert_eq!(
        rig.mem.peek_vec(rig.buffers, 101),
        [packet(88, 2, 1), vec![0]].concat()
    );
    assert_eq!(
        (socket.discarded.len(), rig.host.counters.drop_oversize),
        (1, 1)
    );
}

#[test]
fn packets_that_are_dropped_count_in_the_budget() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 2, 20);
    let mut socket = socket(&world, &rig);
    for _ in 0..500 {
        socket.push(60, 1);
    }
    assert_eq!(rig.rx(&mut socket), Outcome::Requeue);
    assert_eq!(rig.host.counters.drop_oversize, 256);
}

#[test]
fn a_packet_may_be_merged_from_1024_buffers_and_no_more() {
    for (len, arrives) in [(1012, true), (1013, false)] {
        let world = arena(2048);
        let mut rig = Rig::new(&world, MRG);
        offer(&mut rig, 2000, 1);
        let mut socket = socket(&world, &rig);
        socket.push(60, 1);
        socket.push(len, 2);
        rig.rx(&mut socket);
        let used = rig.driver.collect();
        assert_eq!(used.len(), if arrives { 72 + 1024 } else { 72 });
        assert_eq!(rig.queue.base() as usize, used.len());
        assert_eq!(rig.host.counters.drop_oversize, u64::from(!arrives));
    }
}

#[test]
fn a_packet_of_1024_buffers_is_returned_with_63_others() {
    let world = arena(2048);
    let mut rig = Rig::new(&world, MRG);
    offer(&mut rig, 63, 72);
    offer(&mut rig, 1024, 1);
    let mut socket = socket(&world, &rig);
    for _ in 0..63 {
        socket.push(60, 1);
    }
    socket.push(1012, 2);
    rig.rx(&mut socket);
    let used = rig.driver.collect();
    assert_eq!(used.len(), 63 + 1024);
    assert!(used.iter().take(63).all(|used| used.1 == 72));
    assert!(used.iter().skip(63).all(|used| used.1 == 1));
    assert_eq!(rig.host.counters.packets, 64);
}

#[test]
fn a_packet_that_a_full_ring_cannot_hold_is_dropped() {
    for num in [1, 8] {
        let world = arena(num);
        let mut rig = Rig::new(&world, MRG | EVENT_IDX);
        offer(&mut rig, num.into(), 100);
        let mut socket = socket(&world, &rig);
        socket.push(100 * usize::from(num) - 11, 1);
        socket.push(100 * usize::from(num) - 12, 2);
        assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
        assert_eq!(
            (rig.host.counters.drop_oversize, rig.host.counters.packets),
            (1, 1)
        );
        assert_eq!(rig.driver.collect().len(), usize::from(num));
    }
}

#[test]
fn segments_of_several_chains_are_1024_at_most() {
    let world = arena(64);
    let mut rig = Rig::new(&world, MRG);
    let bufs: Vec<_> = (0..600).map(|i| inp(GPA + 4 * i, 1)).collect();
    for i in 0..2 {
        let table = GPA + 0x10_0000 + 0x10000 * i;
        let uva = rig.uva(table);
        rig.driver.add_indirect(table, uva, &bufs);
    }
    let mut socket = socket(&world, &rig);
    socket.push(700, 1);
    socket.push(60, 2);
    assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
    assert_eq!(
        (rig.host.counters.drop_oversize, rig.host.counters.packets),
        (1, 1)
    );
    assert_eq!(rig.driver.collect().len(), 1);
}

#[test]
fn chains_of_empty_descriptors_do_not_hold_the_worker() {
    // One head, offered 2,048 times: 1,023 empty buffers and one byte.
    let world = arena(2048);
    let mut rig = Rig::new(&world, MRG);
    let mut bufs = vec![inp(GPA, 0); 1023];
    bufs.push(inp(GPA, 1));
    let head = rig.driver.place_chain(&bufs, None);
    for _ in 0..2048 {
        rig.driver.offer(head);
    }
    let mut socket = socket(&world, &rig);
    for _ in 0..50 {
        socket.push(1500, 1);
    }
    rig.mem.forget_touches();
    assert_eq!(rig.rx(&mut socket), Outcome::Requeue);
    assert!(rig.mem.calls.get() < 10 * 1024, "{}", rig.mem.calls.get());
    assert_eq!((rig.queue.base(), socket.discarded.len()), (0, 8));
    assert_eq!(rig.host.counters.drop_oversize, 8);
}

#[test]
fn a_long_chain_alone_takes_a_packet_and_half_of_one_counts() {
    let world = arena(32768);
    let mut rig = Rig::new(&world, MRG);
    let mut bufs = vec![inp(GPA, 0); 511];
    bufs.push(inp(GPA, 100));
    for _ in 0..40 {
        rig.driver.add(&bufs);
    }
    let mut socket = socket(&world, &rig);
    socket.push(188, 1);
    socket.push(189, 2);
    for _ in 0..50 {
        socket.push(60, 3);
    }
    assert_eq!(rig.rx(&mut socket), Outcome::Requeue);
    assert_eq!(
        socket.discarded.len(),
        1,
        "three chains are 1,536 descriptors"
    );
    assert_eq!(
        rig.host.counters.packets,
        1 + 12,
        "16 chains of 512 were walked"
    );
}

#[test]
fn a_packet_that_changed_is_lost_and_its_buffers_kept() {
    let world = arena(64);
    let mut rig = Rig::new(&world, MRG);
    offer(&mut rig, 9, 100);
    let mut socket = socket(&world, &rig);
    for i in 0..3 {
        socket.push(300, i);
    }
    socket.shrink = 1;
    assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
    assert_eq!(
        (rig.host.counters.drop_truncated, rig.host.counters.packets),
        (1, 2)
    );
    assert_eq!(rig.driver.collect().len(), 8);
}

#[test]
fn before_features_are_set_packets_of_a_socket_with_headers_are_lost() {
    let world = arena(16);
    let mut rig = Rig::new(&world, 0);
    rig.header = HeaderLen::NONE;
    offer(&mut rig, 1, 100);
    let mut socket = RxSocket::new(&world.0, 0);
    socket.push(60, 1);
    socket.shrink = 1;
    assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
    assert_eq!((rig.host.counters.drop_truncated, rig.queue.base()), (1, 0));
}

/// Runs with one good buffer, then one that breaks the ring.
fn broken(features: u64, error: Error, bad: impl Fn(&mut Rig<'_, '_>)) {
    let world = arena(16);
    let mut rig = Rig::new(&world, features);
    offer(&mut rig, 1, 100);
    bad(&mut rig);
    let mut socket = socket(&world, &rig);
    for i in 0..3 {
        socket.push(60, i);
    }
    for turn in 1..3 {
        assert_eq!(rig.rx(&mut socket), Outcome::Broken(error));
        assert_eq!(rig.queue.base(), 1, "at the bad chain");
        assert_eq!(rig.host.counters.ring_errors, turn);
        assert!(rig.driver.would_kick());
        assert!(
            rig.queue.avail_empty(rig.mem),
            "a poll does not run it again"
        );
    }
    assert_eq!(socket.packets.len(), 2, "it stays on the socket");
    assert_eq!(rig.driver.collect(), [(0, 72)]);
    assert_eq!(
        (rig.host.counters.packets, rig.host.counters.bytes),
        (1, 60)
    );
}

#[test]
fn a_readable_buffer_in_an_rx_chain_ends_the_run() {
    for features in [V1, MRG | EVENT_IDX] {
        broken(features, Error::BadRing, |rig| {
            offer_chain(rig, &[out(GPA, 100)])
        });
        let bufs = [out(GPA, 12), inp(GPA, 100)];
        broken(features, Error::BadRing, |rig| offer_chain(rig, &bufs));
    }
}

#[test]
fn an_empty_rx_chain_ends_the_run() {
    broken(MRG, Error::BadRing, |rig| offer_chain(rig, &[inp(GPA, 0)]));
}

#[test]
fn a_bad_chain_behind_a_good_one_of_the_same_packet_keeps_both() {
    let world = arena(16);
    let mut rig = Rig::new(&world, MRG);
    offer(&mut rig, 2, 100);
    rig.driver.add(&[out(GPA, 100)]);
    let mut socket = socket(&world, &rig);
    socket.push(60, 1);
    socket.push(160, 1);
    assert_eq!(rig.rx(&mut socket), Outcome::Broken(Error::BadRing));
    assert_eq!((rig.queue.base(), rig.driver.collect().len()), (1, 1));
}

#[test]
fn an_avail_index_that_jumps_ends_the_run() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    rig.mem.poke_u16(rig.driver.place.avail_idx(), 0xffff);
    let mut socket = socket(&world, &rig);
    socket.push(60, 1);
    assert_eq!(rig.rx(&mut socket), Outcome::Broken(Error::BadRing));
    assert_eq!(socket.packets.len(), 1);
}

#[test]
fn a_buffer_that_cannot_be_written_loses_the_packet_and_keeps_the_buffer() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 1, 100);
    rig.mem
        .holes
        .replace(vec![rig.buffers + 50..rig.buffers + 51]);
    let mut socket = socket(&world, &rig);
    socket.push(60, 1);
    assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
    assert_eq!((rig.queue.base(), rig.host.counters.drop_truncated), (0, 1));
}

#[test]
fn num_buffers_that_cannot_be_written_loses_the_packet_and_keeps_the_buffers() {
    let world = arena(16);
    let mut rig = Rig::new(&world, MRG);
    offer(&mut rig, 3, 100);
    let mut socket = socket(&world, &rig);
    socket.push(60, 1);
    socket.push(160, 2);
    let (mem, at, mut turn) = (&world.0, rig.buffers + STEP + 10, 0);
    socket.after_recv = Some(Box::new(move || {
        turn += 1;
        if turn == 2 {
            mem.holes.replace(vec![at..at + 2]);
        }
    }));
    assert_eq!(rig.rx(&mut socket), Outcome::Broken(Error::Fault));
    assert_eq!((rig.queue.base(), rig.driver.collect().len()), (1, 1));
    assert_eq!(
        (rig.host.counters.drop_memory, rig.host.counters.packets),
        (1, 1)
    );
    assert!(socket.packets.is_empty());
}

#[test]
fn a_vhost_header_that_cannot_be_written_keeps_packet_and_buffers() {
    let world = arena(16);
    let mut rig = Rig::new(&world, MRG | VNET);
    offer(&mut rig, 3, 100);
    rig.mem
        .holes
        .replace(vec![rig.buffers + 5..rig.buffers + 6]);
    let mut socket = socket(&world, &rig);
    socket.push(160, 1);
    assert_eq!(rig.rx(&mut socket), Outcome::Broken(Error::Fault));
    assert_eq!((rig.queue.base(), socket.packets.len()), (0, 1));
    assert_eq!(rig.host.counters.drop_memory, 0);
    rig.mem.holes.borrow_mut().clear();
    assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
    assert_eq!(rig.driver.collect().len(), 2);
}
