// SPDX-License-Identifier: GPL-2.0

//! The device IOTLB: this program is the IOMMU of a driver whose memory is in pages that lie about.

mod changes;
mod places;
mod rig;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, ensure, Context, Result};
use vhost_driver::{Gpa, GuestMemory};
use vhost_load::frame::{Found, Stamp};
use vhost_load::vring::{RX, TX};
use vhost_uapi::features;
use vhost_uapi::iotlb::{READ, WRITE};

pub(crate) use self::changes::forgotten;
pub(crate) use self::places::{nowhere, over_the_end, windows};
use self::rig::{table, Iommu, Rig, NO_MISS, PAGE, PAGES};
use crate::patience::patience;
use crate::pump::shape;
use crate::report::{Report, Test};
use crate::rig::{HEADER, PACKET};

const BITS: u64 =
    1 << features::VERSION_1 | 1 << features::ACCESS_PLATFORM | 1 << features::EVENT_IDX;

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    type Body = fn(&Path) -> Result<()>;
    let all: [(&str, Body); 10] = [
        (
            "packets pass through pages that are missed one by one",
            |node| traffic(node, 0x4000_0000),
        ),
        ("packets pass at the top of the address space", |node| {
            traffic(node, (0u64.wrapping_sub((PAGES + 1) * PAGE)) & !0xffff)
        }),
        ("pages are taken away while packets pass", taken_away),
        ("an invalidated page is not touched", invalidated),
        ("a page without the permission breaks the ring", permissions),
        ("a vring asks once, and again when it is forgotten", once),
        (
            "a hole in a ring is asked for before anything is done",
            holes,
        ),
        (
            "rings and buffers are logged where the memory table has them",
            logged,
        ),
        ("a reader is let go when the IOTLB goes", changes::reader),
        (
            "all is changed while packets pass, and the device works",
            changes::chaos,
        ),
    ];
    let mut tests: Vec<_> = all
        .into_iter()
        .map(|(name, body)| Test::new(name, move || body(node)))
        .collect();
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
}

/// Only what is missed is mapped; rings and packets lie on the edges of pages.
fn traffic(node: &Path, base: u64) -> Result<()> {
    let rig = Arc::new(Rig::new(node, base, BITS)?);
    rig.attach()?;
    let iommu = Iommu::start(&rig, 0);
    let result = (0..520).try_for_each(|at| rig.packet(at));
    let misses = iommu.finish()?;
    result?;
    // The rings' 12 and more pages, and 17 of buffers, in either direction.
    ensure!(misses >= 40, "{misses} misses for all pages");
    Ok(())
}

/// Pages go away at any time, and come back when they are missed.
fn taken_away(node: &Path) -> Result<()> {
    let rig = Arc::new(Rig::new(node, 0x4000_0000, BITS)?);
    rig.attach()?;
    // Avail and used ring share a page, and C asks for one permission only.
    let iommu = Iommu::start(&rig, READ | WRITE);
    let stop = Arc::new(AtomicBool::new(false));
    let taken = Arc::new(AtomicU64::new(0));
    let taker = {
        let (rig, stop, taken) = (Arc::clone(&rig), Arc::clone(&stop), Arc::clone(&taken));
        std::thread::spawn(move || -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                let nth = taken.fetch_add(1, Ordering::Relaxed);
                rig.unmap(nth * 7 % PAGES)?;
                std::thread::sleep(Duration::from_micros(300));
            }
            Ok(())
        })
    };
    // On a fast machine packets pass before much was taken away.
    let few = || taken.load(Ordering::Relaxed) <= 100 || iommu.misses() <= 100;
    let result = (0..u16::MAX)
        .take_while(|at| *at < 300 || few())
        .try_for_each(|at| rig.packet(at));
    stop.store(true, Ordering::Relaxed);
    taker.join().map_err(|_| anyhow!("the taker panicked"))??;
    let (taken, misses) = (taken.load(Ordering::Relaxed), iommu.finish()?);
    result.with_context(|| format!("after {taken} invalidations and {misses} misses"))?;
    ensure!(
        taken > 100 && misses > 100,
        "{taken} taken, {misses} missed"
    );
    Ok(())
}

/// When an invalidation has returned, the page stays as it is until it is mapped again.
fn invalidated(node: &Path) -> Result<()> {
    let rig = Rig::new(node, 0x4000_0000, BITS)?;
    rig.map_all()?;
    rig.attach()?;
    for at in (0..40).step_by(2) {
        rig.packet(at)?;
        let buffer = rig.buffer(RX, at + 1);
        let page = rig.page(buffer.0);
        rig.unmap(page)?;
        rig.memory.write(buffer, &[0xee; PACKET as usize]); // CAST: 76.
        rig.offer(RX, at + 1);
        rig.send(at + 1)?;
        let miss = rig.miss()?;
        ensure!(miss.access == WRITE, "{miss:x?}");
        ensure!(
            miss.iova == buffer.0,
            "{:x} missed, not {:x}",
            miss.iova,
            buffer.0
        );
        let mut now = [0; PACKET as usize]; // CAST: 76.
        rig.memory.read(buffer, &mut now);
        ensure!(now == [0xee; PACKET as usize], "it was written"); // CAST: 76.
        ensure!(rig.side(RX).ring.used_idx() == at + 1, "the chain was used");
        // It waits, and is received now.
        rig.map(page, READ | WRITE)?;
        rig.expect_used(RX, at + 2)?;
        // The next round begins with a chain of its own for rx.
        rig.offer(TX, at + 1);
        rig.side(TX).kick.signal()?;
        rig.expect_used(TX, at + 2)?;
        while rig.wire.receive(&mut [0; 2048])?.is_some() {}
        return_to(&rig, at + 1)?;
    }
    Ok(())
}

