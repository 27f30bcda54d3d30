// SPDX-License-Identifier: GPL-2.0

//! Everything that stops a device, under traffic and in the middle of a busy-polling window.

mod killed;
mod paused;

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use nix::errno::Errno;
use vhost_driver::GuestMemory;
use vhost_load::session::{Device, Session, SessionOptions};
use vhost_load::vring::{Vring, RX, TX};
use vhost_load::worker::Worker;
use vhost_uapi::{features, netdev, MemoryRegion, PacketSocket, VhostNet, VringAddr};

use crate::patience::{is_slow, wait_for};
use crate::pump::{shape, Pump, Side};
use crate::report::{Report, Test};
use crate::rig::region;

pub use killed::{holder, owner, OwnerArgs};
pub(crate) use paused::{paused, Pause};

/// What stops a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Detach,
    ResetOwner,
    Close,
    Kill,
    KillHeld,
}

/// What goes on when it is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Packets both ways.
    Traffic,
    /// Nothing any more.
    Idle,
}

/// A device, and what is done with it.
#[derive(Clone, Copy, Debug)]
struct Case<'a> {
    node: &'a Path,
    /// Whether its worker is a kernel thread.
    kthread: bool,
    window: u32,
    state: State,
    action: Action,
}

/// How often, and on which kind of worker.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Each test that has traffic so many times, without a limit on the time that a stop may take: for machines on which
    /// virtual CPUs wait for each other.
    pub races: Option<usize>,
    /// Whether workers are kernel threads.
    pub kthread: bool,
}

/// A window that nothing here waits for.
const LONG_WINDOW: u32 = 3_000_000;
/// A stop may take so long, in the time of a machine whose CPUs are its own: `scripts/vm --icount`.
const ALLOWED: Duration = Duration::from_millis(100);
/// The same on a debug kernel, where a run of the worker that moves as many packets as one may takes half a second: less than
/// the window.
const ALLOWED_SLOW: Duration = Duration::from_millis(2500);
const ROUNDS: usize = 2;

