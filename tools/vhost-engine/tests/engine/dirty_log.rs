// SPDX-License-Identifier: GPL-2.0

//! What is written is logged after it was, and nothing else is.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use proptest::prelude::*;
use vhost_engine::engine::addr::{RingAddr, Segment, Uva};
use vhost_engine::engine::dirty_log::{Bitmap, Logged, What};
use vhost_engine::engine::error::{Error, Result};
use vhost_engine::engine::iotlb::{self, AddressMap, Range, ACCESS_BOTH};
use vhost_engine::engine::memory::{GuestMemory, UsedElem};
use vhost_engine::engine::net::{rx, tx, Env, Outcome};
use vhost_engine::engine::ring_map::Mapped;
use vhost_engine::engine::split::SplitQueue;

use crate::arena::{Arena, Kind, Touch, BASE};
use crate::mocks::{RxSocket, TxSocket};
use crate::model::*;
use crate::rig::*;

/// Where the used ring is logged: it goes over the end of a page.
const USED_GPA: u64 = 0x5_0000_0fe0;
const PAGE: u64 = 4096;

const ALL: What = What {
    used: Some(USED_GPA),
    buffers: true,
};
const BUFFERS_ONLY: What = What {
    used: None,
    buffers: true,
};
const USED_ONLY: What = What {
    used: Some(USED_GPA),
    buffers: false,
};

/// A bitmap that remembers how much was written when a page was marked.
struct Pages<'m, 'a> {
    mem: &'m Arena<'a>,
    marks: RefCell<Vec<(u64, usize)>>,
    signals: Cell<usize>,
    broken: Cell<bool>,
}

impl<'m, 'a> Pages<'m, 'a> {
    fn new(mem: &'m Arena<'a>) -> Self {
        Self {
            mem,
            marks: RefCell::default(),
            signals: Cell::new(0),
            broken: Cell::new(false),
        }
    }

    fn marked(&self) -> BTreeSet<u64> {
        self.marks.borrow().iter().map(|mark| mark.0).collect()
    }
}

impl Bitmap for &Pages<'_, '_> {
    fn mark(&self, gpa: u64, len: u64) -> Result {
        if self.broken.get() {
            return Err(Error::Fault);
        }
        let now = self.mem.touched.borrow().len();
        let marks = pages(&(gpa..gpa + len)).map(|page| (page, now));
        self.marks.borrow_mut().extend(marks);
        Ok(())
    }

    fn signal(&self) {
        self.signals.set(self.signals.get() + 1);
    }
}

fn pages(range: &std::ops::Range<u64>) -> std::ops::Range<u64> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / PAGE..(range.end - 1) / PAGE + 1
}

/// One run with a log; answers the writes that could not be logged, too.
fn receive<'m, 'a>(
    rig: &mut Rig<'m, 'a>,
    socket: &mut RxSocket<'m, 'a>,
    pages: &Pages<'_, '_>,
    what: What,
) -> (Outcome, u64) {
    let map = AddressMap::new(&rig.ranges, rig.overlap);
    let mem = Logged::new(rig.mem, pages, what, RingAddr(rig.driver.place.used), map);
    let env = Env {
        mem: &mem,
        map,
        scratch: &mut rig.scratch,
        header: rig.header,
    };
    let outcome = rx::run(&mut rig.queue, env, &mut rig.host, socket);
    (outcome, mem.failed())
}

fn transmit<'m, 'a>(
    rig: &mut Rig<'m, 'a>,
    socket: &mut TxSocket<'m, 'a>,
    pages: &Pages<'_, '_>,
    what: What,
) -> Outcome {
    let map = AddressMap::new(&rig.ranges, rig.overlap);
    let mem = Logged::new(rig.mem, pages, what, RingAddr(rig.driver.place.used), map);
    let env = Env {
        mem: &mem,
        map,
        scratch: &mut rig.scratch,
        header: rig.header,
    };
    tx::run(&mut rig.queue, env, &mut rig.host, socket)
}

/// The guest-physical ranges that a write goes to.
fn images(rig: &Rig<'_, '_>, what: What, touch: &Touch) -> Vec<std::ops::Range<u64>> {
    let place = rig.driver.place;
    if touch.addr >= place.used && touch.addr < place.end() {
        let at = |gpa| gpa + touch.addr - place.used;
        let image = what.used.map(|gpa| at(gpa)..at(gpa) + touch.len);
        return image.into_iter().collect();
    }
    if !what.buffers {
        return Vec::new();
    }
    let meets = rig.ranges.iter().filter_map(|range| {
        let start = touch.addr.max(range.uva());
        let end = (touch.addr + touch.len).min(range.uva() + range.size());
        let gpa = |uva| uva - range.uva() + range.start();
        (start < end).then(|| gpa(start)..gpa(end))
    });
    meets.collect()
}

