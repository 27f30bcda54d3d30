// SPDX-License-Identifier: GPL-2.0

//! A round, seen from outside: the owner's process, and what is done to it.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use nix::kmod::{delete_module, DeleteModuleFlags};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{kill, Signal};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use vhost_uapi::wait_readable;

use super::left::Clean;
use super::{refused, Action, Setup};
use crate::dice::Dice;
use crate::patience::{patience, wait_for, what_goes_on_in};

/// Where rounds are run.
pub(super) struct Place<'a> {
    pub(super) node: &'a Path,
    pub(super) module: &'a str,
    pub(super) load: &'a str,
    pub(super) clean: Clean,
}

/// What came of a round.
#[derive(Default)]
pub(super) struct Done {
    /// Packets received and sent meanwhile.
    pub(super) moved: [u64; 2],
    /// Calls that were served and refused, of the first thing and the second.
    pub(super) calls: [[u64; 2]; 2],
}

/// The process that owns the device.
struct Owner {
    child: Child,
    stdout: BufReader<ChildStdout>,
    interface: String,
    holder: i32,
}

impl Place<'_> {
    /// Runs a round. Nobody waits for a busy-polling window: it is longer than anything here is waited for.
    pub(super) fn round(&self, setup: Setup) -> Result<Done> {
        let mut owner = self.start(setup)?;
        let result = self.disturb(setup, &mut owner);
        if result.is_err() {
            let _ = owner.child.kill();
        }
        owner.expect_end()?;
        if owner.holder != 0 {
            let holder = Pid::from_raw(owner.holder);
            kill(holder, Signal::SIGKILL)?;
            waitpid(holder, None)?;
        }
        drop(owner);
        if setup.has(Action::Rmmod) {
            wait_for(|| !self.is_loaded() || self.unload())
                .with_context(|| format!("{} cannot be unloaded", self.module))?;
            let status = Command::new("sh").args(["-c", self.load]).status()?;
            ensure!(status.success(), "{}: {status}", self.load);
        }
        result
    }

    fn is_loaded(&self) -> bool {
        Path::new("/sys/module").join(self.module).exists()
    }

    /// Tries to unload the module.
    fn unload(&self) -> bool {
        let name = std::ffi::CString::new(self.module).unwrap_or_default();
        delete_module(&name, DeleteModuleFlags::O_NONBLOCK).is_ok()
    }

    fn start(&self, setup: Setup) -> Result<Owner> {
        // What an owner leaves behind is to be ours to wait for.
        set_child_subreaper(true)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("race-owner").arg("--node").arg(self.node);
        command.args([setup.first.name(), setup.second.name()]);
        command.args([setup.seed.to_string(), setup.longest.to_string()]);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("no pipe to the owner")?;
        let mut owner = Owner {
            child,
            stdout: BufReader::new(stdout),
            interface: String::new(),
            holder: 0,
        };
        let line = owner.line();
        let words = line.as_ref().map(|line| line.split_whitespace().collect());
        let words: Vec<&str> = words.unwrap_or_default();
        let ["ready", interface, holder] = words[..] else {
            owner.child.kill()?;
            owner.child.wait()?;
            return Err(refused(&line?)).context("there was no traffic at first");
        };
        (owner.interface, owner.holder) = (interface.to_owned(), holder.parse()?);
        Ok(owner)
    }

    /// Does what is done from outside, and hears what came of the rest.
    fn disturb(&self, setup: Setup, owner: &mut Owner) -> Result<Done> {
        let mut dice = Dice::new(setup.seed ^ 2);
        let (start, mut helpers) = (Instant::now(), Vec::new());
        let outside = [Action::TapDeleted, Action::Kill].into_iter();
        let events = outside.filter(|action| setup.has(*action));
        let mut events: Vec<(Duration, Action)> = events
            .map(|action| (setup.moment(&mut dice), action))
            .collect();
        events.sort_unstable();
        for (late, action) in events {
            self.wait_until(setup, start + late);
            if action == Action::Kill {
                owner.child.kill()?;
            } else {
                let mut command = Command::new("ip");
                command.args(["link", "del", &owner.interface]);
                helpers.push(command.stderr(Stdio::null()).spawn()?);
            }
        }
        let done = if setup.has(Action::Kill) {
            owner.expect_end().map(|()| Done::default())
        } else {
            self.wait_until(setup, start + setup.length());
            owner.done()
        };
        // An interface that went away with the owner cannot be deleted.
        for mut helper in helpers {
            helper.wait()?;
        }
        done
    }

    /// Tries to unload the module meanwhile.
    fn wait_until(&self, setup: Setup, end: Instant) {
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            let unload = setup.has(Action::Rmmod);
            if unload && self.unload() {
                return;
            }
            let step = Duration::from_micros(if unload { 200 } else { 5000 });
            std::thread::sleep(left.min(step));
        }
    }
}

impl Owner {
    /// The next line that it prints.
    fn line(&mut self) -> Result<String> {
        let long = patience() * 10;
        let said = wait_readable(&[self.stdout.get_ref().as_fd()], long)?;
        ensure!(
            said,
            "the owner hangs: nothing for {long:?}{}",
            self.state()
        );
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Where its threads are.
    fn state(&self) -> String {
        what_goes_on_in(&self.child.id().to_string())
    }

    /// Waits until it has ended.
    fn expect_end(&mut self) -> Result<()> {
        let end = Instant::now() + patience() * 10;
        while self.child.try_wait()?.is_none() {
            ensure!(
                Instant::now() < end,
                "the owner does not end{}",
                self.state()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn done(&mut self) -> Result<Done> {
        let line = self.line()?;
        let words = line
            .strip_prefix("done ")
            .map(|rest| rest.split_whitespace());
        let numbers: Option<Vec<u64>> =
            words.and_then(|words| words.map(|word| word.parse().ok()).collect());
        match numbers.unwrap_or_default()[..] {
            [rx, tx, a, b, c, d] => Ok(Done {
                moved: [rx, tx],
                calls: [[a, b], [c, d]],
            }),
            _ => bail!(refused(&line)),
        }
    }
}
