// SPDX-License-Identifier: GPL-2.0

use proptest::prelude::*;
use vhost_engine::engine::host::End;
use vhost_engine::engine::net::Outcome;

use crate::mocks::{RxSocket, SOCKET_HEADER};
use crate::model::*;
use crate::rig::*;

/// Bytes between buffers, so that a write past one shows.
pub const STEP: u64 = 0x2000;

/// Offers `count` buffers of `len` bytes.
pub fn offer(rig: &mut Rig<'_, '_>, count: u64, len: u32) -> Vec<u16> {
    let one = |i| rig.driver.add(&[inp(GPA + STEP * (i % 400), len)]);
    (0..count).map(one).collect()
}

pub fn socket<'m, 'a>(world: &'m World<'a>, rig: &Rig<'_, '_>) -> RxSocket<'m, 'a> {
    RxSocket::new(&world.0, rig.header.sock)
}

/// A packet as the guest is to see it: the socket's header with `buffers`.
pub fn packet(len: usize, fill: u8, buffers: u16) -> Vec<u8> {
    let mut bytes = vec![SOCKET_HEADER; 10];
    bytes.extend(buffers.to_le_bytes());
    bytes.resize(12 + len, fill);
    bytes
}

#[test]
fn a_packet_arrives_with_num_buffers_1_and_the_driver_is_called() {
    for features in [V1, MRG, V1 | MRG] {
        let world = arena(256);
        let mut rig = Rig::new(&world, features | EVENT_IDX);
        offer(&mut rig, 10, 1526);
        let mut socket = socket(&world, &rig);
        socket.push(60, 7);
        assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
        assert_eq!(rig.driver.collect(), [(0, 72)]);
        assert_eq!(rig.mem.peek_vec(rig.buffers, 72), packet(60, 7, 1));
        assert_eq!(rig.host.calls, 1);
        assert_eq!(
            (rig.host.counters.packets, rig.host.counters.bytes),
            (1, 60)
        );
        assert!(!rig.driver.would_kick(), "the socket wakes it");
    }
}

#[test]
fn a_legacy_header_has_no_num_buffers() {
    let world = arena(16);
    let mut rig = Rig::new(&world, 0);
    offer(&mut rig, 1, 100);
    let mut socket = socket(&world, &rig);
    socket.push(60, 7);
    rig.rx(&mut socket);
    let mut wanted = vec![SOCKET_HEADER; 10];
    wanted.resize(70, 7);
    wanted.push(0);
    assert_eq!(rig.mem.peek_vec(rig.buffers, 71), wanted);
    assert_eq!(rig.driver.collect(), [(0, 70)]);
}

#[test]
fn num_buffers_goes_to_byte_10_of_the_stream_wherever_buffers_end() {
    for cut in [1, 9, 10, 11, 12] {
        let world = arena(16);
        let mut rig = Rig::new(&world, MRG);
        rig.driver
            .add(&[inp(GPA, cut), inp(GPA + STEP, 2), inp(GPA + 2 * STEP, 200)]);
        let mut socket = socket(&world, &rig);
        socket.push(60, 7);
        rig.rx(&mut socket);
        let mut got = rig.mem.peek_vec(rig.uva(GPA), cut as usize);
        got.extend(rig.mem.peek_vec(rig.uva(GPA + STEP), 2));
        got.extend(rig.mem.peek_vec(rig.uva(GPA + 2 * STEP), 70 - cut as usize));
        assert_eq!(got, packet(60, 7, 1));
    }
}

#[test]
fn a_large_packet_is_merged_from_several_buffers() {
    let world = arena(64);
    let mut rig = Rig::new(&world, MRG);
    let heads = offer(&mut rig, 10, 100);
    let mut socket = socket(&world, &rig);
    socket.push(333, 9);
    assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
    let used = [
        (heads[0], 100),
        (heads[1], 100),
        (heads[2], 100),
        (heads[3], 45),
    ];
    assert_eq!(rig.driver.collect(), used);
    let parts = (0..4).map(|i| {
        rig.mem
            .peek_vec(rig.uva(GPA + STEP * i), used[i as usize].1 as usize)
    });
    assert_eq!(parts.collect::<Vec<_>>().concat(), packet(333, 9, 4));
}

