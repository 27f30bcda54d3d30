// SPDX-License-Identifier: GPL-2.0

//! Rings that break the rules: `Documentation/architecture.rst`, "Failure".
//!
//! Each test puts a poisoned chain between good ones. Whatever it is, the worker must not spin, the other ring must work, and
//! a driver that repairs its ring must be able to go on with it.

use std::path::Path;

use anyhow::{ensure, Result};
use vhost_driver::{GuestMemory, RingLayout};
use vhost_load::backend::BackendOptions;
use vhost_load::session::SessionOptions;
use vhost_load::vring::{RX, TX};
use vhost_uapi::{features, VringAddr};

use crate::patience::wait_for;
use crate::poison::{Expect, Poison, RX_BUFFERS, STRUCTURE, TX_PACKETS};
use crate::raw_ring::RawRing;
use crate::report::{Report, Test};
use crate::rig::{name, Rig, PACKET};

/// Descriptor of the good chain behind the poisoned one, of the one that it is repaired with, and of one added later.
const BEHIND: u16 = 8;
const REPAIRED: u16 = 9;
const LATER: u16 = 10;
/// Descriptors of a ring.
const RING_SIZE: u16 = 16;

/// Tests wait most of the time.
const THREADS: usize = 4;

/// A setting that tests are run in.
#[derive(Clone, Debug)]
struct Variant {
    name: String,
    index: u32,
    batched: bool,
    options: SessionOptions,
}

/// A test of a ring as a whole.
type Whole = (&'static str, fn(&Variant) -> Result<()>);

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    let variants = variants(node);
    let mut tests = Vec::new();
    for variant in &variants {
        let special = if variant.index == TX {
            TX_PACKETS
        } else {
            RX_BUFFERS
        };
        // How packets are sent makes no difference to chains that cannot be walked.
        let structure = if variant.batched { STRUCTURE } else { &[] };
        for poison in structure.iter().chain(special) {
            let name = format!("{}: {}", variant.name, poison.name);
            tests.push(Test::new(name, move || poisoned(variant, poison)));
        }
        let whole: [Whole; 4] = [
            ("avail index that jumps", jump),
            ("avail index that goes back", back),
            ("kick with nothing", nothing),
            ("ring memory unmapped while running", unmapped),
        ];
        for (what, test) in whole {
            tests.push(Test::new(format!("{}: {what}", variant.name), move || {
                test(variant)
            }));
        }
    }
    tests.retain(|test| test.name.contains(only));
    report.run_on(THREADS, &tests);
}

fn variants(node: &Path) -> Vec<Variant> {
    let mut variants = Vec::new();
    for event_idx in [true, false] {
        for (what, index, sndbuf) in [
            ("tx", TX, i32::MAX),
            ("tx, finite sndbuf", TX, 1 << 20),
            ("rx", RX, i32::MAX),
        ] {
            let event = u128::from(event_idx) << features::EVENT_IDX;
            let options = SessionOptions {
                node: node.to_owned(),
                features: 1 << features::VERSION_1 | event,
                ring_size: u32::from(RING_SIZE),
                buffer_bytes: [64 << 10, 512 << 10],
                backend: BackendOptions {
                    sndbuf: Some(sndbuf),
                    ..BackendOptions::default()
                },
                ..SessionOptions::default()
            };
            variants.push(Variant {
                name: format!("{what}, event_idx {}", if event_idx { "on" } else { "off" }),
                index,
                batched: sndbuf == i32::MAX,
                options,
            });
        }
    }
    variants
}

/// A poisoned chain between good ones.
fn poisoned(variant: &Variant, poison: &Poison) -> Result<()> {
    let index = variant.index;
    let rig = Rig::new(&variant.options)?;
    let ring = rig.ring(index);
    let before = rig.counters()?;

    if index == RX {
        // They wait for chains then, so that the kick is all that wakes the worker.
        for sequence in 0..3 {
            rig.send(sequence)?;
        }
        rig.flush()?;
    }
    rig.good(index, 0, 0);
    (poison.plant)(&rig, index);
    rig.good(index, 2, BEHIND);
    ring.publish(3);
    rig.kick(index)?;

    match poison.expect {
        Expect::Broken => {
            passed(&rig, index, 0, 0)?;
            broken(&rig, index)?;
            rig.counters()?.expect(&before, index, "ring-errors", 2)?;
            other_works(&rig, index)?;
            repair(&rig, index, 1)
        }
        Expect::Dropped(batched, single) => {
            let counter = if variant.batched { batched } else { single };
            dropped(&rig)?;
            rig.counters()?.expect(&before, index, counter, 1)?;
            rig.counters()?.expect(&before, index, "packets", 2)?;
            after_drop(&rig)
        }
        Expect::DroppedUncounted => {
            dropped(&rig)?;
            after_drop(&rig)
        }
        Expect::Kept(counter) => {
            kept(&rig)?;
            rig.counters()?.expect(&before, index, counter, 2)
        }
    }
}