/// Each page written is marked after the write, and no other page is marked.
fn check(rig: &Rig<'_, '_>, what: What, log: &Pages<'_, '_>) {
    let touched = rig.mem.touched.borrow();
    let marks = log.marks.borrow();
    let mut wanted = BTreeSet::new();
    for (at, touch) in touched.iter().enumerate() {
        if touch.kind != Kind::Write {
            continue;
        }
        for page in images(rig, what, touch).iter().flat_map(pages) {
            assert!(
                marks.iter().any(|mark| mark.0 == page && mark.1 > at),
                "{touch:x?} is not logged in page {page:#x} after it"
            );
            wanted.insert(page);
        }
    }
    assert_eq!(log.marked(), wanted, "pages that nobody wrote are logged");
}

#[test]
fn a_packet_is_logged_where_it_lies_and_no_further() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    rig.driver.add(&[inp(GPA + PAGE - 20, 60_000)]);
    let log = Pages::new(rig.mem);
    let mut socket = RxSocket::new(&world.0, 12);
    socket.push(60, 7);
    assert_eq!(
        receive(&mut rig, &mut socket, &log, BUFFERS_ONLY),
        (Outcome::WaitSocket, 0)
    );
    assert_eq!(
        log.marked(),
        BTreeSet::from([GPA / PAGE, GPA / PAGE + 1]),
        "the buffer has 16 pages"
    );
    assert_eq!(log.signals.get(), 1);
    check(&rig, BUFFERS_ONLY, &log);
}

#[test]
fn every_alias_of_a_buffer_is_logged() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    let alias = 0x9_0000_0000;
    rig.map(alias, 3 * PAGE, rig.buffers + 4 * PAGE, ACCESS_BOTH);
    rig.driver.add(&[inp(GPA + 3 * PAGE, 5 * PAGE as u32)]);
    let log = Pages::new(rig.mem);
    let mut socket = RxSocket::new(&world.0, 12);
    socket.push(2 * PAGE as usize + 100, 7);
    receive(&mut rig, &mut socket, &log, BUFFERS_ONLY);
    let wanted = [3, 4, 5].map(|page| GPA / PAGE + page);
    let aliases = [0, 1].map(|page| alias / PAGE + page);
    assert_eq!(log.marked(), wanted.into_iter().chain(aliases).collect());
}

#[test]
fn what_came_of_a_packet_in_part_is_logged() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    rig.driver.add(&[inp(GPA, 9000)]);
    rig.mem
        .holes
        .replace(vec![rig.buffers + PAGE..rig.buffers + PAGE + 8]);
    let log = Pages::new(rig.mem);
    let mut socket = RxSocket::new(&world.0, 12);
    socket.packets.push_back(vec![1; 100]);
    socket.shrink = 1;
    receive(&mut rig, &mut socket, &log, ALL);
    assert_eq!(rig.host.counters.drop_truncated, 1);
    assert!(log.marked().contains(&(GPA / PAGE)));
}

#[test]
fn a_header_that_the_device_adds_is_logged() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1 | VNET);
    rig.driver.add(&[
        inp(GPA, 12),
        inp(GPA + 2 * PAGE, 100),
        inp(GPA + 4 * PAGE, 9),
    ]);
    let log = Pages::new(rig.mem);
    let mut socket = RxSocket::new(&world.0, 0);
    socket.push(60, 7);
    receive(&mut rig, &mut socket, &log, BUFFERS_ONLY);
    assert_eq!(
        log.marked(),
        BTreeSet::from([GPA / PAGE, GPA / PAGE + 2]),
        "nothing went to the third"
    );
    check(&rig, BUFFERS_ONLY, &log);
}

#[test]
fn used_elements_index_and_flags_are_logged_each_in_its_page() {
    let world = arena(256);
    let mut rig = Rig::at(&world, V1, 250);
    for _ in 0..10 {
        rig.driver.add(&[out(GPA, 100)]);
    }
    let log = Pages::new(rig.mem);
    let mut socket = TxSocket::new(&world.0, 64, 12);
    transmit(&mut rig, &mut socket, &log, USED_ONLY);
    // Elements 250 to 255 and 0 to 3; flags and index are before the page's end.
    let page = USED_GPA / PAGE;
    assert_eq!(log.marked(), BTreeSet::from([page, page + 1]));
    check(&rig, USED_ONLY, &log);
    // Flags twice, index once; elements signal nothing by themselves.
    assert_eq!(log.signals.get(), 3);
}

