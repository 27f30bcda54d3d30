// SPDX-License-Identifier: GPL-2.0

use proptest::prelude::*;
use vhost_engine::engine::error::{Access, Error};
use vhost_engine::engine::iotlb::*;

use crate::iotlb_model::{Entry, Kept};
use crate::rig::cases;

fn sorted(ranges: impl IntoIterator<Item = Range>) -> (Vec<Range>, bool) {
    let mut all: Vec<Range> = Vec::new();
    for range in ranges {
        all.insert(insert_at(&all, range.start()), range);
    }
    let overlap = index(&mut all);
    (all, overlap)
}

fn range(start: u64, last: u64) -> Range {
    Range::new(start, last, start ^ 0x5000_0000, ACCESS_BOTH).unwrap()
}

#[test]
fn a_region_becomes_one_entry() {
    let [one, two] = Range::of_region(0x1000, 0x2000, 0x7000).unwrap();
    let one = one.unwrap();
    assert_eq!(
        (one.start(), one.last(), one.size(), one.uva()),
        (0x1000, 0x2fff, 0x2000, 0x7000)
    );
    assert!(one.allows(Access::Read) && one.allows(Access::Write));
    assert_eq!(two, None);
}

#[test]
fn size_0_at_0_is_the_whole_space_in_two_entries() {
    let [low, high] = Range::of_region(0, 0, 0x7000).unwrap();
    let (low, high) = (low.unwrap(), high.unwrap());
    assert_eq!(
        (low.start(), low.last(), low.uva()),
        (0, (1 << 63) - 1, 0x7000)
    );
    assert_eq!(
        (high.start(), high.last(), high.uva()),
        (1 << 63, u64::MAX, (1 << 63) + 0x7000)
    );
}

#[test]
fn size_0_elsewhere_and_a_region_that_wraps_are_faults() {
    assert_eq!(Range::of_region(0x1000, 0, 0), Err(Error::Fault));
    assert_eq!(Range::of_region(u64::MAX, 2, 0), Err(Error::Fault));
    assert_eq!(Range::of_region(2, u64::MAX, 0), Err(Error::Fault));
}

#[test]
fn the_last_byte_of_the_space_can_be_mapped() {
    let [one, _] = Range::of_region(u64::MAX, 1, 5).unwrap();
    assert!(one.unwrap().contains(u64::MAX));
    let [one, two] = Range::of_region(0, u64::MAX, 5).unwrap();
    assert_eq!((one.unwrap().last(), two), (u64::MAX - 1, None));
}

#[test]
fn an_entry_ends_after_its_start_and_is_not_everything() {
    assert_eq!(Range::new(5, 4, 0, ACCESS_READ), Err(Error::Fault));
    assert_eq!(Range::new(0, u64::MAX, 0, ACCESS_READ), Err(Error::Fault));
}

#[test]
fn permissions_are_kept_apart() {
    let read = Range::new(0, 1, 0, ACCESS_READ).unwrap();
    assert!(read.allows(Access::Read) && !read.allows(Access::Write));
    let write = Range::new(0, 1, 0, ACCESS_WRITE).unwrap();
    assert!(!write.allows(Access::Read) && write.allows(Access::Write));
}

#[test]
fn equal_starts_stay_in_the_order_of_insertion() {
    let first = Range::new(8, 9, 1, ACCESS_BOTH).unwrap();
    let second = Range::new(8, 9, 2, ACCESS_BOTH).unwrap();
    let (all, overlap) = sorted([first, second]);
    assert!(overlap);
    let map = AddressMap::new(&all, overlap);
    assert_eq!(map.find(8, 8).unwrap().uva(), 1);
}

#[test]
fn neighbours_do_not_overlap() {
    let (all, overlap) = sorted([range(10, 19), range(0, 9), range(20, 20)]);
    assert!(!overlap);
    assert_eq!(
        all.iter().map(Range::start).collect::<Vec<_>>(),
        [0, 10, 20]
    );
}

#[test]
fn a_long_early_range_overlaps_a_late_one() {
    let (_, overlap) = sorted([range(0, 100), range(5, 6), range(100, 200)]);
    assert!(overlap);
    let (_, overlap) = sorted([range(0, 99), range(100, 200)]);
    assert!(!overlap);
}

#[test]
fn an_empty_map_has_nothing() {
    assert_eq!(AddressMap::new(&[], false).find(0, u64::MAX), None);
    assert!(!index(&mut []));
}

