// SPDX-License-Identifier: GPL-2.0

use proptest::prelude::*;
use vhost_engine::engine::features::HeaderLen;
use vhost_engine::engine::host::End;
use vhost_engine::engine::net::backend::SendError;
use vhost_engine::engine::net::Outcome;

use crate::arena::Kind;
use crate::mocks::TxSocket;
use crate::model::*;
use crate::rig::*;

/// Puts a frame of `len` bytes, header included, at `gpa`.
pub fn frame(rig: &Rig<'_, '_>, gpa: u64, len: u32, fill: u8) -> Vec<u8> {
    let mut bytes = vec![0; 12.min(len as usize)];
    bytes.resize(len as usize, fill);
    rig.mem.poke(rig.uva(gpa), &bytes);
    bytes
}

/// Offers `count` frames of 76 bytes in one descriptor each.
pub fn offer(rig: &mut Rig<'_, '_>, count: usize) -> Vec<Vec<u8>> {
    let one = |i| {
        let at = GPA + 2048 * i as u64;
        let bytes = frame(rig, at, 76, i as u8);
        rig.driver.add(&[out(at, 76)]);
        bytes
    };
    (0..count).map(one).collect()
}

pub fn socket<'m, 'a>(world: &'m World<'a>, batch: usize) -> TxSocket<'m, 'a> {
    TxSocket::new(&world.0, batch, 12)
}

#[test]
fn a_frame_is_sent_its_head_returned_with_length_0_and_the_driver_called() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1 | EVENT_IDX);
    let frames = offer(&mut rig, 1);
    let mut socket = socket(&world, 64);
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(socket.sent, frames);
    assert_eq!(rig.driver.collect(), [(0, 0)]);
    assert_eq!(rig.host.calls, 1);
    assert!(rig.driver.would_kick());
    assert_eq!(
        (
            rig.host.counters.packets,
            rig.host.counters.bytes,
            rig.host.counters.runs()
        ),
        (1, 64, 1)
    );
}

#[test]
fn kicks_are_off_until_the_ring_is_empty() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 3);
    let (mem, used) = (&world.0, world.1.used);
    rig.host.on_call = Some(Box::new(move || assert_eq!(mem.peek_u16(used), 1)));
    assert_eq!(rig.tx(&mut socket(&world, 64)), Outcome::WaitKick);
    assert_eq!(mem.peek_u16(used), 0);
    assert_eq!(rig.host.calls, 1);
}

#[test]
fn sixty_four_frames_go_in_one_batch_with_one_call() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1 | EVENT_IDX);
    let frames = offer(&mut rig, 150);
    let mut socket = socket(&world, 64);
    // The driver wants a call after each batch: only so many are possible.
    let (mem, place) = (&world.0, world.1);
    rig.host.on_call = Some(Box::new(move || {
        mem.poke_u16(place.used_event(), mem.peek_u16(place.used_idx()));
    }));
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!((socket.sent, socket.submits), (frames, 3));
    assert_eq!(rig.host.calls, 3);
    assert_eq!(rig.driver.collect().len(), 150);
}

#[test]
fn a_run_of_64_frames_takes_10_memory_calls_besides_the_frames() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1 | EVENT_IDX);
    offer(&mut rig, 64);
    rig.mem.forget_touches();
    rig.tx(&mut socket(&world, 64));
    // Heads, descriptors, used, index, fence; then heads again, none; then
    // avail_event, fence, index.
    assert_eq!(rig.mem.calls.get(), 64 + 9);
}

#[test]
fn a_small_batch_is_submitted_when_it_is_full_and_published_at_64() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1);
    let frames = offer(&mut rig, 64);
    let mut socket = socket(&world, 16);
    rig.tx(&mut socket);
    assert_eq!((socket.submits, rig.host.calls), (4, 1));
    assert_eq!(socket.sent, frames);
}

#[test]
fn the_256th_frame_ends_the_run_with_kicks_off() {
    let world = arena(512);
    let mut rig = Rig::new(&world, V1);
    let frames = offer(&mut rig, 300);
    let mut socket = socket(&world, 64);
    assert_eq!(rig.tx(&mut socket), Outcome::Requeue);
    assert_eq!(rig.driver.collect().len(), 256);
    assert!(!rig.driver.would_kick());
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(socket.sent, frames);
    assert_eq!(rig.host.counters.requeues(), 1);
}

