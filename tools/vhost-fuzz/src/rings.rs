// SPDX-License-Identifier: GPL-2.0

//! Rings, chains, tables and headers, by a driver that rewrites them while they
//! are read, both ways and from the guest's memory.
//!
//! Whatever it does: nothing but the used ring and buffers for writing is
//! written, each chain comes back once at most, a run ends, counters add up.

use std::cell::RefCell;

use arbitrary::Arbitrary;
use vhost_engine::engine::counters::Counters;
use vhost_engine::engine::error::Access;
use vhost_engine::engine::iotlb::AddressMap;
use vhost_engine::engine::net::backend::{Completion, SendError};
use vhost_engine::engine::net::in_flight::InFlight;
use vhost_engine::engine::net::{rx, tx, tx_zerocopy, Env, Outcome};

use crate::arena::{Kind, BASE};
use crate::driver::{Act, Change, Memory, Window, LIMIT};
use crate::mocks::{RxSocket, TxSocket};
use crate::rig::*;
use crate::spy::{Mark, Seen, Spy};
use crate::zerocopy_socket::ZeroCopySocket;

const FEATURES: [u64; 7] = [V1, EVENT_IDX, MRG, IN_ORDER, VNET, ON_EMPTY, PLATFORM];

/// The features of these bits.
pub fn features(bits: u8) -> u64 {
    let asked = (0..).zip(FEATURES).filter(|(i, _)| bits >> i & 1 != 0);
    asked.map(|(_, feature)| feature).sum()
}

#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Tx,
    Rx,
    ZeroCopy,
}

/// Part of the guest's memory.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Region {
    start: u16,
    more: u16,
    at: u16,
    access: u8,
}

/// What a socket answers.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Answer {
    Fine,
    Full,
    Refused,
}

impl Answer {
    fn result(self) -> Result<(), SendError> {
        match self {
            Self::Fine => Ok(()),
            Self::Full => Err(SendError::Full),
            Self::Refused => Err(SendError::Refused),
        }
    }
}

#[derive(Arbitrary, Debug)]
enum Step {
    Change(Change),
    /// The worker runs, and the driver does this meanwhile.
    Run(Vec<Act>),
    /// A packet for the guest.
    Packet(u16),
    /// The packet after so many is cut.
    Shrink,
    Answer(Answer),
    Submit(Answer),
    Window(Window),
    /// A packet in flight is done.
    Finish(u8, bool),
    /// Packets are done before `send()` returns, or not.
    AtOnce(Option<bool>),
    /// The vring is stopped and started.
    Restart,
}

#[derive(Arbitrary, Debug)]
pub struct Case {
    log: u8,
    features: u8,
    base: u16,
    way: Way,
    batch: u8,
    /// So many frames find memory for a batch.
    memory: Option<u8>,
    /// Small heads at a time.
    fetch_max: Option<u8>,
    map: Vec<Region>,
    holes: Vec<(u16, u8)>,
    steps: Vec<Step>,
}

fn completion(copied: bool) -> Completion {
    if copied {
        Completion::Copied
    } else {
        Completion::InPlace
    }
}

/// What the vring works with, besides its ring.
struct Sockets<'m, 'a> {
    tx: TxSocket<'m, 'a>,
    rx: RxSocket<'m, 'a>,
    zerocopy: ZeroCopySocket<'m, 'a>,
    in_flight: InFlight,
}

struct Fuzz<'m, 'a> {
    rig: Rig<'m, 'a>,
    memory: Memory,
    way: Way,
    sockets: Sockets<'m, 'a>,
    seen: RefCell<Seen>,
}

pub fn run(case: Case) {
    let world = arena(1 << (case.log % 8));
    let mut fuzz = Fuzz::new(&world, &case);
    for step in case.steps {
        fuzz.step(step);
    }
    for _ in 0..2 {
        fuzz.work(Vec::new());
    }
}

