// SPDX-License-Identifier: GPL-2.0

use proptest::prelude::*;
use vhost_engine::engine::addr::{Iova, RingAddr};
use vhost_engine::engine::error::{Access, Error};
use vhost_engine::engine::iotlb::*;
use vhost_engine::engine::memory::{GuestMemory, RawDesc, UsedElem};
use vhost_engine::engine::ring_map::Mapped;
use vhost_engine::engine::split::SplitQueue;

use crate::arena::Arena;
use crate::model::*;
use crate::rig::{arena, cases, BUFFERS, EVENT_IDX};

/// A ring in I/O virtual memory, and where its pieces are.
struct Scattered {
    place: Place,
    pieces: Vec<Range>,
}

impl Scattered {
    /// Cuts a ring at `start` into pieces of `sizes` bytes, again and again, and lays them out in reverse, `gap` bytes apart.
    fn new(world: &(Arena<'_>, Place, u64), start: u64, sizes: &[u64], gap: u64) -> Self {
        let (mem, linear, buffers) = world;
        mem.rings.replace(vec![*buffers..buffers + BUFFERS]);
        let place = Place::at(start, linear.num);
        let mut pieces = Vec::new();
        let (mut at, mut uva) = (start, buffers + BUFFERS);
        for size in sizes.iter().cycle() {
            let last = (at - 1).saturating_add(*size).min(place.end() - 1);
            let size = last - at + 1;
            uva -= size + gap;
            pieces.push(Range::new(at, last, uva, ACCESS_BOTH).unwrap());
            if last == place.end() - 1 {
                break;
            }
            at = last + 1;
        }
        Self { place, pieces }
    }

    fn queue(&self, features: u64) -> SplitQueue {
        let mut queue = SplitQueue::new();
        queue.set_num(self.place.num);
        queue.set_addresses(self.place.desc, self.place.avail, self.place.used);
        queue.set_features(features);
        queue
    }

    /// Where a byte is.
    fn uva(&self, iova: u64) -> u64 {
        let piece = self.pieces.iter().find(|piece| piece.contains(iova));
        piece.unwrap().uva_of(iova).0
    }

    fn poke(&self, mem: &Arena<'_>, iova: u64, data: &[u8]) {
        for (at, byte) in (iova..).zip(data) {
            mem.poke(self.uva(at), &[*byte]);
        }
    }

    fn peek(&self, mem: &Arena<'_>, iova: u64, len: u64) -> Vec<u8> {
        let byte = |at| mem.peek::<1>(self.uva(at))[0];
        (iova..iova + len).map(byte).collect()
    }

    fn peek_u16(&self, mem: &Arena<'_>, iova: u64) -> u16 {
        let bytes = self.peek(mem, iova, 2);
        u16::from_le_bytes([bytes[0], bytes[1]])
    }
}

fn map(pieces: &[Range]) -> (Vec<Range>, bool) {
    let mut pieces = pieces.to_vec();
    let overlap = index(&mut pieces);
    (pieces, overlap)
}

/// The end of the address space, less what a ring of `num` needs.
fn top(num: u16) -> u64 {
    let bytes = Place::at(0, num).end();
    (u64::MAX - bytes - 16) / 16 * 16
}

#[test]
fn entries_that_adjoin_on_both_sides_are_one_piece() {
    let world = arena(256);
    let (mem, _, buffers) = &world;
    let scattered = Scattered::new(&world, 0x4000, &[4096], 0);
    let mut pieces = scattered.pieces.clone();
    for piece in &mut pieces {
        let uva = buffers + piece.start() - 0x4000;
        *piece = Range::new(piece.start(), piece.last(), uva, ACCESS_BOTH).unwrap();
    }
    let (pieces, overlap) = map(&pieces);
    let queue = scattered.queue(0);
    let mapped = Mapped::new(mem, AddressMap::new(&pieces, overlap), &queue).unwrap();
    mem.poke_u16(buffers + scattered.place.avail_idx() - 0x4000, 200);
    mem.forget_touches();
    let mut heads = [0; 64];
    let avail = RingAddr(scattered.place.avail);
    let fetched = mapped.fetch_heads(avail, 256, 0, &mut heads).unwrap();
    assert_eq!((fetched.avail_idx, fetched.count), (200, 64));
    assert_eq!(mem.calls.get(), 1, "one call for all");
}

#[test]
fn a_field_in_two_pieces_cannot_be_used() {
    let world = arena(8);
    // The avail index is bytes 194 and 195.
    let scattered = Scattered::new(&world, 0x4000, &[195, 1000], 8);
    assert_eq!(scattered.place.avail_idx(), 0x4000 + 194);
    let (pieces, overlap) = map(&scattered.pieces);
    let queue = scattered.queue(0);
    let mapped = Mapped::new(&world.0, AddressMap::new(&pieces, overlap), &queue).unwrap();
    let avail = RingAddr(scattered.place.avail);
    let found = mapped.fetch_heads(avail, 8, 0, &mut [0; 4]);
    assert_eq!(found, Err(Error::Fault));
    assert_eq!(mapped.load_u16(avail.add(2)), Err(Error::Fault));
}

#[test]
fn a_part_without_the_permission_is_denied() {
    let world = arena(8);
    let whole = Scattered::new(&world, 0x4000, &[0x1000], 0);
    let uva = whole.pieces[0].uva();
    let queue = whole.queue(0);
    for (access, wanted) in [
        (ACCESS_BOTH, None),
        (ACCESS_READ, Some(Error::Denied)),
        (ACCESS_WRITE, Some(Error::Denied)),
        (0, Some(Error::Denied)),
    ] {
        let piece = Range::new(0x4000, 0x4fff, uva, access).unwrap();
        let (pieces, overlap) = map(&[piece]);
        let found = Mapped::new(&world.0, AddressMap::new(&pieces, overlap), &queue);
        assert_eq!(found.err(), wanted);
    }
}

#[test]
fn starting_needs_the_head_of_the_used_ring_both_ways_and_no_more() {
    let world = arena(8);
    let scattered = Scattered::new(&world, 0x4000, &[0x1000], 0);
    let used = scattered.place.used;
    let uva = scattered.uva(used);
    let mut queue = scattered.queue(0);
    for (access, wanted) in [
        (ACCESS_BOTH, Ok(())),
        (ACCESS_READ, Err(Error::Denied)),
        (ACCESS_WRITE, Err(Error::Denied)),
    ] {
        let (pieces, overlap) = map(&[Range::new(used, used + 3, uva, access).unwrap()]);
        let map = AddressMap::new(&pieces, overlap);
        let found = Mapped::for_start(&world.0, map, &queue);
        assert_eq!(found.and_then(|mem| queue.start(&mem)), wanted);
    }
    let nothing = Mapped::for_start(&world.0, AddressMap::new(&[], false), &queue);
    let (iova, access) = (Iova(used), Access::Read);
    assert_eq!(nothing.err(), Some(Error::Unmapped { iova, access }));
}

#[test]
fn a_ring_over_the_end_of_the_address_space_is_broken() {
    let world = arena(256);
    let mut queue = SplitQueue::new();
    queue.set_num(256);
    let start = u64::MAX - 255;
    queue.set_addresses(start, 0, 0);
    let all = Range::of_region(0, 0, 0).unwrap();
    let (pieces, overlap) = map(&[all[0].unwrap(), all[1].unwrap()]);
    let map = AddressMap::new(&pieces, overlap);
    let found = Mapped::new(&world.0, map, &queue);
    assert_eq!(found.err(), Some(Error::BadRing));
    queue.set_addresses(0, 0, u64::MAX - 1);
    let found = Mapped::for_start(&world.0, map, &queue);
    assert_eq!(found.err(), Some(Error::BadRing));
}

#[test]
fn a_ring_that_moves_or_grows_is_looked_up_anew() {
    let world = arena(8);
    let ring = Scattered::new(&world, 0x4000, &[0x1000], 0);
    let (pieces, overlap) = map(&ring.pieces);
    let map = AddressMap::new(&pieces, overlap);
    let mut queue = ring.queue(0);
    let Place {
        desc, avail, used, ..
    } = ring.place;
    let hole = |iova, access| {
        let iova = Iova(iova);
        Some(Error::Unmapped { iova, access })
    };
    let end = ring.place.end();
    let look = |queue: &SplitQueue| Mapped::new(&world.0, map, queue).err();
    assert_eq!(look(&queue), None);
    queue.set_addresses(end, avail, used);
    assert_eq!(look(&queue), hole(end, Access::Read));
    queue.set_addresses(desc, end - 2, used);
    assert_eq!(look(&queue), hole(end, Access::Read));
    queue.set_addresses(desc, avail, end - 4);
    assert_eq!(look(&queue), hole(end, Access::Write));
    queue.set_addresses(desc, avail, used);
    assert_eq!(look(&queue), None);
    queue.set_num(16);
    assert_eq!(look(&queue), hole(end, Access::Write));
}

/// Heads are those that the model reads byte by byte.
fn reads(
    mem: &Arena<'_>,
    ring: &Scattered,
    mapped: &Mapped<'_, Arena<'_>>,
    next: u16,
    offered: u16,
) {
    let (place, num) = (ring.place, ring.place.num);
    let mut found = [0; 64];
    let fetched = mapped
        .fetch_heads(RingAddr(place.avail), num, next, &mut found)
        .unwrap();
    assert_eq!(fetched.avail_idx, next.wrapping_add(offered));
    let wanted = if offered > num { 0 } else { offered.min(64) };
    assert_eq!(fetched.count, usize::from(wanted));
    for i in 0..wanted {
        let slot = place.avail_slot(next.wrapping_add(i));
        assert_eq!(found[usize::from(i)], ring.peek_u16(mem, slot));
    }
}

/// So are descriptors.
fn descriptors(mem: &Arena<'_>, ring: &Scattered, mapped: &Mapped<'_, Arena<'_>>, heads: &[u16]) {
    let (place, num) = (ring.place, ring.place.num);
    let mut descs = [RawDesc::default(); 64];
    mapped
        .read_descs(RingAddr(place.desc), num, heads, &mut descs)
        .unwrap();
    for (head, desc) in heads.iter().zip(&descs) {
        if *head >= num {
            assert_eq!(*desc, RawDesc::default());
            continue;
        }
        let bytes = ring.peek(mem, place.desc + 16 * u64::from(*head), 16);
        assert_eq!(
            bytes,
            desc_bytes(desc.addr, desc.len, desc.flags, desc.next)
        );
    }
}

/// Used elements from `slot` to the ring's end are where the model looks for them.
fn writes(mem: &Arena<'_>, ring: &Scattered, mapped: &Mapped<'_, Arena<'_>>, slot: u16) {
    let (place, num) = (ring.place, ring.place.num);
    let elems: Vec<_> = (0..num - slot)
        .map(|i| UsedElem {
            id: i.into(),
            len: u32::from(i) * 77,
        })
        .collect();
    mapped
        .write_used(RingAddr(place.used_slot(slot)), &elems)
        .unwrap();
    for (i, elem) in (0..).zip(&elems) {
        let bytes = ring.peek(mem, place.used_slot(slot + i), 8);
        let wanted = [elem.id.to_ne_bytes(), elem.len.to_ne_bytes()].concat();
        assert_eq!(bytes, wanted);
    }
}

/// Single fields.
fn fields(mem: &Arena<'_>, ring: &Scattered, mapped: &Mapped<'_, Arena<'_>>, event_idx: bool) {
    let place = ring.place;
    let loads = [
        place.avail,
        place.avail_idx(),
        place.used_event(),
        place.used_idx(),
    ];
    for at in &loads[..] {
        if event_idx || *at != place.used_event() {
            assert_eq!(
                mapped.load_u16(RingAddr(*at)).unwrap(),
                ring.peek_u16(mem, *at)
            );
        }
    }
    for at in [place.used, place.used_idx(), place.avail_event()] {
        if event_idx || at != place.avail_event() {
            mapped.store_u16(RingAddr(at), 0x5aa5).unwrap();
            assert_eq!(ring.peek_u16(mem, at), 0x5aa5);
        }
    }
}

proptest! {
    #![proptest_config(cases(400))]

    /// The model finds each byte by itself.
    #[test]
    fn a_ring_in_pieces_is_as_one_in_one_piece(
        (log, at_top, event_idx) in (0_u32..9, any::<bool>(), any::<bool>()),
        sizes in prop::collection::vec(1_u64..700, 1..20),
        gap in 0_u64..3,
        (next, offered) in (any::<u16>(), 0_u16..300),
        heads in prop::collection::vec(any::<u16>(), 64),
        seed in any::<u64>(),
    ) {
        let num = 1 << log;
        let world = arena(num);
        let mem = &world.0;
        // Fields of two bytes stay whole.
        let sizes: Vec<u64> = sizes.iter().map(|size| size * 2).collect();
        let start = if at_top { top(num) } else { 0x1000 };
        let ring = Scattered::new(&world, start, &sizes, gap * 2);
        let place = ring.place;
        let noise = (0..place.end() - start).map(|i| (seed.rotate_left(i as u32) >> 3) as u8);
        ring.poke(mem, start, &noise.collect::<Vec<_>>());
        ring.poke(mem, place.avail_idx(), &next.wrapping_add(offered).to_le_bytes());
        let (pieces, overlap) = map(&ring.pieces);
        let queue = ring.queue(if event_idx { EVENT_IDX } else { 0 });
        let mapped = Mapped::new(mem, AddressMap::new(&pieces, overlap), &queue).unwrap();

        reads(mem, &ring, &mapped, next, offered);
        descriptors(mem, &ring, &mapped, &heads);
        writes(mem, &ring, &mapped, next % num);
        fields(mem, &ring, &mapped, event_idx);
    }

    /// The first hole in descriptors, avail ring, used ring is the one that is asked for.
    #[test]
    fn the_first_hole_is_asked_for(
        sizes in prop::collection::vec(1_u64..700, 1..20),
        gone in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
    ) {
        let world = arena(64);
        let ring = Scattered::new(&world, 0x1000, &sizes, 2);
        let mut left = ring.pieces.clone();
        for index in &gone {
            if !left.is_empty() {
                left.remove(index.index(left.len()));
            }
        }
        let place = ring.place;
        let parts = [
            (place.desc, 16 * 64, Access::Read),
            (place.avail, 4 + 2 * 64, Access::Read),
            (place.used, 4 + 8 * 64, Access::Write),
        ];
        let hole = parts.iter().find_map(|(start, len, access)| {
            let mut bytes = *start..start + len;
            let hole = bytes.find(|at| !left.iter().any(|piece| piece.contains(*at)))?;
            Some(Error::Unmapped { iova: Iova(hole), access: *access })
        });
        let (pieces, overlap) = map(&left);
        let found = Mapped::new(&world.0, AddressMap::new(&pieces, overlap), &ring.queue(0));
        prop_assert_eq!(found.err(), hole);
    }
}
