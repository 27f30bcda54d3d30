// SPDX-License-Identifier: GPL-2.0

//! The live devices of the host, each with all that can be known of it.

use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::time::Instant;

use crate::fdinfo::{self, FdInfo, Keys};
use crate::host::{Descriptor, Host};
use crate::process;
use crate::scan::{self, Holding};

/// Which module serves a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Driver {
    /// `vhost_net_rs`.
    #[serde(rename = "vhost_net_rs")]
    Rust,
    /// C's `vhost_net`, or another that says nothing in fdinfo.
    #[serde(rename = "vhost_net")]
    C,
}

/// A process that has a device open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Descriptor.
    pub fd: i32,
    /// Its name.
    pub comm: String,
}

/// A thread that works for a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Worker {
    /// Thread id.
    pub tid: u32,
    /// CPU time so far in nanoseconds, if it can be known.
    pub cpu_ns: Option<u64>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// `PID:FD` of the owner if it holds the device, else of the first holder.
    pub id: String,
    /// Name of the node.
    pub node: String,
    /// Its minor number.
    pub minor: u32,
    /// Who serves it.
    pub driver: Driver,
    /// Name of the virtual machine, or else of the process.
    pub vm: String,
    /// Process id of the owner, nothing if there is none or the driver does not say.
    pub owner: Option<u32>,
    /// Its worker. C does not say which it is: all vhost workers of the holders, then.
    pub workers: Vec<Worker>,
    /// Interfaces behind the vrings. If the driver does not say: those of all taps of the holders.
    pub interfaces: Vec<String>,
    /// Who has it open.
    pub holders: Vec<Holder>,
    /// What else the driver says.
    pub keys: Keys,
    /// What it says of the vrings; nothing on C's devices.
    pub vrings: Vec<Vring>,
}

/// One vring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vring {
    /// `rx` or `tx`.
    pub name: &'static str,
    /// What the driver says of it.
    pub keys: Keys,
}

impl Device {
    /// The descriptor that the id names.
    pub fn descriptor(&self) -> Descriptor {
        let first = self
            .holders
            .iter()
            .find(|holder| Some(holder.pid) == self.owner);
        let holder = first.or(self.holders.first());
        holder.map_or((0, -1), |holder| (holder.pid, holder.fd))
    }

    /// CPU time of its workers, nothing if that of none is known.
    pub fn cpu_ns(&self) -> Option<u64> {
        let times = self.workers.iter().filter_map(|worker| worker.cpu_ns);
        times.reduce(u64::wrapping_add)
    }
}

/// All devices at one time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When it was taken.
    pub at: Instant,
    /// Host CPU time in ticks: all, idle.
    pub ticks: Option<(u64, u64)>,
    /// Whether there is a vhost-net driver.
    pub loaded: bool,
    /// By process id.
    pub devices: Vec<Device>,
    /// Processes that may not be looked into.
    pub unseen: Vec<u32>,
}

/// Looks at the host.
pub fn snapshot(host: &Host) -> Snapshot {
    let nodes = scan::nodes(host);
    let found = scan::scan(host, &nodes);
    let mut unseen = found.unseen;
    let mut devices = Vec::new();
    for holdings in group(host, &found.holdings) {
        match device(host, &nodes, &holdings) {
            Ok(device) => devices.extend(device),
            Err(pid) => unseen.push(pid),
        }
    }
    devices.sort_by_key(Device::descriptor);
    Snapshot {
        at: Instant::now(),
        ticks: host.cpu_ticks(),
        loaded: !nodes.is_empty(),
        devices,
        unseen,
    }
}

/// Puts the descriptors of one open file together.
fn group(host: &Host, holdings: &[Holding]) -> Vec<Vec<Holding>> {
    let mut groups: Vec<Vec<Holding>> = Vec::new();
    for holding in holdings {
        let order = |group: &Vec<Holding>| -> Ordering {
            let other = group[0];
            let minors = other.minor.cmp(&holding.minor);
            minors.then_with(|| host.compare(other.descriptor, holding.descriptor))
        };
        match groups.binary_search_by(order) {
            Ok(place) => groups[place].push(*holding),
            Err(place) => groups.insert(place, vec![*holding]),
        }
    }
    groups
}

