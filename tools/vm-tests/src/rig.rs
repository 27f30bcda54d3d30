// SPDX-License-Identifier: GPL-2.0

//! A device with a driver that may break every rule, and the host's end of its wire.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use vhost_driver::Gpa;
use vhost_load::frame::{Found, Shape, Stamp};
use vhost_load::session::{Session, SessionOptions};
use vhost_load::vring::{Vring, RX, TX};
use vhost_uapi::{netdev, MemoryRegion, PacketSocket, VhostNet};

use crate::patience::{patience, scaled, wait_for};
use crate::raw_ring::{Desc, RawRing, WRITE};

/// Bytes of the virtio-net header that the sessions here agree on.
pub const HEADER: u32 = 12;
/// Bytes of a frame.
pub const FRAME: u32 = 64;
/// Bytes of a packet in a buffer.
pub const PACKET: u32 = HEADER + FRAME;
/// Distance between buffers.
pub const BUFFER: u64 = 4096;
/// In the memory table, but where the process can never have memory: below `vm.mmap_min_addr`.
pub const UNMAPPED: Gpa = Gpa(0x8000_0000);
/// Bytes at [`UNMAPPED`].
pub const UNMAPPED_SIZE: u64 = 0x1000;
/// In no region.
pub const OUTSIDE: Gpa = Gpa(0x7000_0000_0000);

/// A device, its rings and the wire.
#[derive(Debug)]
pub struct Rig {
    /// Device, memory, eventfds, worker.
    pub session: Session,
    /// The host's end.
    pub wire: PacketSocket,
    table: Vec<MemoryRegion>,
    tx: RawRing,
    rx: RawRing,
    shape: Shape,
}

impl Rig {
    /// Opens a device and attaches its backend.
    ///
    /// # Errors
    ///
    /// What fails first.
    pub fn new(options: &SessionOptions) -> Result<Self> {
        let rig = Self::detached(options)?;
        rig.session.device.attach()?;
        rig.flush()?;
        Ok(rig)
    }

    /// Waits until the worker has done all that it was asked to do: setting the memory table does.
    ///
    /// # Errors
    ///
    /// Those of `VHOST_SET_MEM_TABLE`.
    pub fn flush(&self) -> Result<()> {
        Ok(self.vhost().set_mem_table(&self.table)?)
    }

    /// The memory table.
    pub fn table(&self) -> &[MemoryRegion] {
        &self.table
    }

    /// Opens a device.
    ///
    /// # Errors
    ///
    /// What fails first.
    pub fn detached(options: &SessionOptions) -> Result<Self> {
        let session = Session::open(options)?;
        let mut table: Vec<MemoryRegion> = session.memory.regions().iter().map(region).collect();
        table.push(MemoryRegion {
            guest_phys_addr: UNMAPPED.0,
            memory_size: UNMAPPED_SIZE,
            userspace_addr: 0x1000,
        });
        session.device.vhost.set_mem_table(&table)?;

        let event_idx =
            vhost_uapi::features::has(options.features, vhost_uapi::features::EVENT_IDX);
        let raw =
            |vring: &Vring| RawRing::new(session.memory.clone(), *vring.queue.layout(), event_idx);
        let (tx, rx) = (raw(&session.tx), raw(&session.rx));
        let shape = Shape::plain(FRAME as usize); // CAST: 64.
        let ifindex = netdev::index(session.device.backend.name())?;
        let wire = PacketSocket::open(ifindex, shape.protocol())?;
        Ok(Self {
            session,
            wire,
            table,
            tx,
            rx,
            shape,
        })
    }

    /// The open node.
    pub fn vhost(&self) -> &VhostNet {
        &self.session.device.vhost
    }

    /// The fields of a ring, [`RX`] or [`TX`].
    pub fn ring(&self, index: u32) -> &RawRing {
        if index == RX {
            &self.rx
        } else {
            &self.tx
        }
    }

    /// The eventfds of a ring.
    pub fn vring(&self, index: u32) -> &Vring {
        if index == RX {
            &self.session.rx
        } else {
            &self.session.tx
        }
    }

    /// Where buffer `slot` of a ring is.
    pub fn buffer(&self, index: u32, slot: u16) -> Gpa {
        let [rx, tx] = self.session.buffers;
        let base = if index == RX { rx } else { tx };
        base + BUFFER * u64::from(slot)
    }

    /// Fills buffer `slot` of the tx ring with the packet that has this number.
    pub fn fill(&self, slot: u16, sequence: u64) {
        let mut frame = Vec::new();
        self.shape.write(Stamp { flow: 0, sequence }, &mut frame);
        let at = self.buffer(TX, slot);
        self.session.memory.write(at, &[0; HEADER as usize]); // CAST: 12.
        self.session.memory.write(at + u64::from(HEADER), &frame);
    }

