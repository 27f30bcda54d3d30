// SPDX-License-Identifier: GPL-2.0

use proptest::prelude::*;
use vhost_engine::engine::addr::{Iova, Segment, Uva};
use vhost_engine::engine::error::{Access, Error, Result};
use vhost_engine::engine::iotlb::*;
use vhost_engine::engine::scratch::{Extent, Segments, MAX_SEGMENTS};
use vhost_engine::engine::translate::Translator;

use crate::arena::{Arena, BASE};
use crate::rig::cases;

fn map(entries: &[(u64, u64, u64, u32)]) -> (Vec<Range>, bool) {
    let mut all: Vec<Range> = Vec::new();
    for (start, last, uva, access) in entries {
        let range = Range::new(*start, *last, *uva, *access).unwrap();
        all.insert(insert_at(&all, *start), range);
    }
    let overlap = index(&mut all);
    (all, overlap)
}

/// Asks one translator several times, as a run does.
fn ask(map: &(Vec<Range>, bool), asked: &[(u64, u32, Access)]) -> Vec<Result<Vec<Segment>>> {
    let mut translator = Translator::new(AddressMap::new(&map.0, map.1));
    let mut room = Box::new([Segment::default(); MAX_SEGMENTS]);
    let one = |(start, len, access): &(u64, u32, Access)| {
        let mut out = Segments::new(&mut room, Extent::default());
        translator.segments(Iova(*start), *len, *access, &mut out)?;
        let count = out.extent().segments;
        Ok(room[..count].to_vec())
    };
    asked.iter().map(one).collect()
}

fn segment(addr: u64, len: u64) -> Segment {
    let addr = Uva(addr);
    Segment { addr, len }
}

#[test]
fn a_buffer_in_two_adjacent_entries_is_two_segments_of_exact_sum() {
    let map = map(&[(0, 99, 1000, ACCESS_BOTH), (100, 199, 5000, ACCESS_BOTH)]);
    let got = ask(&map, &[(90, 30, Access::Read)]);
    assert_eq!(got, [Ok(vec![segment(1090, 10), segment(5000, 20)])]);
}

#[test]
fn a_hole_is_told_with_its_first_address() {
    let map = map(&[(0, 99, 1000, ACCESS_BOTH), (110, 199, 5000, ACCESS_BOTH)]);
    let got = ask(&map, &[(90, 30, Access::Write), (300, 1, Access::Read)]);
    let unmapped = |iova, access| {
        let iova = Iova(iova);
        Err(Error::Unmapped { iova, access })
    };
    assert_eq!(
        got,
        [unmapped(100, Access::Write), unmapped(300, Access::Read)]
    );
}

#[test]
fn an_entry_without_the_permission_denies() {
    let map = map(&[(0, 99, 1000, ACCESS_READ), (100, 199, 5000, ACCESS_WRITE)]);
    let got = ask(
        &map,
        &[
            (0, 10, Access::Read),
            (0, 10, Access::Write),
            (150, 10, Access::Read),
            (90, 20, Access::Read),
        ],
    );
    let denied = Err(Error::Denied);
    let good = Ok(vec![segment(1000, 10)]);
    assert_eq!(got, [good, denied.clone(), denied.clone(), denied]);
}

#[test]
fn a_range_that_wraps_breaks_the_ring() {
    let map = map(&[
        (0, 99, 1000, ACCESS_BOTH),
        (u64::MAX - 9, u64::MAX, 50, ACCESS_BOTH),
    ]);
    let got = ask(
        &map,
        &[
            (u64::MAX - 4, 6, Access::Read),
            (u64::MAX - 4, 5, Access::Read),
        ],
    );
    assert_eq!(got, [Err(Error::BadRing), Ok(vec![segment(55, 5)])]);
}

#[test]
fn an_empty_range_has_no_segment_wherever_it_is() {
    let map = map(&[]);
    assert_eq!(ask(&map, &[(77, 0, Access::Read)]), [Ok(vec![])]);
}

#[test]
fn the_last_hit_does_not_answer_for_an_overlap() {
    // Alone, 60 is in the first entry only by the lowest start that overlaps.
    let map = map(&[(0, 99, 1000, ACCESS_BOTH), (50, 149, 5000, ACCESS_BOTH)]);
    let got = ask(
        &map,
        &[
            (120, 1, Access::Read),
            (60, 1, Access::Read),
            (120, 1, Access::Read),
        ],
    );
    let wanted = [segment(5070, 1), segment(1060, 1), segment(5070, 1)];
    assert_eq!(got, wanted.map(|one| Ok(vec![one])));
}

#[test]
fn copies_cross_entries() {
    let mem = Arena::new(4096);
    mem.poke(BASE + 90, &[1; 10]);
    mem.poke(BASE + 500, &[2; 10]);
    let map = map(&[
        (0, 99, BASE, ACCESS_READ),
        (100, 199, BASE + 500, ACCESS_READ),
    ]);
    let mut translator = Translator::new(AddressMap::new(&map.0, map.1));
    let mut got = [0; 20];
    translator.read(&mem, Iova(90), &mut got).unwrap();
    assert_eq!(got[..10], [1; 10]);
    assert_eq!(got[10..], [2; 10]);
    let mut long = [0; 111];
    let hole = translator.read(&mem, Iova(90), &mut long);
    let (iova, access) = (Iova(200), Access::Read);
    assert_eq!(hole, Err(Error::Unmapped { iova, access }));
}

proptest! {
    #![proptest_config(cases(1000))]

    /// The model goes byte by byte, by C's rule: of the entries that overlap
    /// what is left of the range, the lowest start; and an entry goes on to its
    /// end once it is chosen.
    #[test]
    fn segments_are_those_of_a_model_that_goes_byte_by_byte(
        entries in prop::collection::vec((0_u64..300, 0_u64..80, 1_u32..4), 0..12),
        asked in prop::collection::vec((0_u64..400, 0_u32..120, any::<bool>()), 1..20),
    ) {
        let entries: Vec<_> = entries.iter().enumerate()
            .map(|(i, (start, more, access))| {
                (*start, start + more, (i as u64 + 1) << 32, *access)
            })
            .collect();
        let map = map(&entries);
        let asked: Vec<_> = asked.into_iter()
            .map(|(start, len, write)| {
                (start, len, if write { Access::Write } else { Access::Read })
            })
            .collect();

        for (got, (start, len, access)) in ask(&map, &asked).into_iter().zip(&asked) {
            prop_assert_eq!(got, model(&entries, *start, *len, *access));
        }
    }
}

fn model(
    entries: &[(u64, u64, u64, u32)],
    start: u64,
    len: u32,
    access: Access,
) -> Result<Vec<Segment>> {
    let bit = if access == Access::Write { 2 } else { 1 };
    let mut segments: Vec<Segment> = Vec::new();
    let end = start + u64::from(len);
    let mut current: Option<&(u64, u64, u64, u32)> = None;
    for addr in start..end {
        let same = current.is_some_and(|entry| addr <= entry.1);
        if !same {
            current = entries
                .iter()
                .filter(|entry| entry.0 < end && addr <= entry.1)
                .min_by_key(|entry| entry.0);
        }
        let iova = Iova(addr);
        let entry = current
            .filter(|entry| entry.0 <= addr)
            .ok_or(Error::Unmapped { iova, access })?;
        if entry.3 & bit == 0 {
            return Err(Error::Denied);
        }
        let uva = entry.2 + (addr - entry.0);
        match segments.last_mut() {
            Some(last) if same && last.addr.0 + last.len == uva => last.len += 1,
            _ => segments.push(segment(uva, 1)),
        }
    }
    Ok(segments)
}
