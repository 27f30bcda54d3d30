// SPDX-License-Identifier: GPL-2.0

//! A device, its driver and the driver's IOMMU.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{anyhow, ensure, Context, Result};
use vhost_driver::{Gpa, GuestMemory, RingLayout};
use vhost_load::frame::{Found, Stamp};
use vhost_load::vring::{RX, TX};
use vhost_uapi::iotlb::{Kind, Message, Miss, What, READ, WRITE};
use vhost_uapi::{
    features, netdev, EventFd, MemoryRegion, Offload, PacketSocket, Tap, TapOptions, TunFlags,
    VhostNet, VringAddr,
};

use crate::patience::{patience, wait_for};
use crate::pump::shape;
use crate::raw_ring::{self, Desc, RawRing};
use crate::rig::{HEADER, PACKET};

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// Pages of the driver's memory.
pub(super) const PAGES: u64 = 64;
/// Pages behind the rings: the packets of a buffer lie on the edge between two.
const FIRST_BUFFER: u64 = 24;
const BUFFERS: u16 = 16;
/// Large enough for parts of several pages.
const RING: u32 = 512;
/// How long a miss is waited for that is not to come.
pub(super) const NO_MISS: Duration = Duration::from_millis(50);

/// One ring, seen from the driver.
pub(super) struct Side {
    pub(super) ring: RawRing,
    pub(super) layout: RingLayout,
    pub(super) kick: EventFd,
    pub(super) err: EventFd,
    _call: EventFd,
}

/// A device with a driver behind an IOMMU.
pub(super) struct Rig {
    pub(super) vhost: VhostNet,
    tap: Tap,
    pub(super) wire: PacketSocket,
    pub(super) memory: GuestMemory,
    sides: [Side; 2],
}

impl Rig {
    pub(super) fn new(node: &Path, base: u64, bits: u64) -> Result<Self> {
        let vhost = VhostNet::open(node, true)?;
        vhost.set_owner()?;
        vhost.set_backend_features(2)?;
        vhost.set_features(bits)?;
        // A mapping for each page: they lie in memory in reverse, or anywhere.
        let pages = vec![PAGE as usize; PAGES as usize]; // CAST: 4096; 64.
        let memory = GuestMemory::new(&pages, Some(Gpa(base)))?;
        vhost.set_mem_table(&[table(&memory)])?;

        let options = TapOptions {
            flags: TunFlags::default(),
            vnet_hdr_size: Some(HEADER),
            sndbuf: i32::MAX,
            offload: Offload::None,
        };
        let tap = Tap::create("", &options)?;
        netdev::disable_ipv6(tap.name())?;
        netdev::set_up(tap.name())?;
        let wire = PacketSocket::open(netdev::index(tap.name())?, shape().protocol())?;
        let side = |index: u32| -> Result<Side> {
            // Descriptors, entries and buffers over the edges of pages.
            let start = base + u64::from(index) * 12 * PAGE + 0xff0;
            let layout = RingLayout::new(RING, Gpa(start))?;
            let event_idx = features::has(bits.into(), features::EVENT_IDX);
            let side = Side {
                ring: RawRing::new(memory.clone(), layout, event_idx),
                layout,
                kick: EventFd::new()?,
                err: EventFd::new()?,
                _call: EventFd::new()?,
            };
            vhost.set_vring_num(index, RING)?;
            vhost.set_vring_base(index, 0)?;
            vhost.set_vring_kick(index, Some(side.kick.as_fd()))?;
            vhost.set_vring_call(index, Some(side._call.as_fd()))?;
            vhost.set_vring_err(index, Some(side.err.as_fd()))?;
            Ok(side)
        };
        let sides = [side(RX)?, side(TX)?];
        let this = Self {
            vhost,
            tap,
            wire,
            memory,
            sides,
        };
        this.set_addresses(RX)?;
        this.set_addresses(TX)?;
        Ok(this)
    }