#[test]
fn the_avail_event_is_logged() {
    let world = arena(256);
    let mut rig = Rig::new(&world, V1 | EVENT_IDX);
    let log = Pages::new(rig.mem);
    let mut socket = TxSocket::new(&world.0, 64, 12);
    transmit(&mut rig, &mut socket, &log, USED_ONLY);
    let event = USED_GPA + 4 + 8 * 256;
    assert_eq!(log.marked(), BTreeSet::from([event / PAGE]));
    assert_eq!(log.signals.get(), 1);
}

#[test]
fn empty_buffers_are_not_logged_however_many_they_are() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    let (table, mut bufs) = (GPA + 0x10_0000, vec![inp(GPA + 9 * PAGE, 0); 1000]);
    bufs.push(inp(GPA, 100));
    rig.driver.add_indirect(table, rig.uva(table), &bufs);
    let log = Pages::new(rig.mem);
    let mut socket = RxSocket::new(&world.0, 12);
    socket.push(60, 7);
    receive(&mut rig, &mut socket, &log, BUFFERS_ONLY);
    assert_eq!(rig.driver.collect(), [(0, 72)]);
    assert_eq!(log.marked(), BTreeSet::from([GPA / PAGE]));
    assert_eq!(log.marks.borrow().len(), 1);
}

#[test]
fn nothing_is_logged_that_was_not_asked_for() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    rig.driver.add(&[inp(GPA, 100)]);
    let log = Pages::new(rig.mem);
    let mut socket = RxSocket::new(&world.0, 12);
    socket.push(60, 7);
    assert!(What::default().is_nothing());
    assert!(!USED_ONLY.is_nothing() && !BUFFERS_ONLY.is_nothing());
    receive(&mut rig, &mut socket, &log, What::default());
    assert_eq!((log.marked().len(), log.signals.get()), (0, 0));
    assert_eq!(rig.driver.collect(), [(0, 72)]);
}

#[test]
fn a_bitmap_that_is_gone_is_counted_and_stops_no_packet() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    rig.driver.add(&[inp(GPA, 100)]);
    let log = Pages::new(rig.mem);
    log.broken.set(true);
    let mut socket = RxSocket::new(&world.0, 12);
    socket.push(60, 7);
    let (outcome, failed) = receive(&mut rig, &mut socket, &log, ALL);
    // Kicks off, the buffer, the element, the index.
    assert_eq!((outcome, failed), (Outcome::WaitSocket, 4));
    assert_eq!(rig.driver.collect(), [(0, 72)]);
}

#[test]
fn a_buffer_that_no_entry_knows_is_counted_and_its_neighbours_are_logged() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    rig.ranges.clear();
    rig.map(GPA, PAGE, rig.buffers, ACCESS_BOTH);
    rig.map(GPA + 2 * PAGE, PAGE, rig.buffers + 2 * PAGE, ACCESS_BOTH);
    let log = Pages::new(rig.mem);
    let map = AddressMap::new(&rig.ranges, rig.overlap);
    let mem = Logged::new(rig.mem, &log, ALL, RingAddr(0), map);
    let segment = Segment {
        addr: Uva(rig.buffers),
        len: 3 * PAGE,
    };
    mem.written(&[segment], u64::MAX);
    assert_eq!(log.marked(), BTreeSet::from([GPA / PAGE, GPA / PAGE + 2]));
    assert_eq!(mem.failed(), 1);
    // Nothing written, nothing logged.
    log.marks.borrow_mut().clear();
    mem.written(&[segment], 0);
    assert_eq!(log.marked().len(), 0);
}

#[test]
fn entries_at_the_end_of_the_address_space_end_the_search() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    rig.ranges.clear();
    rig.map(GPA, PAGE, u64::MAX - PAGE + 1, ACCESS_BOTH);
    rig.map(GPA + PAGE, PAGE, 0, ACCESS_BOTH);
    let log = Pages::new(rig.mem);
    let map = AddressMap::new(&rig.ranges, rig.overlap);
    let mem = Logged::new(rig.mem, &log, ALL, RingAddr(0), map);
    let segment = Segment {
        addr: Uva(u64::MAX - 9),
        len: 20,
    };
    mem.written(&[segment], 20);
    assert_eq!(log.marked(), BTreeSet::from([GPA / PAGE, GPA / PAGE + 1]));
    assert_eq!(mem.failed(), 0);
}

