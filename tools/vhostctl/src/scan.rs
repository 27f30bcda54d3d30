// SPDX-License-Identifier: GPL-2.0

//! Finds the open vhost-net devices of all processes.
//!
//! By the number of the device that a descriptor is open on: the text of its link is a path of the holder's mount
//! namespace, and a device of another name than `vhost-net` has a number given at run time.

use std::io::{self, ErrorKind};

use crate::host::{Descriptor, DeviceNumber, Host};

/// Major number of misc devices.
const MISC_MAJOR: u32 = 10;
/// Directory of the module's parameters.
const NODE_PARAMETER: &str = "sys/module/vhost_net_rs/parameters/node";

/// One descriptor of a vhost-net device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Whose it is.
    pub(crate) descriptor: Descriptor,
    /// The device's minor number.
    pub(crate) minor: u32,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Descriptors of vhost-net devices, by process.
    pub(crate) holdings: Vec<Holding>,
    /// Processes that may not be looked into.
    pub(crate) unseen: Vec<u32>,
}

/// The vhost-net nodes of this host: minor number and name.
pub(crate) fn nodes(host: &Host) -> Vec<(u32, String)> {
    let ours = host.line(NODE_PARAMETER);
    let misc = host.text("proc/misc").unwrap_or_default();
    let nodes = misc.lines().filter_map(|line| {
        let (minor, name) = line.trim().split_once(' ')?;
        let name = name.trim();
        let known = name == "vhost-net" || ours.as_deref() == Some(name);
        known.then(|| Some((minor.parse().ok()?, name.to_owned())))?
    });
    nodes.collect()
}

/// Looks at all descriptors of all processes.
pub(crate) fn scan(host: &Host, nodes: &[(u32, String)]) -> Scan {
    let mut scan = Scan::default();
    for pid in host.numbers("proc").unwrap_or_default() {
        match holdings(host, nodes, pid) {
            Ok(holdings) => scan.holdings.extend(holdings),
            Err(err) if err.kind() == ErrorKind::PermissionDenied => {
                if !host.is_kernel_thread(pid) {
                    scan.unseen.push(pid);
                }
            }
            Err(_) => {} // it has ended
        }
    }
    scan
}

fn holdings(host: &Host, nodes: &[(u32, String)], pid: u32) -> io::Result<Vec<Holding>> {
    let mut holdings = Vec::new();
    for fd in host.numbers(&format!("proc/{pid}/fd"))? {
        let Ok(fd) = i32::try_from(fd) else { continue };
        let descriptor = (pid, fd);
        let Some((major, minor)) = host.device_number(descriptor)? else {
            continue;
        };
        if major == MISC_MAJOR && nodes.iter().any(|(node, _)| *node == minor) {
            holdings.push(Holding { descriptor, minor });
        }
    }
    Ok(holdings)
}

/// The interfaces of the tun and tap descriptors of a process.
pub(crate) fn taps(host: &Host, pid: u32) -> Vec<String> {
    const TUN: DeviceNumber = (MISC_MAJOR, 200);
    let mut taps = Vec::new();
    for fd in host.numbers(&format!("proc/{pid}/fd")).unwrap_or_default() {
        let Ok(number) = i32::try_from(fd) else {
            continue;
        };
        if !matches!(host.device_number((pid, number)), Ok(Some(TUN))) {
            continue;
        }
        let info = host
            .text(&format!("proc/{pid}/fdinfo/{fd}"))
            .unwrap_or_default();
        let name = info.lines().find_map(|line| line.strip_prefix("iff:"));
        let name = name.map(|name| name.trim().to_owned());
        taps.extend(name.filter(|name| !name.is_empty()));
    }
    taps.sort_unstable();
    taps.dedup();
    taps
}
