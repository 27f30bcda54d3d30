// SPDX-License-Identifier: GPL-2.0

//! Feature arrays so long that the caller's CPU is gone until it is through, unless the driver looks at signals.

use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{ensure, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use vhost_uapi::{numbers, VhostNet};

use crate::patience::wait_for;
use crate::script::Outcome;

/// Words of the array: 16 GiB, of which what is only read takes no memory.
const WORDS: usize = 2 << 30;

/// Passes such an array to the device that is standard input, and says what came of it.
///
/// # Errors
///
/// Standard input is no device.
pub fn main(set: bool) -> Result<()> {
    let vhost = VhostNet::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let request = if set {
        numbers::SET_FEATURES_ARRAY
    } else {
        numbers::GET_FEATURES_ARRAY
    };
    let mut array = vec![0; WORDS];
    let outcome = vhost.features_array_in_place(request, &mut array);
    println!("{}", outcome.text());
    Ok(())
}

/// A signal ends the call long before the array does.
///
/// # Errors
///
/// It did not.
pub fn interrupted(node: &Path, set: bool) -> Result<()> {
    fs::write("/proc/sys/vm/overcommit_memory", "1").context("overcommit_memory")?;
    let vhost = VhostNet::open(node, true)?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["long-array", &set.to_string()])
        .stdin(vhost.as_fd().try_clone_to_owned()?)
        .stdout(Stdio::piped())
        .spawn()?;
    let outcome = stopped_once(&mut child);
    // It is over, or will not be for a while.
    let _ = child.kill();
    child.wait()?;
    let outcome = outcome?;
    ensure!(outcome == "EINTR", "the call ended with {outcome}");
    Ok(())
}

/// Stops the process while it is in the call, has it go on, and answers what it says.
fn stopped_once(child: &mut Child) -> Result<String> {
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let stat = format!("/proc/{pid}/stat");
    // It has been in the kernel for 50 ms: what it does before the call takes no time there.
    let in_call = || {
        let stat = fs::read_to_string(&stat).unwrap_or_default();
        // System time, in ticks, is the 13th field behind the name.
        let fields = stat.rsplit(')').next().unwrap_or("");
        let system = fields.split_whitespace().nth(12);
        system.is_some_and(|ticks| ticks.parse().is_ok_and(|ticks: u64| ticks >= 5))
    };
    wait_for(in_call).context("the call is over before a signal could end it")?;
    kill(pid, Signal::SIGSTOP)?;
    kill(pid, Signal::SIGCONT)?;
    let mut said = String::new();
    let stdout = child.stdout.as_mut().context("no pipe to the process")?;
    stdout.read_to_string(&mut said)?;
    Ok(said.trim().to_owned())
}
