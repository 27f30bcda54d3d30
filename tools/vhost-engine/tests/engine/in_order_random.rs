// SPDX-License-Identifier: GPL-2.0

//! `VIRTIO_F_IN_ORDER` with random chains, packets, and stops.

use std::collections::VecDeque;

use proptest::prelude::*;
use vhost_engine::engine::net::backend::SendError;

use crate::in_order_model::*;
use crate::mocks::{RxSocket, TxSocket};
use crate::model::*;
use crate::rig::*;

/// One step of a driver.
#[derive(Clone, Debug)]
enum Step {
    /// Offers chains of so many descriptors.
    Offer(Vec<usize>),
    Run,
    Collect,
    /// Stops and starts the vring.
    Restart,
    /// So many frames are sent before the socket is full.
    Full(usize),
    /// Packets of these sizes come.
    Packets(Vec<usize>),
    /// A receipt that fails.
    Shrink,
}

fn steps(rx: bool) -> impl Strategy<Value = Vec<Step>> {
    let offer = prop::collection::vec(1_usize..5, 1..20);
    let sizes = prop::collection::vec(0_usize..600, 1..12);
    let special = if rx {
        prop_oneof![
            3 => sizes.prop_map(Step::Packets),
            1 => Just(Step::Shrink),
        ]
        .boxed()
    } else {
        (0_usize..9).prop_map(Step::Full).boxed()
    };
    let step = prop_oneof![
        3 => offer.prop_map(Step::Offer),
        4 => Just(Step::Run),
        2 => Just(Step::Collect),
        1 => Just(Step::Restart),
        2 => special,
    ];
    prop::collection::vec(step, 1..60)
}

/// Features beside IN_ORDER, and the size and base of a ring.
fn ring() -> impl Strategy<Value = (u64, u32, u16)> {
    let features = prop::sample::subsequence(vec![EVENT_IDX, MRG, VNET, ON_EMPTY], 0..=4);
    let base = prop_oneof![0_u16..3, 65500_u16..=65535, any::<u16>()];
    (features, 2_u32..8, base).prop_map(|(features, log, base)| {
        let sum: u64 = features.iter().sum();
        (sum | V1 | IN_ORDER, log, base)
    })
}

fn restart(rig: &mut Rig<'_, '_>) {
    let base = rig.queue.base();
    rig.queue.set_base(base);
    rig.queue.start(rig.mem).unwrap();
}

/// The receiving guest.
struct Receiver {
    /// Bytes of each chain that came back, and all of them in a row.
    lens: VecDeque<u32>,
    bytes: Vec<u8>,
    /// Lengths of the packets sent. A packet is filled with its number.
    sent: Vec<usize>,
}

/// Length of piece `i` of a chain, and where it begins.
fn piece(i: usize) -> (u64, u32) {
    (200 * i as u64, 50 + 10 * i as u32)
}

fn offer_buffer(driver: &mut InOrder<'_, '_>, descs: usize) {
    let at = GPA + STRIDE * u64::from(driver.next);
    let pieces = (0..descs).map(piece);
    let bufs: Vec<_> = pieces.map(|(from, len)| inp(at + from, len)).collect();
    driver.add(&bufs);
}

impl Receiver {
    fn take(&mut self, rig: &Rig<'_, '_>, used: Used) {
        self.lens.push_back(used.len);
        let at = rig.buffers + STRIDE * u64::from(used.head);
        let mut left = used.len;
        for (from, len) in (0..).map(piece) {
            let now = left.min(len);
            self.bytes.extend(rig.mem.peek_vec(at + from, now as usize));
            left -= now;
            if left == 0 {
                break;
            }
        }
    }