    /// A descriptor for a whole packet in buffer `slot` of a ring.
    pub fn whole(&self, index: u32, slot: u16) -> Desc {
        let addr = self.buffer(index, slot);
        let (len, flags) = if index == RX {
            (2048, WRITE)
        } else {
            (PACKET, 0)
        };
        Desc {
            addr,
            len,
            flags,
            next: 0,
        }
    }

    /// Makes descriptor `slot` a good chain, the one for avail index `at`; of tx it carries packet number `at`.
    pub fn good(&self, index: u32, at: u16, slot: u16) {
        if index == TX {
            self.fill(slot, u64::from(at));
        }
        let ring = self.ring(index);
        ring.desc(slot, self.whole(index, slot));
        ring.avail(at, slot);
    }

    /// Kicks a ring.
    ///
    /// # Errors
    ///
    /// Those of write(2).
    pub fn kick(&self, index: u32) -> Result<()> {
        Ok(self.vring(index).kick.signal()?)
    }

    /// Sends a packet to the guest.
    ///
    /// # Errors
    ///
    /// Those of send(2), or the wire is full.
    pub fn send(&self, sequence: u64) -> Result<()> {
        let mut frame = Vec::new();
        self.shape
            .reversed()
            .write(Stamp { flow: 0, sequence }, &mut frame);
        let mut packet = vec![0; PacketSocket::HEADER_SIZE];
        packet.extend(frame);
        ensure!(self.wire.send(&packet)?, "the wire is full");
        Ok(())
    }

    /// Waits for the next frame on the wire; it must be the guest's packet of this number.
    ///
    /// # Errors
    ///
    /// None came, or another one.
    pub fn expect_frame(&self, sequence: u64) -> Result<()> {
        let found = self.next_frame(patience())?;
        let found = found.with_context(|| format!("packet {sequence} did not leave"))?;
        let wanted = Found::Sound(Stamp { flow: 0, sequence });
        ensure!(found == wanted, "packet {sequence} wanted, seen {found:?}");
        Ok(())
    }