#[test]
fn half_a_mebibyte_ends_the_run() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    for _ in 0..20 {
        rig.driver.add(&[out(GPA, 60000)]);
    }
    let mut socket = socket(&world, 64);
    assert_eq!(rig.tx(&mut socket), Outcome::Requeue);
    assert_eq!(
        socket.sent.len(),
        9,
        "9 * 60,000 is the first to reach 524,288"
    );
    assert_eq!(rig.queue.base(), 9);
}

#[test]
fn frames_too_large_for_the_batch_go_alone_and_in_order() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    let mut wanted = Vec::new();
    for (i, len) in [100, 5000, 100, 100, 65000, 6000, 100]
        .into_iter()
        .enumerate()
    {
        let at = GPA + 0x10000 * i as u64;
        wanted.push(frame(&rig, at, len, i as u8));
        rig.driver.add(&[out(at, len)]);
    }
    let mut socket = socket(&world, 64);
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(socket.sent, wanted);
    assert_eq!((socket.single, socket.submits), (3, 3));
    assert_eq!(socket.more, [false; 3]);
    assert_eq!(rig.host.counters.packets, 7);
}

#[test]
fn single_frames_say_that_more_follow_while_more_are_there() {
    for fetch_max in [usize::MAX, 1] {
        let world = arena(64);
        let mut rig = Rig::new(&world, V1);
        rig.mem.fetch_max.set(fetch_max);
        let frames = offer(&mut rig, 3);
        let mut socket = socket(&world, 0);
        assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
        assert_eq!(socket.sent, frames);
        assert_eq!(socket.more, [true, true, false]);
        assert_eq!(rig.host.calls, 1, "one call for all");
    }
}

#[test]
fn the_last_frame_of_a_run_does_not_say_that_more_follow() {
    let world = arena(512);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 300);
    let mut socket = socket(&world, 0);
    assert_eq!(rig.tx(&mut socket), Outcome::Requeue);
    assert_eq!(socket.more.iter().position(|more| !more), Some(255));
}

#[test]
fn a_full_socket_gets_the_frame_again_and_the_driver_those_before_it() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    let frames = offer(&mut rig, 5);
    let mut socket = socket(&world, 0);
    socket.answers = [Ok(()), Ok(()), Err(SendError::Full)].into();
    assert_eq!(rig.tx(&mut socket), Outcome::WaitSocket);
    assert_eq!(socket.sent, frames[..2]);
    assert_eq!(rig.queue.base(), 2);
    assert_eq!(rig.driver.collect().len(), 2);
    assert!(!rig.driver.would_kick(), "the socket wakes it");
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(socket.sent, frames);
}

#[test]
fn without_memory_the_frame_is_kept_and_the_run_comes_again() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    let frames = offer(&mut rig, 5);
    let mut socket = socket(&world, 64);
    socket.memory = 3;
    assert_eq!(rig.tx(&mut socket), Outcome::Requeue);
    assert_eq!(socket.sent, frames[..3]);
    assert_eq!((rig.queue.base(), rig.driver.collect().len()), (3, 3));
    socket.memory = usize::MAX;
    rig.tx(&mut socket);
    assert_eq!(socket.sent, frames);
}

#[test]
fn everything_is_published_before_a_window_opens() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 3);
    let (mem, place) = (&world.0, world.1);
    rig.host.window(End::Time, move |queue| {
        assert_eq!(mem.peek_u16(place.used_idx()), 3);
        assert_eq!(queue.base(), 3);
        assert_eq!(mem.peek_u16(place.used), 1, "no kicks meanwhile");
        assert!(queue.avail_empty(mem));
    });
    let mut socket = socket(&world, 64);
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!((rig.host.calls, socket.submits), (1, 1));
    assert_eq!(
        (rig.host.counters.polls(), rig.host.counters.poll_won),
        (1, 0)
    );
}