impl<'m, 'a> Fuzz<'m, 'a> {
    fn new(world: &'m World<'a>, case: &Case) -> Self {
        let (mem, place, buffers) = world;
        let mut rig = Rig::at(world, features(case.features), case.base);
        let memory = Memory {
            place: *place,
            buffers: *buffers,
        };
        mem.with_bytes(|bytes| memory.fill(bytes, case.way == Way::Rx));
        if !case.map.is_empty() {
            rig.ranges.clear();
        }
        for region in &case.map {
            let (start, at) = (
                GPA + u64::from(region.start),
                buffers + u64::from(region.at),
            );
            let size = u64::from(region.more) + 1;
            rig.map(start, size, at, 1 + u32::from(region.access) % 3);
        }
        // The socket reads a packet in flight whenever it likes.
        if case.way != Way::ZeroCopy {
            let hole = |(at, len): &(u16, u8)| {
                let at = BASE + u64::from(*at);
                at..at + u64::from(*len)
            };
            mem.holes.replace(case.holes.iter().map(hole).collect());
        }
        if let Some(max) = case.fetch_max {
            mem.fetch_max.set(usize::from(max) + 1);
        }
        let mut sockets = Sockets {
            tx: TxSocket::new(
                mem,
                [0, 7, 64][usize::from(case.batch) % 3],
                rig.header.sock,
            ),
            rx: RxSocket::new(mem, rig.header.sock),
            zerocopy: ZeroCopySocket::new(mem),
            in_flight: InFlight::new(),
        };
        sockets.tx.memory = case.memory.map_or(usize::MAX, usize::from);
        Self {
            rig,
            memory,
            way: case.way,
            sockets,
            seen: RefCell::default(),
        }
    }

    fn step(&mut self, step: Step) {
        let sockets = &mut self.sockets;
        match step {
            Step::Change(change) => {
                let memory = self.memory;
                self.rig
                    .mem
                    .with_bytes(|bytes| memory.change(bytes, change));
            }
            Step::Run(acts) => self.work(acts),
            Step::Packet(len) => sockets.rx.push(len.into(), 7),
            Step::Shrink => sockets.rx.shrink += 1,
            Step::Answer(answer) => {
                sockets.tx.answers.push_back(answer.result());
                sockets.zerocopy.answers.push_back(answer.result());
            }
            Step::Submit(answer) => {
                let refused = answer.result().map_err(|_| SendError::Refused);
                sockets.tx.submit_answers.push_back(refused);
            }
            Step::Window(window) => window.push(&mut self.rig),
            Step::Finish(which, copied) => {
                let waiting = sockets.zerocopy.waiting();
                if let Some(slot) = waiting.get(usize::from(which) % waiting.len().max(1)) {
                    sockets.zerocopy.finish(*slot, completion(copied));
                }
            }
            Step::AtOnce(how) => sockets.zerocopy.at_once = how.map(completion),
            Step::Restart => {
                let base = self.rig.queue.base();
                self.rig.queue.set_base(base);
                // It stays as it was if the used ring is not there.
                let _ = self.rig.queue.start(self.rig.mem);
            }
        }
    }

