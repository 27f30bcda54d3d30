// SPDX-License-Identifier: GPL-2.0

//! The dirty log, against snapshots of memory: every page that the device changed is in it, and no page that it may not write.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use vhost_driver::{Gpa, GuestMemory};
use vhost_load::session::SessionOptions;
use vhost_load::vring::{RX, TX};
use vhost_uapi::{features, EventFd, VhostNet, VringAddr};

use crate::patience::patience;
use crate::pump::{Pump, Side};
use crate::raw_ring::{Desc, WRITE};
use crate::report::{Report, Test};
use crate::rig::{Rig, BUFFER, PACKET};

/// Guest memory that one bit stands for.
const PAGE: u64 = 4096;
/// Bytes of a map: its bits reach past the guest's memory, which begins at 4 GiB.
const MAP_BYTES: usize = 0x2_4000;
const F_LOG: u32 = 1;
/// Large enough for a used ring of three pages.
const RING: u32 = 1024;
/// Entries of a ring that a pump keeps full.
const SMALL_RING: u32 = 128;
const PACKETS: u16 = 40;

/// What is to be logged.
#[derive(Clone, Copy, Debug)]
struct What {
    used: bool,
    buffers: bool,
}

const ALL: What = What {
    used: true,
    buffers: true,
};

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    let offered = VhostNet::open(node, true).and_then(|vhost| vhost.features());
    let offered = offered.unwrap_or_default();
    let mut tests = Vec::new();
    let parts = [(true, false), (false, true), (false, false)];
    let parts = parts.map(|(used, buffers)| What { used, buffers });
    for (bits, whats) in [
        (&[features::EVENT_IDX][..], &[&[ALL], &parts[..]].concat()),
        (&[], &vec![ALL]),
        (&[features::EVENT_IDX, features::MRG_RXBUF], &vec![ALL]),
        (&[features::EVENT_IDX, features::IN_ORDER], &vec![ALL]),
    ] {
        let bits = bits
            .iter()
            .fold(1 << features::VERSION_1, |all, bit| all | 1 << bit);
        if bits & !u128::from(offered) != 0 {
            continue;
        }
        for what in whats {
            let what = *what;
            let described = features::describe(bits);
            let name = format!(
                "{described}: used ring {}, buffers {}",
                what.used, what.buffers
            );
            tests.push(Test::new(name, move || snapshots(node, bits, what)));
        }
    }
    tests.push(Test::new("an eventfd tells of what is logged", move || {
        eventfd(node)
    }));
    tests.push(Test::new(
        "a new map takes over while packets move",
        move || switch(node),
    ));
    tests.push(Test::new("a copy made by the log is complete", move || {
        migrate(node)
    }));
    tests.push(Test::new(
        "a map that is not there stops no packet",
        move || no_map(node),
    ));
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
}

/// A map of dirty pages.
pub(crate) struct Map(GuestMemory);

impl Map {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(GuestMemory::new(&[MAP_BYTES], Some(Gpa(0)))?))
    }

    /// Where the device finds it.
    pub(crate) fn base(&self) -> Result<u64> {
        self.0.uva(Gpa(0), 1).context("a map has an address")
    }

    /// Takes all bits; answers the pages.
    pub(crate) fn take(&self) -> BTreeSet<u64> {
        let mut pages = BTreeSet::new();
        for at in (0..MAP_BYTES as u64).step_by(8) {
            let word = self.0.take_u64(Gpa(at));
            let set = (0..64).filter(|bit| word >> bit & 1 == 1);
            pages.extend(set.map(|bit| at * 8 + bit));
        }
        pages
    }
}

/// The pages of a range.
pub(crate) fn pages(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}

/// Has the used ring logged, or not, where the guest has it.
pub(crate) fn log_used(rig: &Rig, index: u32, on: bool) -> Result<()> {
    let ring = rig.vring(index).queue.layout();
    let memory = &rig.session.memory;
    let uva = |gpa| memory.uva(gpa, 1).context("a ring in guest memory");
    let addr = VringAddr {
        flags: if on { F_LOG } else { 0 },
        desc: uva(ring.desc)?,
        used: uva(ring.used)?,
        avail: uva(ring.avail)?,
        log: ring.used.0,
    };
    Ok(rig.vhost().set_vring_addr(index, &addr)?)
}

/// Where the used ring is.
pub(crate) fn used_ring(rig: &Rig, index: u32) -> Range<u64> {
    let ring = rig.vring(index).queue.layout();
    ring.used.0..ring.avail_event().0 + 2
}

/// A device that logs, and what it may write.
struct Logging {
    rig: Rig,
    map: Map,
    what: What,
}

