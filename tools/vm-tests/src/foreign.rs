// SPDX-License-Identifier: GPL-2.0

//! Calls on a device that another process owns.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};
use vhost_uapi::{numbers, EventFd, RawArg, VhostNet};

use crate::script::{Outcome, Script};

/// A user without rights.
const NOBODY: u32 = 65534;

/// Calls for the owner, by an index of a vring or none, and those for anybody that look whether there is one.
const CALLS: &[u64] = &[
    numbers::SET_VRING_NUM,
    numbers::SET_VRING_ADDR,
    numbers::SET_VRING_BASE,
    numbers::GET_VRING_BASE,
    numbers::SET_VRING_KICK,
    numbers::SET_VRING_CALL,
    numbers::SET_VRING_ERR,
    numbers::SET_VRING_BUSYLOOP_TIMEOUT,
    numbers::GET_VRING_BUSYLOOP_TIMEOUT,
    numbers::NET_SET_BACKEND,
    numbers::SET_MEM_TABLE,
    numbers::SET_FORK_FROM_OWNER,
    numbers::GET_FORK_FROM_OWNER,
];

/// Makes the calls as other processes, with and without rights.
///
/// # Errors
///
/// The processes cannot be started.
pub fn notes(script: &mut Script) -> Result<()> {
    let vhost = script.owned()?;
    let kick = EventFd::new()?;
    vhost.set_vring_kick(0, Some(kick.as_fd()))?;
    for (who, uid) in [("root", 0), ("nobody", NOBODY)] {
        let mut command = Command::new(std::env::current_exe()?);
        let device = vhost.as_fd().try_clone_to_owned()?;
        command.arg("foreign").uid(uid).stdin(device);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut text = String::new();
        let mut stdout = child.stdout.take().context("no pipe to the process")?;
        stdout.read_to_string(&mut text)?;
        ensure!(child.wait()?.success(), "the foreign process failed");
        for line in text.lines() {
            let (call, outcome) = line.split_once('\t').context("a line without an outcome")?;
            script.text(format!("foreign process, {who}: {call}"), outcome);
        }
    }
    // What others set is what the owner gets.
    script.note("after others: window", vhost.vring_busyloop_timeout(1));
    vhost.set_vring_num(0, 64)?;

    // Without an owner nobody may, whatever the rights.
    vhost.reset_owner()?;
    for request in [
        numbers::SET_VRING_BUSYLOOP_TIMEOUT,
        numbers::GET_VRING_BUSYLOOP_TIMEOUT,
    ] {
        script.words("no owner", &vhost, request, &[0, 1]);
    }
    Ok(())
}

/// The foreign process: standard input is the device. Prints a line for each call.
pub fn main() {
    let Ok(fd) = std::io::stdin().as_fd().try_clone_to_owned() else {
        return;
    };
    let vhost = VhostNet::from(fd);
    for request in CALLS {
        let mut zero = [0; 64];
        let zero = vhost.raw_ioctl(*request, RawArg::Bytes(&mut zero));
        let name = numbers::name(*request);
        println!("{name} of zeroes\t{}", zero.text());
        let wild = vhost.raw_ioctl(*request, RawArg::KernelAddress);
        println!("{name} of a bad pointer\t{}", wild.text());
    }
    println!("SET_OWNER\t{}", vhost.set_owner().text());
    println!("RESET_OWNER\t{}", vhost.reset_owner().text());
    let window = vhost.set_vring_busyloop_timeout(1, 77);
    println!("window of 77\t{}", window.text());
    println!("window\t{}", vhost.vring_busyloop_timeout(1).text());
    println!(
        "window of ring 2\t{}",
        vhost.vring_busyloop_timeout(2).text()
    );
    println!("features\t{}", vhost.features().map(|_| ()).text());
}
