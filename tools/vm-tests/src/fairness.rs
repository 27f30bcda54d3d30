// SPDX-License-Identifier: GPL-2.0

//! Whatever floods a ring, the other ring, other devices and other tasks have their share of the worker and of its CPU.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use vhost_load::session::SessionOptions;
use vhost_load::vring::{RX, TX};
use vhost_load::worker::pin_self;
use vhost_uapi::features;

use crate::patience::limit;
use crate::raw_ring::{Desc, INDIRECT, NEXT, WRITE};
use crate::report::{Report, Test};
use crate::rig::{Rig, BUFFER, HEADER};

/// Entries of a ring.
const RING: u16 = 256;
/// The longest that anything waits.
const ALLOWED: Duration = Duration::from_millis(20);
/// How often it is measured.
const TRIES: u16 = 8;
/// One CPU each for who floods, for who works, and for who measures.
const FLOOD_CPU: usize = 0;
const WORKER_CPU: usize = 1;
const OWN_CPU: usize = 2;

/// What comes without end.
#[derive(Clone, Copy, Debug)]
enum Flood {
    /// Packets of 64 bytes to the host.
    Small,
    /// Packets that are as long as can be.
    Large,
    /// Chains that the device may write to, and must drop.
    Wrong,
    /// Packets in as many pieces as a chain may have.
    Pieces,
    /// Chains that never end: each breaks the ring.
    Endless,
    /// Packets to the guest.
    Rx,
}

/// Who is to have its share.
#[derive(Clone, Copy, Debug)]
enum Victim {
    /// The other ring of the device.
    Ring,
    /// Another device, whose worker is on the same CPU.
    Device,
    /// Another task on that CPU.
    Task,
}

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    let mut tests = Vec::new();
    for (flood, what) in [
        (Flood::Small, "small packets"),
        (Flood::Large, "large packets"),
        (Flood::Wrong, "chains that are dropped"),
        (Flood::Pieces, "packets of 1,024 pieces"),
        (Flood::Endless, "chains without end"),
        (Flood::Rx, "packets to the guest"),
    ] {
        for (victim, who) in [
            (Victim::Ring, "the other ring"),
            (Victim::Device, "another device"),
            (Victim::Task, "another task"),
        ] {
            let name = format!("a flood of {what}: {who} has its share");
            tests.push(Test::new(name, move || fair(node, flood, victim)));
        }
    }
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
}

fn open(node: &Path) -> Result<Rig> {
    let rig = Rig::new(&SessionOptions {
        node: node.to_owned(),
        features: 1 << features::VERSION_1 | 1 << features::INDIRECT,
        ring_size: u32::from(RING),
        buffer_bytes: [u64::from(RING) * BUFFER; 2],
        ..SessionOptions::default()
    })?;
    let worker = rig.session.worker.as_ref().context("no worker was found")?;
    worker.pin(WORKER_CPU)?;
    Ok(rig)
}

fn fair(node: &Path, flood: Flood, victim: Victim) -> Result<()> {
    pin_self(OWN_CPU)?;
    let (flooded, other) = (open(node)?, open(node)?);
    flood.prepare(&flooded);
    let over = AtomicBool::new(false);
    let (longest, before, after) = thread::scope(|scope| -> Result<_> {
        scope.spawn(|| flood.pour(&flooded, &over));
        let before = flooded.counters()?;
        let longest = match victim {
            Victim::Ring => flood.other_ring(&flooded),
            Victim::Device => sends(&other),
            Victim::Task => waits(),
        };
        let after = flooded.counters();
        over.store(true, Ordering::Relaxed);
        Ok((longest?, before, after?))
    })?;
    after.expect_more(&before, flood.ring(), flood.counter())?;
    println!(
        "# fairness: {flood:?}, {victim:?}: {} us",
        longest.as_micros()
    );
    limit(longest <= ALLOWED, || format!("it waits for {longest:?}"))
}

impl Flood {
    fn ring(self) -> u32 {
        if matches!(self, Self::Rx) {
            RX
        } else {
            TX
        }
    }

