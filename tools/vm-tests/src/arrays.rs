// SPDX-License-Identifier: GPL-2.0

//! Feature arrays so long that the caller's CPU is gone until it is through, unless the driver looks at signals.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use vhost_uapi::{numbers, VhostNet};

use crate::patience::wait_for;
use crate::script::Outcome;

/// Words of the array: 16 GiB, of which what is only read takes no memory.
const WORDS: usize = 2 << 30;
/// What the process says before the call.
const BEFORE: &str = "before";
/// Time in the kernel that says that the process is in the call.
const IN_CALL: Duration = Duration::from_millis(50);
/// Fields of /proc/PID/stat, counted from 0 behind the name, and milliseconds of a tick there.
const STATE: usize = 0;
const SYSTEM_TIME: usize = 12;
const TICK_MS: u64 = 10;

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
    println!("{BEFORE}");
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
    let stdout = child.stdout.take().context("no pipe to the process")?;
    let mut lines = BufReader::new(stdout).lines();
    let first = lines.next().context("the process says nothing")??;
    ensure!(first == BEFORE, "the process says '{first}'");
    // What it takes from here on is the call's: nothing else between the two lines takes time in the kernel.
    let before = system_time(pid)?;
    let in_call = || system_time(pid).is_ok_and(|now| now >= before + IN_CALL);
    wait_for(in_call).context("the call is over before a signal could end it")?;
    kill(pid, Signal::SIGSTOP)?;
    kill(pid, Signal::SIGCONT)?;
    let ended = || stat(pid, STATE).is_ok_and(|state| state == "Z");
    wait_for(ended).context("the signal does not end the call")?;
    let outcome = lines
        .next()
        .context("the process does not say how the call ended")??;
    Ok(outcome)
}

/// What the process has spent in the kernel.
fn system_time(pid: Pid) -> Result<Duration> {
    let ticks: u64 = stat(pid, SYSTEM_TIME)?.parse()?;
    Ok(Duration::from_millis(ticks.saturating_mul(TICK_MS)))
}

/// A field of /proc/PID/stat, counted from 0 behind the name.
fn stat(pid: Pid, field: usize) -> Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(')').next().unwrap_or("");
    let field = fields.split_whitespace().nth(field);
    Ok(field.context("stat is too short")?.to_owned())
}
