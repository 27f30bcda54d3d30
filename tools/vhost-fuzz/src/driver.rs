// SPDX-License-Identifier: GPL-2.0

//! What a driver writes to memory, before a run and meanwhile.

use arbitrary::Arbitrary;
use vhost_engine::engine::host::End;

use crate::arena::BASE;
use crate::model::{desc_bytes, Place, NEXT, WRITE};
use crate::rig::{Rig, GPA};

/// Memory calls that a run may take: 256 turns of some calls each, and the
/// descriptors that the budget has, a packet's 1,024 beyond its end.
pub const LIMIT: u64 = 256 * 20 + 0x80000 / 64 + 1024;

/// Where buffers begin in the guest's memory, behind tables and headers.
const DATA: u64 = 0x2000;
/// Bytes of a buffer that would do.
const USUAL: u32 = 1600;

/// An address in a descriptor.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Addr {
    /// In the first 64 KiB.
    Near(u16),
    /// An entry of the table there.
    Table(u8),
    /// Somewhere in the buffers, or close behind them.
    Far(u32),
    Raw(u64),
}

impl Addr {
    pub fn value(self) -> u64 {
        match self {
            Self::Near(at) => GPA + u64::from(at),
            Self::Table(entry) => GPA + 16 * u64::from(entry),
            Self::Far(at) => GPA + u64::from(at) % 0x40_1000,
            Self::Raw(at) => at,
        }
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Len {
    Short(u8),
    /// Of so many descriptors.
    Entries(u8),
    Long(u16),
    Raw(u32),
}

impl Len {
    fn value(self) -> u32 {
        match self {
            Self::Short(len) => len.into(),
            Self::Entries(count) => 16 * u32::from(count),
            Self::Long(len) => len.into(),
            Self::Raw(len) => len,
        }
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Desc {
    at: Addr,
    len: Len,
    flags: u8,
    next: u8,
}

impl Desc {
    fn bytes(self) -> Vec<u8> {
        let flags = u16::from(self.flags & 7) | u16::from(self.flags >> 3) << 11;
        desc_bytes(self.at.value(), self.len.value(), flags, self.next.into())
    }
}

/// A write of the driver's.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Change {
    /// A descriptor of the ring.
    Desc(u8, Desc),
    /// A descriptor of a table among the buffers.
    Entry(u8, Desc),
    /// A head in the avail ring.
    Head(u8, u16),
    /// The avail index, so far from where it was.
    Index(i8),
    IndexTo(u16),
    Event(u16),
    Flags(u16),
    /// A header, at a place where buffers are likely to be.
    Header(u8, [u8; 12]),
}

/// A write, after so many memory calls of a run.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Act {
    after: u8,
    change: Change,
}

/// Where the driver writes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub place: Place,
    /// Where [`GPA`] is.
    pub buffers: u64,
}

impl Memory {
    /// Does `change` in `bytes`, which begin at [`BASE`].
    pub fn change(&self, bytes: &mut [u8], change: Change) {
        let place = &self.place;
        let slot = |index: u8| u64::from(u16::from(index) % place.num);
        let (at, data) = match change {
            Change::Desc(i, desc) => (place.desc + 16 * slot(i), desc.bytes()),
            Change::Entry(i, desc) => (self.buffers + 16 * u64::from(i), desc.bytes()),
            Change::Head(i, head) => (place.avail + 4 + 2 * slot(i), head.to_le_bytes().into()),
            Change::Index(step) => {
                let at = (place.avail_idx() - BASE) as usize;
                let index = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
                let index = index.wrapping_add_signed(step.into());
                (place.avail_idx(), index.to_le_bytes().into())
            }
            Change::IndexTo(index) => (place.avail_idx(), index.to_le_bytes().into()),
            Change::Event(event) => (place.used_event(), event.to_le_bytes().into()),
            Change::Flags(flags) => (place.avail, flags.to_le_bytes().into()),
            Change::Header(i, header) => (self.buffers + buffer(i.into()), header.into()),
        };
        let at = (at - BASE) as usize;
        if let Some(to) = bytes.get_mut(at..at + data.len()) {
            to.copy_from_slice(&data);
        }
    }

    /// A ring that would do: each descriptor a buffer of its own, each head in
    /// its place.
    pub fn fill(&self, bytes: &mut [u8], write: bool) {
        let flags = if write { WRITE } else { 0 };
        let mut poke = |at: u64, data: &[u8]| {
            let at = (at - BASE) as usize;
            bytes[at..at + data.len()].copy_from_slice(data);
        };
        for i in 0..self.place.num {
            let next = (i + 1) % self.place.num;
            let desc = desc_bytes(GPA + buffer(i.into()), USUAL, flags, next);
            poke(self.place.desc + 16 * u64::from(i), &desc);
            poke(self.place.avail_slot(i), &i.to_le_bytes());
        }
        for i in 0..32 {
            let more = if i % 8 == 7 { 0 } else { NEXT };
            let desc = desc_bytes(GPA + buffer(i), 300, flags | more, i as u16 + 1);
            poke(self.buffers + 16 * i, &desc);
        }
    }

    /// What the driver does while a run looks.
    pub fn intruder(self, acts: Vec<Act>) -> impl FnMut(&mut [u8], u64) {
        let mut acts = acts.into_iter().peekable();
        let mut waited = 0;
        move |bytes, _| {
            waited += 1;
            while let Some(act) = acts.next_if(|act| waited > u64::from(act.after)) {
                self.change(bytes, act.change);
                waited = 0;
            }
        }
    }
}

/// Offset of a buffer that would do.
fn buffer(index: u64) -> u64 {
    DATA + u64::from(USUAL) * index
}

/// How a busy-poll window ends; none if it is none.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Window {
    None,
    Time,
    Packet,
    Work,
    Turn,
}

impl Window {
    pub fn push(self, rig: &mut Rig<'_, '_>) {
        let end = match self {
            Self::None => return rig.host.no_window(),
            Self::Time => End::Time,
            Self::Packet => End::Packet,
            Self::Work => End::Work,
            Self::Turn => End::Turn,
        };
        rig.host.window(end, |_| ());
    }
}
