// SPDX-License-Identifier: GPL-2.0

//! The IOTLB comes and goes while it is in use.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, ensure, Result};
use nix::errno::Errno;
use vhost_load::vring::{RX, TX};
use vhost_uapi::features;
use vhost_uapi::iotlb::{MSG_SIZE, READ, WRITE};

use super::rig::{Rig, NO_MISS, PAGES};
use super::BITS;

const PLATFORM: u64 = 1 << features::ACCESS_PLATFORM;
/// Where the process has no memory, should an address be taken for one of its own.
const FAR: u64 = 0x3000_0000_0000;

/// A reader that waits for a miss gets an error when there can be none any more.
pub(super) fn reader(node: &Path) -> Result<()> {
    let rig = Arc::new(Rig::new(node, FAR, BITS)?);
    let reader = {
        let rig = Arc::clone(&rig);
        std::thread::spawn(move || rig.vhost.read_bytes(&mut [0; MSG_SIZE]))
    };
    std::thread::sleep(NO_MISS);
    ensure!(!reader.is_finished(), "it did not wait");
    rig.vhost.set_features(BITS & !PLATFORM)?;
    let read = reader.join().map_err(|_| anyhow!("the reader panicked"))?;
    let errno = read.map_err(|err| err.errno);
    ensure!(errno == Err(Errno::EBADFD), "it read {errno:?}");
    Ok(())
}

/// A vring whose miss was forgotten since the other one stopped slept for ever, its kicks being off. And a miss that came
/// between the forgetting and the stop stayed, in the way of the next backend's.
pub(crate) fn forgotten(node: &Path) -> Result<()> {
    let (rig, page, first) = Rig::missing(node, BITS)?;
    for _ in 0..20 {
        rig.vhost.set_backend(TX, None)?;
        let left = rig.vhost.next_miss(Duration::ZERO)?;
        ensure!(left.is_none(), "{left:x?} is left");
        rig.attach_both()?;
        ensure!(rig.miss()? == first, "another miss");
    }
    rig.vhost.set_backend(RX, None)?;
    ensure!(rig.miss()? == first, "another miss");
    rig.map(page, READ)?;
    rig.expect_used(TX, 1)
}

/// Features, addresses, backends, log and entries are changed in any order. Most calls fail, and packets are lost; what
/// counts is that the device is as good as new afterwards.
pub(super) fn chaos(node: &Path) -> Result<()> {
    const ROUNDS: u64 = 600;

    let rig = Arc::new(Rig::new(node, FAR, BITS)?);
    let stop = Arc::new(AtomicBool::new(false));
    let spawn = |act: fn(&Rig, u64)| {
        let (rig, stop) = (Arc::clone(&rig), Arc::clone(&stop));
        std::thread::spawn(move || {
            let rounds = (0..).take_while(|_| !stop.load(Ordering::Relaxed));
            rounds.for_each(|round| act(&rig, round));
        })
    };
    let threads = [spawn(packets), spawn(answer), spawn(entries)];
    for round in 0..ROUNDS {
        change(&rig, round * 7 + round / 5);
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| anyhow!("a thread panicked"))?;
    }
    rig.vhost.reset_owner()?;
    drop(rig);

    let rig = Rig::new(node, FAR, BITS)?;
    rig.map_all()?;
    rig.attach()?;
    (0..3).try_for_each(|at| rig.packet(at))
}

/// Changes something. Whether it can be is not the question.
fn change(rig: &Rig, what: u64) {
    let vhost = &rig.vhost;
    let _ = match what % 9 {
        0 => vhost.set_features(BITS | 1 << features::LOG_ALL),
        1 => vhost.set_features(BITS & !PLATFORM),
        2 | 3 => vhost.set_features(BITS),
        4 => rig.set_addresses(RX).and(rig.set_addresses(TX)),
        5 => vhost.set_log_base(FAR + what * 4096),
        6 => vhost.set_backend((what / 9 % 2) as u32, None), // CAST: 0 or 1.
        7 => rig.attach_both(),
        _ => vhost.set_backend_features(what / 9 % 2 * 2),
    };
}

/// Offers chains and packets.
fn packets(rig: &Rig, round: u64) {
    let at = round as u16; // CAST: It wraps, as indices do.
    for index in [RX, TX] {
        rig.offer(index, at);
        let _ = rig.side(index).kick.signal();
    }
    // A full wire loses it.
    let _ = rig.send(at);
    while let Ok(Some(_)) = rig.wire.receive(&mut [0; 2048]) {}
    std::thread::sleep(Duration::from_micros(200));
}

/// Answers misses; there is an error while there is no IOTLB.
fn answer(rig: &Rig, _round: u64) {
    if let Ok(Some(miss)) = rig.vhost.next_miss(Duration::from_millis(2)) {
        let _ = rig.map(rig.page(miss.iova), READ | WRITE);
    }
}

/// Adds entries, and takes them out.
fn entries(rig: &Rig, round: u64) {
    let page = round * 11 % PAGES;
    let _ = if round % 3 == 0 {
        rig.unmap(page)
    } else {
        rig.map(page, READ | WRITE)
    };
    std::thread::sleep(Duration::from_micros(100));
}
