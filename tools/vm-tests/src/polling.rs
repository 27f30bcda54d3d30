// SPDX-License-Identifier: GPL-2.0

//! How vrings poll: what can be set, by whom, and what becomes of it.

mod limits;
mod rights;

use std::fs;
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

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, sleeps: u32, report: &mut Report) {
    type One = (&'static str, fn(&Path) -> Result<()>);
    let all: [One; 9] = [
        ("what is set is what is got, vring by vring", set_and_get),
        ("what is refused changes nothing", refused),
        ("a new owner finds the defaults", reset),
        (
            "the module's parameters are what a device begins with",
            parameters,
        ),
        (
            "a competitor gets the CPU at once, with the option",
            limits::competitor,
        ),
        (
            "nobody polls for a driver that does not run, with the option",
            limits::guest,
        ),
        (
            "continuous polling ends, by time and without a backend",
            limits::continuous,
        ),
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
    tests.push(Test::new(
        "sleeps at any moment, no packet is forgotten",
        move || limits::sleeps(node, sleeps),
    ));
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
    for policy in Policy::ALL {
        for (competitor, guest) in [(false, true), (true, false), (true, true)] {
            let poll = VringPoll {
                policy,
                flags: PollFlags { competitor, guest },
                ..one
            };
            vhost.set_poll(1, poll)?;
            ensure!(vhost.poll(1)? == poll, "it is {:?}", vhost.poll(1)?);
        }
    }
    vhost.set_poll_raw([1, 0, 0, 0, 0, 0, 0, 0])?;
    ensure!(vhost.poll(1)? == DEFAULT, "0 is not the default time");
    let window = vhost.vring_busyloop_timeout(1)?;
    ensure!(window == 77, "the window is {window} now");
    Ok(())
}

fn refused(node: &Path) -> Result<()> {
    let vhost = owned(node)?;
    let other = VringPoll {
        start_rate: 5,
        stop_idle_us: 6,
        ..DEFAULT
    };
    vhost.set_poll(0, other)?;
    let policy = (3..7).chain([u32::MAX]);
    let mut bad: Vec<[u32; 8]> = policy.map(|n| [0, n, 0, 0, 0, 0, 0, 0]).collect();
    let flag = (2..32).map(|bit| 1 << bit);
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

/// A parameter whose name begins with `poll_`, as it is, or set to `value`.
fn parameter(name: &str, value: Option<&str>) -> std::io::Result<String> {
    let path = format!("/sys/module/vhost_net_rs/parameters/poll_{name}");
    if let Some(value) = value {
        fs::write(&path, value)?;
    }
    Ok(fs::read_to_string(&path)?.trim().to_owned())
}

/// What each parameter is at first, and another value.
const PARAMETERS: [[&str; 3]; 7] = [
    ["us", "0", "33"],
    ["policy", "fixed", "adaptive"],
    ["competitor", "N", "Y"],
    ["guest", "N", "Y"],
    ["start_rate", "0", "44"],
    ["stop_idle", "1000", "55"],
    ["max_us", "0", "66"],
];

fn parameters(node: &Path) -> Result<()> {
    for [name, first, other] in PARAMETERS {
        let is = parameter(name, None)?;
        ensure!(is == first, "poll_{name} is {is}, not {first}");
        let is = parameter(name, Some(other))?;
        ensure!(is == other, "poll_{name} is {is}, not {other}");
    }
    let result = begins_with_parameters(node);
    for [name, first, _] in PARAMETERS {
        parameter(name, Some(first))?;
    }
    result
}

fn begins_with_parameters(node: &Path) -> Result<()> {
    for (name, value) in [
        ("us", "x"),
        ("us", "-1"),
        ("us", "4294967296"),
        ("policy", "1"),
        ("policy", "adaptiv"),
        ("competitor", "2"),
        ("guest", "x"),
        ("start_rate", "-1"),
        ("stop_idle", "0"),
        ("stop_idle", "1000001"),
        ("max_us", "x"),
    ] {
        let written = parameter(name, Some(value));
        ensure!(written.is_err(), "poll_{name} can be '{value}'");
    }
    let set = VringPoll {
        policy: Policy::Adaptive,
        flags: PollFlags {
            competitor: true,
            guest: true,
        },
        start_rate: 44,
        stop_idle_us: 55,
    };
    let vhost = owned(node)?;
    for again in [false, true] {
        for index in [0, 1] {
            let (poll, window) = (vhost.poll(index)?, vhost.vring_busyloop_timeout(index)?);
            ensure!((poll, window) == (set, 33), "it is {poll:?}, {window}");
        }
        if !again {
            vhost.set_poll(0, DEFAULT)?;
            vhost.set_vring_busyloop_timeout(0, 1)?;
            vhost.reset_owner()?;
            vhost.set_owner()?;
        }
    }
    // The device that is open keeps what it has, and is told the default for 0.
    parameter("policy", Some("continuous"))?;
    ensure!(vhost.poll(0)? == set, "it is {:?}", vhost.poll(0)?);
    vhost.set_poll_raw([0; 8])?;
    ensure!(
        vhost.poll(0)?.stop_idle_us == 55,
        "it is {:?}",
        vhost.poll(0)?
    );
    Ok(())
}
