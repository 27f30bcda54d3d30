// SPDX-License-Identifier: GPL-2.0

//! Guests that break every rule, some while the device looks.
//!
//! Whatever they do: the engine does not panic, ends, touches only what the
//! rings and the address map name, and keeps each head or returns it once. The
//! arena sees to the first three.

use proptest::prelude::*;
use vhost_engine::engine::error::Error;
use vhost_engine::engine::host::End;
use vhost_engine::engine::iotlb;
use vhost_engine::engine::net::backend::SendError;
use vhost_engine::engine::net::Outcome;

use crate::arena::BASE;
use crate::mocks::{RxSocket, TxSocket};
use crate::model::*;
use crate::rig::*;

/// Memory calls that a run may take: 256 turns of some calls each, and the
/// descriptors that the budget has, a packet's 1,024 beyond its end.
const LIMIT: u64 = 256 * 20 + 0x80000 / 64 + 1024;

/// A small generator for the driver that acts while the device looks.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len() as u64) as usize]
    }

    /// A descriptor; one in `wild` is anything, the others would do.
    fn desc(&mut self, num: u16, case: &Case) -> Vec<u8> {
        let near = GPA + 16 * self.roll(16);
        let some = 16 * self.roll(6) as u32;
        let next = self.roll(u64::from(num) + 1) as u16;
        let access = if case.write { WRITE } else { 0 };
        if self.roll(case.wild) != 0 {
            let len = self.pick(&[64, 80, 1500, 4000]);
            let more = if self.roll(20) == 0 { NEXT } else { 0 };
            return desc_bytes(near, len, access | more, next % num);
        }
        let (far, huge) = (self.0, self.0 as u32);
        let addr = self.pick(&[
            near,
            near,
            near,
            near,
            GPA + BUFFERS - 20,
            u64::MAX - 3,
            far,
        ]);
        let len = self.pick(&[
            0, 1, 11, 12, some, some, some, 80, 5000, 70000, 200_000, huge,
        ]);
        let flags = self.pick(&[0, 0, NEXT, NEXT, WRITE, WRITE | NEXT, INDIRECT, 7, 0xfff8]);
        desc_bytes(addr, len, self.pick(&[flags, access]), next)
    }
}

#[derive(Clone, Debug)]
struct Case {
    log: u32,
    features: u64,
    base: u16,
    offered: u16,
    seed: u64,
    /// One descriptor in so many is anything.
    wild: u64,
    /// The others are device-writable.
    write: bool,
    /// One access in so many finds memory changed; 0: none.
    intrusion: u64,
    batch: usize,
    holes: Vec<(u64, u64)>,
    map: Vec<(u64, u64, u64, u32)>,
}

fn case(write: bool) -> impl Strategy<Value = Case> {
    let ring = (0_u32..7, any::<u16>(), any::<u64>(), 0_usize..4);
    let all = vec![EVENT_IDX, MRG, V1, VNET, ON_EMPTY, IN_ORDER, PLATFORM];
    let features = prop::sample::subsequence(all, 0..=7);
    let map = prop_oneof![
        3 => Just(vec![]),
        1 => prop::collection::vec((0_u64..300, 1_u64..4000, 0_u64..2000, 1_u32..4), 1..6),
    ];
    let holes = prop_oneof![
        3 => Just(vec![]),
        1 => prop::collection::vec((0_u64..0x3000, 1_u64..40), 1..4),
    ];
    let rest = (0_u64..130, 0_usize..4, 0_usize..3, holes, map);
    (ring, features, rest).prop_map(move |((log, base, seed, wild), features, rest)| {
        let (offered, intrusion, batch, holes, map) = rest;
        Case {
            log,
            features: features.iter().sum(),
            base,
            offered: offered as u16 % ((1 << log) + 2),
            seed: seed | 1,
            wild: [1, 4, 16, 200][wild],
            write,
            intrusion: [0, 1, 4, 40][intrusion],
            batch: [0, 7, 64][batch],
            holes,
            map,
        }
    })
}