/// Makes a device of its descriptors; nothing if all were closed meanwhile, the process that may not be read if there is one.
fn device(
    host: &Host,
    nodes: &[(u32, String)],
    holdings: &[Holding],
) -> Result<Option<Device>, u32> {
    let mut denied = None;
    let mut text = None;
    for Holding {
        descriptor: (pid, fd),
        ..
    } in holdings
    {
        match host.text(&format!("proc/{pid}/fdinfo/{fd}")) {
            Ok(read) => {
                text = Some(read);
                break;
            }
            Err(err) if err.kind() == std::io::ErrorKind::PermissionDenied => denied = Some(*pid),
            Err(_) => {}
        }
    }
    let Some(text) = text else {
        return denied.map_or(Ok(None), Err);
    };
    let node = nodes.iter().find(|(minor, _)| *minor == holdings[0].minor);
    let mut device = Device {
        id: String::new(),
        node: node.map_or_else(String::new, |(_, name)| name.clone()),
        minor: holdings[0].minor,
        driver: Driver::C,
        vm: String::new(),
        owner: None,
        workers: Vec::new(),
        interfaces: Vec::new(),
        holders: holders(host, holdings),
        keys: Keys::new(),
        vrings: Vec::new(),
    };
    match FdInfo::parse(&text) {
        Some(info) => describe(host, &mut device, info),
        None => describe_c(host, &mut device),
    }
    let (pid, fd) = device.descriptor();
    device.id = format!("{pid}:{fd}");
    device.vm = process::vm_name(host, device.owner.unwrap_or(pid));
    Ok(Some(device))
}

fn holders(host: &Host, holdings: &[Holding]) -> Vec<Holder> {
    let holder = |holding: &Holding| {
        let (pid, fd) = holding.descriptor;
        let comm = host.line(&format!("proc/{pid}/comm")).unwrap_or_default();
        Holder { pid, fd, comm }
    };
    holdings.iter().map(holder).collect()
}

/// The processes that hold a device, each once.
fn pids(device: &Device) -> BTreeSet<u32> {
    device.holders.iter().map(|holder| holder.pid).collect()
}

/// Fills in what our driver says.
fn describe(host: &Host, device: &mut Device, mut info: FdInfo) {
    device.driver = Driver::Rust;
    let mut id = |key| {
        let value = info.device.shift_remove(key)?.as_u64();
        value
            .and_then(|id| u32::try_from(id).ok())
            .filter(|id| *id != 0)
    };
    device.owner = id("owner");
    device.workers.extend(id("worker").map(|tid| Worker {
        tid,
        cpu_ns: host.cpu_time(tid),
    }));
    device.keys = info.device;
    let says = info.vrings.iter().any(|keys| keys.contains_key("backend"));
    for keys in &info.vrings {
        let name = keys.get("backend").and_then(serde_json::Value::as_str);
        let name = name.filter(|name| !name.is_empty() && *name != "none");
        let name = name.map(|name| name.strip_prefix("packet:").unwrap_or(name).to_owned());
        device
            .interfaces
            .extend(name.filter(|name| !device.interfaces.contains(name)));
    }
    if !says {
        device.interfaces = scan_taps(host, device);
    }
    let vrings = fdinfo::VRINGS.into_iter().zip(info.vrings);
    device.vrings = vrings.map(|(name, keys)| Vring { name, keys }).collect();
}

/// Fills in what can be known of a device that says nothing.
fn describe_c(host: &Host, device: &mut Device) {
    for pid in pids(device) {
        for tid in process::workers(host, pid) {
            device.workers.push(Worker {
                tid,
                cpu_ns: host.cpu_time(tid),
            });
        }
    }
    device.interfaces = scan_taps(host, device);
}

fn scan_taps(host: &Host, device: &Device) -> Vec<String> {
    let taps = pids(device)
        .into_iter()
        .flat_map(|pid| scan::taps(host, pid));
    let taps: BTreeSet<String> = taps.collect();
    taps.into_iter().collect()
}