    /// Tells the device where a ring is.
    pub(super) fn set_addresses(&self, index: u32) -> vhost_uapi::Result {
        let RingLayout {
            desc, avail, used, ..
        } = self.side(index).layout;
        let addr = VringAddr {
            flags: 1,
            desc: desc.0,
            used: used.0,
            avail: avail.0,
            log: 0,
        };
        self.vhost.set_vring_addr(index, &addr)
    }

    /// Attaches the tap to both rings.
    pub(super) fn attach_both(&self) -> vhost_uapi::Result {
        let attach = |index| self.vhost.set_backend(index, Some(self.tap.as_fd()));
        attach(RX).and(attach(TX))
    }

    pub(super) fn side(&self, index: u32) -> &Side {
        &self.sides[index as usize] // CAST: 0 or 1.
    }

    /// The page that an address is in.
    pub(super) fn page(&self, iova: u64) -> u64 {
        (iova - self.memory.base().0) / PAGE
    }

    pub(super) fn message(&self, page: u64, what: What, access: u8) -> Message {
        let iova = self.memory.base().0 + page * PAGE;
        Message {
            kind: Kind::V2,
            what,
            iova,
            size: PAGE,
            uva: self.memory.uva(Gpa(iova), PAGE).unwrap_or(0),
            access,
        }
    }

    pub(super) fn map(&self, page: u64, access: u8) -> vhost_uapi::Result {
        self.vhost
            .send_message(&self.message(page, What::Update, access))
    }

    pub(super) fn unmap(&self, page: u64) -> vhost_uapi::Result {
        self.vhost
            .send_message(&self.message(page, What::Invalidate, 0))
    }

    pub(super) fn map_all(&self) -> vhost_uapi::Result {
        (0..PAGES).try_for_each(|page| self.map(page, READ | WRITE))
    }

    /// Attaches the tap; what that touches is mapped.
    pub(super) fn attach(&self) -> Result<()> {
        for index in [RX, TX] {
            self.map(self.page(self.side(index).layout.used.0), READ | WRITE)?;
            self.vhost.set_backend(index, Some(self.tap.as_fd()))?;
        }
        Ok(())
    }

    /// The next miss; it must come.
    pub(super) fn miss(&self) -> Result<Miss> {
        let miss = self.vhost.next_miss(patience())?;
        miss.context("no miss came")
    }

    /// A device that waits for the page of a tx buffer: that page, and the miss that asks for it.
    pub(super) fn missing(node: &Path, bits: u64) -> Result<(Self, u64, Miss)> {
        let rig = Self::new(node, 0x4000_0000, bits)?;
        rig.map_all()?;
        rig.attach()?;
        let page = rig.page(rig.buffer(TX, 0).0);
        rig.unmap(page)?;
        rig.offer(TX, 0);
        rig.side(TX).kick.signal()?;
        let first = rig.miss()?;
        Ok((rig, page, first))
    }

    /// Where buffer `slot` of a ring begins.
    pub(super) fn buffer(&self, index: u32, slot: u16) -> Gpa {
        let at = FIRST_BUFFER + u64::from(index) * 20 + u64::from(slot % BUFFERS);
        self.memory.base() + (at * PAGE + PAGE - 40)
    }

    /// Makes the chain for avail index `at` available.
    pub(super) fn offer(&self, index: u32, at: u16) {
        let side = self.side(index);
        let slot = at % side.ring.num();
        let addr = self.buffer(index, at);
        let (len, flags) = if index == RX {
            (2048, raw_ring::WRITE)
        } else {
            let mut packet = vec![0; HEADER as usize]; // CAST: 12.
            let mut frame = Vec::new();
            let sequence = at.into();
            shape().write(Stamp { flow: 0, sequence }, &mut frame);
            packet.extend(frame);
            self.memory.write(addr, &packet);
            (PACKET, 0)
        };
        let next = 0;
        side.ring.desc(
            slot,
            Desc {
                addr,
                len,
                flags,
                next,
            },
        );
        side.ring.avail(at, slot);
        side.ring.publish(at.wrapping_add(1));
    }