const FEATURES: u64 =
    1 << features::VERSION_1 | 1 << features::EVENT_IDX | 1 << features::MRG_RXBUF;

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, options: Options, report: &mut Report) {
    let Options { races, kthread } = options;
    let actions = [
        (Action::Detach, "SET_BACKEND(-1)"),
        (Action::ResetOwner, "RESET_OWNER"),
        (Action::Close, "close"),
        (Action::Kill, "kill -9 of the owner"),
        (
            Action::KillHeld,
            "kill -9 of the owner, another process has the fd",
        ),
    ];
    let kind = if kthread { "kthread: " } else { "" };
    let mut tests = Vec::new();
    for (action, what) in actions {
        for (window, how) in [(0, ""), (LONG_WINDOW, " in a window of 3 s")] {
            for (state, when) in [(State::Traffic, "under traffic"), (State::Idle, "idle")] {
                let name = format!("{kind}{what} {when}{how}");
                let case = Case {
                    node,
                    kthread,
                    window,
                    state,
                    action,
                };
                match races {
                    None => tests.push(Test::new(name, move || timed(case))),
                    Some(races) if state == State::Traffic => {
                        let name = format!("{name}, {races} times");
                        tests.push(Test::new(name, move || {
                            (0..races).try_for_each(|_| scenario(case).map(|_| ()))
                        }));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
    report.result(&format!("{kind}no worker is left"), &expect_no_worker());
}

/// Runs a scenario some times; it must not take long.
fn timed(case: Case<'_>) -> Result<()> {
    // A kernel thread differs in how it starts and ends, not in what it does: once is enough.
    let rounds = if case.kthread || is_slow() { 1 } else { ROUNDS };
    let times: Result<Vec<Duration>> = (0..rounds).map(|_| scenario(case)).collect();
    let times = times?;
    let allowed = if is_slow() { ALLOWED_SLOW } else { ALLOWED };
    ensure!(
        times.iter().all(|time| *time < allowed),
        "it took {times:?}, where {allowed:?} are allowed"
    );
    Ok(())
}

fn scenario(case: Case<'_>) -> Result<Duration> {
    match case.action {
        Action::Detach | Action::ResetOwner | Action::Close => {
            Running::start(case)?.stop(case.action)
        }
        Action::Kill | Action::KillHeld => killed::kill_owner(case),
    }
}

fn options(case: Case<'_>) -> SessionOptions {
    SessionOptions {
        node: case.node.to_owned(),
        features: u128::from(FEATURES),
        busyloop: Some(case.window),
        kthread: Some(case.kthread),
        ..SessionOptions::default()
    }
}

/// A device with traffic.
struct Running {
    kthread: bool,
    device: Arc<Device>,
    memory: GuestMemory,
    worker: Worker,
    traffic: Traffic,
}

/// The rings are where they are needed.
enum Traffic {
    Pump(Pump),
    Rings(Box<(Side, Side)>),
}

impl Running {
    fn start(case: Case<'_>) -> Result<Self> {
        let session = Session::open(&options(case))?;
        let Session {
            device,
            memory,
            rx,
            tx,
            buffers,
            worker,
            ..
        } = session;
        device.attach()?;
        let [first, second] = buffers;
        let (rx, tx) = (Side::new(rx, first), Side::new(tx, second));
        let pump = Pump::start(rx, tx, wire(&device)?);
        pump.expect_traffic()?;
        let traffic = match case.state {
            State::Traffic => Traffic::Pump(pump),
            State::Idle => {
                let (rx, tx) = pump.stop()?;
                // The last packets go their way. With a window, the worker is in the middle of it then.
                std::thread::sleep(Duration::from_millis(100));
                Traffic::Rings(Box::new((rx, tx)))
            }
        };
        Ok(Self {
            kthread: case.kthread,
            device,
            memory,
            worker: worker.context("no worker was found")?,
            traffic,
        })
    }

    /// Stops the device; returns how long that took.
    fn stop(self, action: Action) -> Result<Duration> {
        match action {
            Action::Detach => self.detach(),
            Action::ResetOwner => self.reset_owner(),
            _ => self.close(),
        }
    }

    fn detach(self) -> Result<Duration> {
        let start = Instant::now();
        self.device.detach()?;
        let took = start.elapsed();

        let (rx, tx) = self.traffic.end()?;
        expect_still(&self.memory, [&rx.vring, &tx.vring])?;
        expect_asleep(&self.worker)?;
        for vring in [&rx.vring, &tx.vring] {
            self.device
                .reload_base(&self.memory, vring.queue.layout(), vring.index)?;
        }
        self.device.attach()?;
        let pump = Pump::start(rx, tx, wire(&self.device)?);
        pump.expect_traffic()?;
        self.device.detach()?;
        let (rx, tx) = pump.stop()?;
        for vring in [&rx.vring, &tx.vring] {
            let errors = vring.take_errors()?;
            ensure!(errors == 0, "{errors} errors were signalled");
        }
        Ok(took)
    }

    fn reset_owner(self) -> Result<Duration> {
        let vhost = &self.device.vhost;
        let start = Instant::now();
        vhost.reset_owner()?;
        let took = start.elapsed();

        let (rx, tx) = self.traffic.end()?;
        expect_still(&self.memory, [&rx.vring, &tx.vring])?;
        expect_gone(&self.worker)?;
        let refused = vhost.vring_base(RX).map_err(|err| err.errno);
        ensure!(
            refused == Err(Errno::EPERM),
            "after RESET_OWNER, GET_VRING_BASE answers {refused:?}"
        );

        vhost.set_fork_from_owner(u8::from(!self.kthread))?;
        vhost.set_owner()?;
        let state = (vhost.vring_base(TX)?, vhost.vring_busyloop_timeout(TX)?);
        ensure!(
            state == (0, 0),
            "(base, window) are {state:?} after RESET_OWNER"
        );
        for vring in [&rx.vring, &tx.vring] {
            set_up(vhost, &self.memory, vring)?;
        }
        self.device.attach()?;
        let pump = Pump::start(rx, tx, wire(&self.device)?);
        pump.expect_traffic()?;
        pump.stop()?;
        Ok(took)
    }

    fn close(self) -> Result<Duration> {
        // The interface takes its own time to go: it shall stay.
        let tap = self.device.backend.as_fd().try_clone_to_owned()?;
        let device = Arc::into_inner(self.device).context("the device is in use")?;
        let start = Instant::now();
        drop(device);
        let took = start.elapsed();
        let (rx, tx) = self.traffic.end()?;
        expect_still(&self.memory, [&rx.vring, &tx.vring])?;
        expect_gone(&self.worker)?;
        drop(tap);
        Ok(took)
    }
}

impl Traffic {
    fn end(self) -> Result<(Side, Side)> {
        match self {
            Self::Pump(pump) => pump.stop(),
            Self::Rings(rings) => Ok(*rings),
        }
    }
}

fn wire(device: &Device) -> Result<PacketSocket> {
    let ifindex = netdev::index(device.backend.name())?;
    Ok(PacketSocket::open(ifindex, shape().protocol())?)
}

/// Sets up a ring after all was forgotten; it goes on where it is.
fn set_up(vhost: &VhostNet, memory: &GuestMemory, vring: &Vring) -> Result<()> {
    let table: Vec<MemoryRegion> = memory.regions().iter().map(region).collect();
    let (index, ring) = (vring.index, vring.queue.layout());
    let uva = |gpa| memory.uva(gpa, 1).context("a ring outside of its memory");
    let addr = VringAddr {
        flags: 0,
        desc: uva(ring.desc)?,
        used: uva(ring.used)?,
        avail: uva(ring.avail)?,
        log: 0,
    };
    vhost.set_features(FEATURES)?;
    vhost.set_mem_table(&table)?;
    vhost.set_vring_num(index, u32::from(ring.num))?;
    vhost.set_vring_base(index, u32::from(vring.queue.used_idx()))?;
    vhost.set_vring_addr(index, &addr)?;
    vhost.set_vring_kick(index, Some(vring.kick.as_fd()))?;
    vhost.set_vring_call(index, Some(vring.call.as_fd()))?;
    Ok(vhost.set_vring_err(index, Some(vring.err.as_fd()))?)
}

/// Checks that nobody moves the used indices.
fn expect_still(memory: &GuestMemory, vrings: [&Vring; 2]) -> Result<()> {
    let look =
        || vrings.map(|vring| memory.load_u16(vring.queue.layout().used_idx(), Ordering::Acquire));
    let before = look();
    for vring in vrings {
        vring.kick.signal()?;
    }
    std::thread::sleep(Duration::from_millis(50));
    let after = look();
    ensure!(
        before == after,
        "used indices went from {before:?} to {after:?} after the stop"
    );
    Ok(())
}

fn expect_asleep(worker: &Worker) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(100);
    let cpu = || worker.cpu_time().context("the worker is gone");
    let before = cpu()?;
    std::thread::sleep(LOOK);
    let spent = cpu()?.saturating_sub(before);
    ensure!(
        spent < LOOK / 5,
        "the worker spins: {spent:?} of CPU in {LOOK:?}"
    );
    Ok(())
}

/// Checks that a worker has ended. Its last steps, in which it touches nothing of the device's, are not waited for by what
/// ends it.
pub(crate) fn expect_gone(worker: &Worker) -> Result<()> {
    wait_for(|| worker.is_gone()).context("the worker is still there")
}

/// Names of all vhost workers there are.
fn workers() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc")?.flatten() {
        let Ok(tasks) = fs::read_dir(process.path().join("task")) else {
            continue;
        };
        for task in tasks.flatten() {
            let comm = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if comm.starts_with("vhost-") {
                found.push(comm.trim_end().to_owned());
            }
        }
    }
    Ok(found)
}

/// Checks that there is no vhost worker in the system.
pub(crate) fn expect_no_worker() -> Result<()> {
    let found = workers()?;
    ensure!(found.is_empty(), "workers are left: {found:?}");
    Ok(())
}
