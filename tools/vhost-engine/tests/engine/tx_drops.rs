// SPDX-License-Identifier: GPL-2.0

//! Frames that cannot be sent, and rings that cannot be served.

use vhost_engine::engine::addr::Iova;
use vhost_engine::engine::error::{Access, Error};
use vhost_engine::engine::iotlb::ACCESS_READ;
use vhost_engine::engine::net::backend::SendError;
use vhost_engine::engine::net::tx::MAX_FRAME;
use vhost_engine::engine::net::Outcome;

use crate::mocks::TxSocket;
use crate::model::*;
use crate::rig::*;
use crate::tx::{frame, offer, socket};

#[test]
fn frames_that_the_socket_refuses_are_dropped_and_their_heads_returned() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    let frames = offer(&mut rig, 3);
    let mut socket = socket(&world, 0);
    socket.answers = [Err(SendError::Refused)].into();
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(socket.sent, frames[1..]);
    assert_eq!(rig.driver.collect().len(), 3);
    assert_eq!(
        (rig.host.counters.drop_refused, rig.host.counters.packets),
        (1, 2)
    );
}

#[test]
fn a_batch_that_fails_is_lost_but_its_heads_are_returned() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1);
    let frames = offer(&mut rig, 100);
    let mut socket = socket(&world, 64);
    socket.submit_answers = [Err(SendError::Refused)].into();
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(socket.sent, frames[64..]);
    assert_eq!(rig.driver.collect().len(), 100);
    assert_eq!(
        (rig.host.counters.drop_refused, rig.host.counters.packets),
        (64, 36)
    );
}

/// Frames of less than an Ethernet header: a tap drops them, and says nothing of a batch.
#[test]
fn frames_of_1_to_13_bytes_go_with_their_batch_and_their_heads_return() {
    for batch in [0, 64] {
        let world = arena(64);
        let mut rig = Rig::new(&world, V1);
        let one = |len: u32| {
            let at = GPA + 2048 * u64::from(len);
            rig.driver.add(&[out(at, len)]);
            frame(&rig, at, len, len as u8)
        };
        let frames: Vec<_> = (12 + 1..=12 + 14).map(one).collect();
        let mut socket = socket(&world, batch);
        assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
        assert_eq!(socket.sent, frames, "each whole, in its order");
        assert_eq!(socket.submits, usize::from(batch > 0));
        let heads: Vec<_> = (0..14).map(|head| (head, 0)).collect();
        assert_eq!(rig.driver.collect(), heads);
        let counters = &rig.host.counters;
        assert_eq!((counters.packets, counters.bytes), (14, (1..=14).sum()));
    }
}

/// Runs one bad chain between two good frames. Answers what was counted.
fn poison(features: u64, batch: usize, bad: impl Fn(&mut Rig<'_, '_>)) -> [u64; 6] {
    let world = arena(64);
    let mut rig = Rig::new(&world, features);
    let header = rig.header;
    let mut socket = TxSocket::new(&world.0, batch, header.sock);
    let first = frame(&rig, GPA, 76, 1);
    rig.driver.add(&[out(GPA, 76)]);
    bad(&mut rig);
    let second = frame(&rig, GPA + 4096, 90, 2);
    rig.driver.add(&[out(GPA + 4096, 90)]);

    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(
        socket.sent,
        [&first[header.vhost..], &second[header.vhost..]]
    );
    let used = rig.driver.collect();
    assert_eq!(used.len(), 3);
    assert!(used.iter().all(|elem| elem.1 == 0));
    assert!(rig.driver.would_kick());
    let c = &rig.host.counters;
    assert_eq!(c.packets, 2);
    [
        c.drop_direction,
        c.drop_length,
        c.drop_header,
        c.drop_memory,
        c.drop_refused,
        c.drop_oversize,
    ]
}

