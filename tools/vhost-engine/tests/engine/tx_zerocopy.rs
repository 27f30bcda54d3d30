// SPDX-License-Identifier: GPL-2.0

use vhost_engine::engine::host::End;
use vhost_engine::engine::net::backend::{Completion, Listen, SendError};
use vhost_engine::engine::net::in_flight::{InFlight, MIN_LEN, SLOTS};
use vhost_engine::engine::net::Outcome;

use crate::model::*;
use crate::rig::*;
use crate::tx::frame;
use crate::zerocopy_socket::ZeroCopySocket;

/// A long frame, and a short one.
const LONG: u32 = 1500;
const SHORT: u32 = MIN_LEN as u32 - 1;

/// Offers frames of these lengths; answers their bytes.
fn offer(rig: &mut Rig<'_, '_>, lens: &[u32]) -> Vec<Option<Vec<u8>>> {
    let one = |(i, &len): (usize, &u32)| {
        let at = GPA + 2048 * u64::from(rig.driver.avail_idx) % BUFFERS;
        let bytes = frame(rig, at, len, i as u8);
        rig.driver.add(&[out(at, len)]);
        Some(bytes)
    };
    lens.iter().enumerate().map(one).collect()
}

fn heads(used: &[(u16, u32)]) -> Vec<u16> {
    used.iter().map(|(head, _)| *head).collect()
}

#[test]
fn a_long_frame_is_returned_when_the_socket_is_done_with_it() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1 | EVENT_IDX);
    let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
    let frames = offer(&mut rig, &[LONG]);

    assert_eq!(
        rig.tx_zerocopy(&mut socket, &mut in_flight),
        Outcome::WaitKick
    );
    assert_eq!((socket.sent(), rig.driver.collect()), (vec![None], vec![]));
    assert_eq!(rig.host.calls, 0);
    assert_eq!(rig.queue.base(), 1, "it is not taken again");
    assert_eq!(rig.host.counters.zerocopy_in_flight(), 1);

    socket.finish_all(Completion::InPlace);
    assert_eq!(
        rig.tx_zerocopy(&mut socket, &mut in_flight),
        Outcome::WaitKick
    );
    assert_eq!(
        (socket.sent(), rig.driver.collect()),
        (frames, vec![(0, 0)])
    );
    assert_eq!(rig.host.calls, 1);
    let counters = &rig.host.counters;
    assert_eq!((counters.packets, counters.bytes), (1, 1488));
    assert_eq!((counters.zerocopy_sent, counters.zerocopy_copied), (1, 0));
    assert_eq!(
        (counters.zerocopy_errors, counters.zerocopy_in_flight()),
        (0, 0)
    );
}

#[test]
fn a_short_frame_is_copied_and_returned_at_once() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1);
    let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
    let frames = offer(&mut rig, &[SHORT, MIN_LEN as u32]);
    rig.tx_zerocopy(&mut socket, &mut in_flight);
    assert_eq!(socket.sent(), [frames[0].clone(), None]);
    assert_eq!(rig.driver.collect(), [(0, 0)]);
    assert_eq!(
        (
            rig.host.counters.zerocopy_sent,
            rig.host.counters.zerocopy_copied
        ),
        (1, 0)
    );
}

#[test]
fn chains_go_back_in_the_order_in_which_they_were_sent() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1);
    let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
    offer(&mut rig, &[LONG; 4]);
    rig.tx_zerocopy(&mut socket, &mut in_flight);

    for (done, returned) in [(2, vec![]), (0, vec![0]), (3, vec![]), (1, vec![1, 2, 3])] {
        socket.finish(done, Completion::InPlace);
        rig.tx_zerocopy(&mut socket, &mut in_flight);
        assert_eq!(
            heads(&rig.driver.collect()),
            returned,
            "slot {done} is done"
        );
    }
}

#[test]
fn no_more_are_in_flight_than_a_quarter_of_the_ring_and_one_or_129() {
    for (num, limit) in [(64, 17), (256, 65), (512, 129), (1024, 129)] {
        let world = arena(num);
        let mut rig = Rig::new(&world, V1);
        let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
        let count = usize::from(num).min(200);
        offer(&mut rig, &vec![LONG; count]);
        rig.tx_zerocopy(&mut socket, &mut in_flight);
        assert_eq!((socket.waiting().len(), socket.peak), (limit, limit));
        let copied = count - limit;
        assert_eq!(rig.driver.collect().len(), copied, "copies overtake them");
        assert_eq!(rig.host.counters.zerocopy_copied, copied as u64);
        // One done makes room for one.
        socket.finish(0, Completion::InPlace);
        offer(&mut rig, &[LONG; 2]);
        rig.tx_zerocopy(&mut socket, &mut in_flight);
        assert_eq!((socket.waiting().len(), socket.peak), (limit, limit));
    }
}