#[test]
fn a_frame_that_comes_in_the_window_is_sent_without_a_kick() {
    let world = arena(64);
    let (mem, place) = (&world.0, world.1);
    let mut rig = Rig::new(&world, V1 | EVENT_IDX);
    let head = rig.driver.place_chain(&[out(GPA, 76)], None);
    rig.host.window(End::Time, move |queue| {
        mem.poke_u16(place.avail_slot(0), head);
        mem.poke_u16(place.avail_idx(), 1);
        assert!(!queue.avail_empty(mem));
    });
    mem.poke_u16(place.avail_event(), 0x5555);
    rig.mem.forget_touches();
    let mut socket = socket(&world, 64);
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(socket.sent.len(), 1);
    assert_eq!((rig.host.polls, rig.host.counters.poll_won), (2, 1));
    let event = place.avail_event()..place.avail_event() + 2;
    let touched = rig.mem.touched.borrow();
    let writes = touched
        .iter()
        .filter(|t| t.kind == Kind::Write && t.overlaps(&event));
    assert_eq!(writes.count(), 1, "kicks came on once, at the end");
}

#[test]
fn an_interrupted_poll_queues_the_run_again_with_kicks_off() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 1);
    rig.host.window(End::Work, |_| ());
    assert_eq!(rig.tx(&mut socket(&world, 64)), Outcome::Requeue);
    assert!(!rig.driver.would_kick());
    let c = &rig.host.counters;
    assert_eq!((c.polls(), c.poll_interrupted, c.requeues()), (1, 1, 1));
    assert_eq!(rig.driver.collect().len(), 1);
}

#[test]
fn a_turn_of_continuous_polling_queues_the_run_again_and_is_no_window() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    offer(&mut rig, 1);
    rig.host.window(End::Turn, |_| ());
    assert_eq!(rig.tx(&mut socket(&world, 64)), Outcome::Requeue);
    assert!(!rig.driver.would_kick());
    let c = &rig.host.counters;
    assert_eq!((c.polls(), c.left_turn, c.requeues()), (0, 1, 1));
    assert!(c.poll_ns_lost > 0 && c.poll_ns_won == 0);
}

#[test]
fn a_frame_found_after_an_interrupted_poll_is_sent_first() {
    let world = arena(64);
    let (mem, place) = (&world.0, world.1);
    let mut rig = Rig::new(&world, V1);
    let head = rig.driver.place_chain(&[out(GPA, 76)], None);
    rig.host.window(End::Work, move |_| {
        mem.poke_u16(place.avail_slot(0), head);
        mem.poke_u16(place.avail_idx(), 1);
    });
    let mut socket = socket(&world, 64);
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(socket.sent.len(), 1);
}

#[test]
fn a_frame_that_comes_while_kicks_are_turned_on_is_sent() {
    let world = arena(64);
    let mut rig = Rig::new(&world, V1);
    let head = rig.driver.place_chain(&[out(GPA, 76)], None);
    let place = world.1;
    let mut once = false;
    // The driver looks at the flags, sees 1 and does not kick; then the device
    // stores 0 and must look again.
    let intruder = move |bytes: &mut [u8], _| {
        let at = |addr: u64| (addr - crate::arena::BASE) as usize;
        let flags = at(place.used);
        if bytes[flags] == 1 {
            once = true;
        } else if once {
            bytes[at(place.avail_slot(0))..][..2].copy_from_slice(&head.to_le_bytes());
            bytes[at(place.avail_idx())] = 1;
        }
    };
    rig.mem.intruder.replace(Some(Box::new(intruder)));
    let mem = &world.0;
    rig.host.on_call = Some(Box::new(move || {
        assert_eq!(mem.peek_u16(place.used), 1, "kicks are off again meanwhile");
    }));
    let mut socket = socket(&world, 64);
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!((socket.sent.len(), rig.host.calls), (1, 1));
}