    /// The next frame on the wire that is ours.
    ///
    /// # Errors
    ///
    /// Those of recv(2).
    pub fn next_frame(&self, timeout: Duration) -> Result<Option<Found>> {
        let end = Instant::now() + timeout;
        let mut packet = [0; 2048];
        loop {
            if let Some(len) = self.wire.receive(&mut packet)? {
                let (header, frame) = packet.split_at(PacketSocket::HEADER_SIZE);
                let frame = &frame[..len.min(packet.len()) - PacketSocket::HEADER_SIZE];
                match self.shape.read(header, frame) {
                    Found::Foreign => continue,
                    found => return Ok(Some(found)),
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.wire.wait(left)?;
        }
    }

    /// The packet in buffer `slot` of the rx ring.
    pub fn received(&self, slot: u16) -> Found {
        let mut packet = [0; PACKET as usize]; // CAST: 76.
        self.session.memory.read(self.buffer(RX, slot), &mut packet);
        let (header, frame) = packet.split_at(HEADER as usize); // CAST: 12.
        self.shape.reversed().read(header, frame)
    }

    /// Waits until the used index of a ring is `wanted`.
    ///
    /// # Errors
    ///
    /// It does not get there, or goes past it.
    pub fn expect_used(&self, index: u32, wanted: u16) -> Result<()> {
        let ring = self.ring(index);
        wait_for(|| ring.used_idx() == wanted).with_context(|| {
            let name = name(index);
            let found = ring.used_idx();
            format!("{name} ring: the used index is {found}, not {wanted}")
        })
    }

    /// Checks the used entry for `at`.
    ///
    /// # Errors
    ///
    /// It returns another head, or another length.
    pub fn expect_entry(&self, index: u32, at: u16, wanted: (u16, u32)) -> Result<()> {
        let found = self.ring(index).used(at);
        let wanted = (u32::from(wanted.0), wanted.1);
        let name = name(index);
        ensure!(
            found == wanted,
            "{name} ring: used entry {at} is (head, length) {found:?}, not {wanted:?}"
        );
        Ok(())
    }

    /// Checks that packet `sequence` is the one in buffer `slot` of the rx ring, returned as used entry `at`.
    ///
    /// # Errors
    ///
    /// It is not.
    pub fn expect_received(&self, at: u16, slot: u16, sequence: u64) -> Result<()> {
        self.expect_used_reached(RX, at)?;
        self.expect_entry(RX, at, (slot, PACKET))?;
        let found = self.received(slot);
        let wanted = Found::Sound(Stamp { flow: 0, sequence });
        ensure!(
            found == wanted,
            "rx buffer {slot}: packet {sequence} wanted, found {found:?}"
        );
        Ok(())
    }

    /// Waits until the chain for avail index `at` was returned.
    ///
    /// # Errors
    ///
    /// It is not.
    pub fn expect_used_reached(&self, index: u32, at: u16) -> Result<()> {
        let ring = self.ring(index);
        let name = name(index);
        wait_for(|| ring.used_idx().wrapping_sub(at) as i16 > 0) // CAST: A distance with its sign.
            .with_context(|| format!("{name} ring: chain {at} was not returned"))
    }

    /// Errors signalled for a ring since the last look.
    ///
    /// # Errors
    ///
    /// Those of read(2).
    pub fn errors(&self, index: u32) -> Result<u64> {
        Ok(self.vring(index).err.take()?)
    }

    /// Waits for an error to be signalled.
    ///
    /// # Errors
    ///
    /// None is.
    pub fn expect_error(&self, index: u32) -> Result<()> {
        let count = self.vring(index).err.wait(patience())?;
        ensure!(count > 0, "{} ring: no error was signalled", name(index));
        Ok(())
    }

    /// Checks that the worker sleeps, and that no errors come.
    ///
    /// # Errors
    ///
    /// It uses the CPU.
    pub fn expect_quiet(&self) -> Result<()> {
        const LOOK: Duration = Duration::from_millis(200);
        const ALLOWED: Duration = Duration::from_millis(10);
        let worker = self
            .session
            .worker
            .as_ref()
            .context("no worker was found")?;
        let cpu = || worker.cpu_time().context("the worker is gone");
        for index in [RX, TX] {
            self.errors(index)?;
        }
        let before = cpu()?;
        std::thread::sleep(LOOK);
        let spent = cpu()?.saturating_sub(before);
        ensure!(
            spent < scaled(ALLOWED),
            "the worker spins: {spent:?} of CPU in {LOOK:?}"
        );
        for index in [RX, TX] {
            let count = self.errors(index)?;
            ensure!(
                count == 0,
                "{} ring: {count} errors signalled while nothing happened",
                name(index)
            );
        }
        Ok(())
    }

    /// The counters of the device, by the names of `/proc/PID/fdinfo`. Empty if the driver has none.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn counters(&self) -> Result<Counters> {
        let fd = self.vhost().as_fd().as_raw_fd();
        let text = fs::read_to_string(Path::new("/proc/self/fdinfo").join(fd.to_string()))?;
        let line = |line: &str| {
            let (key, value) = line.split_once(':')?;
            let key = key.strip_prefix("vhost-")?.replace('_', "-");
            Some((key, value.trim().parse().ok()?))
        };
        Ok(Counters(text.lines().filter_map(line).collect()))
    }
}

/// Counters of a device.
#[derive(Clone, Debug)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Checks that counter `key` of a ring grew by `wanted` since `before`. Nothing to do for a driver without counters.
    ///
    /// # Errors
    ///
    /// It did not, or is not there.
    pub fn expect(&self, before: &Self, index: u32, key: &str, wanted: u64) -> Result<()> {
        let Some(grown) = self.growth(before, index, key)? else {
            return Ok(());
        };
        ensure!(
            grown == wanted,
            "fdinfo: {}-{key} grew by {grown}, not {wanted}",
            name(index)
        );
        Ok(())
    }

    /// Checks that counter `key` of a ring grew since `before`, as [`Counters::expect`] does.
    ///
    /// # Errors
    ///
    /// It did not, or is not there.
    pub fn expect_more(&self, before: &Self, index: u32, key: &str) -> Result<()> {
        let grown = self.growth(before, index, key)?;
        ensure!(
            grown != Some(0),
            "fdinfo: {}-{key} did not grow",
            name(index)
        );
        Ok(())
    }

    /// Packets of a ring that were dropped, whatever for.
    pub fn drops(&self, index: u32) -> u64 {
        let prefix = format!("{}-drop-", name(index));
        let drops = self.0.iter().filter(|(key, _)| key.starts_with(&prefix));
        drops.map(|(_, count)| count).sum()
    }

    /// By how much a counter grew; nothing for a driver without counters.
    fn growth(&self, before: &Self, index: u32, key: &str) -> Result<Option<u64>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = format!("{}-{key}", name(index));
        let find = |counters: &Self| counters.0.get(&key).copied();
        let now = find(self).with_context(|| format!("fdinfo has no {key}"))?;
        Ok(Some(now - find(before).unwrap_or(0)))
    }
}

/// The name of a ring.
pub fn name(index: u32) -> &'static str {
    vhost_load::failure::ring_name(index)
}

/// A region of guest memory for the memory table.
pub fn region(region: &vhost_driver::Region) -> MemoryRegion {
    MemoryRegion {
        guest_phys_addr: region.gpa.0,
        memory_size: region.size,
        userspace_addr: region.uva,
    }
}