#[test]
fn a_packet_that_fills_its_buffers_exactly_takes_no_more() {
    let world = arena(64);
    let mut rig = Rig::new(&world, MRG);
    offer(&mut rig, 10, 100);
    let mut socket = socket(&world, &rig);
    socket.push(288, 9);
    socket.push(88, 9);
    rig.rx(&mut socket);
    let lens: Vec<_> = rig.driver.collect().iter().map(|elem| elem.1).collect();
    assert_eq!(lens, [100, 100, 100, 100]);
}

#[test]
fn buffers_that_are_too_few_are_kept_and_kicks_turned_on() {
    for features in [MRG, MRG | EVENT_IDX] {
        let world = arena(64);
        let mut rig = Rig::new(&world, features);
        offer(&mut rig, 3, 100);
        let mut socket = socket(&world, &rig);
        socket.push(60, 1);
        socket.push(400, 2);
        assert_eq!(rig.rx(&mut socket), Outcome::WaitKick);
        assert_eq!((rig.queue.base(), rig.driver.collect().len()), (1, 1));
        assert!(
            rig.driver.would_kick(),
            "for chains after those it has seen"
        );
        assert!(rig.queue.avail_empty(rig.mem), "only more chains are news");
        assert_eq!(socket.packets.len(), 1);

        offer(&mut rig, 2, 100);
        assert!(!rig.queue.avail_empty(rig.mem));
        assert_eq!(
            rig.rx(&mut socket),
            Outcome::WaitKick,
            "still too few: 412 in 400"
        );
        assert_eq!(rig.queue.base(), 1);
        offer(&mut rig, 1, 100);
        assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
        assert_eq!(rig.driver.collect().len(), 5);
    }
}

#[test]
fn no_buffers_at_all_leave_the_packet_on_the_socket() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    let mut socket = socket(&world, &rig);
    socket.push(60, 1);
    assert_eq!(rig.rx(&mut socket), Outcome::WaitKick);
    assert_eq!(socket.packets.len(), 1);
    assert_eq!(socket.looks, [1]);
    assert!(rig.driver.would_kick());
}

#[test]
fn no_more_packets_are_taken_off_the_socket_than_there_are_chains() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 5, 100);
    let mut socket = socket(&world, &rig);
    for i in 0..9 {
        socket.push(60, i);
    }
    assert_eq!(rig.rx(&mut socket), Outcome::WaitKick);
    assert_eq!(socket.looks, [5, 4, 3, 2, 1, 1]);
    assert_eq!(socket.packets.len(), 4);
}

#[test]
fn sixty_four_packets_are_published_at_once() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1 | EVENT_IDX);
    offer(&mut rig, 200, 100);
    let mut socket = socket(&world, &rig);
    for i in 0..130 {
        socket.push(60, i);
    }
    let (mem, place) = (&world.0, world.1);
    rig.host.on_call = Some(Box::new(move || {
        mem.poke_u16(place.used_event(), mem.peek_u16(place.used_idx()));
    }));
    assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
    assert_eq!((rig.host.calls, rig.host.counters.calls), (3, 3));
    assert_eq!(rig.driver.collect().len(), 130);
}

#[test]
fn one_packet_reads_one_head_ahead() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1 | EVENT_IDX);
    offer(&mut rig, 200, 100);
    let mut socket = socket(&world, &rig);
    socket.push(60, 1);
    rig.mem.forget_touches();
    rig.rx(&mut socket);
    let touched = rig.mem.touched.borrow();
    let avail = rig.driver.place.avail_slot(0)..rig.driver.place.used_event();
    assert_eq!(touched.iter().filter(|t| t.overlaps(&avail)).count(), 1);
}

#[test]
fn the_256th_packet_ends_the_run() {
    let world = arena(512);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 512, 100);
    let mut socket = socket(&world, &rig);
    for i in 0..300 {
        socket.push(60, i as u8);
    }
    assert_eq!(rig.rx(&mut socket), Outcome::Requeue);
    assert_eq!(rig.driver.collect().len(), 256);
    assert_eq!(socket.packets.len(), 44);
    assert_eq!(rig.host.counters.requeues(), 1);
    assert!(!rig.driver.would_kick());
}

