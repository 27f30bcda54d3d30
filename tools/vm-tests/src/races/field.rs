// SPDX-License-Identifier: GPL-2.0

//! A device with traffic that goes on, as soon as it can, whatever is done to it.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use anyhow::{anyhow, Context, Result};
use vhost_driver::{Gpa, GuestMemory, RingLayout};
use vhost_load::vring::{RX, TX};
use vhost_uapi::iotlb::{Kind, Message, What, READ, WRITE};
use vhost_uapi::{
    features, netdev, EventFd, MemoryRegion, Offload, PacketSocket, Tap, TapOptions, TunFlags,
    VhostNet, VringAddr,
};

use super::{Action, Setup};
use crate::dice::Dice;
use crate::patience::{patience, wait_at_most, wait_for, what_goes_on};
use crate::pump;
use crate::raw_ring::{self, Desc, RawRing};
use crate::rig::{HEADER, PACKET};

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// Descriptors of a ring, when all is well. Fewer do as well, as descriptors and avail entries never change.
pub(super) const RING: u32 = 256;
/// Chains that are available at a time, as many as the smallest ring has.
const DEPTH: u16 = 16;
/// Where the buffers begin, and the one that is sent.
const BUFFERS: u64 = 8 * PAGE;
const SENT: u64 = 16 * PAGE;
/// Bytes of the memory: all are in it.
const SIZE: u64 = 18 * PAGE;
/// Bytes of an rx buffer.
const BUFFER: u64 = 2048;
/// Pages of memory that the owner has besides: more than counters may be wrong by.
pub(super) const BALLAST: usize = 2048;

/// Eventfds of a ring.
pub(super) struct Events {
    pub(super) kick: EventFd,
    pub(super) call: EventFd,
    pub(super) err: EventFd,
    /// Another for any of them.
    pub(super) other: EventFd,
}

/// The backend, and the other end of its wire.
pub(super) struct Line {
    pub(super) tap: Tap,
    wire: PacketSocket,
}

/// A device with everything that it needs. The driver's addresses are the owner's, with an IOTLB and without.
pub(super) struct Field {
    pub(super) setup: Setup,
    pub(super) vhost: VhostNet,
    pub(super) memory: GuestMemory,
    pub(super) events: [Events; 2],
    pub(super) offered: u64,
    log: GuestMemory,
    layouts: [RingLayout; 2],
    rings: [RawRing; 2],
    line: RwLock<Line>,
    moved: [AtomicU64; 2],
    stop: AtomicBool,
}

/// One of two.
pub(super) fn at<T>(of: &[T; 2], index: u32) -> &T {
    let [rx, tx] = of;
    if index == RX {
        rx
    } else {
        tx
    }
}

fn events() -> vhost_uapi::Result<Events> {
    Ok(Events {
        kick: EventFd::new()?,
        call: EventFd::new()?,
        err: EventFd::new()?,
        other: EventFd::new()?,
    })
}

impl Line {
    fn new(finite: bool) -> Result<Self> {
        let options = TapOptions {
            flags: TunFlags::default(),
            vnet_hdr_size: Some(HEADER),
            sndbuf: if finite { 100_000 } else { i32::MAX },
            offload: Offload::None,
        };
        let tap = Tap::create("", &options)?;
        netdev::disable_ipv6(tap.name())?;
        netdev::set_up(tap.name())?;
        let wire = PacketSocket::open(netdev::index(tap.name())?, pump::shape().protocol())?;
        Ok(Self { tap, wire })
    }
}

impl Field {
    pub(super) fn new(node: &Path, setup: Setup) -> Result<Self> {
        let vhost = VhostNet::open(node, true)?;
        let memory = GuestMemory::new(&[SIZE as usize], None)?; // CAST: 18 pages.
        let log = GuestMemory::new(&[PAGE as usize], Some(Gpa(0)))?; // CAST: 4096.
        let layout = |index: u64| {
            // Descriptors and entries over the edges of pages.
            let start = memory.base() + index * 3 * PAGE + 0xff0;
            RingLayout::new(RING, start)
        };
        let layouts = [layout(0)?, layout(1)?];
        let rings = layouts.map(|layout| RawRing::new(memory.clone(), layout, setup.event_idx()));
        let this = Self {
            offered: vhost.features()?,
            line: RwLock::new(Line::new(setup.finite())?),
            events: [events()?, events()?],
            moved: [AtomicU64::new(0), AtomicU64::new(0)],
            stop: AtomicBool::new(false),
            setup,
            vhost,
            memory,
            log,
            layouts,
            rings,
        };
        this.write_rings();
        Ok(this)
    }

