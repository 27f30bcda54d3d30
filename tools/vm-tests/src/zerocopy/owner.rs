// SPDX-License-Identifier: GPL-2.0

//! What stops a device that has packets in flight, and owners that are killed then.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use vhost_load::backend::Backend;
use vhost_load::vring::TX;

use super::{fill, options, Hold, TAP};
use crate::found::run_command;
use crate::patience::wait_for;
use crate::rig::Rig;

/// What stops a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stop {
    /// No backend any more.
    Detach,
    /// Another backend.
    Replace,
    /// No owner any more.
    ResetOwner,
    /// No device any more.
    Close,
}

/// Stops a device. Answers the tx ring's base if it is still there.
pub(super) fn stop(rig: Rig, how: Stop, other: &Backend) -> Result<Option<u32>> {
    let vhost = rig.vhost();
    match how {
        Stop::Detach => vhost.set_backend(TX, None)?,
        Stop::Replace => vhost.set_backend(TX, Some(other.as_fd()))?,
        Stop::ResetOwner => {
            vhost.reset_owner()?;
            return Ok(None);
        }
        Stop::Close => {
            drop(rig);
            return Ok(None);
        }
    }
    Ok(Some(vhost.vring_base(TX)?))
}

/// Whether the node is that of our module, with this parameter.
pub(super) fn is_ours(node: &Path) -> bool {
    node.ends_with("vhost-net-rs")
}

fn references() -> Result<u32> {
    let text = fs::read_to_string("/sys/module/vhost_net_rs/refcnt")?;
    Ok(text.trim().parse()?)
}

/// Kills a process that has packets in flight, as it waits for them or not.
pub(super) fn killed(node: &Path, how: Stop) -> Result<()> {
    let hold = Hold::new()?;
    let unused = references()?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["zerocopy-owner", "--node"])
        .arg(node)
        .arg(format!("{how:?}").to_lowercase())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let stdout = child.stdout.take().context("no pipe to the owner")?;
    BufReader::new(stdout).read_line(&mut line)?;
    ensure!(line == "ready\n", "the owner did not start: {line:?}");
    // It is in the call by then, or the same holds.
    std::thread::sleep(Duration::from_millis(100));
    child.kill()?;
    wait_for(|| matches!(child_is_gone(child.id()), Ok(true))).context("the owner is kept")?;
    child.wait()?;

    ensure!(references()? > unused, "the module could be unloaded");
    let unload = run_command("rmmod", &["vhost_net_rs"]);
    ensure!(unload.is_err(), "the module was unloaded");
    drop(hold);
    wait_for(|| matches!(references(), Ok(now) if now == unused)).context("the module is kept")
}

/// Whether a process is a zombie.
fn child_is_gone(pid: u32) -> Result<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(status.contains("State:\tZ"))
}

/// Owns a device with packets in flight, and stops it so.
///
/// # Errors
///
/// What fails first.
pub fn main(node: &Path, how: Stop) -> Result<()> {
    let rig = Rig::new(&options(node, TAP))?;
    fill(&rig)?;
    println!("ready");
    std::io::stdout().flush()?;
    if how == Stop::Detach {
        rig.vhost().set_backend(TX, None)?;
    }
    loop {
        std::thread::park();
    }
}
