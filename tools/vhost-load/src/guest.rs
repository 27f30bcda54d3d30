// SPDX-License-Identifier: GPL-2.0

//! What a guest's network driver does with its two rings.

use vhost_driver::{Gpa, GuestMemory, Segment};
use vhost_uapi::features;

use crate::failure::Failure;
use crate::frame::{Shape, Stamp};
use crate::inject;
use crate::plan::Plan;
use crate::vring::{Buffers, Cut, Vring, RX, TX};

/// Sends packets.
#[derive(Debug)]
pub struct TxHalf<'a> {
    vring: &'a mut Vring,
    memory: GuestMemory,
    buffers: Buffers,
    shape: Shape,
    cut: Cut,
    /// Whether each packet is written anew; if not, all are the same, written once.
    write_each: bool,
    packet: Vec<u8>,
    frame: Vec<u8>,
    segments: Vec<Segment>,
}

impl<'a> TxHalf<'a> {
    /// Takes over a tx ring whose buffers begin at `buffers`.
    pub fn new(plan: &Plan, vring: &'a mut Vring, buffers: Gpa) -> Self {
        let len = plan.cut.header + plan.shape.size as u32; // CAST: Below 65536.
        let slots = plan.slots[TX as usize]; // CAST: 1.
        let mut half = Self {
            memory: vring.queue.memory().clone(),
            vring,
            buffers: Buffers::new(buffers, Plan::stride(len), slots),
            shape: plan.shape,
            cut: plan.cut,
            write_each: !plan.options.no_verify,
            packet: Vec::new(),
            frame: Vec::new(),
            segments: Vec::new(),
        };
        half.compose(Stamp {
            flow: 0,
            sequence: 0,
        });
        for slot in 0..slots {
            half.memory.write(half.buffers.address(slot), &half.packet);
        }
        half
    }

    /// The ring.
    pub fn vring(&mut self) -> &mut Vring {
        self.vring
    }

    /// Makes `packet`: header and frame.
    fn compose(&mut self, stamp: Stamp) {
        self.shape.write(stamp, &mut self.frame);
        let header = self.shape.header();
        self.packet.clear();
        self.packet
            .extend_from_slice(&header[..self.cut.header as usize]); // CAST: 10, 12 or 24.
        self.packet.extend_from_slice(&self.frame);
    }

    /// Whether another packet can be added.
    pub fn has_room(&self) -> bool {
        self.buffers.has_free() && self.vring.queue.has_room(self.cut.descriptors as usize)
    }

    /// Adds a packet. The device sees it when the ring is published.
    ///
    /// # Errors
    ///
    /// [`Failure::State`] if there is no [room](TxHalf::has_room).
    pub fn push(&mut self, stamp: Stamp, corrupt: bool) -> Result<(), Failure> {
        let slot = self.take()?;
        let start = self.buffers.address(slot);
        if self.write_each {
            self.compose(stamp);
            if corrupt {
                inject::corrupt(&mut self.packet);
            }
            self.memory.write(start, &self.packet);
        }
        let len = self.packet.len() as u32; // CAST: Below 65536 + 24.
        self.cut.segments(start, len, false, &mut self.segments);
        self.add(slot)
    }

    /// Adds `len` bytes of a buffer, which the device may write to or not: no packet that a host gets.
    ///
    /// # Errors
    ///
    /// As [`TxHalf::push`].
    pub fn push_wrong(&mut self, len: u32, writable: bool) -> Result<(), Failure> {
        let slot = self.take()?;
        let addr = self.buffers.address(slot);
        self.segments.clear();
        self.segments.push(Segment {
            addr,
            len,
            writable,
        });
        self.add(slot)
    }

    fn take(&mut self) -> Result<u32, Failure> {
        let none = || Failure::State("tx ring: no buffer is free".to_owned());
        self.buffers.take().ok_or_else(none)
    }

    fn add(&mut self, slot: u32) -> Result<(), Failure> {
        let broken = |source| Failure::Device { index: TX, source };
        self.vring.queue.add(&self.segments, slot).map_err(broken)
    }

    /// Takes back what was sent, `most` packets at most. Returns how many.
    ///
    /// # Errors
    ///
    /// [`Failure::Device`] if the device broke the rules of the ring.
    pub fn reap(&mut self, most: u16) -> Result<u64, Failure> {
        let mut count = 0;
        while count < u64::from(most) {
            let Some(used) = self.vring.pop_used()? else {
                break;
            };
            self.buffers.put(used.token);
            count += 1;
        }
        Ok(count)
    }
}