#[test]
fn the_vhost_header_is_not_sent_wherever_it_is_cut() {
    for cut in [1, 9, 10, 11, 12, 13] {
        for batch in [0, 64] {
            let world = arena(8);
            let mut rig = Rig::new(&world, V1 | VNET);
            assert_eq!(rig.header, HeaderLen { vhost: 12, sock: 0 });
            let bytes: Vec<u8> = (0..80).collect();
            rig.mem.poke(rig.uva(GPA), &bytes);
            rig.driver
                .add(&[out(GPA, cut), out(GPA + u64::from(cut), 80 - cut)]);
            let mut socket = TxSocket::new(&world.0, batch, 0);
            rig.tx(&mut socket);
            assert_eq!(socket.sent, [&bytes[12..]]);
            assert_eq!(rig.host.counters.bytes, 68);
        }
    }
}

#[test]
fn before_features_are_set_a_frame_has_no_header() {
    let world = arena(8);
    let mut rig = Rig::new(&world, 0);
    rig.header = HeaderLen::NONE;
    rig.driver.add(&[out(GPA, 1)]);
    let mut socket = TxSocket::new(&world.0, 64, 0);
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!((socket.sent.len(), rig.host.counters.bytes), (1, 1));
}

/// A frame of the property test: its bytes, in how many pieces, in a table.
type Cut = (u32, usize, bool);

/// Offers the frame `i`. Answers its bytes.
fn offer_cut(rig: &mut Rig<'_, '_>, i: usize, (len, pieces, indirect): Cut) -> Vec<u8> {
    let at = GPA + 4096 * (i as u64 % 512);
    let bytes = frame(rig, at, len, i as u8);
    let bufs = cut(at, len, pieces);
    if indirect {
        let table = GPA + 0x30_0000 + 256 * i as u64;
        rig.driver
            .add_indirect(table, rig.buffers + table - GPA, &bufs);
    } else {
        rig.driver.add(&bufs);
    }
    bytes
}

/// Cuts a buffer into pieces, all but the last of 5 bytes.
fn cut(at: u64, len: u32, pieces: usize) -> Vec<Buf> {
    let last = pieces as u32 - 1;
    let piece = |i: u32| {
        let len = if i == last { len - 5 * last } else { 5 };
        out(at + u64::from(5 * i), len)
    };
    (0..=last).map(piece).collect()
}

/// Runs until the ring is empty. Answers how many heads came back.
fn drain<'m, 'a>(rig: &mut Rig<'m, 'a>, socket: &mut TxSocket<'m, 'a>) -> usize {
    loop {
        match rig.tx(socket) {
            Outcome::Requeue => {}
            outcome => {
                assert_eq!(outcome, Outcome::WaitKick);
                break;
            }
        }
    }
    assert!(rig.driver.would_kick());
    let used = rig.driver.collect();
    assert!(used.iter().all(|elem| elem.1 == 0));
    assert!(rig.driver.out.is_empty());
    used.len()
}

proptest! {
    #![proptest_config(cases(300))]

    /// Frames of all sizes, cut in all ways, direct and indirect, on rings of
    /// all sizes, over many runs: all arrive, in order, each head once.
    #[test]
    fn all_frames_arrive_whole_and_in_order(
        log in 1_u32..10,
        base in prop_oneof![Just(65500_u16), any::<u16>()],
        batch in prop_oneof![Just(0_usize), Just(64), 1_usize..64],
        features in prop::sample::subsequence(vec![EVENT_IDX, VNET], 0..=2),
        seed: u64,
        frames in prop::collection::vec((24_u32..4000, 1_usize..6, any::<bool>()), 1..120),
    ) {
        let world = arena(1 << log);
        let mut rig = Rig::at(&world, V1 | features.iter().sum::<u64>(), base);
        rig.driver.shuffle(seed);
        let mut socket = TxSocket::new(&world.0, batch, rig.header.sock);
        let skip = rig.header.vhost;

        let mut wanted = Vec::new();
        let mut returned = 0;
        for (i, (len, pieces, indirect)) in frames.into_iter().enumerate() {
            let pieces = pieces.min(1 << log);
            let need = if indirect { 1 } else { pieces };
            if rig.driver.free() < need {
                returned += drain(&mut rig, &mut socket);
            }
            let bytes = offer_cut(&mut rig, i, (len, pieces, indirect));
            wanted.push(bytes[skip..].to_vec());
        }
        returned += drain(&mut rig, &mut socket);
        prop_assert_eq!(returned, wanted.len());
        prop_assert_eq!(socket.sent, wanted);
    }
}
