// SPDX-License-Identifier: GPL-2.0

//! Random guests and sockets against what must hold of packets in flight.

use std::collections::BTreeMap;

use proptest::prelude::*;
use vhost_engine::engine::host::End;
use vhost_engine::engine::net::backend::{Completion, Listen, SendError};
use vhost_engine::engine::net::in_flight::InFlight;
use vhost_engine::engine::net::Outcome;

use crate::model::*;
use crate::rig::*;
use crate::tx::frame;
use crate::zerocopy_socket::ZeroCopySocket;

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// The guest offers a frame of this length, in so many descriptors.
    Offer(u32, usize),
    /// The worker runs, and the socket's next sends answer so.
    Run(Vec<Result<(), SendError>>),
    /// A packet in flight is done: the one at this place, of all.
    Finish(prop::sample::Index, Completion),
    /// From now on they are done at once, or not.
    AtOnce(Option<Completion>),
}

fn completion() -> impl Strategy<Value = Completion> {
    prop_oneof![
        8 => Just(Completion::InPlace),
        1 => Just(Completion::Copied)
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let answer = prop_oneof![
        6 => Just(Ok(())),
        1 => Just(Err(SendError::Refused)),
        1 => Just(Err(SendError::Full))
    ];
    prop_oneof![
        8 => (0_u32..2000, 1_usize..4).prop_map(|(len, parts)| Step::Offer(len, parts)),
        2 => prop::collection::vec(answer, 0..6).prop_map(Step::Run),
        3 => (any::<prop::sample::Index>(), completion()).prop_map(|(at, how)| Step::Finish(at, how)),
        1 => prop::option::of(completion()).prop_map(Step::AtOnce),
    ]
}

/// The driver's view: which chain has which frame.
struct Guest {
    /// Chains that are out, the oldest first: head, and the frame to be sent.
    out: Vec<(u16, Vec<u8>)>,
    in_order: bool,
    /// Frames of all chains, and whether they may leave.
    frames: Vec<Vec<u8>>,
    at: u64,
}

impl Guest {
    fn offer(&mut self, rig: &mut Rig<'_, '_>, len: u32, parts: usize) {
        if rig.driver.free() < parts || (len as usize) < parts {
            return;
        }
        let gpa = GPA + self.at * 2048 % BUFFERS;
        let bytes = frame(rig, gpa, len, self.at as u8);
        self.at += 1;
        let part = len / parts as u32;
        let bufs: Vec<Buf> = (0..parts as u32)
            .map(|i| {
                let last = i + 1 == parts as u32;
                out(
                    gpa + u64::from(i * part),
                    if last { len - i * part } else { part },
                )
            })
            .collect();
        let head = rig.driver.add(&bufs);
        if len >= 12 {
            self.frames.push(bytes.clone());
        }
        self.out.push((head, bytes));
    }

    /// Takes back what is returned; `unfinished` frames may not be among it.
    fn collect(&mut self, rig: &mut Rig<'_, '_>, socket: &ZeroCopySocket<'_, '_>) {
        let mut held = BTreeMap::new();
        for frame in socket.held() {
            *held.entry(frame).or_insert(0) += 1;
        }
        for (head, len) in rig.driver.collect() {
            assert_eq!(len, 0);
            let at = self.out.iter().position(|(out, _)| *out == head).unwrap();
            assert!(at == 0 || !self.in_order, "head {head} overtook others");
            let (_, bytes) = self.out.remove(at);
            assert!(!held.contains_key(&bytes), "the socket still reads it");
        }
    }
}

fn check(num: u16, features: u64, steps: Vec<Step>) {
    let world = arena(num);
    let mut rig = Rig::at(&world, features, 65500);
    rig.driver.shuffle(u64::from(num));
    let (mut socket, mut in_flight) = (ZeroCopySocket::new(&world.0), InFlight::new());
    let mut guest = Guest {
        out: Vec::new(),
        in_order: features & IN_ORDER != 0,
        frames: Vec::new(),
        at: 0,
    };

    for step in steps {
        match step {
            Step::Offer(len, parts) => guest.offer(&mut rig, len, parts),
            Step::Run(answers) => {
                socket.answers = answers.into();
                rig.host.window(End::Time, |_| ());
                let outcome = rig.tx_zerocopy(&mut socket, &mut in_flight);
                let expected = if outcome == Outcome::WaitCompletion {
                    Listen::Always
                } else {
                    Listen::Sometimes
                };
                assert_eq!(socket.listen, expected);
            }
            Step::Finish(at, how) => {
                let waiting = socket.waiting();
                if !waiting.is_empty() {
                    socket.finish(waiting[at.index(waiting.len())], how);
                }
            }
            Step::AtOnce(how) => socket.at_once = how,
        }
        guest.collect(&mut rig, &socket);
        assert!(socket.peak <= usize::from(128.min(num / 4)) + 1);
    }

    // In the end all is returned, and left in its order but for what was
    // refused.
    socket.answers.clear();
    for _ in 0..4 {
        socket.finish_all(Completion::InPlace);
        rig.tx_zerocopy(&mut socket, &mut in_flight);
    }
    guest.collect(&mut rig, &socket);
    assert!(guest.out.is_empty() && in_flight.is_empty());
    let sent: Vec<_> = socket.sent().into_iter().map(Option::unwrap).collect();
    let refused = rig.host.counters.drop_refused as usize;
    assert_eq!(sent.len() + refused, guest.frames.len());
    assert_eq!(rig.host.counters.packets as usize, sent.len());
    let mut rest = guest.frames.iter();
    for frame in &sent {
        assert!(rest.any(|offered| offered == frame), "out of order");
    }
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn each_chain_is_returned_once_when_nobody_reads_it_any_more(
        num in prop::sample::select(vec![4_u16, 16, 64, 256]),
        event_idx in any::<bool>(),
        in_order in any::<bool>(),
        steps in prop::collection::vec(step(), 0..400),
    ) {
        let features = V1
            | if event_idx { EVENT_IDX } else { 0 }
            | if in_order { IN_ORDER } else { 0 };
        check(num, features, steps);
    }
}