proptest! {
    #![proptest_config(cases(2000))]

    /// The model looks at every entry and takes the lowest start.
    #[test]
    fn what_is_found_is_the_lowest_start_that_overlaps(
        bounds in prop::collection::vec((0_u64..300, 0_u64..60), 0..24),
        asked in prop::collection::vec((0_u64..380, 0_u64..40), 1..40),
    ) {
        let made = bounds.iter().enumerate().map(|(i, (start, more))| {
            Range::new(*start, start + more, i as u64, ACCESS_BOTH).unwrap()
        });
        let made: Vec<_> = made.collect();
        let (all, overlap) = sorted(made.clone());
        let map = AddressMap::new(&all, overlap);

        for (addr, more) in asked {
            let last = addr + more;
            let hits = |r: &&Range| r.start() <= last && addr <= r.last();
            // `min_by_key` answers with the first of equals, as C's tree does.
            let wanted = made.iter().filter(hits).min_by_key(|r| r.start());
            let found = map.find(addr, last);
            prop_assert_eq!(found.map(|r| r.uva()), wanted.map(|r| r.uva()));
        }

        let pairs = made.iter().enumerate();
        let meet = pairs.clone().any(|(i, a)| {
            pairs.clone().any(|(j, b)| i != j && a.start() <= b.last() && b.start() <= a.last())
        });
        prop_assert_eq!(overlap, meet);
    }
}

fn iotlb(limit: usize) -> Iotlb<Vec<Range>> {
    Iotlb::new(Vec::new(), limit)
}

fn add(iotlb: &mut Iotlb<Vec<Range>>, start: u64, last: u64, uva: u64) {
    if let Some(wanted) = iotlb.wanted() {
        iotlb.room().resize(wanted, Range::EMPTY);
    }
    let range = Range::new(start, last, uva, ACCESS_BOTH).unwrap();
    iotlb.add(range).unwrap();
}

#[test]
fn an_iotlb_without_room_takes_no_entry_and_stays_as_it_is() {
    let mut iotlb = iotlb(8);
    assert_eq!(iotlb.add(range(0, 9)), Err(Error::Fault));
    assert_eq!(iotlb.map().ranges().len(), 0);
    add(&mut iotlb, 0, 9, 1);
    iotlb.room().truncate(1);
    assert_eq!(iotlb.add(range(20, 29)), Err(Error::Fault));
    assert_eq!(iotlb.map().find(0, 0).unwrap().uva(), 1);
    let mut none = Iotlb::new(vec![Range::EMPTY; 4], 0);
    assert_eq!(none.add(range(0, 9)), Err(Error::Fault));
}

#[test]
fn the_oldest_entry_makes_room_for_the_newest() {
    let mut iotlb = iotlb(2);
    for (uva, start) in [(1, 50), (2, 10), (3, 30)] {
        add(&mut iotlb, start, start + 9, uva);
    }
    let kept: Vec<_> = iotlb.map().ranges().iter().map(Range::uva).collect();
    assert_eq!(kept, [2, 3]);
    assert_eq!(iotlb.room().len(), 2, "no more room than the limit is used");
}

#[test]
fn invalidation_takes_whole_entries() {
    let mut iotlb = iotlb(8);
    for (start, last) in [(0, 9), (10, 19), (20, 29), (30, 39)] {
        add(&mut iotlb, start, last, start);
    }
    iotlb.remove(19, 20);
    let kept: Vec<_> = iotlb.map().ranges().iter().map(Range::start).collect();
    assert_eq!(kept, [0, 30]);
    // Nothing there.
    iotlb.remove(10, 29);
    assert_eq!(iotlb.map().ranges().len(), 2);
    iotlb.remove(0, u64::MAX);
    assert_eq!(iotlb.map().ranges().len(), 0);
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn an_iotlb_is_a_list_with_a_limit(
        limit in 1_usize..12,
        steps in prop::collection::vec((0_u64..300, 0_u64..60, 0_u8..4), 0..60),
        asked in prop::collection::vec((0_u64..380, 0_u64..40), 1..20),
    ) {
        let mut real = iotlb(limit);
        let mut model = Kept::new(limit);
        for (serial, (start, more, what)) in (0_u64..).zip(steps) {
            let last = start + more;
            if what == 0 {
                real.remove(start, last);
                model.remove(start, last);
            } else {
                add(&mut real, start, last, serial);
                model.add(Entry { start, last, uva: serial, access: ACCESS_BOTH });
            }
            let map = real.map();
            prop_assert_eq!(map.ranges().len(), model.entries.len());
            for (addr, more) in &asked {
                let last = addr + more;
                let wanted = model.find(*addr, last).map(|entry| entry.uva);
                prop_assert_eq!(map.find(*addr, last).map(Range::uva), wanted);
            }
            prop_assert_eq!(map.overlaps(), model.overlaps());
        }
    }
}
