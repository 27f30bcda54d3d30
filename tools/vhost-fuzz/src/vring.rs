// SPDX-License-Identifier: GPL-2.0

//! What an owner sets on a vring, in any order: size, addresses, features, base,
//! start and stop, an IOTLB, a log, the memory table; with runs in between.
//!
//! Parts of the ring may lie anywhere, on each other too. Whatever is set:
//! nothing but the parts and buffers is touched, what is written is logged, each
//! chain comes back once at most.

use std::cell::RefCell;
use std::collections::BTreeSet;

use arbitrary::Arbitrary;
use vhost_engine::engine::addr::RingAddr;
use vhost_engine::engine::counters::Counters;
use vhost_engine::engine::dirty_log::{Bitmap, Logged, What};
use vhost_engine::engine::error::{Error, Result};
use vhost_engine::engine::features::HeaderLen;
use vhost_engine::engine::iotlb::{self, AddressMap, Range};
use vhost_engine::engine::layout;
use vhost_engine::engine::net::{rx, tx, Env, Outcome};
use vhost_engine::engine::ring_map::Mapped;
use vhost_engine::engine::split::SplitQueue;

use crate::arena::{Arena, Kind, BASE};
use crate::driver::{Act, Change, Memory, LIMIT};
use crate::mocks::{RxSocket, TxSocket};
use crate::rig::*;
use crate::rings::{check_ends, features};
use crate::spy::{Mark, Seen, Spy};

/// Entries of the largest ring here.
const MAX: u16 = 64;
const PAGE: u64 = 4096;
/// Where the used ring is logged.
const USED_GPA: u64 = 0x5_0000_0fe0;

/// Where a part of the ring is, in bytes from the usual place.
type Offset = i16;

/// An entry of the IOTLB: addresses, and how far from there they are in memory.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Entry {
    /// From that of the rings or the buffers on.
    Any {
        buffers: bool,
        start: u16,
        more: u16,
        shift: i16,
        access: u8,
    },
    /// What follows the last piece of the ring, or the ring's first.
    Piece { more: u8, shift: i16 },
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// A power of two, or any.
    Num(u8, Option<u16>),
    Addresses(Offset, Offset, Offset),
    Features(u8),
    Base(u16),
    /// The used index that the next start finds.
    Used(u16),
    Start,
    Stop,
    KicksOn,
    KicksOff,
    Change(Change),
    Packet(u16),
    Run(bool, Vec<Act>),
    /// An IOTLB with these entries, or none.
    Iotlb(Option<Vec<Entry>>),
    /// The used ring, buffers.
    Log(bool, bool),
    /// The log cannot be written, or can.
    LogBroken(bool),
}

#[derive(Arbitrary, Debug)]
pub struct Case {
    write: bool,
    log: u8,
    base: u16,
    holes: Vec<(u16, u8)>,
    steps: Vec<Step>,
}

/// The pages that are marked.
#[derive(Default)]
struct Pages {
    marked: RefCell<BTreeSet<u64>>,
    broken: bool,
}

impl Bitmap for &Pages {
    fn mark(&self, gpa: u64, len: u64) -> Result {
        if self.broken {
            return Err(Error::Fault);
        }
        assert!(len <= BUFFERS, "{len} bytes at once");
        if len > 0 {
            let last = gpa.wrapping_add(len - 1);
            self.marked.borrow_mut().extend(gpa / PAGE..=last / PAGE);
        }
        Ok(())
    }

    fn signal(&self) {}
}

struct Fuzz<'m, 'a> {
    rig: Rig<'m, 'a>,
    memory: Memory,
    active: bool,
    /// The entries, if there is an IOTLB, and whether some overlap.
    iotlb: Option<(Vec<Range>, bool)>,
    what: What,
    pages: Pages,
    tx: TxSocket<'m, 'a>,
    rx: RxSocket<'m, 'a>,
    seen: RefCell<Seen>,
}

