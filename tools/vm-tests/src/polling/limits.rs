// SPDX-License-Identifier: GPL-2.0

//! What ends a window before its time.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use vhost_load::session::SessionOptions;
use vhost_load::vring::{RX, TX};
use vhost_load::worker::{pin_self, Worker};
use vhost_uapi::{Policy, PollFlags, VringPoll};

use super::rights::Role;
use super::DEFAULT;
use crate::patience::{limit, scaled};
use crate::rig::Rig;

/// A window that should not be used up, in microseconds.
const WINDOW: u32 = 10_000;
const DRIVER_CPU: usize = 0;
const WORKER_CPU: usize = 1;

fn rig(node: &Path, flags: PollFlags, policy: Policy) -> Result<Rig> {
    let rig = Rig::new(&SessionOptions {
        node: node.to_owned(),
        ring_size: 256,
        busyloop: Some(WINDOW),
        ..SessionOptions::default()
    })?;
    let poll = VringPoll {
        policy,
        flags,
        ..DEFAULT
    };
    for index in [RX, TX] {
        rig.vhost().set_poll(index, poll)?;
    }
    Ok(rig)
}

fn worker(rig: &Rig) -> Result<&Worker> {
    rig.session.worker.as_ref().context("no worker was found")
}

/// Sends the packet `at`, and waits, on the CPU, until it is used.
fn packet(rig: &Rig, at: u16) -> Result<()> {
    let ring = rig.ring(TX);
    rig.good(TX, at, at % ring.num());
    let next = at.wrapping_add(1);
    ring.publish(next);
    if ring.wants_kick(at, next) {
        rig.kick(TX)?;
    }
    // A driver that sleeps here would be one that does not run.
    let start = Instant::now();
    while ring.used_idx() != next && start.elapsed() < Duration::from_secs(1) {
        std::hint::spin_loop();
    }
    rig.expect_used(TX, next)
}

fn polled(rig: &Rig) -> Result<Duration> {
    let counter = |key| rig.session.device.counter(key).context("no counter");
    Ok(Duration::from_nanos(
        counter("poll-ns-won")? + counter("poll-ns-lost")?,
    ))
}

/// How long this thread waited for a CPU.
fn run_delay() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let delay = text.split_whitespace().nth(1).context("no delay")?;
    Ok(Duration::from_nanos(delay.parse()?))
}

/// A task on the worker's CPU wakes up again and again; how long it waits for the CPU each time.
fn delay(node: &Path, flags: PollFlags, policy: Policy) -> Result<Duration> {
    const WAKES: u32 = 40;
    let rig = rig(node, flags, policy)?;
    worker(&rig)?.pin(WORKER_CPU)?;
    pin_self(DRIVER_CPU)?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let competitor = scope.spawn(|| -> Result<Duration> {
            pin_self(WORKER_CPU)?;
            let before = run_delay()?;
            for _ in 0..WAKES {
                thread::sleep(Duration::from_micros(700));
            }
            done.store(true, Ordering::Relaxed);
            Ok((run_delay()? - before) / WAKES)
        });
        let mut at = 0;
        while !done.load(Ordering::Relaxed) && !competitor.is_finished() {
            packet(&rig, at)?;
            at += 1;
            thread::sleep(Duration::from_millis(1));
        }
        competitor.join().ok().context("the competitor panicked")?
    })
}

/// The competitor gets the CPU at once where it is to.
pub(super) fn competitor(node: &Path) -> Result<()> {
    const ALLOWED: Duration = Duration::from_micros(20);
    let none = PollFlags::default();
    let option = PollFlags {
        competitor: true,
        ..none
    };
    let without = delay(node, none, Policy::Fixed)?;
    let with = delay(node, option, Policy::Fixed)?;
    let adaptive = delay(node, none, Policy::Adaptive)?;
    println!("# polling: a competitor waits for {without:?} without the option, for {with:?} with it, for {adaptive:?} if adaptive");
    limit(without > ALLOWED * 5, || {
        format!("without the option it waits for {without:?}: that is no test")
    })?;
    limit(with < ALLOWED, || format!("it waits for {with:?}"))?;
    limit(adaptive < ALLOWED, || {
        format!("if adaptive it waits for {adaptive:?}")
    })
}