#[test]
fn the_vhost_header_is_zero_but_for_num_buffers() {
    for (features, len) in [(VNET | MRG, 12), (VNET | V1, 12), (VNET, 10)] {
        for cut in [1_u32, 10, 11, 40] {
            let world = arena(16);
            let mut rig = Rig::new(&world, features);
            rig.mem.poke(rig.buffers, &[0xff; 100]);
            rig.mem.poke(rig.uva(GPA + STEP), &[0xff; 100]);
            rig.driver.add(&[inp(GPA, cut), inp(GPA + STEP, 200)]);
            let mut socket = RxSocket::new(&world.0, 0);
            socket.push(60, 7);
            assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
            let mut wanted = vec![0; len];
            if len == 12 {
                wanted[10] = 1;
            }
            wanted.resize(len + 60, 7);
            let mut got = rig.mem.peek_vec(rig.buffers, cut as usize);
            got.extend(
                rig.mem
                    .peek_vec(rig.uva(GPA + STEP), len + 60 - cut as usize),
            );
            assert_eq!(got, wanted);
            assert_eq!(rig.driver.collect(), [(0, len as u32 + 60)]);
        }
    }
}

#[test]
fn a_dry_socket_is_looked_at_again_after_the_call() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 9, 100);
    let mut socket = socket(&world, &rig);
    socket.push(60, 1);
    assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
    assert_eq!(socket.looks, [9, 8, 8], "packet, none, none after the call");
}

#[test]
fn everything_is_published_before_a_window_opens() {
    let world = arena(64);
    let (mem, place) = (&world.0, world.1);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 9, 100);
    rig.host.window(End::Time, move |queue| {
        assert_eq!((mem.peek_u16(place.used_idx()), queue.base()), (2, 2));
        assert_eq!(mem.peek_u16(place.used), 1);
        assert!(!queue.avail_empty(mem), "there are buffers to fill");
    });
    let mut socket = socket(&world, &rig);
    socket.push(60, 1);
    socket.push(60, 2);
    assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
    assert_eq!(rig.host.calls, 1);
    assert_eq!(
        (rig.host.counters.polls(), rig.host.counters.poll_won),
        (1, 0)
    );
}

#[test]
fn an_interrupted_poll_queues_the_run_again() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 9, 100);
    rig.host.window(End::Work, |_| ());
    let mut socket = socket(&world, &rig);
    assert_eq!(rig.rx(&mut socket), Outcome::Requeue);
    assert_eq!(
        (
            rig.host.counters.poll_interrupted,
            rig.host.counters.requeues()
        ),
        (1, 1)
    );
    assert!(!rig.driver.would_kick());
}

#[test]
fn a_turn_of_continuous_polling_queues_the_run_again() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 9, 100);
    rig.host.window(End::Turn, |_| ());
    let mut socket = socket(&world, &rig);
    assert_eq!(rig.rx(&mut socket), Outcome::Requeue);
    let c = &rig.host.counters;
    assert_eq!((c.polls(), c.left_turn), (0, 1));
    assert!(!rig.driver.would_kick());
}

#[test]
fn a_packet_without_a_buffer_after_a_turn_waits_for_a_kick() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    rig.host.window(End::Turn, |_| ());
    let mut socket = socket(&world, &rig);
    socket.push(60, 1);
    socket.blind = |look| look == 1;
    assert_eq!(rig.rx(&mut socket), Outcome::WaitKick);
    assert!(rig.driver.would_kick());
}

#[test]
fn a_packet_received_after_an_interrupted_poll_ends_the_interruption() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 9, 100);
    rig.host.window(End::Work, |_| ());
    let mut socket = socket(&world, &rig);
    socket.push(60, 1);
    socket.blind = |look| look == 1;
    assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
    let c = &rig.host.counters;
    assert_eq!((c.packets, c.poll_won, c.poll_end_work), (1, 1, 1));
    assert_eq!((c.poll_interrupted, c.polls()), (0, 1), "it found a packet");
}

#[test]
fn a_packet_without_a_buffer_after_an_interrupted_poll_queues_the_run_again() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    rig.host.window(End::Work, |_| ());
    let mut socket = socket(&world, &rig);
    socket.push(60, 1);
    socket.blind = |look| look == 1;
    assert_eq!(rig.rx(&mut socket), Outcome::Requeue);
    assert!(!rig.driver.would_kick());
    assert_eq!(
        rig.rx(&mut socket),
        Outcome::WaitKick,
        "it is not so for ever"
    );
}

#[test]
fn a_packet_that_comes_and_goes_does_not_hold_the_worker() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 9, 100);
    let mut socket = socket(&world, &rig);
    socket.push(60, 1);
    socket.blind = |look| look % 2 == 1;
    rig.mem.limit.set(100_000);
    assert_eq!(rig.rx(&mut socket), Outcome::Requeue);
    assert_eq!(socket.looks.len(), 2 * 256);
}