pub fn run(case: Case) {
    let world = arena(MAX);
    let mut fuzz = Fuzz::new(&world, &case);
    for step in case.steps {
        fuzz.step(step);
    }
    fuzz.work(case.write, Vec::new());
}

impl<'m, 'a> Fuzz<'m, 'a> {
    fn new(world: &'m World<'a>, case: &Case) -> Self {
        let (mem, place, buffers) = world;
        let mut rig = Rig::at(world, V1, case.base);
        let mut memory = Memory {
            place: *place,
            buffers: *buffers,
        };
        memory.place.num = 1 << (case.log % 7);
        rig.queue.set_num(memory.place.num);
        mem.with_bytes(|bytes| memory.fill(bytes, case.write));
        let hole = |(at, len): &(u16, u8)| {
            let at = BASE + u64::from(*at);
            at..at + u64::from(*len)
        };
        mem.holes.replace(case.holes.iter().map(hole).collect());
        Self {
            rig,
            memory,
            active: true,
            iotlb: None,
            what: What::default(),
            pages: Pages::default(),
            tx: TxSocket::new(mem, 64, 12),
            rx: RxSocket::new(mem, 12),
            seen: RefCell::default(),
        }
    }

    /// Does what the module lets an owner do.
    fn step(&mut self, step: Step) {
        let queue = &mut self.rig.queue;
        match step {
            Step::Num(log, other) if !self.active => {
                let num = other.unwrap_or(1 << (log % 16));
                if let Some(num) = layout::check_num(num.into()).filter(|num| *num <= MAX) {
                    queue.set_num(num);
                    self.memory.place.num = num;
                }
            }
            Step::Addresses(desc, avail, used) => self.place([desc, avail, used]),
            Step::Features(bits) => {
                queue.set_features(features(bits));
                self.rig.header = HeaderLen::of(&[features(bits), 0]);
                (self.tx.header, self.rx.header) = (self.rig.header.sock, self.rig.header.sock);
            }
            Step::Base(base) if !self.active => queue.set_base(base),
            Step::Used(index) => {
                let at = self.memory.place.used_idx();
                self.rig.mem.poke(at, &index.to_le_bytes());
            }
            Step::Start => self.start(),
            Step::Stop => self.active = false,
            Step::KicksOn | Step::KicksOff if self.active => {
                let on = matches!(step, Step::KicksOn);
                self.kicks(on);
            }
            Step::Change(change) => {
                let memory = self.memory;
                self.rig
                    .mem
                    .with_bytes(|bytes| memory.change(bytes, change));
                self.spread();
            }
            Step::Packet(len) => self.rx.push(len.into(), 7),
            Step::Run(rx, acts) => self.work(rx, acts),
            Step::Iotlb(entries) => {
                self.iotlb = entries.map(|entries| self.entries(&entries));
                self.spread();
            }
            Step::Log(used, buffers) => {
                let used = used.then_some(USED_GPA);
                self.what = What { used, buffers };
            }
            Step::LogBroken(broken) => self.pages.broken = broken,
            Step::Num(..) | Step::Base(_) | Step::KicksOn | Step::KicksOff => {}
        }
    }

    fn place(&mut self, offsets: [Offset; 3]) {
        let usual = &self.rig.driver.place;
        let mut parts = [usual.desc, usual.avail, usual.used];
        for (part, offset) in parts.iter_mut().zip(offsets) {
            *part = part.saturating_add_signed(offset.into());
        }
        let [desc, avail, used] = parts;
        if layout::aligned(avail, used) && parts.iter().all(|part| *part >= BASE) {
            self.rig.queue.set_addresses(desc, avail, used);
            let place = &mut self.memory.place;
            (place.desc, place.avail, place.used) = (desc, avail, used);
        }
    }