#[test]
fn with_in_order_a_copy_waits_for_what_is_in_flight_before_it() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1 | IN_ORDER);
    let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
    offer(&mut rig, &[SHORT, LONG, SHORT, LONG, SHORT]);
    rig.tx_zerocopy(&mut socket, &mut in_flight);
    assert_eq!(heads(&rig.driver.collect()), [0]);
    for (done, returned) in [(2, vec![]), (0, vec![1, 2, 3, 4])] {
        socket.finish(done, Completion::InPlace);
        rig.tx_zerocopy(&mut socket, &mut in_flight);
        assert_eq!(heads(&rig.driver.collect()), returned);
    }
}

#[test]
fn with_in_order_a_packet_that_stays_stops_the_ring_and_each_completion_wakes_it() {
    let world = arena(512);
    let mut rig = Rig::new(&world, V1 | IN_ORDER);
    let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
    offer(&mut rig, &[LONG]);
    offer(&mut rig, &[SHORT; SLOTS + 20]);
    assert_eq!(
        rig.tx_zerocopy(&mut socket, &mut in_flight),
        Outcome::Requeue
    );
    assert_eq!(socket.listen, Listen::Sometimes);
    assert_eq!(
        rig.tx_zerocopy(&mut socket, &mut in_flight),
        Outcome::WaitCompletion
    );
    assert_eq!(socket.listen, Listen::Always);
    assert_eq!(socket.more.len(), SLOTS);
    assert_eq!(socket.more.last(), Some(&false), "the socket keeps nothing");
    assert!(rig.queue.avail_empty(rig.mem), "no work for the other ring");
    assert!(rig.driver.collect().is_empty() && !rig.driver.would_kick());

    socket.finish_all(Completion::InPlace);
    assert_eq!(
        rig.tx_zerocopy(&mut socket, &mut in_flight),
        Outcome::WaitKick
    );
    assert_eq!(rig.driver.collect().len(), SLOTS + 21);
}

#[test]
fn what_is_done_during_the_run_is_returned_by_it_and_wakes_nobody() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1 | EVENT_IDX);
    let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
    // As a tap does whose packets the host takes: send() asserts that nobody
    // listens.
    socket.at_once = Some(Completion::InPlace);
    let frames = offer(&mut rig, &[LONG; 100]);
    assert_eq!(
        rig.tx_zerocopy(&mut socket, &mut in_flight),
        Outcome::WaitKick
    );
    assert_eq!(socket.sent(), frames);
    assert_eq!(rig.driver.collect().len(), 100);
    assert_eq!(rig.host.counters.runs(), 1);
    assert!(in_flight.is_empty());
}

#[test]
fn a_window_is_not_cut_short_by_what_was_done_before_it() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1 | EVENT_IDX);
    let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
    socket.at_once = Some(Completion::Copied);
    offer(&mut rig, &[LONG]);
    let (mem, used) = (&world.0, world.1.used_idx());
    rig.host.window(End::Time, move |_| {
        assert_eq!(mem.peek_u16(used), 1, "it is returned before the window");
    });
    assert_eq!(
        rig.tx_zerocopy(&mut socket, &mut in_flight),
        Outcome::WaitKick
    );
    assert_eq!((rig.host.polls, rig.host.counters.runs()), (1, 1));
}

#[test]
fn a_completion_in_the_window_does_not_bring_kicks_back() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1 | EVENT_IDX);
    let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
    for _ in 0..10 {
        offer(&mut rig, &[LONG]);
        // It is work of this worker, which ends the window.
        rig.host.window(End::Work, |_| ());
        assert_eq!(
            rig.tx_zerocopy(&mut socket, &mut in_flight),
            Outcome::Requeue
        );
        assert!(!rig.driver.would_kick());
        assert_eq!(socket.listen, Listen::Sometimes);
        socket.finish_all(Completion::InPlace);
        rig.host.window(End::Work, |_| ());
        assert_eq!(
            rig.tx_zerocopy(&mut socket, &mut in_flight),
            Outcome::Requeue
        );
        assert!(!rig.driver.would_kick());
        assert_eq!(rig.driver.collect().len(), 1);
    }
}

