// SPDX-License-Identifier: GPL-2.0

//! Processes that own a device and are killed, or limited. Standard input is the device.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::Child;

use anyhow::{ensure, Context, Result};
use clap::ValueEnum;
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use vhost_uapi::VhostNet;

use super::Kind;
use crate::script::Outcome;

/// A user without rights.
pub(super) const NOBODY: u32 = 65534;
/// Pages that a large owner has.
pub(super) const PAGES: u64 = 8192;
const PAGE_SIZE: usize = 4096;

/// What such a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Becomes the owner and ceases to be it, for ever.
    Cycle,
    /// Becomes the owner, of another device too, with much memory.
    Large,
    /// Tries to become the owner at its user's limit of processes, and says what came of it.
    Limited,
}

impl Role {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cycle => "cycle",
            Self::Large => "large",
            Self::Limited => "limited",
        }
    }
}

/// Waits until a process has begun.
pub(super) fn expect_ready(child: &mut Child) -> Result<()> {
    let stdout = child.stdout.take().context("no pipe to the process")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    ensure!(line == "ready\n", "the process did not start: {line:?}");
    Ok(())
}

/// Such a process.
///
/// # Errors
///
/// What fails first.
pub fn main(role: Role, kind: u8) -> Result<()> {
    let vhost = VhostNet::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    match role {
        Role::Cycle => {
            println!("ready");
            loop {
                // Another process does the same: each may be refused.
                let _ = vhost.set_fork_from_owner(kind);
                let _ = vhost.set_owner();
                let _ = vhost.reset_owner();
            }
        }
        Role::Large => {
            vhost.set_owner()?;
            let second = VhostNet::open("/proc/self/fd/0".as_ref(), true)?;
            second.set_fork_from_owner(kind)?;
            second.set_owner()?;
            let mut ballast = vec![0_u8; PAGES as usize * PAGE_SIZE]; // CAST: Widens.
            for page in ballast.chunks_mut(PAGE_SIZE) {
                page[0] = 1;
            }
            println!("ready");
            loop {
                std::thread::park();
                std::hint::black_box(&ballast);
            }
        }
        Role::Limited => limited(&vhost),
    }
}

fn limited(vhost: &VhostNet) -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NPROC)?;
    setrlimit(Resource::RLIMIT_NPROC, 1, hard)?;
    let task = vhost.set_owner().text();
    let owner = vhost.set_vring_num(0, 64).text();
    vhost.set_fork_from_owner(Kind::Kernel as u8)?; // CAST: 0 or 1.
    let kthread = vhost.set_owner().text();
    let reset = vhost.reset_owner().text();
    setrlimit(Resource::RLIMIT_NPROC, 2, hard)?;
    let again = vhost.set_owner().text();
    println!(
        "task {task}, owner {owner}, kthread {kthread}, reset {reset}, task with room {again}"
    );
    Ok(())
}