/// Checks that good chain `at`, descriptor `slot`, went its way with packet number `at`.
fn passed(rig: &Rig, index: u32, at: u16, slot: u16) -> Result<()> {
    let sequence = u64::from(at);
    if index == RX {
        return rig.expect_received(at, slot, sequence);
    }
    rig.expect_frame(sequence)?;
    rig.expect_used_reached(TX, at)?;
    rig.expect_entry(TX, at, (slot, 0))
}

/// Checks that a ring is broken at the chain after the last one used: an error for each kick, a worker that sleeps, kicks wanted.
fn broken(rig: &Rig, index: u32) -> Result<()> {
    let ring = rig.ring(index);
    rig.expect_error(index)?;
    let used = ring.used_idx();
    rig.expect_quiet()?;
    let base = rig.vhost().vring_base(index)?;
    ensure!(
        base == u32::from(used) && ring.used_idx() == used,
        "{} ring: base {base} and used index {} in place of {used}",
        name(index),
        ring.used_idx()
    );

    // A kick tries again, once.
    rig.kick(index)?;
    rig.expect_error(index)?;
    rig.expect_quiet()?;
    ensure!(ring.used_idx() == used, "a broken chain was returned");
    Ok(())
}

/// Makes the chain for avail index `at` a good one, adds one more chain, and sees everything go its way.
fn repair(rig: &Rig, index: u32, at: u16) -> Result<()> {
    let ring = rig.ring(index);
    rig.good(index, at, REPAIRED);
    rig.good(index, 3, LATER);
    ring.publish(4);
    ensure!(
        ring.wants_kick(3, 4),
        "{} ring: no kick is wanted after an error: the driver would wait for ever",
        name(index)
    );
    rig.kick(index)?;
    if index == RX {
        rig.send(3)?;
    }
    for (at, slot) in [(1, REPAIRED), (2, BEHIND), (3, LATER)] {
        passed(rig, index, at, slot)?;
    }
    ensure!(ring.used_idx() == 4, "more was returned than was there");
    rig.expect_quiet()
}

/// Checks that a tx packet was dropped, and that those before and behind it left.
fn dropped(rig: &Rig) -> Result<()> {
    rig.expect_frame(0)?;
    rig.expect_frame(2)?;
    rig.expect_used(TX, 3)?;
    for (at, slot) in [(0, 0), (1, 1), (2, BEHIND)] {
        rig.expect_entry(TX, at, (slot, 0))?;
    }
    let errors = rig.errors(TX)?;
    ensure!(errors == 0, "{errors} errors were signalled for a packet");
    rig.expect_quiet()
}

/// Checks that everything works after a drop.
fn after_drop(rig: &Rig) -> Result<()> {
    other_works(rig, TX)?;
    let ring = rig.ring(TX);
    rig.good(TX, 3, LATER);
    ring.publish(4);
    ensure!(ring.wants_kick(3, 4), "no kick is wanted after a drop");
    rig.kick(TX)?;
    passed(rig, TX, 3, LATER)?;
    rig.expect_quiet()
}

/// Checks that packets were dropped that could not be put into a buffer, which is still there.
fn kept(rig: &Rig) -> Result<()> {
    passed(rig, RX, 0, 0)?;
    rig.expect_quiet()?;
    rig.expect_used(RX, 1)?;
    let base = rig.vhost().vring_base(RX)?;
    ensure!(base == 1, "base is {base}, not 1");
    other_works(rig, RX)?;

    rig.good(RX, 1, REPAIRED);
    // Packets 1 and 2 are gone.
    for (at, slot) in [(1, REPAIRED), (2, BEHIND)] {
        let sequence = 100 + u64::from(at);
        rig.send(sequence)?;
        rig.expect_received(at, slot, sequence)?;
    }
    rig.expect_quiet()
}

/// Checks that the other ring of the device works.
fn other_works(rig: &Rig, index: u32) -> Result<()> {
    let other = if index == RX { TX } else { RX };
    rig.good(other, 0, 0);
    rig.ring(other).publish(1);
    rig.kick(other)?;
    if other == RX {
        rig.send(0)?;
    }
    passed(rig, other, 0, 0)
}

