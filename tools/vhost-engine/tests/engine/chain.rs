// SPDX-License-Identifier: GPL-2.0

use std::collections::HashSet;

use proptest::prelude::*;
use vhost_engine::engine::addr::{Iova, RingAddr, Segment};
use vhost_engine::engine::chain::{Chain, Walker};
use vhost_engine::engine::desc::Desc;
use vhost_engine::engine::error::{Access, Error, Result};
use vhost_engine::engine::iotlb::{index, AddressMap, Range, ACCESS_BOTH, ACCESS_READ};
use vhost_engine::engine::memory::{GuestMemory, RawDesc};
use vhost_engine::engine::scratch::{Extent, Segments, MAX_SEGMENTS, TABLE_BYTES};
use vhost_engine::engine::translate::Translator;

use crate::arena::Kind;
use crate::model::*;
use crate::rig::{arena, cases, World, BUFFERS, GPA};

/// Walks the chain at `head`. The segments are answered by guest address.
fn walk(world: &World<'_>, head: u16) -> Result<(Chain, Vec<(u64, u64)>)> {
    let (mem, place, buffers) = world;
    let mut ranges = [Range::new(GPA, GPA + BUFFERS - 1, *buffers, ACCESS_BOTH).unwrap()];
    let overlap = index(&mut ranges);
    let table = RingAddr(place.desc);
    let mut first = [RawDesc::default()];
    mem.read_descs(table, place.num, &[head], &mut first)?;
    let mut walker = Walker {
        mem,
        table,
        num: place.num,
        translator: &mut Translator::new(AddressMap::new(&ranges, overlap)),
    };
    let mut room = Box::new([Segment::default(); MAX_SEGMENTS]);
    let mut out = Segments::new(&mut room, Extent::default());
    let chain = walker.walk(Desc::new(first[0]), &mut out, &mut [0; TABLE_BYTES])?;
    let count = out.extent().segments;
    let segments = room[..count].iter();
    Ok((
        chain,
        segments
            .map(|s| (s.addr.0 - buffers + GPA, s.len))
            .collect(),
    ))
}

fn chain(readable: u64, writable: u64) -> Chain {
    Chain { readable, writable }
}

#[test]
fn one_readable_descriptor_is_a_chain() {
    let world = arena(4);
    let mut driver = Driver::new(&world.0, world.1, 0);
    let head = driver.add(&[out(GPA + 8, 60)]);
    assert_eq!(walk(&world, head), Ok((chain(60, 0), vec![(GPA + 8, 60)])));
}

#[test]
fn buffers_are_visited_in_the_order_of_the_chain() {
    let world = arena(8);
    let mut driver = Driver::new(&world.0, world.1, 0);
    driver.shuffle(3);
    let bufs = [
        out(GPA + 900, 10),
        out(GPA, 20),
        inp(GPA + 100, 30),
        inp(GPA + 50, 40),
    ];
    let head = driver.add(&bufs);
    let segments = bufs.iter().map(|b| (b.addr, b.len.into())).collect();
    assert_eq!(walk(&world, head), Ok((chain(30, 70), segments)));
}

#[test]
fn a_chain_may_take_every_descriptor_of_the_ring() {
    for num in [1, 2, 16, 1024] {
        let world = arena(num);
        let mut driver = Driver::new(&world.0, world.1, 0);
        driver.shuffle(9);
        let bufs: Vec<_> = (0..u64::from(num)).map(|i| out(GPA + i, 1)).collect();
        let head = driver.add(&bufs);
        let (chain, segments) = walk(&world, head).unwrap();
        assert_eq!((chain.readable, segments.len()), (num.into(), num.into()));
    }
}

#[test]
fn a_chain_that_loops_breaks_the_ring() {
    let world = arena(4);
    let driver = Driver::new(&world.0, world.1, 0);
    driver.poke_desc(0, &desc_bytes(GPA, 1, NEXT, 1));
    driver.poke_desc(1, &desc_bytes(GPA, 1, NEXT, 0));
    assert_eq!(walk(&world, 0), Err(Error::BadRing));
    driver.poke_desc(2, &desc_bytes(GPA, 0, NEXT, 2));
    assert_eq!(walk(&world, 2), Err(Error::BadRing), "empty, to itself");
}