    /// What shows that it came.
    fn counter(self) -> &'static str {
        match self {
            Self::Small | Self::Large | Self::Pieces | Self::Rx => "packets",
            Self::Wrong => "drop-direction",
            Self::Endless => "ring-errors",
        }
    }

    /// Fills the ring's descriptors.
    fn prepare(self, rig: &Rig) {
        /// Descriptors of a chain that the device takes at most (`UIO_MAXIOV`).
        const PIECES: u16 = 1024;
        let ring = rig.ring(self.ring());
        let table = rig.buffer(TX, 8);
        for slot in 0..RING {
            let whole = rig.whole(self.ring(), slot);
            let first = Desc {
                addr: rig.buffer(TX, 0),
                ..whole
            };
            let desc = match self {
                Self::Small => {
                    rig.fill(slot, 0);
                    whole
                }
                Self::Rx => whole,
                Self::Large => Desc {
                    len: HEADER + 65_000,
                    ..first
                },
                Self::Wrong => Desc {
                    flags: WRITE,
                    ..first
                },
                Self::Pieces => Desc {
                    addr: table,
                    len: 16 * u32::from(PIECES),
                    flags: INDIRECT,
                    next: 0,
                },
                Self::Endless => Desc {
                    flags: NEXT,
                    next: slot,
                    ..first
                },
            };
            ring.desc(slot, desc);
            ring.avail(slot, slot);
        }
        if matches!(self, Self::Pieces) {
            for piece in 0..PIECES {
                let desc = Desc {
                    addr: rig.buffer(TX, 0) + u64::from(piece),
                    len: if piece == 0 { HEADER } else { 1 },
                    flags: if piece + 1 < PIECES { NEXT } else { 0 },
                    next: piece + 1,
                };
                ring.desc_at(table, piece, desc);
            }
        }
    }

    /// Keeps the ring full, and its device awake.
    fn pour(self, rig: &Rig, over: &AtomicBool) -> Result<()> {
        pin_self(FLOOD_CPU)?;
        let ring = rig.ring(self.ring());
        while !over.load(Ordering::Relaxed) {
            ring.publish(ring.used_idx().wrapping_add(RING));
            rig.kick(self.ring())?;
            if matches!(self, Self::Rx) {
                for _ in 0..RING {
                    // What the tap has no room for it drops.
                    let _ = rig.send(0);
                }
            }
        }
        Ok(())
    }

    /// The longest time of a packet in the ring that is not flooded.
    fn other_ring(self, rig: &Rig) -> Result<Duration> {
        if matches!(self, Self::Rx) {
            return sends(rig);
        }
        longest(|at| {
            rig.good(RX, at, at % RING);
            rig.ring(RX).publish(at + 1);
            let start = Instant::now();
            rig.send(u64::from(at))?;
            used(rig, RX, at + 1)?;
            Ok(start.elapsed())
        })
    }
}

/// The longest of some tries, each in the middle of a flood.
fn longest(mut one: impl FnMut(u16) -> Result<Duration>) -> Result<Duration> {
    const MIDDLE: Duration = Duration::from_millis(1);
    let one = |at| {
        thread::sleep(MIDDLE);
        one(at)
    };
    let all: Vec<Duration> = (0..TRIES).map(one).collect::<Result<_>>()?;
    all.into_iter().max().context("nothing was measured")
}

/// The longest time of a packet to the host.
fn sends(rig: &Rig) -> Result<Duration> {
    longest(|at| {
        rig.good(TX, at, at % RING);
        rig.ring(TX).publish(at + 1);
        let start = Instant::now();
        rig.kick(TX)?;
        used(rig, TX, at + 1)?;
        Ok(start.elapsed())
    })
}

/// Waits, on the CPU, until a ring's used index is `wanted`.
fn used(rig: &Rig, index: u32, wanted: u16) -> Result<()> {
    let start = Instant::now();
    while rig.ring(index).used_idx() != wanted {
        ensure!(
            start.elapsed() < ALLOWED * 50,
            "packet {wanted} is not used after {:?}",
            start.elapsed()
        );
        std::hint::spin_loop();
    }
    Ok(())
}

/// The longest that a task on the worker's CPU sleeps longer than it wanted.
fn waits() -> Result<Duration> {
    const NAP: Duration = Duration::from_millis(2);
    pin_self(WORKER_CPU)?;
    let longest = longest(|_| {
        let start = Instant::now();
        thread::sleep(NAP);
        Ok(start.elapsed().saturating_sub(NAP))
    });
    pin_self(OWN_CPU)?;
    longest
}