    /// What came is whole packets, in order: a header whose `num_buffers` says
    /// how many chains, and bytes that all are the packet's.
    fn check(mut self, mergeable: bool) {
        let (mut rest, mut next) = (&self.bytes[..], 0);
        while !rest.is_empty() {
            let count = u16::from_le_bytes([rest[10], rest[11]]);
            assert!(count == 1 || mergeable);
            let total: u32 = (0..count).map(|_| self.lens.pop_front().unwrap()).sum();
            let (packet, later) = rest.split_at(total as usize);
            let found = (next..self.sent.len()).find(|&i| {
                let data = &packet[12..];
                self.sent[i] == data.len() && data.iter().all(|&byte| byte == i as u8)
            });
            next = found.expect("a packet that was not sent, or again") + 1;
            rest = later;
        }
        assert!(self.lens.is_empty());
    }
}

proptest! {
    #![proptest_config(cases(1500))]

    /// Each frame goes once, in order, and each chain comes back once, in order.
    #[test]
    fn tx_is_in_order(ring in ring(), batch in 0_usize..2, steps in steps(false)) {
        let (features, log, base) = ring;
        let world = arena(1 << log);
        let mut rig = Rig::at(&world, features, base);
        let mut driver = InOrder::new(&rig, base);
        let mut socket = TxSocket::new(&world.0, 64 * batch, rig.header.sock);
        let (mut offered, mut heads, mut back) = (0, Vec::new(), Vec::new());
        let rounds = steps.into_iter().chain([Step::Run, Step::Run, Step::Collect]);
        for step in rounds {
            match step {
                Step::Offer(chains) => for descs in chains {
                    if driver.has_room(descs) {
                        heads.push(driver.next);
                        offer_frame(&rig, &mut driver, offered, descs);
                        offered += 1;
                    }
                },
                Step::Run => { rig.tx(&mut socket); }
                Step::Collect => back.extend(driver.collect()),
                Step::Restart => restart(&mut rig),
                Step::Full(sent) if batch == 0 => {
                    socket.answers.extend(vec![Ok(()); sent]);
                    socket.answers.push_back(Err(SendError::Full));
                }
                Step::Full(_) | Step::Packets(_) | Step::Shrink => {}
            }
        }
        socket.answers.clear();
        rig.tx(&mut socket);
        back.extend(driver.collect());
        let skip = rig.header.vhost;
        let expected: Vec<_> = (0..offered).map(|id| frame(id)[skip..].to_vec()).collect();
        prop_assert_eq!(&socket.sent, &expected);
        let expected: Vec<_> = heads.iter().map(|head| used(*head, 0)).collect();
        prop_assert_eq!(back, expected);
        prop_assert_eq!(rig.queue.base(), driver.avail_idx);
    }

    /// Each packet comes whole, in order, or is counted.
    #[test]
    fn rx_is_in_order(ring in ring(), steps in steps(true)) {
        let (features, log, base) = ring;
        let world = arena(1 << log);
        let mut rig = Rig::at(&world, features, base);
        let mut driver = InOrder::new(&rig, base);
        let mut socket = RxSocket::new(&world.0, rig.header.sock);
        let mut guest = Receiver { lens: VecDeque::new(), bytes: vec![], sent: vec![] };
        for step in steps.into_iter().chain([Step::Run, Step::Collect]) {
            match step {
                Step::Offer(chains) => for descs in chains {
                    if driver.has_room(descs) {
                        offer_buffer(&mut driver, descs);
                    }
                },
                Step::Run => { rig.rx(&mut socket); }
                Step::Collect => for used in driver.collect() {
                    guest.take(&rig, used);
                },
                Step::Restart => restart(&mut rig),
                Step::Packets(sizes) => for len in sizes {
                    socket.push(len, guest.sent.len() as u8);
                    guest.sent.push(len);
                },
                Step::Shrink => socket.shrink += 1,
                Step::Full(_) => {}
            }
        }
        let c = &rig.host.counters;
        let gone = c.packets + c.drop_oversize + c.drop_truncated;
        prop_assert_eq!(gone as usize + socket.packets.len(), guest.sent.len());
        prop_assert_eq!(c.ring_errors, 0);
        guest.check(features & MRG != 0);
    }
}