    pub(super) fn write_rings(&self) {
        let base = self.memory.base();
        let packet = pump::packet();
        self.memory.write(base + SENT, &packet);
        for slot in 0..RING as u16 {
            // CAST: 256.
            let rx = base + (BUFFERS + u64::from(slot) % 16 * BUFFER);
            let chains = [
                (rx, BUFFER as u32, raw_ring::WRITE), // CAST: 2048.
                (base + SENT, PACKET, 0),
            ];
            for (ring, (addr, len, flags)) in self.rings.iter().zip(chains) {
                let next = 0;
                ring.desc(
                    slot,
                    Desc {
                        addr,
                        len,
                        flags,
                        next,
                    },
                );
                ring.avail(slot, slot);
            }
        }
    }

    /// Writes something somewhere: most often where rings are.
    pub(super) fn scribble(&self, dice: &mut Dice) {
        let end = if dice.roll(4) == 0 { SIZE } else { BUFFERS };
        let at = self.memory.base() + dice.roll(end / 2 - 4) * 2;
        let value = dice.bits() >> (dice.roll(8) * 8);
        let bytes = value.to_le_bytes();
        let len = dice.pick(2, &[4, 8]);
        self.memory.write(at, bytes.get(..len).unwrap_or(&bytes));
    }

    /// Tells the threads that drive and answer to end.
    pub(super) fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Backend and wire.
    pub(super) fn line(&self) -> RwLockReadGuard<'_, Line> {
        self.line.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Features as they are when all is well.
    pub(super) fn bits(&self) -> u64 {
        let set = |wanted: bool, bit: u32| u64::from(wanted) << bit;
        1 << features::VERSION_1
            | set(self.setup.event_idx(), features::EVENT_IDX)
            | set(self.setup.platform(), features::ACCESS_PLATFORM)
            | set(self.setup.logs(), features::LOG_ALL)
    }

    /// The log's address, so that the bits of our memory are in its page.
    pub(super) fn log_base(&self) -> u64 {
        let uva = self.log.uva(Gpa(0), 1).unwrap_or(0);
        uva.wrapping_sub(self.memory.base().0 / PAGE / 8)
    }

    /// The memory as a region of the table.
    pub(super) fn whole(&self) -> MemoryRegion {
        let base = self.memory.base().0;
        MemoryRegion {
            guest_phys_addr: base,
            memory_size: SIZE,
            userspace_addr: base,
        }
    }

    /// A message about some of our pages.
    pub(super) fn message(&self, what: What, page: u64, pages: u64) -> Message {
        let iova = self.memory.base().0 + page * PAGE;
        Message {
            kind: Kind::V2,
            what,
            iova,
            size: pages * PAGE,
            uva: iova,
            access: if what == What::Update {
                READ | WRITE
            } else {
                0
            },
        }
    }

    pub(super) fn map_all(&self) -> vhost_uapi::Result {
        self.vhost
            .send_message(&self.message(What::Update, 0, SIZE / PAGE))
    }

    /// Where a ring is.
    pub(super) fn address(&self, index: u32) -> VringAddr {
        let layout = at(&self.layouts, index);
        VringAddr {
            flags: u32::from(self.setup.logs()),
            desc: layout.desc.0,
            used: layout.used.0,
            avail: layout.avail.0,
            log: layout.used.0,
        }
    }

    pub(super) fn attach(&self, index: u32) -> vhost_uapi::Result {
        let line = self.line();
        self.vhost.set_backend(index, Some(line.tap.as_fd()))
    }