    fn entries(&self, entries: &[Entry]) -> (Vec<Range>, bool) {
        let mut ranges = Vec::new();
        let end = self.rig.buffers + BUFFERS;
        let mut next = BASE;
        let mut add = |start: u64, more: u64, (linear, shift): (u64, i16), access: u32| {
            let uva = linear.saturating_add_signed(shift.into());
            let uva = uva.clamp(BASE, end - 0x1_0000);
            if let Ok(range) = Range::new(start, start + more, uva, access) {
                ranges.insert(iotlb::insert_at(&ranges, start), range);
            }
        };
        for entry in entries {
            match *entry {
                Entry::Any {
                    buffers,
                    start,
                    more,
                    shift,
                    access,
                } => {
                    let (iova, uva) = if buffers {
                        (GPA, self.rig.buffers)
                    } else {
                        (BASE, BASE)
                    };
                    let (start, uva) = (iova + u64::from(start), uva + u64::from(start));
                    add(start, more.into(), (uva, shift), access.into());
                }
                Entry::Piece { more, shift } => {
                    let more = 8 * u64::from(more) + 7;
                    add(next, more, (next, shift.wrapping_mul(8)), 3);
                    next += more + 1;
                }
            }
        }
        if next > BASE {
            // The rest of the ring, and its buffers.
            add(next, 0xfff, (next, 0), 3);
            add(GPA, 0xffff, (self.rig.buffers, 0), 3);
        }
        let overlap = iotlb::index(&mut ranges);
        (ranges, overlap)
    }

    /// Shows the device, through the IOTLB, what the driver has written.
    fn spread(&self) {
        let Some((ranges, _)) = &self.iotlb else {
            return;
        };
        self.rig.mem.with_bytes(|bytes| {
            for range in ranges.iter().filter(|range| range.start() >= BASE) {
                let from = (range.start() - BASE) as usize;
                let to = (range.uva() - BASE) as usize;
                let len = range.size() as usize;
                if from + len <= bytes.len() {
                    bytes.copy_within(from..from + len, to);
                }
            }
        });
    }

    /// Where the engine may go for the ring: its parts, or what the IOTLB has.
    fn allow(&self) {
        let queue = &self.rig.queue;
        let images = |ranges: &[Range]| {
            let image = |range: &Range| range.uva()..range.uva() + range.size();
            ranges.iter().map(image).collect::<Vec<_>>()
        };
        let (rings, payload) = match &self.iotlb {
            Some((ranges, _)) => (images(ranges), images(ranges)),
            None => {
                let [desc, avail, used] = queue.addresses().map(|part| part.0);
                let (num, event_idx) = (queue.num(), queue.event_idx());
                let parts = [
                    desc..desc + layout::desc_bytes(num),
                    avail..avail + layout::avail_bytes(num, event_idx),
                    used..used + layout::used_bytes(num, event_idx),
                ];
                (parts.to_vec(), images(&self.rig.ranges))
            }
        };
        // What adjoins is one piece to the device.
        self.rig.mem.rings.replace(joined(rings));
        self.rig.mem.payload.replace(payload);
    }

    fn start(&mut self) {
        self.allow();
        let rig = &mut self.rig;
        let started = match &self.iotlb {
            None => rig.queue.start(rig.mem),
            Some((ranges, overlap)) => {
                let map = AddressMap::new(ranges, *overlap);
                let mem = Mapped::for_start(rig.mem, map, &rig.queue);
                mem.and_then(|mem| rig.queue.start(&mem))
            }
        };
        self.active |= started.is_ok();
    }

    fn kicks(&mut self, on: bool) {
        self.allow();
        let queue = &mut self.rig.queue;
        let Ok(mem) = mapped(self.rig.mem, &self.iotlb, queue) else {
            return;
        };
        let _ = queue.avail_empty(&mem);
        // The ring may not be there.
        let _ = if on {
            queue.kicks_on(&mem).map(|_| ())
        } else {
            queue.kicks_off(&mem)
        };
    }

