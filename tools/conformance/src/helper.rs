// SPDX-License-Identifier: GPL-2.0

//! Processes that call on devices of others.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use nix::sched::{unshare, CloneFlags};
use nix::sys::resource::{setrlimit, Resource};
use nix::unistd::{setgid, setuid, Gid, Uid};
use vhost_uapi::{receive_file, send_file, Arena, Gate};

use crate::call::{Answer, Files};
use crate::cases::{self, Case};
use crate::objects::Objects;

/// Who makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// The process that brought the device into its state: its owner, if it has one.
    Owner,
    /// Another process of root.
    Root,
    /// A user without rights.
    Nobody,
    /// Root of a user namespace of its own, with no rights outside.
    Namespace,
    /// A user without rights who may have no more threads.
    Starved,
}

impl Caller {
    /// Name in results, and in arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Root => "root",
            Self::Nobody => "nobody",
            Self::Namespace => "namespace",
            Self::Starved => "starved",
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        let others = [Self::Root, Self::Nobody, Self::Namespace, Self::Starved];
        others.into_iter().find(|caller| caller.name() == name)
    }

    /// Becomes what it is.
    fn become_it(self) -> Result<()> {
        match self {
            Self::Owner | Self::Root => (),
            Self::Namespace => unshare(CloneFlags::CLONE_NEWUSER)?,
            Self::Nobody | Self::Starved => {
                const NOBODY: u32 = 65534;
                setgid(Gid::from_raw(NOBODY))?;
                setuid(Uid::from_raw(NOBODY))?;
            }
        }
        if self == Self::Starved {
            setrlimit(Resource::RLIMIT_NPROC, 0, 0)?;
        }
        Ok(())
    }
}

/// The processes that were started.
#[derive(Debug)]
pub struct Helpers {
    node: PathBuf,
    gate: Gate,
    running: HashMap<Caller, Helper>,
}

#[derive(Debug)]
struct Helper {
    child: Child,
    channel: UnixStream,
}

impl Helpers {
    /// None yet.
    pub fn new(node: &Path, gate: Gate) -> Self {
        let (node, running) = (node.to_owned(), HashMap::new());
        Self {
            node,
            gate,
            running,
        }
    }

    /// Has another process make the call of case number `index`.
    ///
    /// # Errors
    ///
    /// It cannot be started, or fails.
    pub fn call(&mut self, caller: Caller, index: usize, device: BorrowedFd<'_>) -> Result<Answer> {
        let helper = match self.running.entry(caller) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(Helper::start(caller, &self.node, self.gate)?)
            }
        };
        helper
            .call(index, device)
            .with_context(|| format!("process {}", caller.name()))
    }
}

impl Helper {
    fn start(caller: Caller, node: &Path, gate: Gate) -> Result<Self> {
        let (channel, theirs) = UnixStream::pair()?;
        let child = Command::new(std::env::current_exe()?)
            .args(["helper", caller.name(), gate_name(gate)])
            .arg(node)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        Ok(Self { child, channel })
    }

    fn call(&mut self, index: usize, device: BorrowedFd<'_>) -> Result<Answer> {
        send_file(&self.channel, u32::try_from(index)?, device)?;
        Ok(Answer {
            returned: self.line()?,
            changed: self.line()?,
        })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        let mut byte = [0];
        loop {
            self.channel.read_exact(&mut byte).context("it ended")?;
            if byte == *b"\n" {
                return Ok(String::from_utf8(line)?);
            }
            line.push(byte[0]);
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It ends with the channel; whatever became of it, it is waited for.
        let _ = self.channel.shutdown(std::net::Shutdown::Both);
        let _ = self.child.wait();
    }
}

/// Name of a gate in arguments and results.
pub fn gate_name(gate: Gate) -> &'static str {
    match gate {
        Gate::Syscall => "syscall",
        Gate::Int80 => "int80",
    }
}

/// The gate of this name.
pub fn gate_of_name(name: &str) -> Option<Gate> {
    [Gate::Syscall, Gate::Int80]
        .into_iter()
        .find(|gate| gate_name(*gate) == name)
}

/// The process: standard input is the channel. Ends with it.
///
/// # Errors
///
/// What it cannot do.
pub fn main(caller: &str, gate: &str, node: &Path) -> Result<()> {
    let caller = Caller::of_name(caller).context("no such caller")?;
    let gate = gate_of_name(gate).context("no such gate")?;
    let cases: Vec<Case> = cases::all();
    let mut arena = Arena::new()?;
    let mut objects = Objects::new(node.to_owned());
    caller.become_it()?;
    let mut out = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    while let Some((index, device)) = receive_file(&out)? {
        // CAST: Widens.
        let case = cases.get(index as usize).context("no such case")?;
        let files = Files {
            objects: &mut objects,
            device: device.as_fd(),
        };
        let answer = case.call.make(&mut arena, gate, files)?;
        writeln!(out, "{}\n{}", answer.returned, answer.changed)?;
    }
    Ok(())
}