impl Logging {
    /// A device without its backend yet.
    fn new(node: &Path, bits: u128, what: What, ring_size: u32) -> Result<Self> {
        let log_all = u128::from(what.buffers) << features::LOG_ALL;
        let rig = Rig::detached(&SessionOptions {
            node: node.to_owned(),
            features: bits | log_all,
            ring_size,
            // Over the ring's end.
            start: 65_536u32.wrapping_sub(u32::from(PACKETS) / 2) as u16, // CAST: 65,516.
            buffer_bytes: [u64::from(PACKETS.max(SMALL_RING as u16) + 1) * BUFFER; 2], // CAST: 128.
            ..SessionOptions::default()
        })?;
        let this = Self {
            rig,
            map: Map::new()?,
            what,
        };
        this.rig.vhost().set_log_base(this.map.base()?)?;
        for index in [RX, TX] {
            log_used(&this.rig, index, what.used)?;
        }
        Ok(this)
    }

    /// All of the guest's memory.
    fn snapshot(&self) -> Vec<u8> {
        let memory = &self.rig.session.memory;
        let mut bytes = vec![0; memory.size() as usize]; // CAST: Both have 64 bits.
        memory.read(memory.base(), &mut bytes);
        bytes
    }

    fn used_ring(&self, index: u32) -> Range<u64> {
        used_ring(&self.rig, index)
    }

    /// Where buffer `slot` is for rx: a packet in it lies on two pages.
    fn rx_buffer(&self, slot: u16) -> Range<u64> {
        let at = self.rig.buffer(RX, slot).0 + 20;
        at..at + u64::from(PACKET)
    }

    /// Checks the log of what changed since `before`; the device has stopped. `written` is where packets lie.
    fn check(&self, before: &[u8], written: &[Range<u64>]) -> Result<()> {
        let logged = self.map.take();
        let base = self.rig.session.memory.base().0;
        let rings = [self.used_ring(RX), self.used_ring(TX)];
        let mut changed = 0;
        for (at, (old, new)) in (base..).zip(before.iter().zip(&self.snapshot())) {
            if old == new {
                continue;
            }
            changed += 1;
            let in_ring = rings.iter().any(|ring| ring.contains(&at));
            let in_buffer = written.iter().any(|buffer| buffer.contains(&at));
            ensure!(in_ring || in_buffer, "the device changed {at:#x}");
            let wanted = in_ring && self.what.used || in_buffer && self.what.buffers;
            ensure!(
                !wanted || logged.contains(&(at / PAGE)),
                "the change of {at:#x} is not logged"
            );
        }
        ensure!(changed > 0, "nothing changed");

        let used = rings.iter().filter(|_| self.what.used);
        let buffers = written.iter().filter(|_| self.what.buffers);
        let may: BTreeSet<u64> = used.chain(buffers).flat_map(pages).collect();
        let outside: Vec<_> = logged.difference(&may).collect();
        ensure!(outside.is_empty(), "pages {outside:x?} are logged");
        Ok(())
    }
}

/// Packets in both directions, over the ring's end, and the log of each direction.
fn snapshots(node: &Path, bits: u128, what: What) -> Result<()> {
    let logging = Logging::new(node, bits, what, RING)?;
    let rig = &logging.rig;
    rig.session.device.attach()?;
    rig.flush()?;
    logging.map.take();

    let start = rig.vring(TX).queue.avail_idx();
    let end = start.wrapping_add(PACKETS);
    for round in 0..PACKETS {
        let at = start.wrapping_add(round);
        // As IN_ORDER has it: descriptors in the order of the ring.
        let slot = at % rig.ring(TX).num();
        let rx = Desc {
            addr: Gpa(logging.rx_buffer(round).start),
            len: 2048,
            flags: WRITE,
            next: 0,
        };
        rig.fill(round, at.into());
        for (index, desc) in [(TX, rig.whole(TX, round)), (RX, rx)] {
            rig.ring(index).desc(slot, desc);
            rig.ring(index).avail(at, slot);
        }
    }

    rig.ring(TX).publish(end);
    let before = logging.snapshot();
    rig.kick(TX)?;
    rig.expect_used(TX, end)?;
    rig.flush()?;
    logging.check(&before, &[]).context("tx")?;

    rig.ring(RX).publish(end);
    let before = logging.snapshot();
    for sequence in 0..PACKETS {
        rig.send(sequence.into())?;
    }
    rig.expect_used(RX, end)?;
    rig.flush()?;
    let written: Vec<_> = (0..PACKETS).map(|slot| logging.rx_buffer(slot)).collect();
    logging.check(&before, &written).context("rx")
}

/// One that was bound is told, one that was unbound is not.
fn eventfd(node: &Path) -> Result<()> {
    let logging = Logging::new(node, 1 << features::VERSION_1, ALL, SMALL_RING)?;
    let rig = &logging.rig;
    let [old, new] = [EventFd::new()?, EventFd::new()?];
    rig.vhost().set_log_fd(Some(old.as_fd()))?;
    rig.session.device.attach()?;
    rig.flush()?;
    ensure!(old.take()? > 0, "kicks were turned on, and nobody was told");
    rig.vhost().set_log_fd(Some(new.as_fd()))?;
    let start = rig.vring(TX).queue.avail_idx();
    rig.good(TX, start, 0);
    rig.ring(TX).publish(start.wrapping_add(1));
    rig.kick(TX)?;
    ensure!(new.wait(patience())? > 0, "nobody was told of a packet");
    rig.flush()?;
    rig.vhost().set_log_fd(None)?;
    new.take()?;
    rig.good(TX, start.wrapping_add(1), 1);
    rig.ring(TX).publish(start.wrapping_add(2));
    rig.kick(TX)?;
    rig.expect_used(TX, start.wrapping_add(2))?;
    rig.flush()?;
    let told = [old.take()?, new.take()?];
    ensure!(
        told == [0, 0],
        "eventfds that were unbound are told: {told:?}"
    );
    Ok(())
}

