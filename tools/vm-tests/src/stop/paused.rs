// SPDX-License-Identifier: GPL-2.0

//! Owners that are stopped for a while, as by job control, or by who makes a snapshot of a container.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use super::killed::Owner;
use super::{expect_no_worker, Action, Case, State};
use crate::patience::{wait_for, what_goes_on_in};

/// What stops a process for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// SIGSTOP.
    Signal,
    /// The freezer of its cgroup.
    Freezer,
}

/// The cgroup of a process. It goes when the process has gone.
struct Cgroup;

impl Cgroup {
    const PATH: &'static str = "/sys/fs/cgroup/vhost-paused";

    fn new(pid: Pid) -> Result<Self> {
        fs::create_dir(Self::PATH).context("is cgroup2 mounted at /sys/fs/cgroup?")?;
        let this = Self;
        this.write("cgroup.procs", &pid.to_string())?;
        Ok(this)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        Ok(fs::write(Path::new(Self::PATH).join(name), text)?)
    }

    fn is_frozen(&self) -> bool {
        let events = fs::read_to_string(Path::new(Self::PATH).join("cgroup.events"));
        events.is_ok_and(|events| events.contains("frozen 1\n"))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(err) = wait_for(|| fs::remove_dir(Self::PATH).is_ok()) {
            eprintln!("vm-tests: {}: {err:#}", Self::PATH);
        }
    }
}

/// A process with a device.
struct Paused {
    pid: Pid,
    how: Pause,
    cgroup: Cgroup,
}

impl Paused {
    /// Whether all threads of the process, its worker too, have stopped.
    fn is_stopped(&self) -> bool {
        match self.how {
            Pause::Freezer => self.cgroup.is_frozen(),
            Pause::Signal => self
                .states()
                .is_ok_and(|states| states.iter().all(|state| *state == 'T')),
        }
    }

    fn states(&self) -> Result<Vec<char>> {
        let mut states = Vec::new();
        for task in fs::read_dir(format!("/proc/{}/task", self.pid))?.flatten() {
            let stat = fs::read_to_string(task.path().join("stat"))?;
            let state = stat
                .rsplit_once(") ")
                .and_then(|(_, rest)| rest.chars().next());
            states.push(state.context("a stat without a state")?);
        }
        Ok(states)
    }

    fn stop(&self) -> Result<()> {
        match self.how {
            Pause::Signal => kill(self.pid, Signal::SIGSTOP)?,
            Pause::Freezer => self.cgroup.write("cgroup.freeze", "1")?,
        }
        wait_for(|| self.is_stopped()).with_context(|| {
            format!(
                "it does not stop:{}",
                what_goes_on_in(&self.pid.to_string())
            )
        })
    }

    fn go_on(&self) -> Result<()> {
        match self.how {
            Pause::Signal => Ok(kill(self.pid, Signal::SIGCONT)?),
            Pause::Freezer => self.cgroup.write("cgroup.freeze", "0"),
        }
    }

    /// Packets that its device has moved both ways.
    fn packets(&self) -> Result<[u64; 2]> {
        let mut packets = [0; 2];
        for file in fs::read_dir(format!("/proc/{}/fdinfo", self.pid))?.flatten() {
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            for line in text.lines() {
                for (sum, key) in packets
                    .iter_mut()
                    .zip(["vhost-rx-packets:", "vhost-tx-packets:"])
                {
                    if let Some(value) = line.strip_prefix(key) {
                        *sum += value.trim().parse::<u64>()?;
                    }
                }
            }
        }
        Ok(packets)
    }
}

/// Stops an owner that has traffic, has it go on, and kills it when it is stopped once more.
pub(crate) fn paused(node: &Path, kthread: bool, window: u32, how: Pause) -> Result<()> {
    let mut owner = Owner::start(Case {
        node,
        kthread,
        window,
        state: State::Traffic,
        action: Action::Kill,
    })?;
    let pid = owner.pid();
    let cgroup = Cgroup::new(pid)?;
    let paused = Paused { pid, how, cgroup };
    let stops = || -> Result<()> {
        paused.stop()?;
        let before = paused.packets()?;
        std::thread::sleep(Duration::from_millis(100));
        let after = paused.packets()?;
        // A thread of the kernel stops for nobody.
        ensure!(
            kthread || before == after,
            "packets pass: {before:?}, then {after:?}"
        );
        paused.go_on()?;
        wait_for(|| {
            let more = |now: [u64; 2]| now.iter().zip(&before).all(|(now, before)| now > before);
            paused.packets().is_ok_and(more)
        })
        .with_context(|| {
            format!(
                "no packets pass after it:{}",
                what_goes_on_in(&pid.to_string())
            )
        })?;
        paused.stop()
    };
    let result = stops();
    owner.end()?;
    result?;
    wait_for(|| expect_no_worker().is_ok()).or_else(|_| expect_no_worker())
}
