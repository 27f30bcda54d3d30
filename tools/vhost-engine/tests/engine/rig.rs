// SPDX-License-Identifier: GPL-2.0

//! A ring, buffers, and what a run needs, put together.

use proptest::test_runner::{Config as ProptestConfig, RngSeed};
use vhost_engine::engine::features::{self, HeaderLen};
use vhost_engine::engine::iotlb::{self, AddressMap, Range};
use vhost_engine::engine::net::in_flight::InFlight;
use vhost_engine::engine::net::{rx, tx, tx_zerocopy, Env, Outcome};
use vhost_engine::engine::scratch::Scratch;
use vhost_engine::engine::split::SplitQueue;

use crate::arena::{Arena, Kind};
use crate::mocks::{Machine, RxSocket, TxSocket};
use crate::model::{Buf, Driver, Place, RING};
use crate::zerocopy_socket::ZeroCopySocket;

/// Guest-physical address of the buffers.
pub const GPA: u64 = 0x1_0000_0000;
/// Bytes of buffers.
pub const BUFFERS: u64 = 0x40_0000;

pub const EVENT_IDX: u64 = 1 << features::EVENT_IDX;
pub const MRG: u64 = 1 << features::NET_MRG_RXBUF;
pub const V1: u64 = 1 << features::VERSION_1;
pub const VNET: u64 = 1 << features::NET_VIRTIO_NET_HDR;
pub const ON_EMPTY: u64 = 1 << features::NOTIFY_ON_EMPTY;
pub const PLATFORM: u64 = 1 << features::ACCESS_PLATFORM;
pub const IN_ORDER: u64 = 1 << features::IN_ORDER;

/// An arena, a ring in it, and where the buffers begin.
pub type World<'a> = (Arena<'a>, Place, u64);

/// An arena for a ring of `num` entries and the buffers behind it.
pub fn arena<'a>(num: u16) -> World<'a> {
    let place = Place::at(RING, num);
    let buffers = (place.end() + 64).next_multiple_of(4096);
    let arena = Arena::new((buffers + BUFFERS - RING) as usize);
    let parts = [
        place.desc..place.desc + 16 * u64::from(num),
        place.avail..place.avail + 6 + 2 * u64::from(num),
        place.used..place.used + 6 + 8 * u64::from(num),
    ];
    arena.rings.replace(parts.to_vec());
    arena.payload.replace(vec![buffers..buffers + BUFFERS]);
    (arena, place, buffers)
}

pub struct Rig<'m, 'a> {
    pub mem: &'m Arena<'a>,
    pub queue: SplitQueue,
    pub driver: Driver<'m, 'a>,
    pub ranges: Vec<Range>,
    pub overlap: bool,
    pub scratch: Box<Scratch>,
    pub header: HeaderLen,
    pub host: Machine<'m>,
    /// Where [`GPA`] is.
    pub buffers: u64,
}

impl<'m, 'a> Rig<'m, 'a> {
    pub fn new(world: &'m (Arena<'a>, Place, u64), features: u64) -> Self {
        Self::at(world, features, 0)
    }

    /// A ring that is started, its indices at `base`.
    pub fn at(world: &'m (Arena<'a>, Place, u64), features: u64, base: u16) -> Self {
        let (mem, place, buffers) = world;
        let mut driver = Driver::new(mem, *place, base);
        driver.event_idx = features & EVENT_IDX != 0;

        let mut queue = SplitQueue::new();
        queue.set_num(place.num);
        queue.set_addresses(place.desc, place.avail, place.used);
        queue.set_features(features);
        queue.set_base(base);
        queue.start(mem).unwrap();
        mem.forget_touches();

        let mut rig = Self {
            mem,
            queue,
            driver,
            ranges: Vec::new(),
            overlap: false,
            scratch: Box::default(),
            header: HeaderLen::of(&[features, 0]),
            host: Machine::default(),
            buffers: *buffers,
        };
        rig.map(GPA, BUFFERS, *buffers, iotlb::ACCESS_BOTH);
        rig
    }

    pub fn map(&mut self, start: u64, size: u64, uva: u64, access: u32) {
        let range = Range::new(start, start + (size - 1), uva, access).unwrap();
        let at = iotlb::insert_at(&self.ranges, start);
        self.ranges.insert(at, range);
        self.overlap = iotlb::index(&mut self.ranges);
    }

    /// The owner's address for a guest-physical one of the buffers.
    pub fn uva(&self, gpa: u64) -> u64 {
        gpa - GPA + self.buffers
    }

    /// The elements of the used ring written since the touches were forgotten:
    /// how far behind index `from`, in order.
    pub fn elements(&self, from: u16) -> Vec<u16> {
        let place = self.driver.place;
        let ring = place.used + 4..place.used + 4 + 8 * u64::from(place.num);
        let touched = self.mem.touched.borrow();
        let mut slots: Vec<_> = touched
            .iter()
            .filter(|touch| touch.kind == Kind::Write && touch.overlaps(&ring))
            .flat_map(|touch| (touch.addr..touch.addr + touch.len).step_by(8))
            .map(|addr| ((addr - ring.start) / 8) as u16)
            .map(|slot| slot.wrapping_sub(from) % place.num)
            .collect();
        slots.sort_unstable();
        slots
    }

    pub fn tx(&mut self, socket: &mut TxSocket<'m, 'a>) -> Outcome {
        let env = Env {
            mem: self.mem,
            map: AddressMap::new(&self.ranges, self.overlap),
            scratch: &mut self.scratch,
            header: self.header,
        };
        tx::run(&mut self.queue, env, &mut self.host, socket)
    }

    pub fn tx_zerocopy(
        &mut self,
        socket: &mut ZeroCopySocket<'m, 'a>,
        in_flight: &mut InFlight,
    ) -> Outcome {
        let env = Env {
            mem: self.mem,
            map: AddressMap::new(&self.ranges, self.overlap),
            scratch: &mut self.scratch,
            header: self.header,
        };
        tx_zerocopy::run(&mut self.queue, env, &mut self.host, socket, in_flight)
    }

    pub fn rx(&mut self, socket: &mut RxSocket<'m, 'a>) -> Outcome {
        let env = Env {
            mem: self.mem,
            map: AddressMap::new(&self.ranges, self.overlap),
            scratch: &mut self.scratch,
            header: self.header,
        };
        rx::run(&mut self.queue, env, &mut self.host, socket)
    }
}

/// Offers a chain whose head does not matter.
pub fn offer_chain(rig: &mut Rig<'_, '_>, bufs: &[Buf]) {
    rig.driver.add(bufs);
}

/// So many random cases, the same ones each time. `PROPTEST_CASES` and
/// `PROPTEST_RNG_SEED` ask for others.
pub fn cases(count: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    let given = |name: &str| std::env::var_os(name).is_some();
    ProptestConfig {
        cases: if given("PROPTEST_CASES") {
            asked.cases
        } else {
            count
        },
        rng_seed: if given("PROPTEST_RNG_SEED") {
            asked.rng_seed
        } else {
            RngSeed::Fixed(1)
        },
        failure_persistence: None,
        ..asked
    }
}
