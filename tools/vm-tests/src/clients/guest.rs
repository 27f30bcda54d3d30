// SPDX-License-Identifier: GPL-2.0

//! The guest behind a client: its memory, its network driver, and packets that go round.

use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use vhost_driver::{CallWhen, Gpa, GuestMemory, Indirect, RingFeatures, RingLayout, Virtqueue};
use vhost_load::frame::{Found, Stamp};
use vhost_load::vring::{Buffers, Cut, Vring, RX, TX};
use vhost_uapi::{features, wait_readable, VringAddr};

use crate::patience::scaled;
use crate::pump::shape;
use crate::rig::{name, HEADER, PACKET};

/// Packets that go round together. Fewer than a ring, a tap or a socket holds.
pub(super) const BURST: u64 = 16;
/// How long to wait for a call before looking whether it was lost, or never to come.
const LOOK_AROUND: Duration = Duration::from_millis(5);
/// How long to wait for a packet or a call that must come, on a machine however busy.
const LIMIT: Duration = Duration::from_secs(20);
/// Descriptors of a ring.
const NUM: u16 = 256;
/// Bytes of a buffer.
const STRIDE: u64 = 2048;
/// Descriptors of an indirect table.
const ENTRIES: u16 = 4;
/// Bytes of one ring with its indirect tables.
const RING: u64 = 0x10000;

/// Where a guest's memory is, to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addresses {
    /// Where a machine has it.
    Own,
    /// Where the owner has it.
    Identity,
}

/// A guest.
#[derive(Debug)]
pub(super) struct Guest {
    /// All that it has.
    pub(super) memory: GuestMemory,
    number: u32,
    features: u64,
    rings: [Ring; 2],
    sequence: u64,
}

/// A ring with its buffers.
#[derive(Debug)]
struct Ring {
    vring: Vring,
    buffers: Buffers,
    /// Whether calls come to the guest's own eventfd.
    called: bool,
    /// Calls that had come when one was wished for.
    calls: u64,
}

impl Guest {
    /// Guest `number`, whose driver has agreed on `features` with the client. The client may tell vhost something else.
    pub(super) fn new(number: u32, features: u64, addresses: Addresses) -> Result<Self> {
        let base = (addresses == Addresses::Own).then_some(Gpa(0x1_0000_0000));
        let bytes = 2 * (RING + STRIDE * u64::from(NUM));
        let memory = GuestMemory::new(&[usize::try_from(bytes)?], base)?;
        let ring = |index| Ring::new(&memory, features, index);
        let rings = [ring(RX)?, ring(TX)?];
        Ok(Self {
            memory,
            number,
            features,
            rings,
            sequence: 0,
        })
    }

    /// The guest resets its device, or one ring of it: the driver begins anew, with the eventfds that the machine has.
    pub(super) fn reset(&mut self, index: u32) -> Result<()> {
        let queue = virtqueue(&self.memory, self.features, index)?;
        let ring = self.ring(index);
        ring.vring.queue = queue;
        ring.buffers = buffers(&ring.vring.queue, index);
        Ok(())
    }

    fn ring(&mut self, index: u32) -> &mut Ring {
        &mut self.rings[usize::from(index == TX)]
    }

    /// A ring and its eventfds.
    pub(super) fn vring(&self, index: u32) -> &Vring {
        &self.rings[usize::from(index == TX)].vring
    }

    /// Says whether calls of a ring come to the guest. If not, it looks by itself.
    pub(super) fn expect_calls(&mut self, index: u32, come: bool) {
        self.ring(index).called = come;
    }

    /// Where a ring is, as the owner has it.
    pub(super) fn ring_addr(&self, index: u32) -> Result<VringAddr> {
        let ring = self.vring(index).queue.layout();
        let uva = |gpa| self.memory.uva(gpa, 1).context("a ring outside of memory");
        Ok(VringAddr {
            flags: 0,
            desc: uva(ring.desc)?,
            used: uva(ring.used)?,
            avail: uva(ring.avail)?,
            log: uva(ring.used)?,
        })
    }

    /// Gives the device all buffers for receiving.
    pub(super) fn post(&mut self) -> Result<()> {
        let ring = self.ring(RX);
        ring.want_call()?;
        let Ring { vring, buffers, .. } = ring;
        while let Some(slot) = buffers.take() {
            let segments = segments(buffers.address(slot), STRIDE as u32, RX); // CAST: 2048.
            vring.queue.add(&segments, slot)?;
        }
        Ok(vring.publish()?)
    }

    /// Makes a burst of packets available. Returns their numbers.
    pub(super) fn send(&mut self) -> Result<Range<u64>> {
        let first = self.sequence;
        self.sequence += BURST;
        let (flow, memory) = (self.number, self.memory.clone());
        let ring = self.ring(TX);
        ring.want_call()?;
        let Ring { vring, buffers, .. } = ring;
        let mut packet = Vec::new();
        for sequence in first..first + BURST {
            let slot = buffers.take().context("tx ring: no buffer is free")?;
            shape().write(Stamp { flow, sequence }, &mut packet);
            let at = buffers.address(slot);
            memory.write(at, &[0; HEADER as usize]); // CAST: 12.
            memory.write(at + u64::from(HEADER), &packet);
            vring.queue.add(&segments(at, PACKET, TX), slot)?;
        }
        vring.publish()?;
        Ok(first..first + BURST)
    }

