// SPDX-License-Identifier: GPL-2.0

//! Each "MUST" that virtio 1.3, section 2.7, has for a device.

use std::cell::RefCell;
use std::rc::Rc;

use vhost_engine::engine::net::Outcome;

use crate::arena::Kind;
use crate::mocks::{RxSocket, TxSocket};
use crate::model::*;
use crate::rig::*;

#[test]
fn section_2_7_4_1_nothing_is_assumed_about_the_arrangement_of_descriptors() {
    let bytes: Vec<u8> = (0..100).map(|i| if i < 12 { 0 } else { i }).collect();
    let cuts: [&[u32]; 6] = [&[], &[12], &[1, 2, 3, 4], &[11], &[13], &[10, 12, 50, 99]];
    for cuts in cuts {
        let world = arena(16);
        let mut rig = Rig::new(&world, V1);
        rig.mem.poke(rig.buffers, &bytes);
        let edges = [&[0], cuts, &[100]].concat();
        let bufs: Vec<_> = edges
            .windows(2)
            .map(|edge| out(GPA + u64::from(edge[0]), edge[1] - edge[0]))
            .collect();
        rig.driver.add(&bufs);
        let mut socket = TxSocket::new(&world.0, 64, 12);
        rig.tx(&mut socket);
        assert_eq!(socket.sent, [&bytes[..]], "{cuts:?}");
    }
}

#[test]
fn section_2_7_5_1_no_readable_buffer_is_written() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    rig.driver.add(&[out(GPA, 100)]);
    rig.driver.add(&[out(GPA, 100), inp(GPA + 200, 100)]);
    rig.tx(&mut TxSocket::new(&world.0, 64, 12));
    let mut socket = RxSocket::new(&world.0, 12);
    socket.push(60, 1);
    rig.driver.add(&[out(GPA, 100), inp(GPA + 200, 100)]);
    rig.rx(&mut socket);
    assert!(!rig
        .mem
        .touched(Kind::Write, rig.buffers..rig.buffers + BUFFERS));
}

#[test]
fn section_2_7_5_1_no_writable_buffer_is_read() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    rig.driver.add(&[inp(GPA, 100)]);
    rig.tx(&mut TxSocket::new(&world.0, 64, 12));
    let mut socket = RxSocket::new(&world.0, 12);
    socket.push(60, 1);
    rig.driver.add(&[inp(GPA, 100)]);
    rig.rx(&mut socket);
    assert_eq!(rig.host.counters.packets, 1);
    assert!(!rig
        .mem
        .touched(Kind::Read, rig.buffers..rig.buffers + BUFFERS));
}

#[test]
fn section_2_7_5_1_no_descriptor_is_written_nor_the_avail_ring() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1 | EVENT_IDX);
    let (place, table) = (rig.driver.place, rig.buffers + 4096);
    rig.driver.add(&[out(GPA, 100)]);
    rig.driver
        .add_indirect(GPA + 4096, table, &[out(GPA, 100), out(GPA + 200, 9)]);
    rig.tx(&mut TxSocket::new(&world.0, 64, 12));
    assert_eq!(rig.host.counters.packets, 2);
    assert!(!rig.mem.touched(Kind::Write, place.desc..place.used));
    assert!(!rig.mem.touched(Kind::Write, table..table + 32));
}

#[test]
fn section_2_7_5_3_2_the_write_flag_of_a_table_is_ignored() {
    let world = arena(4);
    let mut rig = Rig::new(&world, V1);
    let table = rig.buffers + 4096;
    let head = rig.driver.add_indirect(GPA + 4096, table, &[out(GPA, 100)]);
    rig.driver
        .poke_desc(head, &desc_bytes(GPA + 4096, 16, INDIRECT | WRITE, 0));
    let mut socket = TxSocket::new(&world.0, 64, 12);
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(socket.sent.len(), 1);
}

#[test]
fn section_2_7_5_3_2_a_table_may_follow_normal_descriptors() {
    for before in 0..4 {
        let world = arena(8);
        let mut rig = Rig::new(&world, V1);
        let bytes: Vec<u8> = (0..100).map(|i| if i < 12 { 0 } else { i }).collect();
        rig.mem.poke(rig.buffers, &bytes);
        let bufs: Vec<_> = (0..before).map(|i| out(GPA + 20 * i, 20)).collect();
        let rest = [
            out(GPA + 20 * before, 5),
            out(GPA + 20 * before + 5, 95 - 20 * before as u32),
        ];
        let table = rig.buffers + 4096;
        let head = rig
            .driver
            .place_chain(&bufs, Some((GPA + 4096, table, &rest)));
        rig.driver.offer(head);
        let mut socket = TxSocket::new(&world.0, 64, 12);
        assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
        assert_eq!(socket.sent, [&bytes[..]]);
    }
}

/// Sends frames one by one. Answers how many calls came for them.
fn calls(features: u64, flags: u16, used_event: u16, frames: usize) -> usize {
    let world = arena(16);
    let mut rig = Rig::new(&world, features);
    let place = rig.driver.place;
    rig.mem.poke_u16(place.avail, flags);
    rig.mem.poke_u16(place.used_event(), used_event);
    // The first decision after a start has nothing to go by.
    rig.driver.add(&[out(GPA, 100)]);
    rig.tx(&mut TxSocket::new(&world.0, 64, 12));
    rig.host.calls = 0;
    for _ in 0..frames {
        rig.driver.collect();
        rig.driver.add(&[out(GPA, 100)]);
        rig.tx(&mut TxSocket::new(&world.0, 64, 12));
    }
    rig.host.calls
}

