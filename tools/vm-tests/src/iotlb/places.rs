// SPDX-License-Identifier: GPL-2.0

//! Entries for odd places, and entries that come at odd times.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use vhost_load::vring::{RX, TX};
use vhost_uapi::iotlb::{Message, What, READ, WRITE};
use vhost_uapi::VringAddr;

use super::rig::{Rig, NO_MISS, PAGE};
use super::BITS;
use crate::patience::{patience, scaled};
use crate::rig::PACKET;

const BASE: u64 = 0x4000_0000;
/// Where the process has no memory.
const NOWHERE: u64 = 0x3000_0000_0000;

/// C asked for the first byte again, whatever it was answered.
pub(crate) fn over_the_end(node: &Path) -> Result<()> {
    let rig = Rig::new(node, BASE, BITS)?;
    rig.map_all()?;
    rig.attach()?;
    let layout = rig.side(TX).layout;
    // Two pages of descriptors, of which the address space has one.
    let addr = VringAddr {
        flags: 0,
        desc: PAGE.wrapping_neg(),
        used: layout.used.0,
        avail: layout.avail.0,
        log: 0,
    };
    rig.vhost.set_vring_addr(TX, &addr)?;
    rig.offer(TX, 0);
    rig.side(TX).kick.signal()?;
    let errors = rig.side(TX).err.wait(patience())?;
    ensure!(errors > 0, "no error");
    let miss = rig.vhost.next_miss(NO_MISS)?;
    ensure!(miss.is_none(), "{miss:x?}");
    // The driver repairs it.
    rig.set_addresses(TX)?;
    rig.packet(0)
}

/// Maps a page to where there is none.
fn map_nowhere(rig: &Rig, page: u64) -> Result<()> {
    rig.unmap(page)?;
    let message = rig.message(page, What::Update, READ | WRITE);
    let uva = NOWHERE;
    Ok(rig.vhost.send_message(&Message { uva, ..message })?)
}

/// The owner says that memory is somewhere, and has none there.
pub(crate) fn nowhere(node: &Path) -> Result<()> {
    let rig = Rig::new(node, BASE, BITS)?;
    rig.map_all()?;
    rig.attach()?;
    // The second half of a tx packet: it is dropped, its head comes back.
    let page = rig.page(rig.buffer(TX, 0).0) + 1;
    map_nowhere(&rig, page)?;
    rig.offer(TX, 0);
    rig.side(TX).kick.signal()?;
    rig.expect_used(TX, 1)?;
    rig.unmap(page)?;
    rig.map(page, READ | WRITE)?;

    // The second half of an rx buffer: the packet is lost, the chain stays.
    let page = rig.page(rig.buffer(RX, 0).0) + 1;
    map_nowhere(&rig, page)?;
    rig.offer(RX, 0);
    rig.send(7)?;
    std::thread::sleep(NO_MISS);
    let used = rig.side(RX).ring.used_idx();
    ensure!(used == 0, "rx: {used} chains were used");
    rig.unmap(page)?;
    rig.map(page, READ | WRITE)?;
    rig.send(0)?;
    rig.expect_used(RX, 1)?;
    let entry = rig.side(RX).ring.used(0);
    ensure!(entry == (0, PACKET), "rx: the used entry is {entry:?}");

    // A ring: it is broken until it is somewhere.
    // Descriptor 1 is in its second page.
    let page = rig.page(rig.side(TX).layout.desc.0) + 1;
    map_nowhere(&rig, page)?;
    for index in [RX, TX] {
        rig.side(index).err.take()?;
    }
    rig.offer(TX, 1);
    rig.side(TX).kick.signal()?;
    let errors = rig.side(TX).err.wait(patience())?;
    ensure!(errors > 0, "no error for a ring that is nowhere");
    rig.unmap(page)?;
    rig.map(page, READ | WRITE)?;
    rig.side(TX).kick.signal()?;
    rig.expect_used(TX, 2)?;
    let miss = rig.vhost.next_miss(NO_MISS)?;
    ensure!(miss.is_none(), "{miss:x?}");
    Ok(())
}

/// Who changes the entries wants the vrings' locks, which the worker has in a window.
pub(crate) fn windows(node: &Path) -> Result<()> {
    const WINDOW: u32 = 3_000_000;
    const ALLOWED: Duration = Duration::from_millis(100);
    let rig = Rig::new(node, BASE, BITS)?;
    rig.map_all()?;
    for index in [RX, TX] {
        rig.vhost.set_vring_busyloop_timeout(index, WINDOW)?;
    }
    rig.attach()?;
    for at in 0..5 {
        rig.packet(at)?;
        // Nothing happens any more: the worker is in the middle of it.
        std::thread::sleep(NO_MISS);
        let page = rig.page(rig.buffer(TX, at + 1).0);
        for what in [What::Invalidate, What::Update] {
            let start = Instant::now();
            rig.vhost
                .send_message(&rig.message(page, what, READ | WRITE))?;
            let took = start.elapsed();
            ensure!(took < scaled(ALLOWED), "{what:?} took {took:?}");
        }
    }
    Ok(())
}