/// Fills the ring and the buffers that descriptors like to name.
fn fill(rig: &mut Rig<'_, '_>, case: &Case, dice: &mut Dice) {
    let (mem, place) = (rig.mem, rig.driver.place);
    for i in 0..u64::from(place.num) {
        mem.poke(place.desc + 16 * i, &dice.desc(place.num, case));
        let wild = u64::from(dice.roll(3 * case.wild) == 0);
        let head = dice.roll(u64::from(place.num) + wild);
        mem.poke_u16(place.avail + 4 + 2 * i, head as u16);
    }
    for i in 0..32 {
        mem.poke(rig.buffers + 16 * i, &dice.desc(16, case));
    }
    mem.poke_u16(place.avail_idx(), case.base.wrapping_add(case.offered));
    mem.poke_u16(place.avail, dice.roll(2) as u16);
    mem.poke_u16(
        place.used_event(),
        case.base.wrapping_add(dice.roll(9) as u16),
    );
}

/// What the driver does between two accesses.
fn intruder(case: &Case, place: Place, buffers: u64) -> impl FnMut(&mut [u8], u64) + 'static {
    let mut dice = Dice(case.seed.rotate_left(17) | 1);
    let case = case.clone();
    let (often, base) = (case.intrusion, case.base);
    move |bytes, _| {
        if often == 0 || dice.roll(often) != 0 {
            return;
        }
        let mut poke = |addr: u64, data: &[u8]| {
            let at = (addr - BASE) as usize;
            bytes[at..at + data.len()].copy_from_slice(data);
        };
        let slot = dice.roll(place.num.into());
        match dice.roll(6) {
            0 | 1 => poke(place.desc + 16 * slot, &dice.desc(place.num, &case)),
            2 => poke(buffers + 16 * dice.roll(32), &dice.desc(16, &case)),
            3 => poke(
                place.avail + 4 + 2 * slot,
                &(dice.roll(70) as u16).to_le_bytes(),
            ),
            4 => {
                let ahead = dice.roll(u64::from(place.num) * 2 + 2) as u16;
                poke(place.avail_idx(), &base.wrapping_add(ahead).to_le_bytes());
            }
            _ => poke(place.used_event(), &(dice.0 as u16).to_le_bytes()),
        }
    }
}

/// Sets up what a case says.
fn prepare(rig: &mut Rig<'_, '_>, case: &Case) {
    let mut dice = Dice(case.seed);
    fill(rig, case, &mut dice);
    let buffers = rig.buffers;
    if !case.map.is_empty() {
        rig.ranges.clear();
        let mut image = Vec::new();
        for (start, size, at, access) in &case.map {
            rig.map(GPA + start, *size, buffers + at, *access);
            image.push(buffers + at..buffers + at + size);
        }
        rig.mem.payload.replace(image);
    } else {
        // The end of the space, which has no memory behind it.
        rig.map(u64::MAX - 9, 10, buffers, iotlb::ACCESS_BOTH);
    }
    let holes = case
        .holes
        .iter()
        .map(|(at, len)| BASE + at..BASE + at + len);
    rig.mem.holes.replace(holes.collect());
    let intruder = intruder(case, rig.driver.place, buffers);
    rig.mem.intruder.replace(Some(Box::new(intruder)));
    for _ in 0..dice.roll(4) {
        let end = dice.pick(&[None, Some(End::Time), Some(End::Packet), Some(End::Work)]);
        match end {
            Some(end) => rig.host.window(end, |_| ()),
            None => rig.host.no_window(),
        }
    }
}

/// An element of the used ring.
struct Elem {
    /// The last chain that it returns, counted from the first of the run.
    last: usize,
    id: u32,
    len: u32,
}

/// What a run returned; each id is an index of the table.
fn returned(rig: &Rig<'_, '_>, used_before: u16, base_before: u16) -> Vec<Elem> {
    let place = rig.driver.place;
    let now = rig.mem.peek_u16(place.used_idx());
    let count = now.wrapping_sub(used_before);
    assert_eq!(
        rig.queue.base().wrapping_sub(base_before),
        count,
        "each chain that is gone was returned, and no other"
    );
    assert!(
        count <= 256 + 64 || rig.queue.has(15),
        "more than a run takes"
    );
    let first = count.saturating_sub(place.num);
    let mut at: Vec<u16> = (first..count).collect();
    if rig.queue.has(35) {
        // An element holds until the next one.
        let written = rig.elements(used_before.wrapping_add(first));
        assert!(count == 0 || first > 0 || written.first() == Some(&0));
        at.retain(|i| written.contains(&(i - first)));
    }
    let elem = |n: usize| {
        let elem = place.used_slot(used_before.wrapping_add(at[n]));
        let id = u32::from_le_bytes(rig.mem.peek(elem));
        assert!(id < place.num.into());
        let last = usize::from(*at.get(n + 1).unwrap_or(&count)) - 1;
        let len = u32::from_le_bytes(rig.mem.peek(elem + 4));
        Elem { last, id, len }
    };
    (0..at.len()).map(elem).collect()
}