#[test]
fn section_2_7_7_2_without_event_idx_used_event_is_ignored() {
    for used_event in [0, 1, 2, 1000, 65535] {
        assert_eq!(calls(V1, 0, used_event, 5), 5);
        assert_eq!(calls(V1, 1, used_event, 5), 0);
    }
}

#[test]
fn section_2_7_7_2_without_event_idx_flags_0_means_a_call_after_each_use() {
    assert_eq!(calls(V1, 0, 0, 9), 9);
}

#[test]
fn section_2_7_7_2_with_event_idx_flags_are_ignored() {
    for flags in [0, 1] {
        assert_eq!(calls(V1 | EVENT_IDX, flags, 3, 9), 1);
    }
}

#[test]
fn section_2_7_7_2_the_element_at_used_event_is_called_for() {
    for used_event in 1..10 {
        assert_eq!(
            calls(V1 | EVENT_IDX, 0, used_event, usize::from(used_event)),
            1
        );
        assert_eq!(
            calls(V1 | EVENT_IDX, 0, used_event, usize::from(used_event) - 1),
            0
        );
    }
}

#[test]
fn section_2_7_8_2_len_and_data_are_there_before_the_index_moves() {
    let world = arena(16);
    let mut rig = Rig::new(&world, MRG);
    let place = rig.driver.place;
    rig.driver.add(&[inp(GPA, 40)]);
    rig.driver.add(&[inp(GPA + 100, 60)]);
    let mut socket = RxSocket::new(&world.0, 12);
    socket.push(60, 7);

    // What the driver sees in the first moment in which the index has moved.
    let seen = Rc::new(RefCell::new(None));
    let (note, buffers) = (seen.clone(), rig.buffers);
    let at = |addr: u64| (addr - crate::arena::BASE) as usize;
    let look = move |bytes: &mut [u8], _| {
        if bytes[at(place.used_idx())] != 0 && note.borrow().is_none() {
            let elems = bytes[at(place.used_slot(0))..at(place.used_slot(2))].to_vec();
            let data = [
                bytes[at(buffers)..at(buffers) + 40].to_vec(),
                bytes[at(buffers + 100)..at(buffers + 100) + 32].to_vec(),
            ];
            note.replace(Some((elems, data.concat())));
        }
    };
    rig.mem.intruder.replace(Some(Box::new(look)));
    rig.rx(&mut socket);

    let (elems, data) = seen.borrow_mut().take().unwrap();
    assert_eq!(elems, [0, 0, 0, 0, 40, 0, 0, 0, 1, 0, 0, 0, 32, 0, 0, 0]);
    assert_eq!(data[10..], [&[2, 0][..], &[7; 60]].concat());
}

#[test]
fn section_2_7_8_2_len_bytes_are_written_from_the_first_writable_buffer_on() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    rig.driver.add(&[inp(GPA, 20), inp(GPA + 100, 1000)]);
    let mut socket = RxSocket::new(&world.0, 12);
    socket.push(60, 7);
    rig.rx(&mut socket);
    assert_eq!(rig.driver.collect(), [(0, 72)]);
    assert_eq!(rig.mem.peek_vec(rig.buffers + 12, 8), [7; 8]);
    assert_eq!(
        rig.mem.peek_vec(rig.buffers + 100, 53),
        [&[7; 52][..], &[0]].concat()
    );
}

#[test]
fn section_2_7_10_2_without_event_idx_flags_are_0_or_1() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    let used = rig.driver.place.used;
    rig.mem.poke_u16(used, 0xffff);
    rig.queue.start(rig.mem).unwrap();
    let (mem, seen) = (&world.0, Rc::new(RefCell::new(Vec::new())));
    let note = seen.clone();
    rig.host.on_call = Some(Box::new(move || note.borrow_mut().push(mem.peek_u16(used))));
    for _ in 0..3 {
        rig.driver.add(&[out(GPA, 100)]);
        rig.tx(&mut TxSocket::new(&world.0, 64, 12));
        seen.borrow_mut().push(mem.peek_u16(used));
        rig.driver.collect();
    }
    assert_eq!(*seen.borrow(), [1, 0, 1, 0, 1, 0]);
}

#[test]
fn section_2_7_10_2_with_event_idx_flags_are_0() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1 | EVENT_IDX);
    let used = rig.driver.place.used;
    rig.mem.poke_u16(used, 1);
    rig.queue.start(rig.mem).unwrap();
    assert_eq!(rig.mem.peek_u16(used), 0);
    rig.mem.forget_touches();
    rig.driver.add(&[out(GPA, 100)]);
    rig.tx(&mut TxSocket::new(&world.0, 64, 12));
    assert!(!rig.mem.touched(Kind::Write, used..used + 2));
}

#[test]
fn section_2_7_10_2_a_kick_for_nothing_does_no_harm() {
    for features in [V1, V1 | EVENT_IDX] {
        let world = arena(16);
        let mut rig = Rig::new(&world, features);
        for _ in 0..3 {
            let mut socket = TxSocket::new(&world.0, 64, 12);
            assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
            assert!(rig.driver.would_kick());
        }
        assert_eq!((rig.host.calls, rig.queue.base()), (0, 0));
        assert_eq!(rig.mem.peek_u16(rig.driver.place.used_idx()), 0);
    }
}
