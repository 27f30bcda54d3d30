// SPDX-License-Identifier: GPL-2.0

//! The steps of the engine, each by itself, on memory that costs next to nothing.
//!
//! A round of a step is [`BATCH`] chains.

#![forbid(unsafe_code)]

pub mod memory;

use std::hint::black_box;

use vhost_engine::engine::addr::{Iova, RingAddr, Segment, Uva};
use vhost_engine::engine::batch::Batch;
use vhost_engine::engine::chain::{self, Walker};
use vhost_engine::engine::desc::Desc;
use vhost_engine::engine::error::{Access, Error, Result};
use vhost_engine::engine::iotlb::{self, AddressMap, Range};
use vhost_engine::engine::memory::RawDesc;
use vhost_engine::engine::notify::{need_event, Signalled};
use vhost_engine::engine::scratch::{Extent, Scratch, Segments};
use vhost_engine::engine::scratch::{BATCH, MAX_SEGMENTS, TABLE_BYTES};
use vhost_engine::engine::split::SplitQueue;
use vhost_engine::engine::translate::Translator;

use memory::{Memory, AVAIL, DESC, NUM, TABLE, USED};

/// Bytes of a region of the driver's memory.
const REGION: u64 = 1 << 20;
/// Read and write.
const BOTH: u32 = 3;
const EVENT_IDX: u64 = 1 << 29;

/// What a step needs.
pub struct Steps {
    memory: Memory,
    queue: SplitQueue,
    scratch: Box<Scratch>,
    segments: Box<[Segment; MAX_SEGMENTS]>,
    window: [u8; TABLE_BYTES],
    one: Vec<Range>,
    many: Vec<Range>,
}

/// A step: does one round.
pub type Step = fn(&mut Steps) -> Result<()>;

/// The steps, by name.
pub const STEPS: [(&str, Step); 10] = [
    ("fetch-batch", Steps::fetch_batch),
    ("chain-of-one", Steps::chain_of_one),
    ("table-of-three", Steps::table_of_three),
    ("walk-three", Steps::walk_three),
    ("walk-indirect", Steps::walk_indirect),
    ("translate", Steps::translate),
    ("translate-16-regions", Steps::translate_regions),
    ("add-used", Steps::add_used),
    ("return-one", Steps::return_one),
    ("decide-call", Steps::decide_call),
];

/// `count` regions behind each other.
fn regions(count: u64) -> Result<Vec<Range>> {
    let region = |number: u64| {
        let start = number * REGION;
        Range::new(start, start + REGION - 1, 0x7000_0000_0000 + start, BOTH)
    };
    let mut regions = (0..count).map(region).collect::<Result<Vec<_>>>()?;
    // They are sorted and do not overlap: all that is left is the highest end.
    iotlb::index(&mut regions);
    Ok(regions)
}

impl Steps {
    /// A ring whose chains are there.
    ///
    /// # Errors
    ///
    /// None: the memory never fails.
    pub fn new() -> Result<Self> {
        let memory = Memory::new();
        let mut queue = SplitQueue::new();
        queue.set_num(NUM);
        queue.set_addresses(DESC, AVAIL, USED);
        queue.set_features(EVENT_IDX);
        queue.start(&memory)?;
        let nothing = Segment {
            addr: Uva(0),
            len: 0,
        };
        Ok(Self {
            memory,
            queue,
            scratch: Box::default(),
            segments: Box::new([nothing; MAX_SEGMENTS]),
            window: [0; TABLE_BYTES],
            one: regions(1)?,
            many: regions(16)?,
        })
    }

    /// Reads chains ahead: heads and first descriptors.
    fn fetch_batch(&mut self) -> Result<()> {
        let mut batch = Batch::new(BATCH);
        black_box(batch.fetch(&mut self.queue, &self.memory, &mut self.scratch)?);
        Ok(())
    }

    /// Chains of one descriptor, as most are.
    fn chain_of_one(&mut self) -> Result<()> {
        let translator = Translator::guessing(AddressMap::new(&self.one, false), 0);
        for number in 0..BATCH as u64 {
            let first = Desc::new(black_box(memory::buffer(number)));
            black_box(chain::one(&translator, first, Access::Read));
        }
        Ok(())
    }

