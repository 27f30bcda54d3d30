// SPDX-License-Identifier: GPL-2.0

//! Owners that are killed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use vhost_load::session::Session;
use vhost_load::worker::Worker;
use vhost_uapi::VhostNet;

use super::{options, wire, workers, Action, Case, State};
use crate::patience::wait_for;
use crate::pump::{Pump, Side};

/// Kills a process that owns a device; returns how long it took to be gone.
pub(super) fn kill_owner(case: Case<'_>) -> Result<Duration> {
    let mut owner = Owner::start(case)?;
    let start = Instant::now();
    owner.child.kill()?;
    owner.child.wait()?;
    let took = start.elapsed();
    // A thread of the owner goes with it, one of the kernel with the device.
    let stays = case.kthread && case.action == Action::KillHeld;
    let there = || Ok::<_, anyhow::Error>(workers()?.contains(&owner.worker));
    ensure!(
        there()? == stays,
        "with the owner gone, it should be {stays} that the worker {} is there",
        owner.worker
    );

    // A holder of the device kicks it all the time.
    std::thread::sleep(Duration::from_millis(100));
    let fd = format!("/proc/{}/fd/0", owner.holder);
    ensure!(
        fs::read_link(&fd).is_ok(),
        "the process that has the fd is gone"
    );
    ensure!(there()? == stays, "the worker went or came by itself");
    kill(owner.holder, Signal::SIGKILL)?;
    // It is nobody's child any more, so that it may stay as a zombie: without files.
    wait_for(|| fs::read_link(&fd).is_err()).context("the holder of the fd does not die")?;
    wait_for(|| there().is_ok_and(|there| !there)).context("the worker outlives the device")?;
    Ok(took)
}

/// A process that owns a device with traffic.
pub(super) struct Owner {
    child: Child,
    worker: String,
    holder: Pid,
}

impl Owner {
    pub(super) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32) // CAST: The kernel's own type.
    }

    /// Kills it, and who has its tap.
    pub(super) fn end(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(kill(self.holder, Signal::SIGKILL)?)
    }

    pub(super) fn start(case: Case<'_>) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("owner").arg("--node").arg(case.node);
        command.arg("--window").arg(case.window.to_string());
        for (wanted, option) in [
            (case.state == State::Traffic, "--traffic"),
            (case.action == Action::KillHeld, "--hold"),
            (case.kthread, "--kthread"),
        ] {
            if wanted {
                command.arg(option);
            }
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

/// What the process of `stop` that owns a device is to do.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct OwnerArgs {
    /// Busy polling window
    #[arg(long)]
    window: u32,
    /// Whether the traffic goes on
    #[arg(long)]
    traffic: bool,
    /// Whether another process has the device too
    #[arg(long)]
    hold: bool,
    /// Whether the worker is a kernel thread
    #[arg(long)]
    kthread: bool,
}

/// Owns a device with traffic, until it is killed.
///
/// # Errors
///
/// What fails first.
pub fn owner(node: &Path, args: &OwnerArgs) -> Result<()> {
    let case = Case {
        node,
        kthread: args.kthread,
        window: args.window,
        state: if args.traffic {
            State::Traffic
        } else {
            State::Idle
        },
        action: Action::Kill,
    };
    let session = Session::open(&options(case))?;
    let holder = spawn_holder(&session, args.hold)?.id();
    session.device.attach()?;
    let [first, second] = session.buffers;
    let (rx, tx) = (Side::new(session.rx, first), Side::new(session.tx, second));
    let pump = Pump::start(rx, tx, wire(&session.device)?);
    pump.expect_traffic()?;
    let _kept: Box<dyn std::any::Any> = match case.state {
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
        let tap = session.device.backend.as_fd().try_clone_to_owned()?;
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
