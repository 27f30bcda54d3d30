// SPDX-License-Identifier: GPL-2.0

//! Features set at odd times: under traffic, with chains of a ring half used, in any order, twice or not at all. Whatever was
//! set meanwhile, rings that are set up again work.

use std::path::Path;
use std::time::Duration;

use anyhow::{ensure, Result};
use vhost_load::frame::{Found, Stamp};
use vhost_load::session::SessionOptions;
use vhost_load::vring::{RX, TX};
use vhost_uapi::features;

use crate::dice::Dice;
use crate::patience::wait_for;
use crate::report::{Report, Test};
use crate::rig::{Rig, BUFFER};

const RING_SIZE: u16 = 16;
/// Things that happen to one device.
const STEPS: usize = 100;
/// Packets sent to the guest meanwhile: fewer than the ring has chains, so that what is left of them fits.
const PACKETS: u64 = 8;
/// How long nothing must come until nothing is on the wire.
const SILENCE: Duration = Duration::from_millis(50);
/// These need addresses of their own, a log and a map of addresses.
const LEFT_ALONE: u128 = 1 << features::LOG_ALL | 1 << features::ACCESS_PLATFORM;

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    let test = |seed| {
        let name = format!("features change under traffic, order {seed}");
        Test::new(name, move || changes(node, seed))
    };
    let mut tests: Vec<Test<'_>> = (1..=12).map(test).collect();
    tests.retain(|test| test.name.contains(only));
    report.run_on(4, &tests);
}

fn changes(node: &Path, seed: u64) -> Result<()> {
    let rig = Rig::new(&SessionOptions {
        node: node.to_owned(),
        features: 1 << features::VERSION_1,
        ring_size: u32::from(RING_SIZE),
        buffer_bytes: [u64::from(RING_SIZE) * BUFFER; 2],
        ..SessionOptions::default()
    })?;
    let offered = features::from_words(rig.vhost().features_array()?) & !LEFT_ALONE;
    let mut dice = Dice::new(seed);
    let (mut next, mut packets) = ([0_u16; 2], 0);
    for _ in 0..STEPS {
        match dice.roll(8) {
            0..=2 => {
                let some = u128::from(dice.bits()) << 64 | u128::from(dice.bits());
                let words = features::words(offered & some);
                if dice.roll(2) == 0 {
                    rig.vhost().set_features_array(&words)?;
                } else {
                    rig.vhost().set_features(words[0])?;
                }
            }
            3..=5 => offer(&rig, &mut next, 1 + dice.roll(6)),
            6 if packets < PACKETS => {
                rig.send(packets)?;
                packets += 1;
            }
            _ => restart(&rig)?,
        }
        for index in [RX, TX] {
            rig.kick(index)?;
        }
    }
    works_again(&rig)
}

/// Offers chains in both rings, as many as have room.
fn offer(rig: &Rig, next: &mut [u16; 2], count: u64) {
    for (index, next) in [RX, TX].into_iter().zip(next) {
        let ring = rig.ring(index);
        for _ in 0..count {
            if next.wrapping_sub(ring.used_idx()) >= RING_SIZE {
                break;
            }
            rig.good(index, *next, *next % RING_SIZE);
            *next = next.wrapping_add(1);
            ring.publish(*next);
        }
    }
}

/// Stops and starts both rings where they are.
fn restart(rig: &Rig) -> Result<()> {
    rig.session.device.detach()?;
    for index in [RX, TX] {
        let base = rig.vhost().vring_base(index)?;
        rig.vhost().set_vring_base(index, base)?;
    }
    Ok(rig.session.device.attach()?)
}

/// Sets the rings up again, as a driver does after a reset, and moves a packet each way.
fn works_again(rig: &Rig) -> Result<()> {
    rig.session.device.detach()?;
    while rig.next_frame(SILENCE)?.is_some() {}
    for index in [RX, TX] {
        rig.ring(index).reset();
        rig.vhost().set_vring_base(index, 0)?;
    }
    rig.vhost().set_features(1 << features::VERSION_1)?;
    rig.session.device.attach()?;

    rig.good(TX, 0, 0);
    rig.ring(TX).publish(1);
    rig.kick(TX)?;
    rig.expect_frame(0)?;
    rig.expect_used(TX, 1)?;
    rig.expect_entry(TX, 0, (0, 0))?;

    for at in 0..RING_SIZE {
        rig.good(RX, at, at);
    }
    rig.ring(RX).publish(RING_SIZE);
    rig.kick(RX)?;
    let wanted = Found::Sound(Stamp {
        flow: 0,
        sequence: PACKETS,
    });
    rig.send(PACKETS)?;
    // Those that were left come first.
    let came = || (0..rig.ring(RX).used_idx()).any(|slot| rig.received(slot) == wanted);
    wait_for(came)?;
    let used = rig.ring(RX).used_idx();
    ensure!(
        u64::from(used) <= PACKETS + 1,
        "{used} packets came of {PACKETS} and one more"
    );
    rig.expect_quiet()
}