#[test]
fn one_that_the_kernel_copied_makes_the_next_64_copies() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1);
    let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
    socket.at_once = Some(Completion::Copied);
    // C counts packets to 1,023 and begins again, the copies forgotten.
    let (mut packets, mut copies, mut sent) = (0, 0, 0);
    for _ in 0..30 {
        offer(&mut rig, &[LONG; 100]);
        rig.tx_zerocopy(&mut socket, &mut in_flight);
        rig.driver.collect();
        for _ in 0..100 {
            if packets / 64 >= copies {
                sent += 1;
                // C sees it in the same turn, before it counts the packet.
                copies += 1;
            }
            packets += 1;
            if packets == 1024 {
                (packets, copies) = (0, 0);
            }
        }
    }
    let counters = &rig.host.counters;
    assert!(sent > 30);
    // A copy is seen one packet later here.
    assert!(
        counters.zerocopy_sent.abs_diff(sent) <= 3,
        "{sent}: {counters:?}"
    );
    assert_eq!(counters.zerocopy_errors, counters.zerocopy_sent);
    assert_eq!(counters.zerocopy_sent + counters.zerocopy_copied, 3000);
}

#[test]
fn a_frame_that_is_refused_is_returned_and_its_slot_is_free() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1);
    let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
    offer(&mut rig, &[LONG; 3]);
    socket.answers = [Ok(()), Err(SendError::Refused)].into();
    assert_eq!(
        rig.tx_zerocopy(&mut socket, &mut in_flight),
        Outcome::WaitKick
    );
    assert_eq!(rig.driver.collect(), [(1, 0)]);
    assert_eq!(socket.waiting(), [0, 1]);
    assert_eq!(
        (rig.host.counters.packets, rig.host.counters.drop_refused),
        (2, 1)
    );
}

#[test]
fn a_full_socket_is_waited_for_and_the_frame_goes_again() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1);
    let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
    let frames = offer(&mut rig, &[LONG, SHORT, LONG]);
    socket.answers = [Ok(()), Ok(()), Err(SendError::Full)].into();
    assert_eq!(
        rig.tx_zerocopy(&mut socket, &mut in_flight),
        Outcome::WaitSocket
    );
    assert_eq!((rig.queue.base(), rig.driver.collect()), (2, vec![(1, 0)]));
    assert_eq!(socket.listen, Listen::Sometimes);

    assert_eq!(
        rig.tx_zerocopy(&mut socket, &mut in_flight),
        Outcome::WaitKick
    );
    socket.finish_all(Completion::InPlace);
    rig.tx_zerocopy(&mut socket, &mut in_flight);
    assert_eq!(heads(&rig.driver.collect()), [0, 2]);
    assert_eq!(socket.sent(), frames);
}

#[test]
fn chains_that_are_no_frames_are_returned_as_always() {
    let world = arena(256);
    for (features, returned) in [(V1, vec![1, 2]), (V1 | IN_ORDER, vec![])] {
        let mut rig = Rig::new(&world, features);
        let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
        offer(&mut rig, &[LONG, 5]);
        rig.driver.add(&[inp(GPA, 1000)]);
        rig.tx_zerocopy(&mut socket, &mut in_flight);
        assert_eq!(heads(&rig.driver.collect()), returned);
        assert_eq!(
            (
                rig.host.counters.drop_header,
                rig.host.counters.drop_direction
            ),
            (1, 1)
        );
        socket.finish_all(Completion::InPlace);
        rig.tx_zerocopy(&mut socket, &mut in_flight);
        assert_eq!(rig.driver.collect().len(), 3 - returned.len());
    }
}

#[test]
fn what_was_sent_before_a_broken_chain_is_returned_all_the_same() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1);
    let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
    offer(&mut rig, &[LONG, SHORT]);
    rig.driver.offer(256);
    let broken = |outcome| matches!(outcome, Outcome::Broken(_));
    assert!(broken(rig.tx_zerocopy(&mut socket, &mut in_flight)));
    assert_eq!(heads(&rig.driver.collect()), [1]);
    assert_eq!(socket.listen, Listen::Sometimes);
    socket.finish_all(Completion::InPlace);
    assert!(broken(rig.tx_zerocopy(&mut socket, &mut in_flight)));
    assert_eq!(heads(&rig.driver.collect()), [0]);
    assert!(rig.driver.would_kick());
}

#[test]
fn a_stop_returns_what_is_done_and_says_whether_to_call() {
    let world = arena(512);
    let mut rig = Rig::new(&world, V1);
    let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
    let frames = offer(&mut rig, &[LONG; 129]);
    rig.tx_zerocopy(&mut socket, &mut in_flight);
    let mut stop = |rig: &mut Rig<'_, '_>, socket: &mut ZeroCopySocket<'_, '_>| {
        in_flight
            .return_done(&mut rig.queue, rig.mem, socket, |_| ())
            .unwrap()
    };
    assert!(!stop(&mut rig, &mut socket), "nothing is done");
    socket.finish_all(Completion::InPlace);
    assert!(stop(&mut rig, &mut socket));
    assert_eq!(rig.driver.collect().len(), 129);
    assert_eq!((socket.sent(), rig.queue.base()), (frames, 129));
    assert!(!stop(&mut rig, &mut socket));
}