    /// Waits until the device is done with all packets that were made available.
    pub(super) fn sent(&mut self) -> Result<()> {
        let ring = self.ring(TX);
        ring.expect_call()?;
        let Ring { vring, buffers, .. } = ring;
        let end = Instant::now() + scaled(LIMIT);
        while vring.queue.outstanding() > 0 {
            let left = vring.queue.outstanding();
            ensure!(Instant::now() < end, "tx ring: {left} packets do not leave");
            vring.wait_call(CallWhen::Next, LOOK_AROUND)?;
            while let Some(used) = vring.pop_used()? {
                buffers.put(used.token);
            }
        }
        Ok(())
    }

    /// Waits for the packets of guest `from` with these numbers: in order, each as it was sent.
    pub(super) fn receive(&mut self, from: u32, wanted: Range<u64>) -> Result<()> {
        self.ring(RX).expect_call()?;
        let end = Instant::now() + scaled(LIMIT);
        let mut next = wanted.start;
        let memory = self.memory.clone();
        while next < wanted.end {
            let Ring { vring, buffers, .. } = self.ring(RX);
            let Some(used) = vring.pop_used()? else {
                ensure!(
                    Instant::now() < end,
                    "packet {next} of {wanted:?} is missing"
                );
                vring.wait_call(CallWhen::Next, LOOK_AROUND)?;
                continue;
            };
            let mut packet = vec![0; usize::try_from(used.len)?];
            memory.read(buffers.address(used.token), &mut packet);
            buffers.put(used.token);
            let split = packet.split_at_checked(HEADER as usize); // CAST: 12.
            let (header, frame) = split.with_context(|| format!("{} bytes received", used.len))?;
            ensure!(
                header[10..12] == [1, 0],
                "num_buffers: {:?}",
                &header[10..12]
            );
            match shape().reversed().read(header, frame) {
                Found::Foreign => continue,
                Found::Sound(Stamp { flow, sequence }) if (flow, sequence) == (from, next) => {
                    next += 1
                }
                found => {
                    return Err(anyhow!(
                        "packet {next} of guest {from} wanted, seen {found:?}"
                    ))
                }
            }
        }
        Ok(())
    }
}

impl Ring {
    fn new(memory: &GuestMemory, features: u64, index: u32) -> Result<Self> {
        let queue = virtqueue(memory, features, index)?;
        Ok(Self {
            buffers: buffers(&queue, index),
            vring: Vring::new(index, queue)?,
            called: false,
            calls: 0,
        })
    }

    /// Wishes for a call of the next used chain, before there can be one: then it must come.
    fn want_call(&mut self) -> Result<()> {
        self.vring.take_calls()?;
        self.calls = self.vring.calls();
        self.vring.queue.enable_calls(CallWhen::Next);
        Ok(())
    }

    /// Waits for the call, if calls come. Meanwhile nothing takes the wish back, as a look at the ring that finds nothing
    /// would in the end: then what is used next may have no call.
    fn expect_call(&mut self) -> Result<()> {
        if !self.called || self.vring.calls() > self.calls {
            return Ok(());
        }
        wait_readable(&[self.vring.call.as_fd()], scaled(LIMIT))?;
        let count = self.vring.take_calls()?;
        ensure!(count > 0, "{} ring: no call came", name(self.vring.index));
        Ok(())
    }
}

fn virtqueue(memory: &GuestMemory, agreed: u64, index: u32) -> Result<Virtqueue> {
    let start = memory.base() + RING * u64::from(index);
    let layout = RingLayout::new(u32::from(NUM), start)?;
    let has = |bit| features::has(u128::from(agreed), bit);
    let tables = start + RingLayout::size(NUM).next_multiple_of(64);
    let indirect = Indirect {
        tables,
        entries: ENTRIES,
    };
    let features = RingFeatures {
        event_idx: has(features::EVENT_IDX),
        indirect: has(features::INDIRECT).then_some(indirect),
        notify_on_empty: has(features::NOTIFY_ON_EMPTY),
        in_order: has(features::IN_ORDER),
    };
    Ok(Virtqueue::new(memory.clone(), layout, features, 0)?)
}

fn buffers(queue: &Virtqueue, index: u32) -> Buffers {
    let first = queue.memory().base() + 2 * RING + STRIDE * u64::from(NUM) * u64::from(index);
    // A chain to be sent has two descriptors, which only an indirect one has outside of the ring.
    Buffers::new(first, STRIDE, u32::from(NUM) / 2)
}

/// A chain: to be sent it has the header apart, as drivers without `ANY_LAYOUT` must have it.
fn segments(at: Gpa, len: u32, index: u32) -> Vec<vhost_driver::Segment> {
    let cut = Cut {
        header: HEADER,
        descriptors: if index == TX { 2 } else { 1 },
    };
    let mut segments = Vec::new();
    cut.segments(at, len, index == RX, &mut segments);
    segments
}