#[test]
fn a_writable_buffer_in_a_tx_chain_is_dropped_and_packets_behind_it_leave() {
    for batch in [0, 64] {
        for bufs in [vec![inp(GPA, 100)], vec![out(GPA, 100), inp(GPA, 1)]] {
            let counted = poison(V1, batch, |rig| offer_chain(rig, &bufs));
            assert_eq!(counted, [1, 0, 0, 0, 0, 0]);
        }
    }
}

#[test]
fn a_chain_without_bytes_is_dropped() {
    for bufs in [vec![out(GPA, 0)], vec![out(0, 0), inp(0, 0)]] {
        let counted = poison(V1, 64, |rig| offer_chain(rig, &bufs));
        assert_eq!(counted, [0, 1, 0, 0, 0, 0]);
    }
}

#[test]
fn a_chain_of_the_vhost_header_alone_has_no_bytes() {
    for len in [1, 12] {
        let counted = poison(V1 | VNET, 64, |rig| offer_chain(rig, &[out(GPA, len)]));
        assert_eq!(counted, [0, 1, 0, 0, 0, 0]);
    }
}

#[test]
fn a_frame_shorter_than_its_header_is_dropped() {
    for batch in [0, 64] {
        let counted = poison(V1, batch, |rig| offer_chain(rig, &[out(GPA, 11)]));
        assert_eq!(counted, [0, 0, 1, 0, 0, 0]);
    }
}

#[test]
fn a_checksum_past_the_end_is_dropped() {
    for [start, offset] in [[34_u16, 300_u16], [0xffff, 0xffff]] {
        let counted = poison(V1, 64, |rig| {
            let at = GPA + 8192;
            frame(rig, at, 76, 3);
            rig.mem.poke(rig.uva(at), &[1]);
            rig.mem.poke_u16(rig.uva(at) + 6, start);
            rig.mem.poke_u16(rig.uva(at) + 8, offset);
            rig.driver.add(&[out(at, 76)]);
        });
        assert_eq!(counted, [0, 0, 1, 0, 0, 0]);
    }
}

#[test]
fn memory_that_cannot_be_read_is_dropped() {
    let hole = |rig: &mut Rig<'_, '_>| {
        let at = GPA + 0x10000;
        let uva = rig.uva(at);
        rig.mem.holes.replace(vec![uva + 50..uva + 51]);
        rig.driver.add(&[out(at, 76)]);
    };
    assert_eq!(poison(V1, 64, hole), [0, 0, 0, 1, 0, 0]);
    assert_eq!(
        poison(V1, 0, hole),
        [0, 0, 0, 0, 1, 0],
        "the socket finds out"
    );
}

#[test]
fn a_frame_of_more_than_128_kib_is_dropped() {
    let len = MAX_FRAME as u32 + 1;
    let counted = poison(V1, 64, |rig| offer_chain(rig, &[out(GPA, len)]));
    assert_eq!(counted, [0, 0, 0, 0, 0, 1]);
    let world = arena(8);
    let mut rig = Rig::new(&world, V1);
    rig.driver.add(&[out(GPA, len - 1)]);
    let mut socket = socket(&world, 64);
    rig.tx(&mut socket);
    assert_eq!(socket.sent[0].len(), MAX_FRAME);
}

#[test]
fn drops_count_in_the_budget() {
    let world = arena(512);
    let mut rig = Rig::new(&world, V1);
    for _ in 0..512 {
        rig.driver.add(&[out(GPA, 3)]);
    }
    assert_eq!(rig.tx(&mut socket(&world, 64)), Outcome::Requeue);
    assert_eq!(rig.host.counters.drop_header, 256);
}

/// A chain of 1,024 descriptors, all but the last empty, and its frame.
fn long_chain(len: u32) -> Vec<Buf> {
    let mut bufs = vec![out(GPA, 0); 1023];
    bufs.push(out(GPA, len));
    bufs
}