/// An avail index further ahead than the ring is long.
fn jump(variant: &Variant) -> Result<()> {
    wrong_index(variant, 1 + RING_SIZE + 1)
}

/// An avail index that goes back below what was used.
fn back(variant: &Variant) -> Result<()> {
    wrong_index(variant, 0)
}

/// An avail index that cannot be, behind one used chain.
fn wrong_index(variant: &Variant, wrong: u16) -> Result<()> {
    let index = variant.index;
    let rig = Rig::new(&variant.options)?;
    let ring = rig.ring(index);
    let before = rig.counters()?;
    rig.good(index, 0, 0);
    ring.publish(1);
    rig.kick(index)?;
    if index == RX {
        for sequence in 0..3 {
            rig.send(sequence)?;
        }
    }
    passed(&rig, index, 0, 0)?;
    rig.flush()?;
    rig.errors(index)?;

    rig.good(index, 1, REPAIRED);
    rig.good(index, 2, BEHIND);
    ring.publish(wrong);
    rig.kick(index)?;
    broken(&rig, index)?;
    rig.counters()?.expect(&before, index, "ring-errors", 2)?;
    other_works(&rig, index)?;

    ring.publish(3);
    rig.kick(index)?;
    passed(&rig, index, 1, REPAIRED)?;
    passed(&rig, index, 2, BEHIND)?;
    rig.expect_quiet()
}

/// Kicks, and no chain to be found.
fn nothing(variant: &Variant) -> Result<()> {
    let index = variant.index;
    let rig = Rig::new(&variant.options)?;
    for _ in 0..100 {
        rig.kick(index)?;
    }
    rig.flush()?;
    let errors = rig.errors(index)?;
    ensure!(errors == 0, "{errors} errors were signalled for nothing");
    rig.expect_quiet()?;
    ensure!(rig.ring(index).used_idx() == 0, "something was returned");
    rig.good(index, 0, 0);
    rig.ring(index).publish(1);
    ensure!(
        index == RX || rig.ring(index).wants_kick(0, 1),
        "no kick is wanted"
    );
    rig.kick(index)?;
    if index == RX {
        rig.send(0)?;
    }
    passed(&rig, index, 0, 0)
}

/// A ring whose memory goes away.
fn unmapped(variant: &Variant) -> Result<()> {
    let index = variant.index;
    let rig = Rig::new(&variant.options)?;
    let here = *rig.vring(index).queue.layout();
    let size = usize::try_from(RingLayout::size(here.num))?;
    let elsewhere = GuestMemory::new(&[size], None)?;
    let layout = RingLayout::new(u32::from(here.num), elsewhere.base())?;
    let event_idx = features::has(variant.options.features, features::EVENT_IDX);
    let ring = RawRing::new(elsewhere.clone(), layout, event_idx);
    rig.vhost()
        .set_vring_addr(index, &addr(&elsewhere, &layout)?)?;

    // It works there.
    if index == TX {
        rig.fill(0, 0);
    }
    ring.desc(0, rig.whole(index, 0));
    ring.avail(0, 0);
    ring.publish(1);
    rig.kick(index)?;
    if index == RX {
        rig.send(0)?;
    } else {
        rig.expect_frame(0)?;
    }
    wait_for(|| ring.used_idx() == 1)?;
    rig.flush()?;
    rig.errors(index)?;

    drop(ring);
    drop(elsewhere);
    rig.kick(index)?;
    rig.flush()?;
    rig.expect_error(index)?;
    rig.expect_quiet()?;
    other_works(&rig, index)?;

    // Back again: the index goes on from 1.
    rig.vhost()
        .set_vring_addr(index, &addr(&rig.session.memory, &here)?)?;
    let ring = rig.ring(index);
    rig.good(index, 1, REPAIRED);
    ring.publish(2);
    rig.kick(index)?;
    if index == RX {
        rig.send(1)?;
    }
    wait_for(|| ring.used_idx() == 2)?;
    rig.expect_entry(index, 1, (REPAIRED, if index == RX { PACKET } else { 0 }))?;
    rig.expect_quiet()
}

/// Where a ring is for the owner.
fn addr(memory: &GuestMemory, layout: &RingLayout) -> Result<VringAddr> {
    let uva = |gpa| {
        let found = memory.uva(gpa, 1);
        found.ok_or_else(|| anyhow::anyhow!("a ring outside of its memory"))
    };
    Ok(VringAddr {
        flags: 0,
        desc: uva(layout.desc)?,
        used: uva(layout.used)?,
        avail: uva(layout.avail)?,
        log: 0,
    })
}