#[test]
fn a_next_outside_the_table_breaks_the_ring_and_is_not_read() {
    let world = arena(4);
    let driver = Driver::new(&world.0, world.1, 0);
    for next in [4, 5, 0xffff] {
        driver.poke_desc(0, &desc_bytes(GPA, 1, NEXT, next));
        assert_eq!(walk(&world, 0), Err(Error::BadRing));
    }
}

#[test]
fn a_readable_buffer_after_a_writable_one_breaks_the_ring() {
    let world = arena(4);
    let mut driver = Driver::new(&world.0, world.1, 0);
    let head = driver.add(&[inp(GPA, 1), out(GPA, 1)]);
    assert_eq!(walk(&world, head), Err(Error::BadRing));
    let head = driver.add_indirect(GPA + 4096, world.2 + 4096, &[inp(GPA, 1), out(GPA, 1)]);
    assert_eq!(walk(&world, head), Err(Error::BadRing));
}

#[test]
fn empty_descriptors_add_nothing() {
    let world = arena(8);
    let mut driver = Driver::new(&world.0, world.1, 0);
    let head = driver.add(&[out(0, 0), out(GPA, 5), inp(0, 0), out(GPA + 5, 5)]);
    let segments = vec![(GPA, 5), (GPA + 5, 5)];
    assert_eq!(walk(&world, head), Ok((chain(10, 0), segments)));
}

#[test]
fn an_indirect_table_is_a_chain() {
    let world = arena(2);
    let mut driver = Driver::new(&world.0, world.1, 0);
    let bufs = [out(GPA, 12), out(GPA + 64, 1500), inp(GPA + 4000, 9)];
    let head = driver.add_indirect(GPA + 8192, world.2 + 8192, &bufs);
    let segments = bufs.iter().map(|b| (b.addr, b.len.into())).collect();
    assert_eq!(walk(&world, head), Ok((chain(1512, 9), segments)));
}

