// SPDX-License-Identifier: GPL-2.0

//! What devices stand on here: the guest's memory with two rings in it, a tap, the host's end of its wire.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use anyhow::Result;
use vhost_driver::{Gpa, GuestMemory, RingLayout};
use vhost_uapi::{netdev, EventFd, MemoryRegion, PacketSocket, Tap, VringAddr};

use crate::objects::{set_nonblocking, PLAIN};

/// Descriptors of a ring.
pub const NUM: u16 = 16;
/// Avail index where rings begin: with a ring of another size it is another slot.
pub const BASE: u16 = 10;
/// Bytes of a frame, and of the header before it.
const FRAME: usize = 64;
const HEADER: usize = 12;
/// Where the memory begins for the driver.
const START: Gpa = Gpa(0x10_0000);
const SIZE: usize = 64 << 10;
/// From [`START`] on: the rings, their buffers, and the dirty bitmap.
const RINGS: [u64; 2] = [0, 0x1000];
const BUFFERS: [u64; 2] = [0x4000, 0x5000];
const LOG: u64 = 0x8000;
const LOG_SIZE: usize = 64;

/// The receiving ring.
pub const RX: usize = 0;
/// The sending ring.
pub const TX: usize = 1;

/// Memory, tap and wire; the same for all devices of a driver, one after the other.
#[derive(Debug)]
pub struct Ground {
    memory: GuestMemory,
    layouts: [RingLayout; 2],
    tap: Tap,
    wire: PacketSocket,
    /// Eventfds of the rings.
    pub events: [Events; 2],
    /// How a dirty log tells.
    pub log: EventFd,
}

/// The eventfds of a ring.
#[derive(Debug)]
pub struct Events {
    /// From the driver.
    pub kick: EventFd,
    /// To the driver.
    pub call: EventFd,
    /// To the owner.
    pub err: EventFd,
}

impl Events {
    fn new() -> Result<Self> {
        Ok(Self {
            kick: EventFd::new()?,
            call: EventFd::new()?,
            err: EventFd::new()?,
        })
    }
}

impl Ground {
    /// Makes the tap, takes it up.
    ///
    /// # Errors
    ///
    /// No rights, or no tun module.
    pub fn new() -> Result<Self> {
        let memory = GuestMemory::new(&[SIZE], Some(START))?;
        let layouts = [
            RingLayout::new(NUM.into(), START + RINGS[RX])?,
            RingLayout::new(NUM.into(), START + RINGS[TX])?,
        ];
        let tap = Tap::create("", &PLAIN)?;
        set_nonblocking(tap.as_fd())?;
        netdev::disable_ipv6(tap.name())?;
        netdev::set_up(tap.name())?;
        // For no protocol: it only sends.
        let wire = PacketSocket::open(netdev::index(tap.name())?, 0)?;
        Ok(Self {
            memory,
            layouts,
            tap,
            wire,
            events: [Events::new()?, Events::new()?],
            log: EventFd::new()?,
        })
    }

    /// Takes out what was left by earlier calls: events, packets, marks in the dirty log.
    ///
    /// # Errors
    ///
    /// Those of read(2).
    pub fn refresh(&self) -> Result<()> {
        self.log.take()?;
        for Events { kick, call, err } in &self.events {
            for event in [kick, call, err] {
                event.take()?;
            }
        }
        let mut frame = [0; 2048];
        while nix::unistd::read(&self.tap, &mut frame).is_ok() {}
        self.memory.write(START + BUFFERS[RX], &[0; HEADER]);
        self.memory.write(START + LOG, &[0; LOG_SIZE]);
        Ok(())
    }

    /// Makes the rings as at the beginning.
    pub fn clear(&self) {
        for at in RINGS {
            self.memory.write(START + at, &[0; 512]);
        }
        for (layout, ring) in self.layouts.iter().zip([RX, TX]) {
            let flags: u16 = if ring == RX { 2 } else { 0 }; // The device writes.
            let len: u32 = if ring == RX {
                2048
            } else {
                (HEADER + FRAME) as u32
            }; // CAST: 76.
               // A driver that promises order takes descriptors in order: each is for the same buffer.
            for slot in 0..NUM {
                let desc = layout.desc + 16 * u64::from(slot);
                self.memory.store_u64(desc, (START + BUFFERS[ring]).0);
                self.memory.store_u32(desc + 8, len);
                self.memory.store_u16(desc + 12, flags, Ordering::Relaxed);
            }
            self.memory
                .store_u16(layout.avail_idx(), BASE, Ordering::Relaxed);
            self.memory
                .store_u16(layout.used_idx(), BASE, Ordering::Relaxed);
        }
    }

    /// The tap.
    pub fn tap(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }

