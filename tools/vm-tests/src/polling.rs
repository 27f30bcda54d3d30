// SPDX-License-Identifier: GPL-2.0

//! How vrings poll: what can be set, by whom, and what becomes of it.

mod rights;

use std::path::Path;

use anyhow::{ensure, Result};
use vhost_uapi::{Policy, PollFlags, VhostNet, VringPoll};

use crate::report::{Report, Test};
use crate::script::Outcome;

pub use rights::{main, Role};

/// What a new device has.
const DEFAULT: VringPoll = VringPoll {
    policy: Policy::Fixed,
    flags: PollFlags {
        competitor: false,
        guest: false,
    },
    start_rate: 0,
    stop_idle_us: 1000,
};

/// Policies and flags that are served.
const SERVED: ([u32; 1], u32) = ([0], 0);

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    type One = (&'static str, fn(&Path) -> Result<()>);
    let all: [One; 5] = [
        ("what is set is what is got, vring by vring", set_and_get),
        ("what is refused changes nothing", refused),
        ("a new owner finds the defaults", reset),
        ("who may set: root may, for another's device", rights::root),
        (
            "who may not: users, roots of a user namespace, without an owner",
            rights::others,
        ),
    ];
    let mut tests: Vec<Test<'_>> = all
        .iter()
        .map(|(name, test)| Test::new(*name, move || test(node)))
        .collect();
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
}

fn owned(node: &Path) -> Result<VhostNet> {
    let vhost = VhostNet::open(node, true)?;
    vhost.set_owner()?;
    Ok(vhost)
}

/// Fails unless a call came out as `wanted`.
fn expect(what: &str, result: impl Outcome, wanted: &str) -> Result<()> {
    let text = result.text();
    ensure!(text == wanted, "{what} answers {text}, not {wanted}");
    Ok(())
}

fn set_and_get(node: &Path) -> Result<()> {
    let vhost = owned(node)?;
    for index in [0, 1] {
        let poll = vhost.poll(index)?;
        ensure!(poll == DEFAULT, "vring {index} begins with {poll:?}");
    }
    let one = VringPoll {
        start_rate: u32::MAX,
        stop_idle_us: 1_000_000,
        ..DEFAULT
    };
    vhost.set_poll(1, one)?;
    vhost.set_vring_busyloop_timeout(1, 77)?;
    ensure!(vhost.poll(1)? == one, "it is {:?}", vhost.poll(1)?);
    ensure!(vhost.poll(0)? == DEFAULT, "the other vring changed");
    vhost.set_poll_raw([1, 0, 0, 0, 0, 0, 0, 0])?;
    ensure!(vhost.poll(1)? == DEFAULT, "0 is not the default time");
    let window = vhost.vring_busyloop_timeout(1)?;
    ensure!(window == 77, "the window is {window} now");
    Ok(())
}

fn refused(node: &Path) -> Result<()> {
    let vhost = owned(node)?;
    let (policies, flags) = SERVED;
    let other = VringPoll {
        start_rate: 5,
        stop_idle_us: 6,
        ..DEFAULT
    };
    vhost.set_poll(0, other)?;
    let policy = (0..5).chain([u32::MAX]).filter(|n| !policies.contains(n));
    let mut bad: Vec<[u32; 8]> = policy.map(|n| [0, n, 0, 0, 0, 0, 0, 0]).collect();
    let flag = (0..32).map(|bit| 1 << bit).filter(|flag| flags & flag == 0);
    bad.extend(flag.map(|flag| [0, 0, flag, 0, 0, 0, 0, 0]));
    bad.extend((5..8).map(|at| std::array::from_fn(|field| u32::from(field == at))));
    bad.extend([1_000_001, u32::MAX].map(|idle| [0, 0, 0, 0, idle, 0, 0, 0]));
    for raw in bad {
        expect(&format!("{raw:?}"), vhost.set_poll_raw(raw), "EINVAL")?;
    }
    // The index comes before the rest.
    for index in [2, u32::MAX] {
        let raw = [index, 9, 9, 0, 0, 9, 9, 9];
        expect(&format!("{raw:?}"), vhost.set_poll_raw(raw), "ENOBUFS")?;
        expect("GET_POLL", vhost.poll(index), "ENOBUFS")?;
    }
    for request in [
        vhost_uapi::numbers::RS_GET_POLL,
        vhost_uapi::numbers::RS_SET_POLL,
    ] {
        expect("a null pointer", vhost.raw_ioctl(request, 0), "EFAULT")?;
    }
    ensure!(vhost.poll(0)? == other, "it is {:?}", vhost.poll(0)?);
    Ok(())
}

fn reset(node: &Path) -> Result<()> {
    let vhost = owned(node)?;
    let poll = VringPoll {
        start_rate: 5,
        ..DEFAULT
    };
    vhost.set_poll(0, poll)?;
    vhost.reset_owner()?;
    expect("GET_POLL without an owner", vhost.poll(0), "EPERM")?;
    vhost.set_owner()?;
    ensure!(vhost.poll(0)? == DEFAULT, "it is {:?}", vhost.poll(0)?);
    Ok(())
}