#[test]
fn an_indirect_table_is_chained_by_next_wherever_it_leads() {
    // Section 2.7.5.3. Entries 0, 2, 1, and 3 is not of the chain.
    let world = arena(2);
    let (mem, place, buffers) = &world;
    let driver = Driver::new(mem, *place, 0);
    driver.poke_desc(0, &desc_bytes(GPA, 64, INDIRECT, 0));
    for (entry, (len, flags, next)) in [(1, NEXT, 2), (3, 0, 9), (2, NEXT, 1), (4, 0, 0)]
        .into_iter()
        .enumerate()
    {
        mem.poke(
            buffers + 16 * entry as u64,
            &desc_bytes(GPA + 512, len, flags, next),
        );
    }
    let got = walk(&world, 0).unwrap();
    assert_eq!(got.1.iter().map(|s| s.1).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_table_longer_than_the_ring_and_than_the_window_is_read_whole() {
    for count in [1_u64, 31, 32, 33, 64, 65, 1000, 1024] {
        let world = arena(2);
        let mut driver = Driver::new(&world.0, world.1, 0);
        let bufs: Vec<_> = (0..count).map(|i| out(GPA + 3 * i, 2)).collect();
        let head = driver.add_indirect(GPA + 65536, world.2 + 65536, &bufs);
        let (chain, segments) = walk(&world, head).unwrap();
        assert_eq!((chain.readable, segments.len() as u64), (2 * count, count));
        assert!(segments.iter().zip(&bufs).all(|(s, b)| s.0 == b.addr));
    }
}

#[test]
fn more_than_1024_descriptors_are_too_many_even_if_they_are_empty() {
    for len in [0, 1] {
        let world = arena(2);
        let mut driver = Driver::new(&world.0, world.1, 0);
        let bufs: Vec<_> = (0..1025).map(|i| out(GPA + i, len)).collect();
        let head = driver.add_indirect(GPA + 65536, world.2 + 65536, &bufs);
        assert_eq!(walk(&world, head), Err(Error::TooManySegments));

        let world = arena(2048);
        let mut driver = Driver::new(&world.0, world.1, 0);
        let head = driver.add(&bufs);
        assert_eq!(walk(&world, head), Err(Error::TooManySegments));
    }
}

#[test]
fn a_nested_table_breaks_the_ring() {
    let world = arena(2);
    let driver = Driver::new(&world.0, world.1, 0);
    driver.poke_desc(0, &desc_bytes(GPA, 16, INDIRECT, 0));
    world
        .0
        .poke(world.2, &desc_bytes(GPA + 64, 16, INDIRECT, 0));
    assert_eq!(walk(&world, 0), Err(Error::BadRing));
}

#[test]
fn a_table_with_a_next_breaks_the_ring() {
    let world = arena(2);
    let driver = Driver::new(&world.0, world.1, 0);
    driver.poke_desc(0, &desc_bytes(GPA, 16, INDIRECT | NEXT, 1));
    driver.poke_desc(1, &desc_bytes(GPA, 16, 0, 0));
    assert_eq!(walk(&world, 0), Err(Error::BadRing));
}

#[test]
fn a_table_is_whole_descriptors_at_least_one_and_at_most_65536() {
    let world = arena(2);
    let driver = Driver::new(&world.0, world.1, 0);
    world.0.poke(world.2, &desc_bytes(GPA + 64, 7, 0, 0));
    for (len, good) in [
        (0, false),
        (15, false),
        (16, true),
        (17, false),
        (65536 * 16, true),
        (65537 * 16, false),
        (u32::MAX - 15, false),
    ] {
        driver.poke_desc(0, &desc_bytes(GPA, len, INDIRECT, 0));
        let wanted = good.then_some(7).ok_or(Error::BadRing);
        assert_eq!(walk(&world, 0).map(|got| got.0.readable), wanted, "{len}");
    }
}

#[test]
fn a_table_that_loops_or_points_past_its_end_breaks_the_ring() {
    let world = arena(2);
    let driver = Driver::new(&world.0, world.1, 0);
    driver.poke_desc(0, &desc_bytes(GPA, 32, INDIRECT, 0));
    world.0.poke(world.2, &desc_bytes(GPA + 64, 7, NEXT, 1));
    for next in [0, 1, 2, 0xffff] {
        world
            .0
            .poke(world.2 + 16, &desc_bytes(GPA + 64, 7, NEXT, next));
        assert_eq!(walk(&world, 0), Err(Error::BadRing), "{next}");
    }
}

#[test]
fn a_table_outside_the_address_map_is_unmapped() {
    let world = arena(2);
    let driver = Driver::new(&world.0, world.1, 0);
    let end = GPA + BUFFERS;
    driver.poke_desc(0, &desc_bytes(end - 16, 32, INDIRECT, 0));
    let unmapped = |iova, access| {
        let iova = Iova(iova);
        Err(Error::Unmapped { iova, access })
    };
    assert_eq!(walk(&world, 0), unmapped(end, Access::Read));
    driver.poke_desc(0, &desc_bytes(end - 4, 8, WRITE, 0));
    assert_eq!(walk(&world, 0), unmapped(end, Access::Write));
}

#[test]
fn a_table_is_read_through_the_entries_it_lies_in() {
    // Two entries meet in the middle of the second descriptor.
    let (mem, place, buffers) = arena(2);
    let driver = Driver::new(&mem, place, 0);
    let table = table_bytes(&[out(GPA, 5), out(GPA + 5, 6)]);
    mem.poke(buffers + 4096, &table[..24]);
    mem.poke(buffers + 40960, &table[24..]);
    let mut ranges = [
        Range::new(GPA, GPA + 99, buffers, ACCESS_READ).unwrap(),
        Range::new(GPA + 1000, GPA + 1023, buffers + 4096, ACCESS_READ).unwrap(),
        Range::new(GPA + 1024, GPA + 1099, buffers + 40960, ACCESS_READ).unwrap(),
    ];
    let overlap = index(&mut ranges);
    driver.poke_desc(0, &desc_bytes(GPA + 1000, 32, INDIRECT, 0));
    let mut walker = Walker {
        mem: &mem,
        table: RingAddr(place.desc),
        num: 2,
        translator: &mut Translator::new(AddressMap::new(&ranges, overlap)),
    };
    let mut room = Box::new([Segment::default(); MAX_SEGMENTS]);
    let mut segments = Segments::new(&mut room, Extent::default());
    let mut first = [RawDesc::default()];
    mem.read_descs(RingAddr(place.desc), 2, &[0], &mut first)
        .unwrap();
    let got = walker.walk(Desc::new(first[0]), &mut segments, &mut [0; TABLE_BYTES]);
    assert_eq!(got, Ok(chain(11, 0)));
}

#[test]
fn the_device_reads_each_descriptor_of_a_chain_once() {
    let world = arena(16);
    let mut driver = Driver::new(&world.0, world.1, 0);
    let bufs: Vec<_> = (0..16).map(|i| out(GPA + i, 1)).collect();
    let head = driver.add(&bufs);
    world.0.forget_touches();
    walk(&world, head).unwrap();
    let touched = world.0.touched.borrow();
    let places: HashSet<_> = touched.iter().map(|t| t.addr).collect();
    assert_eq!((touched.len(), places.len()), (16, 16));
    assert!(touched.iter().all(|t| t.kind == Kind::Read));
}

/// A chain as the model of the spec sees it.
fn model(world: &World<'_>, head: u16) -> Option<Vec<Buf>> {
    let (mem, place, buffers) = world;
    let mut bufs = Vec::new();
    let mut at = place.desc + 16 * u64::from(head);
    let (mut base, mut count) = (place.desc, u64::from(place.num));
    let mut table = false;
    let mut left = count;
    loop {
        left = left.checked_sub(1)?;
        let raw: [u8; 16] = mem.peek(at);
        let addr = u64::from_le_bytes(raw[..8].try_into().unwrap());
        let len = u32::from_le_bytes(raw[8..12].try_into().unwrap());
        let flags = u16::from_le_bytes(raw[12..14].try_into().unwrap());
        let next = u64::from(u16::from_le_bytes(raw[14..].try_into().unwrap()));
        if flags & INDIRECT != 0 {
            if table || flags & NEXT != 0 || len == 0 || len % 16 != 0 {
                return None;
            }
            addr.checked_sub(GPA)?;
            if addr + u64::from(len) > GPA + BUFFERS {
                return None;
            }
            (base, count, table) = (addr - GPA + buffers, u64::from(len) / 16, true);
            (at, left) = (base, count);
            continue;
        }
        if len > 0 && (addr < GPA || addr + u64::from(len) > GPA + BUFFERS) {
            return None;
        }
        let write = flags & WRITE != 0;
        if !write && bufs.iter().any(|b: &Buf| b.write) {
            return None;
        }
        if len > 0 {
            bufs.push(Buf { addr, len, write });
        }
        if flags & NEXT == 0 {
            return Some(bufs);
        }
        if next >= count {
            return None;
        }
        at = base + 16 * next;
    }
}

fn any_desc() -> impl Strategy<Value = (u64, u32, u16, u16)> {
    let addr = prop_oneof![
        6 => (0_u64..8).prop_map(|i| GPA + 16 * i),
        1 => Just(GPA + BUFFERS - 8),
        1 => any::<u64>(),
    ];
    let len = prop_oneof![
        4 => (0_u32..5).prop_map(|i| 16 * i),
        2 => 0_u32..100,
        1 => any::<u32>(),
    ];
    let flags = prop_oneof![6 => 0_u16..4, 2 => Just(4), 1 => any::<u16>()];
    (
        addr,
        len,
        flags,
        prop_oneof![9 => 0_u16..9, 1 => any::<u16>()],
    )
}

proptest! {
    #![proptest_config(cases(3000))]

    /// Tables of random descriptors: the ring's, and one where indirect
    /// descriptors point.
    #[test]
    fn random_chains_are_walked_as_the_model_walks_them(
        ring in prop::collection::vec(any_desc(), 8),
        table in prop::collection::vec(any_desc(), 12),
        head in 0_u16..8,
    ) {
        let world = arena(8);
        let driver = Driver::new(&world.0, world.1, 0);
        for (i, (addr, len, flags, next)) in ring.into_iter().enumerate() {
            driver.poke_desc(i as u16, &desc_bytes(addr, len, flags, next));
        }
        for (i, (addr, len, flags, next)) in table.into_iter().enumerate() {
            let at = world.2 + 16 * i as u64;
            world.0.poke(at, &desc_bytes(addr, len, flags, next));
        }
        world.0.limit.set(200);

        let wanted = model(&world, head);
        match walk(&world, head) {
            Ok((chain, segments)) => {
                let wanted = wanted.expect("the model refuses this chain");
                let sum = |write| -> u64 {
                    wanted.iter().filter(|b| b.write == write).map(|b| u64::from(b.len)).sum()
                };
                prop_assert_eq!((chain.readable, chain.writable), (sum(false), sum(true)));
                let bufs: Vec<_> = wanted.iter().map(|b| (b.addr, b.len.into())).collect();
                prop_assert_eq!(segments, bufs);
            }
            Err(error) => prop_assert_eq!(wanted, None, "{:?}", error),
        }
    }
}