    fn work(&mut self, rx: bool, acts: Vec<Act>) {
        if !self.active {
            return;
        }
        self.allow();
        let mem = self.rig.mem;
        mem.forget_touches();
        mem.limit.set(LIMIT * 4);
        mem.intruder
            .replace(Some(Box::new(self.memory.intruder(acts))));
        self.rig.host.counters = Counters::default();
        self.rig.host.calls = 0;
        self.pages.marked.borrow_mut().clear();
        let mark = Mark::of(&self.rig.queue);
        let outcome = self.go(rx);
        mem.intruder.replace(None);
        let Some(outcome) = outcome else {
            return;
        };
        check_ends(&self.rig, outcome);
        let in_order = self.rig.queue.has(35);
        self.seen
            .borrow_mut()
            .check(mark, &self.rig.queue, in_order);
        if !self.pages.broken {
            self.check_log();
        }
    }

    /// One run; none if the IOTLB does not have the ring.
    fn go(&mut self, rx: bool) -> Option<Outcome> {
        let rig = &mut self.rig;
        let table = AddressMap::new(&rig.ranges, rig.overlap);
        let mapped = mapped(rig.mem, &self.iotlb, &rig.queue).ok()?;
        let iotlb = mapped.iotlb();
        let [_, _, used] = rig.queue.addresses();
        let logged = Logged::new(&mapped, &self.pages, self.what, used, table).behind(iotlb);
        let mem = Spy::new(&logged, &rig.queue, &self.seen);
        let env = Env {
            mem: &mem,
            map: iotlb.unwrap_or(table),
            scratch: &mut rig.scratch,
            header: rig.header,
        };
        Some(if rx {
            rx::run(&mut rig.queue, env, &mut rig.host, &mut self.rx)
        } else {
            tx::run(&mut rig.queue, env, &mut rig.host, &mut self.tx)
        })
    }

    /// What was written is marked, under each of the guest's addresses for it.
    fn check_log(&self) {
        let marked = self.pages.marked.borrow();
        let [_, _, RingAddr(used)] = self.rig.queue.addresses();
        let used_end = used + layout::used_bytes(self.rig.queue.num(), self.rig.queue.event_idx());
        if used_end > self.rig.buffers {
            return; // What is written there may be a buffer, too.
        }
        for touch in self.rig.mem.touched.borrow().iter() {
            let end = touch.addr + touch.len;
            if touch.kind != Kind::Write || touch.len == 0 {
                continue;
            }
            let of_ring = self.iotlb.is_none() && used <= touch.addr && end <= used_end;
            if let (true, Some(gpa)) = (of_ring, self.what.used) {
                let at = gpa + (touch.addr - used);
                let mut pages = at / PAGE..=(at + touch.len - 1) / PAGE;
                assert!(
                    pages.all(|page| marked.contains(&page)),
                    "{touch:x?} is not logged"
                );
            }
            if self.what.buffers && self.what.used.is_some() && !of_ring {
                for range in &self.rig.ranges {
                    if range.uva() <= touch.addr && end <= range.uva() + range.size() {
                        let first = range.start() + (touch.addr - range.uva());
                        let last = first + (touch.len - 1);
                        let all = (first / PAGE..=last / PAGE).all(|page| marked.contains(&page));
                        assert!(all, "{touch:x?} is not logged");
                    }
                }
            }
        }
    }
}

/// The memory of a queue as a run has it.
fn mapped<'f, 'a>(
    mem: &'f Arena<'a>,
    iotlb: &'f Option<(Vec<Range>, bool)>,
    queue: &SplitQueue,
) -> Result<Mapped<'f, Arena<'a>>> {
    match iotlb {
        None => Ok(Mapped::direct(mem)),
        Some((ranges, overlap)) => Mapped::new(mem, AddressMap::new(ranges, *overlap), queue),
    }
}

/// Ranges that adjoin or overlap as one.
fn joined(mut ranges: Vec<std::ops::Range<u64>>) -> Vec<std::ops::Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut out: Vec<std::ops::Range<u64>> = Vec::new();
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}
