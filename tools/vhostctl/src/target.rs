// SPDX-License-Identifier: GPL-2.0

//! Which devices a command is about.

use std::str::FromStr;

use crate::device::{Device, Snapshot};
use crate::failure::{Failure, Result};
use crate::host::{Descriptor, Host};
use crate::rights::Rights;

/// What names devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All devices of the process that owns or holds them.
    Process(u32),
    /// One device.
    Descriptor(Descriptor),
    /// All devices of the virtual machine, process or interface of this name.
    Name(String),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if let Ok(pid) = text.parse() {
            return Ok(Self::Process(pid));
        }
        let parts = text
            .split_once(':')
            .and_then(|(pid, fd)| Some((pid.parse().ok()?, fd.parse().ok()?)));
        match parts {
            Some(descriptor) => Ok(Self::Descriptor(descriptor)),
            None if text.is_empty() => {
                Err("it is PID, PID:FD, or the name of a VM or interface".into())
            }
            None => Ok(Self::Name(text.into())),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "{pid}"),
            Self::Descriptor((pid, fd)) => write!(f, "{pid}:{fd}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Target {
    fn is(&self, device: &Device) -> bool {
        let mut holders = device.holders.iter();
        match self {
            Self::Process(pid) => {
                device.owner == Some(*pid) || holders.any(|holder| holder.pid == *pid)
            }
            Self::Descriptor(wanted) => {
                device.descriptor() == *wanted
                    || holders.any(|holder| (holder.pid, holder.fd) == *wanted)
            }
            Self::Name(name) => {
                device.vm == *name
                    || device.interfaces.contains(name)
                    || holders.any(|holder| holder.comm == *name)
            }
        }
    }

    fn pid(&self) -> Option<u32> {
        match self {
            Self::Process(pid) | Self::Descriptor((pid, _)) => Some(*pid),
            Self::Name(_) => None,
        }
    }
}

/// Keeps of a snapshot the devices that are named, all if none is.
///
/// # Errors
///
/// If a name is of no device: [`Failure::Right`] where that may be for a right that is missing, else [`Failure::NoDevice`].
pub fn select(host: &Host, snapshot: &mut Snapshot, targets: &[Target]) -> Result {
    for target in targets {
        if !snapshot.devices.iter().any(|device| target.is(device)) {
            return Err(not_found(host, snapshot, target));
        }
    }
    keep(snapshot, targets);
    Ok(())
}

/// As [`select`], without an error for what has gone.
pub fn keep(snapshot: &mut Snapshot, targets: &[Target]) {
    let wanted =
        |device: &Device| targets.is_empty() || targets.iter().any(|target| target.is(device));
    snapshot.devices.retain(wanted);
}

fn not_found(host: &Host, snapshot: &Snapshot, target: &Target) -> Failure {
    if !snapshot.loaded {
        return Failure::NoDevice("no vhost-net driver is loaded: modprobe vhost_net_rs".into());
    }
    let rights = Rights::of_this_process(host);
    let unseen = match target.pid() {
        Some(pid) => snapshot.unseen.contains(&pid),
        None => !snapshot.unseen.is_empty(),
    };
    if unseen {
        let left_out = rights.left_out(host, snapshot).join("; ");
        return Failure::Right(format!("{target}: no such device is seen: {left_out}"));
    }
    Failure::NoDevice(format!(
        "{target}: no such device: vhostctl list shows what there is"
    ))
}