/// A device that logs everything, under traffic.
fn traffic(node: &Path) -> Result<(Moving, Pump)> {
    let bits = 1 << features::VERSION_1 | 1 << features::EVENT_IDX;
    let logging = Logging::new(node, bits, ALL, SMALL_RING)?;
    let rings = [RX, TX].map(|index| logging.used_ring(index));
    let Logging { rig, map, .. } = logging;
    let session = rig.session;
    let [rx_base, tx_base] = session.buffers;
    let buffers = rx_base.0..tx_base.0;
    let (rx, tx) = (
        Side::new(session.rx, rx_base),
        Side::new(session.tx, tx_base),
    );
    session.device.attach()?;
    let pump = Pump::start(rx, tx, rig.wire);
    let [rx_ring, tx_ring] = rings;
    let moving = Moving {
        device: session.device,
        memory: session.memory,
        map,
        written: [rx_ring, tx_ring, buffers],
    };
    Ok((moving, pump))
}

/// What is left of a rig when its rings are a pump's.
struct Moving {
    device: std::sync::Arc<vhost_load::session::Device>,
    memory: GuestMemory,
    map: Map,
    /// What only the device writes.
    written: [Range<u64>; 3],
}

/// When `VHOST_SET_LOG_BASE` returns, nobody writes the map before.
fn switch(node: &Path) -> Result<()> {
    let (moving, pump) = traffic(node)?;
    let mut old = moving.map;
    for _ in 0..10 {
        pump.expect_traffic()?;
        let new = Map::new()?;
        moving.device.vhost.set_log_base(new.base()?)?;
        ensure!(!old.take().is_empty(), "nothing was logged");
        pump.expect_traffic()?;
        let late = old.take();
        ensure!(late.is_empty(), "pages {late:x?} are logged in the old map");
        old = new;
    }
    moving.device.detach()?;
    old.take();
    let late = old.take();
    ensure!(late.is_empty(), "pages {late:x?} are logged after the stop");
    pump.stop()?;
    Ok(())
}

/// Copies memory as a migration does: what the log says, again and again, and the rest of it when the device has stopped.
fn migrate(node: &Path) -> Result<()> {
    let (moving, pump) = traffic(node)?;
    let memory = &moving.memory;
    let mut copy = vec![0; memory.size() as usize]; // CAST: Both have 64 bits.
    memory.read(memory.base(), &mut copy);
    let sync = |copy: &mut [u8]| {
        let dirty = moving.map.take();
        for page in &dirty {
            let offset = (page * PAGE).saturating_sub(memory.base().0) as usize; // CAST: As above.
            if let Some(bytes) = copy.get_mut(offset..) {
                let len = bytes.len().min(PAGE as usize); // CAST: 4096.
                memory.read(Gpa(page * PAGE), &mut bytes[..len]);
            }
        }
        dirty.len()
    };
    let mut dirty = 0;
    for _ in 0..30 {
        pump.expect_traffic()?;
        dirty += sync(&mut copy);
    }
    ensure!(dirty > 30, "{dirty} pages were logged under traffic");
    moving.device.detach()?;
    sync(&mut copy);
    for range in &moving.written {
        let at = (range.start - memory.base().0) as usize; // CAST: As above.
        let len = (range.end - range.start) as usize;
        let mut now = vec![0; len];
        memory.read(Gpa(range.start), &mut now);
        let differs = now
            .iter()
            .zip(&copy[at..at + len])
            .position(|(now, then)| now != then);
        if let Some(offset) = differs {
            anyhow::bail!("{:#x} is not as it was copied", range.start + offset as u64);
        }
    }
    pump.stop()?;
    Ok(())
}

/// The owner has unmapped its map, or never had one.
fn no_map(node: &Path) -> Result<()> {
    let logging = Logging::new(node, 1 << features::VERSION_1, ALL, SMALL_RING)?;
    let rig = &logging.rig;
    // The guest's first page is at 0x20000 in the map: pages that no process has.
    rig.vhost().set_log_base(0)?;
    let before = rig.counters()?;
    rig.session.device.attach()?;
    let start = rig.vring(TX).queue.avail_idx();
    rig.good(TX, start, 0);
    rig.ring(TX).publish(start.wrapping_add(1));
    rig.kick(TX)?;
    rig.expect_used(TX, start.wrapping_add(1))?;
    rig.expect_frame(start.into())?;
    rig.flush()?;
    ensure!(rig.errors(TX)? == 0, "err was signalled");
    rig.counters()?.expect_more(&before, TX, "log-errors")
}