/// Receives packets.
#[derive(Debug)]
pub struct RxHalf<'a> {
    vring: &'a mut Vring,
    memory: GuestMemory,
    buffers: Buffers,
    cut: Cut,
    len: u32,
    refill_at: u16,
    mergeable: bool,
    modern: bool,
    /// Whether packets are looked at; if not, they are counted only.
    read_each: bool,
    packet: Vec<u8>,
    /// Buffers of the packet in hand that have not come yet.
    awaited: u16,
    segments: Vec<Segment>,
}

impl<'a> RxHalf<'a> {
    /// Takes over an rx ring whose buffers begin at `buffers`.
    pub fn new(plan: &Plan, vring: &'a mut Vring, buffers: Gpa) -> Self {
        let slots = plan.slots[RX as usize]; // CAST: 0.
        Self {
            memory: vring.queue.memory().clone(),
            vring,
            buffers: Buffers::new(buffers, Plan::stride(plan.rx_len), slots),
            cut: plan.cut,
            len: plan.rx_len,
            refill_at: plan.refill_at(),
            mergeable: plan.mergeable(),
            modern: features::has(plan.session.features, features::VERSION_1),
            read_each: !plan.options.no_verify,
            packet: Vec::new(),
            awaited: 0,
            segments: Vec::new(),
        }
    }

    /// The ring.
    pub fn vring(&mut self) -> &mut Vring {
        self.vring
    }

    /// Gives the device buffers, if few enough are left.
    ///
    /// # Errors
    ///
    /// Those of the kick.
    pub fn refill(&mut self) -> Result<(), Failure> {
        if self.vring.queue.outstanding() > self.refill_at {
            return Ok(());
        }
        let mut added = false;
        while self.vring.queue.has_room(self.cut.descriptors as usize) {
            let Some(slot) = self.buffers.take() else {
                break;
            };
            let start = self.buffers.address(slot);
            self.cut.segments(start, self.len, true, &mut self.segments);
            let broken = |source| Failure::Device { index: RX, source };
            self.vring.queue.add(&self.segments, slot).map_err(broken)?;
            added = true;
        }
        if added {
            self.vring.publish()?;
        }
        Ok(())
    }

    /// Takes what has arrived, and hands each whole packet on: header and frame, empty if packets are not looked at.
    /// Returns how many.
    ///
    /// # Errors
    ///
    /// [`Failure::Device`] and [`Failure::State`] if the device broke a rule.
    pub fn drain(&mut self, mut packet: impl FnMut(&[u8], &[u8])) -> Result<u64, Failure> {
        let mut count = 0;
        while let Some(used) = self.vring.pop_used()? {
            let start = self.buffers.address(used.token);
            if self.awaited == 0 {
                self.packet.clear();
                self.awaited = self.buffers_of(start, used.len)?;
            }
            self.awaited -= 1;
            if self.read_each {
                let from = self.packet.len();
                self.packet.resize(from + used.len as usize, 0);
                self.memory.read(start, &mut self.packet[from..]);
            }
            self.buffers.put(used.token);
            if self.awaited == 0 {
                let header = (self.cut.header as usize).min(self.packet.len()); // CAST: 10, 12 or 24.
                let (header, frame) = self.packet.split_at(header);
                packet(header, frame);
                count += 1;
            }
        }
        Ok(count)
    }

    /// How many buffers the packet takes that begins here.
    fn buffers_of(&self, start: Gpa, len: u32) -> Result<u16, Failure> {
        const NUM_BUFFERS: usize = 10;
        if len < self.cut.header {
            return Err(Failure::State(format!(
                "rx ring: {len} bytes used, the header alone has {}",
                self.cut.header
            )));
        }
        if !self.mergeable && !self.modern {
            return Ok(1);
        }
        let mut header = [0; NUM_BUFFERS + 2];
        self.memory.read(start, &mut header);
        let count = u16::from_le_bytes([header[NUM_BUFFERS], header[NUM_BUFFERS + 1]]);
        let most = if self.mergeable {
            self.vring.queue.layout().num
        } else {
            1
        };
        if count == 0 || count > most {
            return Err(Failure::State(format!(
                "rx ring: num_buffers is {count}, not 1 to {most}"
            )));
        }
        Ok(count)
    }
}