    /// The memory table.
    pub fn table(&self) -> Vec<MemoryRegion> {
        let region = |region: &vhost_driver::Region| MemoryRegion {
            guest_phys_addr: region.gpa.0,
            memory_size: region.size,
            userspace_addr: region.uva,
        };
        self.memory.regions().iter().map(region).collect()
    }

    fn uva(&self, gpa: Gpa) -> u64 {
        self.memory.uva(gpa, 1).unwrap_or_default()
    }

    /// Where a ring is for the owner; with `log`, writes to its used part are logged.
    pub fn address(&self, ring: usize, log: bool) -> VringAddr {
        let layout = &self.layouts[ring];
        VringAddr {
            flags: log.into(),
            desc: self.uva(layout.desc),
            used: self.uva(layout.used),
            avail: self.uva(layout.avail),
            log: layout.used.0,
        }
    }

    /// Where a ring is for the driver.
    pub fn io_address(&self, ring: usize) -> VringAddr {
        let layout = &self.layouts[ring];
        VringAddr {
            flags: 0,
            desc: layout.desc.0,
            used: layout.used.0,
            avail: layout.avail.0,
            log: layout.used.0,
        }
    }

    /// Base of a dirty bitmap whose first byte is for the first page of the memory.
    pub fn log_base(&self) -> u64 {
        self.uva(START + LOG) - START.0 / 4096 / 8
    }

    /// Numbers of the pages that the bitmap has, from the beginning of the memory.
    pub fn dirty(&self) -> Vec<usize> {
        let mut bytes = [0; LOG_SIZE];
        self.memory.read(START + LOG, &mut bytes);
        let bit = |bit: &usize| bytes[bit / 8] >> (bit % 8) & 1 == 1;
        (0..LOG_SIZE * 8).filter(bit).collect()
    }

    /// Gives a ring one more buffer, of tx with a packet, and kicks.
    ///
    /// # Errors
    ///
    /// Those of write(2).
    pub fn offer(&self, ring: usize) -> Result<()> {
        let layout = &self.layouts[ring];
        if ring == TX {
            self.memory
                .write(START + BUFFERS[TX] + HEADER as u64, &frame()); // CAST: Widens.
        }
        let at = self.memory.load_u16(layout.avail_idx(), Ordering::Relaxed);
        self.memory
            .store_u16(layout.avail_entry(at), at % NUM, Ordering::Relaxed);
        self.memory
            .store_u16(layout.used_event(), at, Ordering::Relaxed);
        self.memory
            .store_u16(layout.avail_idx(), at.wrapping_add(1), Ordering::Release);
        Ok(self.events[ring].kick.signal()?)
    }

    /// Sends a frame to the guest.
    ///
    /// # Errors
    ///
    /// Those of send(2).
    pub fn send(&self) -> Result<()> {
        let mut packet = vec![0; PacketSocket::HEADER_SIZE];
        packet.extend(frame());
        self.wire.send(&packet)?;
        Ok(())
    }

    /// Bytes that came out of the guest so far.
    ///
    /// # Errors
    ///
    /// The interface is gone.
    pub fn sent_bytes(&self) -> Result<u64> {
        Ok(netdev::statistic(self.tap.name(), "rx_bytes")?)
    }

    /// The avail index of a ring: where a device that has taken all buffers goes on.
    pub fn avail(&self, ring: usize) -> u16 {
        self.memory
            .load_u16(self.layouts[ring].avail_idx(), Ordering::Relaxed)
    }

    /// The used index of a ring.
    pub fn used(&self, ring: usize) -> u16 {
        self.memory
            .load_u16(self.layouts[ring].used_idx(), Ordering::Acquire)
    }

    /// What a ring returned since its used index was `before`, and what was signalled.
    ///
    /// # Errors
    ///
    /// Those of read(2).
    pub fn returned(&self, ring: usize, before: u16) -> Result<String> {
        let used = self.used(ring);
        let entry = self.layouts[ring].used_entry(used.wrapping_sub(1));
        let count = used.wrapping_sub(before);
        let mut text = format!("used {count}");
        if count != 0 {
            let (head, len) = (self.memory.load_u32(entry), self.memory.load_u32(entry + 4));
            let offered = u32::from(used.wrapping_sub(1) % NUM);
            let whose = if head == offered { "its" } else { "another" };
            text.push_str(&format!(", {whose} head, length {len}"));
        }
        if count != 0 && ring == RX {
            let mut header = [0; HEADER];
            self.memory.read(START + BUFFERS[RX], &mut header);
            text.push_str(", ");
            text.push_str(&hex(&header));
        }
        for (what, event) in [
            ("call", &self.events[ring].call),
            ("error", &self.events[ring].err),
        ] {
            if event.take()? != 0 {
                text.push_str(&format!(", {what}"));
            }
        }
        Ok(text)
    }
}

/// Bytes as text.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// An Ethernet frame of a type that nobody takes.
fn frame() -> [u8; FRAME] {
    let mut frame = [0x5a; FRAME];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    frame
}