/// Lets packets go, `pause` after each; what was polled for each.
fn polled_each(rig: &Rig, packets: u16, pause: impl Fn()) -> Result<Duration> {
    let before = polled(rig)?;
    for at in 0..packets {
        packet(rig, at)?;
        pause();
    }
    Ok((polled(rig)? - before) / u32::from(packets))
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Nothing is polled while the driver sleeps, or is kept from its CPU; all is while it runs.
pub(super) fn guest(node: &Path) -> Result<()> {
    let window = Duration::from_micros(WINDOW.into());
    let asleep = || thread::sleep(Duration::from_millis(100));
    let guest = PollFlags {
        guest: true,
        ..PollFlags::default()
    };
    pin_self(DRIVER_CPU)?;
    let start = |flags| -> Result<Rig> {
        let rig = rig(node, flags, Policy::Fixed)?;
        worker(&rig)?.pin(WORKER_CPU)?;
        Ok(rig)
    };
    let without = polled_each(&start(PollFlags::default())?, 4, asleep)?;
    let with = polled_each(&start(guest)?, 30, asleep)?;
    let one = |_| polled_each(&start(guest)?, 1, || spin(window * 2));
    let mut each = (0..5).map(one).collect::<Result<Vec<_>>>()?;
    each.sort();
    // A driver that is kept from its CPU for a moment ends a window.
    let running = each[each.len() / 2];
    let preempted = preempted(&start(guest)?)?;
    println!("# polling: of {window:?}: {without:?} without the option; with it {with:?} asleep, {running:?} running, {preempted:?} preempted");
    limit(without > window * 9 / 10, || {
        format!("without the option {without:?} is polled: that is no test")
    })?;
    limit(with <= Duration::from_micros(50), || {
        format!("{with:?} is polled for each sleep")
    })?;
    limit(running > window * 3 / 4, || {
        format!("{running:?} is polled while the driver runs")
    })?;
    limit(preempted < window / 2, || {
        format!("{preempted:?} is polled while the driver is preempted")
    })
}

/// The driver shares its CPU with others that never sleep.
fn preempted(rig: &Rig) -> Result<Duration> {
    const PACKETS: u16 = 5;
    const HOGS: usize = 4;
    let mut hogs = Vec::new();
    for _ in 0..HOGS {
        let mut hog = Command::new(std::env::current_exe()?);
        hog.args(["polling-process", Role::Hog.name(), "/"]);
        hogs.push(hog.spawn()?);
    }
    let result = polled_each(rig, PACKETS, || spin(Duration::from_millis(20)));
    for hog in &mut hogs {
        hog.kill()?;
        hog.wait()?;
    }
    result
}

/// Sleeps at any moment with a driver that sleeps at any moment: no packet is forgotten.
pub(super) fn sleeps(node: &Path, count: u32) -> Result<()> {
    let flags = PollFlags {
        competitor: true,
        guest: true,
    };
    let rig = rig(node, flags, Policy::Fixed)?;
    for number in 0..count {
        // CAST: Indices wrap.
        packet(&rig, number as u16)?;
        thread::sleep(Duration::from_micros(u64::from(number % 61)));
    }
    Ok(())
}

/// Continuous polling ends when nothing comes any more, and with the backend.
pub(super) fn continuous(node: &Path) -> Result<()> {
    const STOP_IDLE: u32 = 3000;
    let rig = rig(node, PollFlags::default(), Policy::Fixed)?;
    let poll = VringPoll {
        policy: Policy::Continuous,
        start_rate: 1,
        stop_idle_us: STOP_IDLE,
        ..DEFAULT
    };
    for index in [RX, TX] {
        rig.vhost().set_vring_busyloop_timeout(index, 0)?;
        rig.vhost().set_poll(index, poll)?;
    }
    worker(&rig)?.pin(WORKER_CPU)?;
    pin_self(DRIVER_CPU)?;
    let (ring, idle) = (rig.ring(TX), Duration::from_micros(STOP_IDLE.into()));
    let mut at = 0;
    // Whether it polls on when packets have come.
    let mut start = || -> Result<bool> {
        for _ in 0..200 {
            packet(&rig, at)?;
            at += 1;
        }
        Ok(!ring.wants_kick(at, at + 1))
    };
    let begins = start()?;
    let before = polled(&rig)?;
    thread::sleep(idle * 10);
    let polled = polled(&rig)? - before;
    println!("# polling: continuous: {polled:?} polled of {idle:?}");
    asleep(&rig, idle)?;
    let used = ring.used_idx();
    ensure!(
        ring.wants_kick(used, used + 1),
        "it ended, and no kick is wanted"
    );

    let begins_again = start()?;
    rig.session.device.detach()?;
    thread::sleep(idle);
    asleep(&rig, idle)?;
    limit(begins && begins_again, || "it does not poll on".to_owned())?;
    limit(polled > idle / 2, || format!("it stops after {polled:?}"))?;
    limit(polled < idle * 11 / 10, || {
        format!("it stops after {polled:?} only")
    })
}

/// Fails if the worker runs.
fn asleep(rig: &Rig, time: Duration) -> Result<()> {
    let before = cpu_time(rig)?;
    thread::sleep(time);
    let spent = cpu_time(rig)? - before;
    ensure!(spent < scaled(time / 20), "it spends {spent:?} of {time:?}");
    Ok(())
}

fn cpu_time(rig: &Rig) -> Result<Duration> {
    worker(rig)?.cpu_time().context("the worker is gone")
}

/// What takes the driver's CPU away.
pub(super) fn hog() -> Result<()> {
    pin_self(DRIVER_CPU)?;
    loop {
        std::hint::spin_loop();
    }
}