    /// One run, and what must hold afterwards.
    fn work(&mut self, acts: Vec<Act>) {
        let mem = self.rig.mem;
        mem.forget_touches();
        mem.limit.set(LIMIT);
        mem.intruder
            .replace(Some(Box::new(self.memory.intruder(acts))));
        self.rig.host.counters = Counters::default();
        self.rig.host.calls = 0;
        let mark = Mark::of(&self.rig.queue);
        let waiting = self.sockets.rx.packets.len();

        let outcome = self.go();
        mem.intruder.replace(None);
        check_ends(&self.rig, outcome);
        check_touches(&self.rig, self.way);
        let counters = &self.rig.host.counters;
        let chains = u64::from(mark.chains(&self.rig.queue));
        let moved = counters.packets + drops(counters);
        // Chains that cannot be returned are kept, and served again.
        let kept = !mem.holes.borrow().is_empty();
        let in_order = self.rig.queue.has(35);
        let mut seen = self.seen.borrow_mut();
        match self.way {
            Way::Tx => {
                seen.check(mark, &self.rig.queue, in_order);
                assert!(self.sockets.tx.staged.is_empty(), "frames are left behind");
                assert!(chains == moved || kept && chains < moved);
            }
            Way::Rx => {
                seen.check(mark, &self.rig.queue, in_order);
                let gone = (waiting - self.sockets.rx.packets.len()) as u64;
                assert_eq!(gone, moved);
                assert!(
                    kept || chains >= counters.packets,
                    "packets without a chain"
                );
            }
            Way::ZeroCopy => {
                seen.check_late(mark, &self.rig.queue);
                let held = self.sockets.zerocopy.waiting().len();
                assert!(held <= seen.out(), "{held} are read, {} out", seen.out());
                assert_eq!(seen.out() == 0, self.sockets.in_flight.is_empty());
                assert_eq!(chains, moved);
            }
        }
    }

    fn go(&mut self) -> Outcome {
        let rig = &mut self.rig;
        let mem = Spy::new(rig.mem, &rig.queue, &self.seen);
        let env = Env {
            mem: &mem,
            map: AddressMap::new(&rig.ranges, rig.overlap),
            scratch: &mut rig.scratch,
            header: rig.header,
        };
        let (queue, host) = (&mut rig.queue, &mut rig.host);
        let Sockets {
            tx,
            rx,
            zerocopy,
            in_flight,
        } = &mut self.sockets;
        match self.way {
            Way::Tx => tx::run(queue, env, host, tx),
            Way::Rx => rx::run(queue, env, host, rx),
            Way::ZeroCopy => tx_zerocopy::run(queue, env, host, zerocopy, in_flight),
        }
    }
}

/// Packets that were dropped.
pub fn drops(counters: &Counters) -> u64 {
    counters.drop_direction
        + counters.drop_length
        + counters.drop_header
        + counters.drop_memory
        + counters.drop_refused
        + counters.drop_oversize
        + counters.drop_truncated
}

/// A run ended once, as it says.
pub fn check_ends(rig: &Rig<'_, '_>, outcome: Outcome) {
    let counters = &rig.host.counters;
    assert_eq!(counters.runs(), 1, "{outcome:?}");
    assert_eq!(counters.calls as usize, rig.host.calls);
    assert_eq!(
        matches!(outcome, Outcome::Broken(_)),
        counters.ring_errors == 1
    );
    assert_eq!(
        matches!(outcome, Outcome::Miss { .. }),
        counters.iotlb_misses == 1
    );
    assert_eq!(outcome == Outcome::Requeue, counters.requeues() == 1);
    assert_eq!(
        rig.mem.calls.get().min(LIMIT),
        rig.mem.calls.get(),
        "it is bounded"
    );
}

/// What was written is the used ring's, or that of buffers for writing; what was
/// read of buffers may be read.
fn check_touches(rig: &Rig<'_, '_>, way: Way) {
    let place = &rig.driver.place;
    let used = place.used..place.end();
    for touch in rig.mem.touched.borrow().iter() {
        let end = touch.addr + touch.len;
        let within = |range: &std::ops::Range<u64>| range.start <= touch.addr && end <= range.end;
        let access = match touch.kind {
            Kind::Fence => continue,
            Kind::Read if touch.addr < rig.buffers => continue,
            Kind::Write if within(&used) => continue,
            Kind::Read => Access::Read,
            Kind::Write => Access::Write,
        };
        assert!(
            access == Access::Read || way == Way::Rx,
            "tx wrote {touch:x?}"
        );
        let allowed = rig.ranges.iter().any(|range| {
            range.allows(access) && within(&(range.uva()..range.uva() + range.size()))
        });
        assert!(
            allowed || touch.len == 0,
            "{touch:x?} is not the driver's to give"
        );
    }
}