    /// Sends packet `at` to the guest.
    pub(super) fn send(&self, at: u16) -> Result<()> {
        let mut packet = vec![0; PacketSocket::HEADER_SIZE];
        let mut frame = Vec::new();
        let sequence = at.into();
        shape()
            .reversed()
            .write(Stamp { flow: 0, sequence }, &mut frame);
        packet.extend(frame);
        ensure!(self.wire.send(&packet)?, "the wire is full");
        Ok(())
    }

    pub(super) fn expect_used(&self, index: u32, wanted: u16) -> Result<()> {
        let ring = &self.side(index).ring;
        wait_for(|| ring.used_idx() == wanted).with_context(|| {
            let found = ring.used_idx();
            format!("ring {index}: the used index is {found}, not {wanted}")
        })
    }

    /// Moves packet `at` in both directions, and looks at it.
    pub(super) fn packet(&self, at: u16) -> Result<()> {
        self.offer(TX, at);
        self.side(TX).kick.signal()?;
        let mut packet = [0; 2048];
        let found = loop {
            ensure!(self.wire.wait(patience())?, "packet {at} did not leave");
            if let Some(len) = self.wire.receive(&mut packet)? {
                let (header, frame) = packet.split_at(PacketSocket::HEADER_SIZE);
                match shape().read(header, &frame[..len - PacketSocket::HEADER_SIZE]) {
                    Found::Foreign => {}
                    found => break found,
                }
            }
        };
        let sequence = at.into();
        let wanted = Found::Sound(Stamp { flow: 0, sequence });
        ensure!(found == wanted, "packet {at} wanted, seen {found:?}");
        self.expect_used(TX, at.wrapping_add(1))?;

        self.offer(RX, at);
        self.send(at)?;
        self.expect_used(RX, at.wrapping_add(1))?;
        let entry = self.side(RX).ring.used(at);
        let slot = u32::from(at % self.side(RX).ring.num());
        ensure!(entry == (slot, PACKET), "rx: the used entry is {entry:?}");
        let mut packet = [0; PACKET as usize]; // CAST: 76.
        self.memory.read(self.buffer(RX, at), &mut packet);
        let (header, frame) = packet.split_at(HEADER as usize); // CAST: 12.
        let found = shape().reversed().read(header, frame);
        ensure!(found == wanted, "packet {at} wanted, received {found:?}");
        Ok(())
    }
}

/// The memory table: one region that holds all pages, wherever they are.
pub(super) fn table(memory: &GuestMemory) -> MemoryRegion {
    let uvas = memory.regions().iter().map(|region| region.uva);
    let (low, high) = uvas.fold((u64::MAX, 0), |(low, high), uva| {
        (low.min(uva), high.max(uva))
    });
    MemoryRegion {
        guest_phys_addr: 0x10_0000,
        memory_size: high + PAGE - low,
        userspace_addr: low,
    }
}

/// Answers misses until it is told to stop. Counts them.
pub(super) struct Iommu {
    stop: Arc<AtomicBool>,
    misses: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Iommu {
    /// Allows what is missed, and `more`.
    pub(super) fn start(rig: &Arc<Rig>, more: u8) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let misses = Arc::new(AtomicU64::new(0));
        let thread = {
            let (rig, stop, misses) = (Arc::clone(rig), Arc::clone(&stop), Arc::clone(&misses));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Some(miss) = rig.vhost.next_miss(NO_MISS)? {
                        ensure!(miss.kind == Kind::V2, "{miss:x?}");
                        misses.fetch_add(1, Ordering::Relaxed);
                        rig.map(rig.page(miss.iova), miss.access | more)?;
                    }
                }
                Ok(())
            })
        };
        Self {
            stop,
            misses,
            thread,
        }
    }

    /// How many there were.
    pub(super) fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    pub(super) fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow!("the IOMMU panicked");
        self.thread.join().map_err(panicked)??;
        Ok(self.misses.load(Ordering::Relaxed))
    }
}
