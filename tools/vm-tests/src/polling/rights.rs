// SPDX-License-Identifier: GPL-2.0

//! Processes that own a device, and processes that tune another's.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{ensure, Context, Result};
use clap::ValueEnum;
use nix::sched::{unshare, CloneFlags};
use vhost_uapi::{fetch_file, VhostNet, VringPoll};

use super::{expect, DEFAULT};
use crate::script::Outcome;

/// A user without rights.
const NOBODY: u32 = 65534;

/// What such a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Opens the node and becomes the owner, until standard input ends.
    Own,
    /// Tries to tune the device that is standard input.
    Tune,
    /// As that, with all rights in a user namespace of its own.
    TuneInNamespace,
    /// Takes a CPU away.
    Hog,
}

impl Role {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Tune => "tune",
            Self::TuneInNamespace => "tune-in-namespace",
            Self::Hog => "hog",
        }
    }
}

/// Such a process.
///
/// # Errors
///
/// What fails first.
pub fn main(role: Role, node: &Path) -> Result<()> {
    if role == Role::Hog {
        return super::limits::hog();
    }
    let mut stdin = std::io::stdin();
    if role == Role::Own {
        let vhost = VhostNet::open(node, true)?;
        vhost.set_owner()?;
        println!("{}", vhost.as_fd().as_raw_fd());
        stdin.read_to_end(&mut Vec::new())?;
        return Ok(());
    }
    if role == Role::TuneInNamespace {
        unshare(CloneFlags::CLONE_NEWUSER)?;
    }
    println!("{}", tune(&stdin.as_fd().try_clone_to_owned()?.into()));
    Ok(())
}

/// What each of the calls answers.
fn tune(vhost: &VhostNet) -> String {
    let poll = VringPoll {
        start_rate: 9,
        ..DEFAULT
    };
    let calls = [
        vhost.set_poll(0, poll).text(),
        vhost.poll(0).map(|_| ()).text(),
        vhost.set_vring_busyloop_timeout(0, 9).text(),
        vhost.vring_busyloop_timeout(0).map(|_| ()).text(),
        vhost.set_vring_num(0, 64).text(),
    ];
    calls.join(" ")
}

fn command(role: Role, node: &Path) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["polling-process", role.name()]).arg(node);
    command.stdout(Stdio::piped());
    Ok(command)
}

/// A process that owns a device, and what it knows the device by.
fn owner(node: &Path) -> Result<(Child, i32)> {
    let mut child = command(Role::Own, node)?.stdin(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().context("no pipe to the process")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let file = line.trim().parse().context("the owner did not start")?;
    Ok((child, file))
}

/// Lets a process tune `vhost`, as `user` if that is not root.
fn tuned_by(vhost: &VhostNet, role: Role, user: u32) -> Result<String> {
    let mut command = command(role, Path::new("/"))?;
    command.stdin(vhost.as_fd().try_clone_to_owned()?);
    if user != 0 {
        command.uid(user);
    }
    let output = command.output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Root gets the device of a running process, and tunes it.
pub(super) fn root(node: &Path) -> Result<()> {
    let (mut child, file) = owner(node)?;
    let vhost = VhostNet::from(fetch_file(child.id(), file)?);
    let answers = tune(&vhost);
    ensure!(answers == "0 0 0 0 EPERM", "the calls answer {answers}");
    let poll = vhost.poll(0)?;
    ensure!(poll.start_rate == 9, "it is {poll:?}");
    expect("the window", vhost.vring_busyloop_timeout(0), "9")?;
    expect("SET_POLL(2)", vhost.set_poll(2, DEFAULT), "ENOBUFS")?;
    let raw = [0, 0, 0, 0, 0, 1, 0, 0];
    expect("a reserved field", vhost.set_poll_raw(raw), "EINVAL")?;
    drop(child.stdin.take());
    child.wait()?;
    // The owner is gone, the device is not.
    expect("SET_POLL", vhost.set_poll(0, DEFAULT), "0")?;
    Ok(())
}

/// Nobody else may.
pub(super) fn others(node: &Path) -> Result<()> {
    let vhost = super::owned(node)?;
    for (who, role, user, wanted) in [
        ("root", Role::Tune, 0, "0 0 0 0 EPERM"),
        (
            "a user",
            Role::Tune,
            NOBODY,
            "EPERM EPERM EPERM EPERM EPERM",
        ),
        (
            "the root of a namespace",
            Role::TuneInNamespace,
            0,
            "EPERM EPERM EPERM EPERM EPERM",
        ),
        (
            "a user's own root",
            Role::TuneInNamespace,
            NOBODY,
            "EPERM EPERM EPERM EPERM EPERM",
        ),
    ] {
        let answers = tuned_by(&vhost, role, user)?;
        ensure!(answers == wanted, "for {who} the calls answer {answers}");
    }
    vhost.reset_owner()?;
    let answers = tuned_by(&vhost, Role::Tune, 0)?;
    let wanted = "EPERM EPERM EPERM EPERM EPERM";
    ensure!(answers == wanted, "without an owner they answer {answers}");
    Ok(())
}