/// Checks the packet that was received late.
fn return_to(rig: &Rig, at: u16) -> Result<()> {
    let mut packet = [0; PACKET as usize]; // CAST: 76.
    rig.memory.read(rig.buffer(RX, at), &mut packet);
    let (header, frame) = packet.split_at(HEADER as usize); // CAST: 12.
    let sequence = at.into();
    let found = shape().reversed().read(header, frame);
    let wanted = Found::Sound(Stamp { flow: 0, sequence });
    ensure!(found == wanted, "packet {at} wanted, received {found:?}");
    Ok(())
}

/// What is mapped without the permission is not missed: err is signalled.
fn permissions(node: &Path) -> Result<()> {
    for (index, access) in [(TX, WRITE), (RX, READ), (TX, 0)] {
        let rig = Rig::new(node, 0x4000_0000, BITS)?;
        rig.map_all()?;
        rig.attach()?;
        let page = rig.page(rig.buffer(index, 0).0);
        rig.unmap(page)?;
        rig.map(page, access)?;
        rig.offer(index, 0);
        if index == RX {
            rig.send(0)?;
        }
        rig.side(index).kick.signal()?;
        let errors = rig.side(index).err.wait(patience())?;
        ensure!(errors > 0, "ring {index}, access {access}: no error");
        let miss = rig.vhost.next_miss(NO_MISS)?;
        ensure!(miss.is_none(), "ring {index}, access {access}: {miss:x?}");
        ensure!(rig.side(index).ring.used_idx() == 0, "the chain was used");
    }
    Ok(())
}

/// A miss that nobody answers is not asked again, until it is forgotten.
fn once(node: &Path) -> Result<()> {
    let (rig, page, first) = Rig::missing(node, BITS)?;
    ensure!(first.access == READ, "{first:x?}");
    for _ in 0..5 {
        rig.side(TX).kick.signal()?;
    }
    let again = rig.vhost.next_miss(NO_MISS)?;
    ensure!(again.is_none(), "asked again: {again:x?}");
    // The other vring's stop forgets it, too.
    rig.vhost.set_backend(RX, None)?;
    rig.side(TX).kick.signal()?;
    ensure!(rig.miss()? == first, "another miss");
    rig.map(page, READ)?;
    rig.expect_used(TX, 1)?;
    Ok(())
}

/// The parts of a ring are looked up in order, before a run.
fn holes(node: &Path) -> Result<()> {
    for part in 0..3 {
        let rig = Rig::new(node, 0x4000_0000, BITS)?;
        rig.map_all()?;
        rig.attach()?;
        let layout = rig.side(TX).layout;
        // The second page of the part; its first is another's last.
        let (start, access) = [
            (layout.desc.0, READ),
            (layout.avail.0, READ),
            (layout.used.0, WRITE),
        ][part];
        let page = rig.page(start) + 1;
        rig.unmap(page)?;
        let hole = rig.memory.base().0 + page * PAGE;
        rig.offer(TX, 0);
        rig.side(TX).kick.signal()?;
        let miss = rig.miss()?;
        let found = (miss.iova, miss.access);
        // Where the avail ring and the used ring share the page, the first of them asks.
        let at_avail = hole < layout.used.0 && hole >= layout.avail.0;
        let wanted = (hole, if at_avail { READ } else { access });
        ensure!(found == wanted, "part {part}: {found:x?}, not {wanted:x?}");
        rig.map(page, READ | WRITE)?;
        rig.expect_used(TX, 1)?;
    }
    Ok(())
}

/// Used ring and rx buffers are marked by where the memory table has them.
fn logged(node: &Path) -> Result<()> {
    let rig = Rig::new(node, 0x4000_0000, BITS | 1 << features::LOG_ALL)?;
    let map = GuestMemory::new(&[1 << 20], Some(Gpa(0)))?;
    rig.vhost
        .set_log_base(map.uva(Gpa(0), 1).context("a map has an address")?)?;
    rig.map_all()?;
    rig.attach()?;
    rig.packet(0)?;
    rig.packet(1)?;
    rig.vhost.set_mem_table(&[table(&rig.memory)])?;

    let region = table(&rig.memory);
    let bit = |iova: u64| -> Result<u64> {
        let page = Gpa(iova / PAGE * PAGE);
        let uva = rig.memory.uva(page, PAGE).context("a page")?;
        Ok((region.guest_phys_addr + uva - region.userspace_addr) / PAGE)
    };
    let mut wanted = BTreeSet::new();
    for index in [RX, TX] {
        let layout = rig.side(index).layout;
        wanted.insert(bit(layout.used.0)?);
        wanted.insert(bit(layout.used_entry(1).0)?);
    }
    // The rx vring waits for its socket: its kicks stay off.
    wanted.insert(bit(rig.side(TX).layout.avail_event().0)?);
    for slot in [0, 1] {
        let buffer = rig.buffer(RX, slot).0;
        wanted.insert(bit(buffer)?);
        wanted.insert(bit(buffer + u64::from(PACKET) - 1)?);
    }
    let mut found = BTreeSet::new();
    for at in (0..map.size()).step_by(8) {
        let word = map.take_u64(Gpa(at));
        found.extend(
            (0..64)
                .filter(|bit| word >> bit & 1 == 1)
                .map(|bit| at * 8 + bit),
        );
    }
    ensure!(
        found == wanted,
        "pages {found:x?} are logged, not {wanted:x?}"
    );
    Ok(())
}