/// Whether the elements name heads of the avail ring from `base` on.
fn are_offered(rig: &Rig<'_, '_>, base: u16, elems: &[Elem]) -> bool {
    let count = elems.last().map_or(0, |elem| elem.last + 1);
    let heads = offered(rig, base, count);
    elems.iter().all(|elem| elem.id == heads[elem.last])
}

/// Heads of the avail ring from `base` on.
fn offered(rig: &Rig<'_, '_>, base: u16, count: usize) -> Vec<u32> {
    let place = rig.driver.place;
    let head = |i: usize| {
        rig.mem
            .peek_u16(place.avail_slot(base.wrapping_add(i as u16)))
    };
    (0..count).map(|i| head(i).into()).collect()
}

fn check_rest(rig: &Rig<'_, '_>, outcome: Outcome) {
    let c = &rig.host.counters;
    assert_eq!(matches!(outcome, Outcome::Broken(_)), c.ring_errors == 1);
    assert_eq!(outcome == Outcome::Requeue, c.requeues() == 1);
    assert_eq!((c.calls as usize, c.runs()), (rig.host.calls, 1));
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn no_guest_harms_tx(case in case(false)) {
        let world = arena(1 << case.log);
        let mut rig = Rig::at(&world, case.features, case.base);
        prepare(&mut rig, &case);
        let mut socket = TxSocket::new(&world.0, case.batch, rig.header.sock);
        let mut dice = Dice(case.seed ^ 0x55);
        for _ in 0..dice.roll(20) {
            socket.answers.push_back(dice.pick(&[
                Ok(()), Ok(()), Ok(()), Err(SendError::Full), Err(SendError::Refused),
            ]));
            socket.submit_answers.push_back(dice.pick(&[Ok(()), Err(SendError::Refused)]));
        }
        for _ in 0..4 {
            rig.mem.forget_touches();
            rig.mem.limit.set(LIMIT);
            rig.host.counters = Default::default();
            rig.host.calls = 0;
            let (used, base) = (rig.mem.peek_u16(rig.driver.place.used_idx()), rig.queue.base());
            let outcome = rig.tx(&mut socket);
            check_rest(&rig, outcome);
            prop_assert!(socket.staged.is_empty(), "frames are left in the batch");
            let got = returned(&rig, used, base);
            prop_assert!(got.iter().all(|elem| elem.len == 0));
            prop_assert!(case.intrusion != 0 || are_offered(&rig, base, &got));
        }
    }

    #[test]
    fn no_guest_harms_rx(
        case in case(true),
        packets in prop::collection::vec((0_usize..3000, 0_usize..9), 0..40),
    ) {
        let world = arena(1 << case.log);
        let mut rig = Rig::at(&world, case.features, case.base);
        prepare(&mut rig, &case);
        let mut socket = RxSocket::new(&world.0, rig.header.sock);
        for (len, shrink) in &packets {
            socket.push(*len, 7);
            socket.shrink += usize::from(*shrink == 0);
        }
        for _ in 0..4 {
            rig.mem.forget_touches();
            rig.mem.limit.set(LIMIT);
            rig.host.counters = Default::default();
            rig.host.calls = 0;
            let (used, base) = (rig.mem.peek_u16(rig.driver.place.used_idx()), rig.queue.base());
            let outcome = rig.rx(&mut socket);
            check_rest(&rig, outcome);
            let got = returned(&rig, used, base);
            prop_assert!(case.intrusion != 0 || are_offered(&rig, base, &got));
        }
    }
}

