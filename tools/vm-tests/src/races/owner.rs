// SPDX-License-Identifier: GPL-2.0

//! The process of a round that owns the device.

use std::hint::black_box;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{exit, Command};
use std::thread;
use std::time::Instant;

use anyhow::{anyhow, Result};

use super::act::act;
use super::field::{at, Field, BALLAST};
use super::{Action, Setup};
use crate::dice::Dice;

/// Owns a device with traffic, does its part of a round, says what came of it, and ends without a word to its other threads.
///
/// # Errors
///
/// What fails first.
pub fn owner(node: &Path, setup: Setup) -> Result<()> {
    let field = Field::new(node, setup)?;
    let ballast = vec![1_u8; BALLAST << 12];
    field.set_up()?;
    thread::scope(|scope| {
        scope.spawn(|| field.drive());
        scope.spawn(|| field.answer());
        let result = part(&field);
        match result {
            Ok(()) => exit(0),
            Err(err) => {
                println!("{}", format!("{err:#}").replace('\n', " / "));
                black_box(&ballast);
                exit(1)
            }
        }
    })
}

fn part(field: &Field) -> Result<()> {
    let setup = &field.setup;
    field.expect_traffic()?;
    let holder = if setup.held() { hold(field)? } else { 0 };
    println!("ready {} {holder}", field.line().tap.name());
    let before = field.moved();
    let end = Instant::now() + setup.length();
    let run = |action, nth| repeat(field, action, Dice::new(setup.seed ^ nth), end);
    let calls = thread::scope(|scope| {
        let other = scope.spawn(|| run(setup.second, 1));
        let first = run(setup.first, 0);
        let second = other.join();
        second
            .map(|second| [first, second])
            .map_err(|_| anyhow!("a thread panicked"))
    })?;
    let after = field.moved();
    if !setup.has(Action::Close) {
        field.expect_good()?;
    }
    let [[a, b], [c, d]] = calls;
    let [rx, tx] = [after[0] - before[0], after[1] - before[1]];
    println!("done {rx} {tx} {a} {b} {c} {d}");
    Ok(())
}

/// Does one thing as often as there is time for, but not too rarely on a machine that has no time. Counts calls, and those
/// refused.
fn repeat(field: &Field, action: Action, mut dice: Dice, end: Instant) -> [u64; 2] {
    const FEW: u64 = 3;
    let mut calls = [0, 0];
    if action == Action::Close {
        thread::sleep(field.setup.moment(&mut dice));
    }
    let killed = field.setup.has(Action::Kill);
    while killed || Instant::now() < end || calls[0] + calls[1] < FEW {
        match act(field, action, &mut dice) {
            Ok(()) => calls[0] += 1,
            Err(_) => calls[1] += 1,
        }
        if action == Action::Close {
            break;
        }
    }
    calls
}

/// Starts a process that has the device and kicks it.
fn hold(field: &Field) -> Result<u32> {
    let kick = at(&field.events, 1).kick.as_fd().try_clone_to_owned()?;
    let vhost = field.vhost.as_fd().try_clone_to_owned()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("holder").stdin(vhost).stdout(kick);
    Ok(command.spawn()?.id())
}