#[test]
fn a_used_ring_behind_an_iotlb_is_logged_where_it_lies() {
    let world = arena(1024);
    let mut rig = Rig::new(&world, V1);
    let log = Pages::new(rig.mem);
    // Two pieces of the used ring, and where the guest has them.
    let (iova, [one, two]) = (0x7000_0000, [rig.buffers + 5 * PAGE, rig.buffers]);
    let range = |start, size, uva| Range::new(start, start + size - 1, uva, ACCESS_BOTH).unwrap();
    let mut entries = [range(iova, 100, one), range(iova + 100, 9000, two)];
    let overlap = iotlb::index(&mut entries);
    rig.ranges.clear();
    rig.map(GPA, 10 * PAGE, rig.buffers, ACCESS_BOTH);
    let table = AddressMap::new(&rig.ranges, rig.overlap);
    rig.mem
        .rings
        .replace(vec![rig.buffers..rig.buffers + 10 * PAGE]);
    let mut queue = SplitQueue::new();
    queue.set_num(512);
    queue.set_addresses(iova, iova, iova);
    let map = AddressMap::new(&entries, overlap);
    let rings = Mapped::new(rig.mem, map, &queue).unwrap();
    let mem = Logged::new(&rings, &log, ALL, RingAddr(iova), table).behind(Some(map));
    mem.store_u16(RingAddr(iova + 2), 7).unwrap();
    assert_eq!(log.marked(), BTreeSet::from([GPA / PAGE + 5]));
    assert_eq!(log.signals.get(), 1);
    mem.write_used(RingAddr(iova + 4 + 8 * 11), &[UsedElem::default(); 3])
        .unwrap();
    assert_eq!(log.marked(), BTreeSet::from([GPA / PAGE, GPA / PAGE + 5]));
    assert_eq!(mem.failed(), 0);
}

proptest! {
    #![proptest_config(cases(600))]

    /// The model knows each write and where the table says it shows.
    #[test]
    fn what_is_written_is_logged_and_nothing_else(
        (ring, base, shuffle) in (0_u32..9, any::<u16>(), any::<u64>()),
        features in prop::sample::subsequence(
            vec![EVENT_IDX, MRG, V1, VNET, ON_EMPTY, IN_ORDER], 0..=6),
        (used, buffers) in any::<(bool, bool)>(),
        chains in prop::collection::vec(
            prop::collection::vec((0_u64..0x3f_0000, 0_u32..9000), 1..5), 0..40),
        packets in prop::collection::vec(0_usize..9000, 0..20),
        aliases in prop::collection::vec((0_u64..64, 1_u64..0x9000, 0_u64..0x3f_0000), 0..5),
    ) {
        let what = What { used: used.then_some(USED_GPA), buffers };
        let world = arena(1 << ring);
        for receives in [true, false] {
            world.0.poke(BASE, &vec![0; (world.2 - BASE) as usize]);
            let mut rig = Rig::at(&world, features.iter().sum(), base);
            rig.driver.shuffle(shuffle);
            for (at, len, offset) in &aliases {
                let gpa = 0x9_0000_0000 + at * 0x1_0000;
                rig.map(gpa, *len, rig.buffers + offset, ACCESS_BOTH);
            }
            for chain in &chains {
                if rig.driver.free() < chain.len() {
                    break;
                }
                let bufs: Vec<_> = chain.iter().map(|(at, len)| {
                    if receives { inp(GPA + at, *len) } else { out(GPA + at, *len) }
                }).collect();
                rig.driver.add(&bufs);
            }
            let log = Pages::new(rig.mem);
            for _ in 0..2 {
                if receives {
                    let mut socket = RxSocket::new(&world.0, rig.header.sock);
                    packets.iter().for_each(|len| socket.push(*len, 7));
                    receive(&mut rig, &mut socket, &log, what);
                } else {
                    let mut socket = TxSocket::new(&world.0, 64, rig.header.sock);
                    transmit(&mut rig, &mut socket, &log, what);
                }
            }
            check(&rig, what, &log);
            let ring = USED_GPA / PAGE..=(USED_GPA + 5 + (8 << ring)) / PAGE;
            let near = 0x5_0000_0000 / PAGE..0x6_0000_0000 / PAGE;
            let marked = log.marked();
            prop_assert!(marked.iter().all(|page| !near.contains(page) || ring.contains(page)));
        }
    }
}