#[test]
fn an_index_that_moves_to_and_fro_for_ever_does_not_hold_the_worker() {
    for rx in [false, true] {
        let world = arena(16);
        let mut rig = Rig::new(&world, V1 | EVENT_IDX);
        let place = rig.driver.place;
        // Something is there when kicks come on, and gone when it is looked for.
        let mut turn = 0_u16;
        let flip = move |bytes: &mut [u8], _| {
            turn ^= 1;
            bytes[(place.avail_idx() - BASE) as usize] = turn as u8;
        };
        rig.mem.intruder.replace(Some(Box::new(flip)));
        rig.mem.limit.set(LIMIT);
        let outcome = if rx {
            let mut socket = RxSocket::new(&world.0, 12);
            socket.push(60, 1);
            rig.rx(&mut socket)
        } else {
            rig.tx(&mut TxSocket::new(&world.0, 64, 12))
        };
        let ends = [Outcome::Requeue, Outcome::WaitKick];
        assert!(ends.contains(&outcome) || matches!(outcome, Outcome::Broken(_)));
        assert!(rig.mem.calls.get() < 256 * 16);
    }
}

/// Runs a vring on whose driver's index nobody can rely. Answers the outcome
/// and the frames or packets moved.
fn run_once(rig: &mut Rig<'_, '_>, rx: bool, waiting: usize) -> (Outcome, u64) {
    let before = rig.host.counters.packets;
    let outcome = if rx {
        let mut socket = RxSocket::new(rig.mem, 12);
        (0..waiting).for_each(|_| socket.push(60, 1));
        rig.rx(&mut socket)
    } else {
        rig.tx(&mut TxSocket::new(rig.mem, 64, 12))
    };
    (outcome, rig.host.counters.packets - before)
}

fn offer_one(rig: &mut Rig<'_, '_>, rx: bool) {
    let buf = if rx { inp(GPA, 100) } else { out(GPA, 100) };
    rig.driver.add(&[buf]);
}

#[test]
fn an_index_that_goes_back_below_what_was_used_breaks_the_ring() {
    for (rx, features) in [
        (false, V1),
        (true, V1),
        (false, V1 | EVENT_IDX),
        (true, V1 | IN_ORDER),
    ] {
        let world = arena(16);
        let mut rig = Rig::at(&world, features, 3);
        let idx = rig.driver.place.avail_idx();
        for _ in 0..4 {
            offer_one(&mut rig, rx);
        }
        assert_eq!(run_once(&mut rig, rx, 4).1, 4);
        for back in [6, 3, 0] {
            rig.mem.poke_u16(idx, back);
            let broken = Outcome::Broken(Error::BadRing);
            assert_eq!(run_once(&mut rig, rx, 1), (broken, 0), "rx {rx}, {back}");
            let used = rig.mem.peek_u16(rig.driver.place.used_idx());
            assert_eq!((rig.queue.base(), used), (7, 7));
            assert!(rig.driver.would_kick(), "kicks are on");
        }
        // The right index, and everything goes on.
        rig.mem.poke_u16(idx, 7);
        offer_one(&mut rig, rx);
        assert_eq!(run_once(&mut rig, rx, 1).1, 1);
        assert_eq!(rig.queue.base(), 8);
    }
}

#[test]
fn an_index_that_goes_back_over_chains_not_taken_yet_takes_them_away() {
    for rx in [false, true] {
        let world = arena(16);
        let mut rig = Rig::new(&world, V1);
        let idx = rig.driver.place.avail_idx();
        for _ in 0..5 {
            offer_one(&mut rig, rx);
        }
        // The ring was looked at: five are known.
        assert_eq!(rig.queue.kicks_on(rig.mem), Ok(true));
        rig.mem.poke_u16(idx, 2);
        let (outcome, moved) = run_once(&mut rig, rx, 5);
        assert_eq!((outcome, moved), (Outcome::WaitKick, 2), "rx {rx}");
        rig.mem.poke_u16(idx, 5);
        assert_eq!(run_once(&mut rig, rx, 3).1, 3);
    }
}

#[test]
fn an_index_that_goes_back_during_a_run_breaks_it_behind_what_was_read() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    let idx = rig.driver.place.avail_idx();
    for _ in 0..5 {
        offer_one(&mut rig, false);
    }
    // Back as soon as the heads are read.
    let back = move |bytes: &mut [u8], call| {
        if call == 3 {
            bytes[(idx - BASE) as usize] = 1;
        }
    };
    rig.mem.intruder.replace(Some(Box::new(back)));
    let (outcome, moved) = run_once(&mut rig, false, 0);
    assert_eq!((outcome, moved), (Outcome::Broken(Error::BadRing), 5));
    assert_eq!(rig.mem.peek_u16(rig.driver.place.used_idx()), 5);
}