#[test]
fn empty_descriptors_count_in_the_budget() {
    for len in [76, 3] {
        let world = arena(32768);
        let mut rig = Rig::new(&world, V1);
        for _ in 0..30 {
            rig.driver.add(&long_chain(len));
        }
        rig.mem.forget_touches();
        let mut socket = socket(&world, 64);
        for _ in 0..3 {
            rig.mem.calls.set(0);
            assert_eq!(rig.tx(&mut socket), Outcome::Requeue);
            assert!(rig.mem.calls.get() < 9 * 1024, "{}", rig.mem.calls.get());
        }
        assert_eq!(rig.queue.base(), 3 * 8, "8 * 1,024 * 64 is half a mebibyte");
        rig.tx(&mut socket);
        assert_eq!(rig.driver.collect().len(), 30);
    }
}

/// Runs one good frame, then a chain that breaks the ring.
fn broken(bad: impl Fn(&mut Rig<'_, '_>) -> Error) {
    for features in [V1, V1 | EVENT_IDX] {
        let world = arena(16);
        let mut rig = Rig::new(&world, features);
        let frames = offer(&mut rig, 2);
        let error = bad(&mut rig);
        let mut socket = socket(&world, 64);
        for turn in 1..3 {
            assert_eq!(rig.tx(&mut socket), Outcome::Broken(error));
            assert_eq!(socket.sent, frames);
            assert_eq!(rig.queue.base(), 2, "at the bad chain");
            assert_eq!(rig.host.counters.ring_errors, turn);
            // With event indices what was read is no news; more chains are.
            assert!(rig.driver.would_kick(), "kicks are on");
            assert!(
                rig.queue.avail_empty(rig.mem),
                "a poll does not run it again"
            );
        }
        assert_eq!(rig.driver.collect().len(), 2);
    }
}

#[test]
fn a_chain_that_loops_ends_the_run() {
    broken(|rig| {
        rig.driver.poke_desc(9, &desc_bytes(GPA, 1, NEXT, 9));
        rig.driver.offer(9);
        Error::BadRing
    });
}

#[test]
fn a_head_outside_the_table_ends_the_run() {
    broken(|rig| {
        rig.driver.offer(16);
        Error::BadRing
    });
}

#[test]
fn a_buffer_outside_the_address_map_ends_the_run() {
    broken(|rig| {
        rig.driver.add(&[out(GPA - 1, 76)]);
        Error::Unmapped {
            iova: Iova(GPA - 1),
            access: Access::Read,
        }
    });
}

#[test]
fn a_buffer_without_the_permission_ends_the_run() {
    broken(|rig| {
        rig.ranges.clear();
        let (size, uva) = (BUFFERS, rig.buffers);
        rig.map(GPA, size, uva, ACCESS_READ);
        rig.driver.add(&[out(GPA, 12), inp(GPA, 1)]);
        Error::Denied
    });
}

#[test]
fn an_avail_index_that_jumps_ends_the_run() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    rig.mem.poke_u16(rig.driver.place.avail_idx(), 17);
    assert_eq!(
        rig.tx(&mut socket(&world, 64)),
        Outcome::Broken(Error::BadRing)
    );
    assert_eq!(rig.queue.base(), 0);
    assert!(rig.driver.would_kick());
    assert!(rig.queue.avail_empty(rig.mem), "it was reported");
}

#[test]
fn a_used_ring_that_faults_keeps_the_heads() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1 | EVENT_IDX);
    offer(&mut rig, 3);
    let place = rig.driver.place;
    rig.mem
        .holes
        .replace(vec![place.used_slot(0)..place.used_slot(1)]);
    let mut socket = socket(&world, 64);
    assert_eq!(rig.tx(&mut socket), Outcome::Broken(Error::Fault));
    assert_eq!((rig.queue.base(), rig.driver.collect().len()), (0, 0));
    rig.mem.holes.borrow_mut().clear();
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(rig.driver.collect().len(), 3);
}