/// A buffer of `len` bytes in pieces, all but the last of 7 bytes.
fn cut(len: u32, pieces: u32, place: u64) -> Vec<Buf> {
    let last = pieces - 1;
    let piece = |i: u32| {
        let len = if i == last { len - 7 * last } else { 7 };
        inp(GPA + STEP * place + 0x400 * u64::from(i), len)
    };
    (0..=last).map(piece).collect()
}

/// Fills the ring with buffers, each at a place of its own.
fn fill(rig: &mut Rig<'_, '_>, len: u32, pieces: u32) {
    while rig.driver.free() >= pieces as usize {
        let head = rig.driver.next_free();
        rig.driver.add(&cut(len, pieces, head.into()));
    }
}

/// What came back in buffers that [`fill`] made.
fn received(rig: &mut Rig<'_, '_>, len: u32, pieces: u32) -> Vec<Vec<u8>> {
    let used = rig.driver.collect();
    let bytes = |(head, written): (u16, u32)| {
        let bufs = cut(len, pieces, head.into());
        let of = |b: &Buf| rig.mem.peek_vec(rig.uva(b.addr), b.len as usize);
        let mut whole: Vec<u8> = bufs.iter().flat_map(of).collect();
        whole.truncate(written as usize);
        whole
    };
    used.into_iter().map(bytes).collect()
}

/// Runs until the socket is dry. Answers what each buffer got.
fn drain<'m, 'a>(
    rig: &mut Rig<'m, 'a>,
    socket: &mut RxSocket<'m, 'a>,
    (len, pieces): (u32, u32),
) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    for _ in 0..2000 {
        fill(rig, len, pieces);
        let outcome = rig.rx(socket);
        got.extend(received(rig, len, pieces));
        match outcome {
            Outcome::WaitSocket => return got,
            Outcome::WaitKick => assert!(rig.driver.would_kick()),
            outcome => assert_eq!(outcome, Outcome::Requeue),
        }
    }
    panic!("no progress");
}

proptest! {
    #![proptest_config(cases(300))]

    /// Packets and buffers of all sizes: all packets that a buffer can hold
    /// arrive whole and in order, nothing is written outside, each head comes
    /// back once.
    #[test]
    fn all_packets_arrive_whole_and_in_order(
        log in 0_u32..9,
        base in prop_oneof![Just(65500_u16), any::<u16>()],
        features in prop::sample::subsequence(vec![EVENT_IDX, MRG], 0..=2),
        seed: u64,
        buffer in 60_u32..3000,
        pieces in 1_u32..4,
        packets in prop::collection::vec(1_usize..4000, 1..100),
    ) {
        let world = arena(1 << log);
        let pieces = pieces.min(1 << log);
        let mut rig = Rig::at(&world, V1 | features.iter().sum::<u64>(), base);
        rig.driver.shuffle(seed);
        let mergeable = features.contains(&MRG);
        let chains = if mergeable { (1 << log) / pieces as usize } else { 1 };
        let fits = |len: &usize| len + 12 <= chains * buffer as usize;
        // What the whole ring cannot hold waits for ever.
        let offered = packets.iter().copied().filter(|len| !mergeable || fits(len));
        let offered: Vec<_> = offered.enumerate().collect();

        let mut socket = socket(&world, &rig);
        for (i, len) in &offered {
            socket.push(*len, *i as u8);
        }
        let mut parts = drain(&mut rig, &mut socket, (buffer, pieces)).into_iter();

        for (i, len) in offered.iter().filter(|(_, len)| fits(len)) {
            let mut bytes = parts.next().unwrap();
            let buffers = u16::from_le_bytes([bytes[10], bytes[11]]);
            bytes.extend(parts.by_ref().take(usize::from(buffers) - 1).flatten());
            prop_assert_eq!(bytes, packet(*len, *i as u8, buffers));
        }
        prop_assert_eq!(parts.next(), None);
        let arrived = offered.iter().map(|(_, len)| *len as u64);
        let arrived: Vec<_> = arrived.filter(|len| fits(&(*len as usize))).collect();
        prop_assert_eq!(
            (rig.host.counters.packets, rig.host.counters.bytes),
            (arrived.len() as u64, arrived.iter().sum())
        );
    }
}
