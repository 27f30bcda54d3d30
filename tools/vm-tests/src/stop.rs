// SPDX-License-Identifier: GPL-2.0

//! Everything that stops a device, under traffic and in the middle of a busy-polling window.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};
use nix::errno::Errno;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use vhost_driver::GuestMemory;
use vhost_load::session::{Device, Session, SessionOptions};
use vhost_load::vring::{Vring, RX, TX};
use vhost_load::worker::Worker;
use vhost_uapi::{features, netdev, MemoryRegion, PacketSocket, VhostNet, VringAddr};

use crate::pump::{shape, Pump, Side};
use crate::report::{Report, Test};
use crate::rig::{region, wait_for};

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

/// A window that nothing here waits for.
const LONG_WINDOW: u32 = 3_000_000;
/// A stop may take so long, in the time of a machine whose CPUs are its own: `scripts/vm --icount`.
const ALLOWED: Duration = Duration::from_millis(100);
const ROUNDS: usize = 3;

const FEATURES: u64 =
    1 << features::VERSION_1 | 1 << features::EVENT_IDX | 1 << features::MRG_RXBUF;

/// Runs the tests whose names contain `only`. With a number of `races`, each that has traffic so many times, without a limit
/// on the time that a stop may take: for machines on which virtual CPUs wait for each other.
pub fn run(node: &Path, only: &str, races: Option<usize>, report: &mut Report) {
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
    let mut tests = Vec::new();
    for (action, what) in actions {
        for (window, how) in [(0, ""), (LONG_WINDOW, " in a window of 3 s")] {
            for (state, when) in [(State::Traffic, "under traffic"), (State::Idle, "idle")] {
                let name = format!("{what} {when}{how}");
                let scenario = move || scenario(node, action, window, state);
                match races {
                    None => tests.push(Test::new(name, move || timed(scenario))),
                    Some(races) if state == State::Traffic => {
                        let name = format!("{name}, {races} times");
                        tests.push(Test::new(name, move || {
                            (0..races).try_for_each(|_| scenario().map(|_| ()))
                        }));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
    report.result("no worker is left", &expect_no_worker());
}

/// Runs a scenario some times; it must not take long.
fn timed(scenario: impl Fn() -> Result<Duration>) -> Result<()> {
    let times: Result<Vec<Duration>> = (0..ROUNDS).map(|_| scenario()).collect();
    let times = times?;
    ensure!(
        times.iter().all(|time| *time < ALLOWED),
        "it took {times:?}, where {ALLOWED:?} are allowed"
    );
    Ok(())
}

fn scenario(node: &Path, action: Action, window: u32, state: State) -> Result<Duration> {
    match action {
        Action::Detach | Action::ResetOwner | Action::Close => {
            Running::start(node, window, state)?.stop(action)
        }
        Action::Kill => kill_owner(node, window, state, false),
        Action::KillHeld => kill_owner(node, window, state, true),
    }
}

fn options(node: &Path, window: u32) -> SessionOptions {
    SessionOptions {
        node: node.to_owned(),
        features: FEATURES,
        busyloop: Some(window),
        ..SessionOptions::default()
    }
}

/// A device with traffic.
struct Running {
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
    fn start(node: &Path, window: u32, state: State) -> Result<Self> {
        let session = Session::open(&options(node, window))?;
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
        let traffic = match state {
            State::Traffic => Traffic::Pump(pump),
            State::Idle => {
                let (rx, tx) = pump.stop()?;
                // The last packets go their way. With a window, the worker is in the middle of it then.
                std::thread::sleep(Duration::from_millis(100));
                Traffic::Rings(Box::new((rx, tx)))
            }
        };
        Ok(Self {
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
        let tap = self.device.tap.as_fd().try_clone_to_owned()?;
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
    let ifindex = netdev::index(device.tap.name())?;
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

fn expect_gone(worker: &Worker) -> Result<()> {
    let task = format!("/proc/self/task/{}", worker.tid());
    ensure!(!Path::new(&task).exists(), "the worker is still there");
    Ok(())
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

fn expect_no_worker() -> Result<()> {
    let found = workers()?;
    ensure!(found.is_empty(), "workers are left: {found:?}");
    Ok(())
}

/// Kills a process that owns a device; returns how long it took to be gone.
fn kill_owner(node: &Path, window: u32, state: State, held: bool) -> Result<Duration> {
    let mut owner = Owner::start(node, window, state, held)?;
    let start = Instant::now();
    owner.child.kill()?;
    owner.child.wait()?;
    let took = start.elapsed();
    let left = workers()?;
    ensure!(
        !left.contains(&owner.worker),
        "the worker {} outlives its owner",
        owner.worker
    );

    // A holder of the device kicks it all the time.
    std::thread::sleep(Duration::from_millis(100));
    let fd = format!("/proc/{}/fd/0", owner.holder);
    ensure!(
        fs::read_link(&fd).is_ok(),
        "the process that has the fd is gone"
    );
    kill(owner.holder, Signal::SIGKILL)?;
    // It is nobody's child any more, so that it may stay as a zombie: without files.
    wait_for(|| fs::read_link(&fd).is_err()).context("the holder of the fd does not die")?;
    Ok(took)
}

/// A process that owns a device with traffic.
struct Owner {
    child: Child,
    worker: String,
    holder: Pid,
}

impl Owner {
    fn start(node: &Path, window: u32, state: State, held: bool) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("owner").arg("--node").arg(node);
        command.arg("--window").arg(window.to_string());
        if state == State::Traffic {
            command.arg("--traffic");
        }
        if held {
            command.arg("--hold");
        }
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("no pipe to the owner")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let answer = (words.next(), words.next(), words.next());
        let (Some("ready"), Some(worker), Some(holder)) = answer else {
            bail!("the owner did not start: {line:?}");
        };
        let (worker, holder) = (worker.to_owned(), Pid::from_raw(holder.parse()?));
        let found = workers()?;
        ensure!(
            found.contains(&worker),
            "no worker {worker} is seen, only {found:?}"
        );
        Ok(Self {
            child,
            worker,
            holder,
        })
    }
}

/// Owns a device with traffic, until it is killed.
///
/// # Errors
///
/// What fails first.
pub fn owner(node: &Path, window: u32, traffic: bool, hold: bool) -> Result<()> {
    let state = if traffic { State::Traffic } else { State::Idle };
    let session = Session::open(&options(node, window))?;
    let holder = spawn_holder(&session, hold)?.id();
    session.device.attach()?;
    let [first, second] = session.buffers;
    let (rx, tx) = (Side::new(session.rx, first), Side::new(session.tx, second));
    let pump = Pump::start(rx, tx, wire(&session.device)?);
    pump.expect_traffic()?;
    let _kept: Box<dyn std::any::Any> = match state {
        State::Traffic => Box::new(pump),
        State::Idle => {
            let rings = pump.stop()?;
            std::thread::sleep(Duration::from_millis(100));
            Box::new(rings)
        }
    };
    println!("ready {} {holder}", Worker::own_name());
    loop {
        std::thread::park();
    }
}

/// Starts a process that has the device and a kick eventfd. Or the tap alone, as an interface takes its own time to go, which
/// is not to be measured.
fn spawn_holder(session: &Session, device: bool) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    if device {
        let kick = session.tx.kick.as_fd().try_clone_to_owned()?;
        let vhost = session.device.vhost.as_fd().try_clone_to_owned()?;
        command.arg("holder").stdin(vhost).stdout(kick);
    } else {
        let tap = session.device.tap.as_fd().try_clone_to_owned()?;
        command.arg("keeper").stdin(tap).stdout(Stdio::null());
    }
    Ok(command.spawn()?)
}

/// Kicks through standard output, until it is killed. Standard input is the device.
///
/// # Errors
///
/// The device or the eventfd is none.
pub fn holder() -> Result<()> {
    let vhost = VhostNet::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut kick = fs::File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    loop {
        vhost.features().map_err(|err| anyhow!(err))?;
        kick.write_all(&1u64.to_ne_bytes())?;
        std::thread::sleep(Duration::from_millis(1));
    }
}