    /// Chains of three descriptors in a table of their own, as most are that are longer.
    fn table_of_three(&mut self) -> Result<()> {
        let mut translator = Translator::guessing(AddressMap::new(&self.one, false), 0);
        let scratch = &mut self.scratch;
        for _ in 0..BATCH {
            let first = Desc::new(black_box(memory::indirect(TABLE)));
            let (_, taken) =
                chain::table(&self.memory, &mut translator, first, Access::Read, scratch);
            if black_box(taken) == 0 {
                return Err(Error::BadRing);
            }
        }
        Ok(())
    }

    fn walk(&mut self, first: RawDesc) -> Result<()> {
        let mut translator = Translator::new(AddressMap::new(&self.one, false));
        let mut walker = Walker {
            mem: &self.memory,
            table: RingAddr(DESC),
            num: NUM,
            translator: &mut translator,
        };
        for _ in 0..BATCH {
            let mut segments = Segments::new(&mut self.segments, Extent::default());
            let first = Desc::new(black_box(first));
            black_box(walker.walk(first, &mut segments, &mut self.window)?);
        }
        Ok(())
    }

    /// Chains of three descriptors of the ring.
    fn walk_three(&mut self) -> Result<()> {
        self.walk(memory::chain(0))
    }

    /// Chains of three descriptors in a table of their own.
    fn walk_indirect(&mut self) -> Result<()> {
        self.walk(memory::indirect(TABLE))
    }

    /// Addresses of one region.
    fn translate(&mut self) -> Result<()> {
        translate(&self.one, &mut self.segments, 1)
    }

    /// Addresses of sixteen regions in turns.
    fn translate_regions(&mut self) -> Result<()> {
        translate(&self.many, &mut self.segments, 16)
    }

    /// Returns a whole batch.
    fn add_used(&mut self) -> Result<()> {
        let mut batch = Batch::new(BATCH);
        for head in 0..BATCH as u16 {
            batch.take(&mut self.scratch, black_box(head), 0);
        }
        black_box(batch.publish(&mut self.queue, &self.memory, &self.scratch)?);
        Ok(())
    }

    /// Returns chains one by one, and decides each time.
    fn return_one(&mut self) -> Result<()> {
        for head in 0..BATCH as u16 {
            let mut batch = Batch::new(1);
            batch.take(&mut self.scratch, black_box(head), 0);
            black_box(batch.publish(&mut self.queue, &self.memory, &self.scratch)?);
        }
        Ok(())
    }

    /// Decides whether to call.
    fn decide_call(&mut self) -> Result<()> {
        let mut signalled = Signalled::none();
        for index in 0..BATCH as u16 {
            let index = black_box(index);
            signalled.moved(index, 1);
            let old = signalled.decide(index);
            black_box(old.is_none_or(|old| need_event(black_box(0), index, old)));
        }
        Ok(())
    }
}

fn translate(ranges: &[Range], room: &mut [Segment; MAX_SEGMENTS], regions: u64) -> Result<()> {
    let mut translator = Translator::new(AddressMap::new(ranges, false));
    let mut segments = Segments::new(room, Extent::default());
    for number in 0..BATCH as u64 {
        let start = Iova(black_box(number % regions * REGION));
        translator.segments(start, 64, Access::Read, &mut segments)?;
    }
    black_box(segments.extent());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_do_what_they_are_for() {
        let mut steps = Steps::new().unwrap();
        let before = steps.memory.published();
        for (name, step) in STEPS {
            assert!(step(&mut steps).is_ok(), "{name}");
        }
        // Two of the steps return a batch each.
        let after = steps.memory.published();
        assert_eq!(usize::from(after.wrapping_sub(before)), 2 * BATCH);
    }

    #[test]
    fn chains_have_three_segments() {
        let mut steps = Steps::new().unwrap();
        for first in [memory::chain(0), memory::indirect(TABLE)] {
            let mut translator = Translator::new(AddressMap::new(&steps.one, false));
            let mut walker = Walker {
                mem: &steps.memory,
                table: RingAddr(DESC),
                num: NUM,
                translator: &mut translator,
            };
            let mut segments = Segments::new(&mut steps.segments, Extent::default());
            let walked = walker.walk(Desc::new(first), &mut segments, &mut steps.window);
            assert_eq!(walked.unwrap().readable, 3 * 64);
            assert_eq!(segments.extent().segments, 3);
        }
    }
}