    /// From no owner to traffic.
    pub(super) fn set_up(&self) -> vhost_uapi::Result {
        let vhost = &self.vhost;
        vhost.set_fork_from_owner(u8::from(!self.setup.kthread()))?;
        vhost.set_owner()?;
        vhost.set_backend_features(2)?;
        vhost.set_log_base(self.log_base())?;
        vhost.set_features(self.bits())?;
        vhost.set_mem_table(&[self.whole()])?;
        if self.setup.platform() {
            self.map_all()?;
        }
        for index in [RX, TX] {
            let events = at(&self.events, index);
            vhost.set_vring_num(index, RING)?;
            vhost.set_vring_base(index, 0)?;
            vhost.set_vring_addr(index, &self.address(index))?;
            vhost.set_vring_kick(index, Some(events.kick.as_fd()))?;
            vhost.set_vring_call(index, Some(events.call.as_fd()))?;
            vhost.set_vring_err(index, Some(events.err.as_fd()))?;
            vhost.set_vring_busyloop_timeout(index, self.setup.window())?;
            self.attach(index)?;
        }
        Ok(())
    }

    /// Plays the driver and the host's end of the wire, until it is told to stop.
    pub(super) fn drive(&self) {
        let mut turns = [Turn::default(), Turn::default()];
        let packet = pump::packet_to_guest();
        let mut received = [0; 2048];
        while !self.stop.load(Ordering::Relaxed) {
            for (index, turn) in [RX, TX].into_iter().zip(&mut turns) {
                self.turn(index, turn);
            }
            let line = self.line();
            // What the wire has no room for is lost, and all when the interface is gone.
            (0..4).for_each(|_| drop(line.wire.send(&packet)));
            while let Ok(Some(_)) = line.wire.receive(&mut received) {}
            drop(line);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Makes chains available. A ring that stands still may go on somewhere else: then the device is asked where.
    fn turn(&self, index: u32, turn: &mut Turn) {
        const STILL: u32 = 16;
        let (ring, moved) = (at(&self.rings, index), at(&self.moved, index));
        let used = ring.used_idx();
        let grown = used.wrapping_sub(turn.used);
        if grown == 0 {
            turn.still += 1;
        } else {
            moved.fetch_add(u64::from(grown.min(DEPTH)), Ordering::Relaxed);
            turn.still = 0;
        }
        turn.used = used;
        if turn.still % STILL == STILL - 1 {
            if let Ok(base) = self.vhost.vring_base(index) {
                turn.ahead = (base as u16).wrapping_sub(used); // CAST: An index.
            }
        }
        ring.publish(used.wrapping_add(turn.ahead).wrapping_add(DEPTH));
        // A full eventfd is a kick, too.
        let _ = at(&self.events, index).kick.signal();
    }

    /// Answers misses: what is missed is mapped.
    pub(super) fn answer(&self) {
        let base = self.memory.base().0;
        while !self.stop.load(Ordering::Relaxed) {
            let miss = self.vhost.next_miss(Duration::from_millis(2));
            if let Ok(Some(miss)) = miss {
                let page = miss.iova.wrapping_sub(base) / PAGE;
                let _ = self
                    .vhost
                    .send_message(&self.message(What::Update, page, 1));
            } else if miss.is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Waits until packets have moved in both directions.
    pub(super) fn expect_traffic(&self) -> Result<()> {
        const ENOUGH: u64 = 40;
        let before = self.moved();
        let grown = || {
            let now = self.moved();
            [now[0] - before[0], now[1] - before[1]]
        };
        let enough = || grown().iter().all(|grown| *grown >= ENOUGH);
        wait_at_most(patience() * 4, enough).map_err(|_| {
            let [rx, tx] = grown();
            let state = what_goes_on();
            anyhow!("traffic stands still: {rx} packets received, {tx} sent{state}")
        })
    }

    /// Packets received and sent.
    pub(super) fn moved(&self) -> [u64; 2] {
        [RX, TX].map(|index| at(&self.moved, index).load(Ordering::Relaxed))
    }

    /// Whatever was done to the device, it is as good as new after a reset.
    pub(super) fn expect_good(&self) -> Result<()> {
        // It may have no owner.
        let _ = self.vhost.reset_owner();
        if self.setup.has(Action::TapDeleted) {
            let name = self.line().tap.name().to_owned();
            wait_for(|| netdev::index(&name).is_err()).context("the interface stays")?;
            let mut line = self.line.write().unwrap_or_else(PoisonError::into_inner);
            *line = Line::new(self.setup.finite())?;
        }
        self.set_up().context("set up again")?;
        self.expect_traffic().context("set up again")
    }
}

/// What the driver knows of a ring.
#[derive(Default)]
struct Turn {
    used: u16,
    /// How far the device's avail index is ahead of the used index.
    ahead: u16,
    still: u32,
}
